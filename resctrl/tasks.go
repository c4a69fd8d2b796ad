package resctrl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Tasks lists the ids of the threads in the group, by number. Of a control group they are all, those in its monitoring groups too.
func (g *Group) Tasks() ([]int, error) {
	text, err := g.fs.read(g.file("tasks"))
	if err != nil {
		return nil, err
	}
	return parseTasks(text)
}

// parseTasks reads an id a line. Ids of tasks in other PID namespaces read 0 and are left out.
func parseTasks(text string) ([]int, error) {
	var ids []int
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" {
			continue
		}
		id, err := strconv.ParseUint(line, 10, 31)
		if err != nil {
			return nil, &ParseError{"tasks", line, "a task id"}
		}
		if id > 0 {
			ids = append(ids, int(id))
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// AddTasks moves threads into the group. Each is written by itself: so every kernel takes it (before 6.8 only one id a
// write), and it is certain which ids moved. All are tried; those that fail come back in a *TasksError. To move a thread
// into a monitoring group, move it into its control group first. Children that a thread makes later start in its group.
func (g *Group) AddTasks(ids []int) error {
	result := &TasksError{Group: g.path}
	for i, id := range ids {
		// 0 would be the thread that writes.
		if id <= 0 {
			result.Failed = append(result.Failed, TaskError{id, fmt.Errorf("task id %d: %w", id, ErrRefused)})
			continue
		}
		err := g.fs.write(g.file("tasks"), strconv.Itoa(id)+"\n")
		switch {
		case err == nil:
			result.Moved = append(result.Moved, id)
		case errors.Is(err, ErrGone), errors.Is(err, ErrNotMounted), errors.Is(err, ErrReadOnly), errors.Is(err, syscall.EACCES):
			// The rest would fail alike.
			for _, id := range ids[i:] {
				result.Failed = append(result.Failed, TaskError{id, err})
			}
			return result
		default:
			result.Failed = append(result.Failed, TaskError{id, err})
		}
	}
	if len(result.Failed) > 0 {
		return result
	}
	return nil
}

// Moved says how MoveThreads ended.
type Moved struct {
	Rounds  int   // lists that were read
	Threads int   // moves that the kernel took
	Left    []int // threads that were outside of the group at the last look
}

// MoveThreads moves a running container, say: all threads that the function lists, until all that it lists are in the
// group. A thread that forks while it is being moved may leave a child outside, so the list is read again after each
// round of moves. Threads that ended meanwhile are passed over. The error is nil if the last list was a subset of the
// group's tasks, ErrUnsettled if the rounds were spent before, and otherwise what kept a thread from moving; Moved tells
// how far it came in each case. Nothing is moved back.
func MoveThreads(ctx context.Context, group *Group, threads func() ([]int, error), rounds int) (Moved, error) {
	var m Moved
	for {
		if err := ctx.Err(); err != nil {
			return m, err
		}
		ids, err := threads()
		if err != nil {
			return m, fmt.Errorf("list threads: %w", err)
		}
		inside, err := group.Tasks()
		if err != nil {
			return m, err
		}
		m.Rounds++
		m.Left = slices.DeleteFunc(slices.Clone(ids), func(id int) bool {
			_, found := slices.BinarySearch(inside, id)
			return found
		})
		if len(m.Left) == 0 {
			return m, nil
		}
		if m.Rounds > rounds {
			return m, fmt.Errorf("move threads to %s: %d of %d after %d rounds: %w", group.path, len(m.Left), len(ids), rounds, ErrUnsettled)
		}
		moved, err := addAll(group, m.Left)
		m.Threads += moved
		if err != nil {
			return m, err
		}
	}
}

// addAll is AddTasks where tasks that have ended don't matter.
func addAll(group *Group, ids []int) (moved int, err error) {
	err = group.AddTasks(ids)
	if err == nil {
		return len(ids), nil
	}
	failed, ok := errors.AsType[*TasksError](err)
	if !ok {
		return 0, err
	}
	rest := slices.DeleteFunc(slices.Clone(failed.Failed), func(t TaskError) bool { return errors.Is(t.Err, syscall.ESRCH) })
	if len(rest) == 0 {
		return len(failed.Moved), nil
	}
	return len(failed.Moved), &TasksError{Group: failed.Group, Moved: failed.Moved, Failed: rest}
}
