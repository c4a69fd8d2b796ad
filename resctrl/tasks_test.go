package resctrl_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tideline-io/tideline/resctrl"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

func TestAddTasks(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"6.12", "6.1"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			l := resctrltest.Intel()
			l.Kernel = version
			k, f := open(l)
			g := create(t, f, "g1")
			p := k.Start(10_000)
			ids := p.Threads()
			if err := g.AddTasks(ids); err != nil {
				t.Fatal(err)
			}
			if in, err := g.Tasks(); err != nil || !slices.Equal(in, ids) {
				t.Errorf("%d tasks, %v", len(in), err)
			}
		})
	}
}

func TestAddTasksInPart(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	a, b := k.Start(1).ID(), k.Start(1).ID()
	err := g.AddTasks([]int{a, 999999, 0, -5, b})
	var e *resctrl.TasksError
	if !errors.As(err, &e) || !slices.Equal(e.Moved, []int{a, b}) || len(e.Failed) != 3 {
		t.Fatalf("%v", err)
	}
	if !errors.Is(err, syscall.ESRCH) || !errors.Is(err, resctrl.ErrRefused) || errors.Is(err, syscall.EPERM) {
		t.Errorf("causes of %v", err)
	}
	if e.Failed[0].ID != 999999 || !errors.Is(e.Failed[0].Err, syscall.ESRCH) || e.Failed[1].ID != 0 || e.Failed[2].ID != -5 {
		t.Errorf("failed %v", e.Failed)
	}
	const want = "move tasks to g1: 2 moved, 3 not: 999999: write \"999999\" to g1/tasks: no such process " +
		"(No task 999999; Error while processing task 999999); 0: task id 0: refused; -5: task id -5: refused"
	if err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	if err := g.AddTasks(nil); err != nil {
		t.Errorf("no tasks: %v", err)
	}
}

func TestAddTasksToGroupThatGoes(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	ids := k.Start(10).Threads()
	n := 0
	k.Before(func(op, name string) error {
		if n++; n == 4 {
			return k.Rmdir("g1")
		}
		return nil
	})
	err := g.AddTasks(ids)
	var e *resctrl.TasksError
	if !errors.As(err, &e) || len(e.Moved) != 3 || len(e.Failed) != 7 || !errors.Is(err, resctrl.ErrGone) {
		t.Errorf("%v", err)
	}
}

func TestMonGroupNeedsControlGroup(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	m, err := g.CreateMonGroup(t.Context(), "m1")
	if err != nil {
		t.Fatal(err)
	}
	ids := k.Start(1).Threads()
	err = m.AddTasks(ids)
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "Can't move task to different control group") {
		t.Errorf("%v", err)
	}
	if err := errors.Join(g.AddTasks(ids), m.AddTasks(ids)); err != nil {
		t.Error(err)
	}
}

func TestMoveThreads(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	p := k.Start(3)
	// A thread that has not moved yet makes another one, twice; a third ends before it is moved.
	forks := 0
	k.Before(func(op, name string) error {
		if op != "write" {
			return nil
		}
		switch forks++; forks {
		case 1, 4:
			p.Clone(p.Threads()[len(p.Threads())-1])
		case 3:
			p.Exit(p.ID() + 2)
		}
		return nil
	})
	threads := func() ([]int, error) { return p.Threads(), nil }
	m, err := resctrl.MoveThreads(t.Context(), g, threads, 5)
	if err != nil || m.Rounds != 4 || len(m.Left) != 0 || m.Threads != 4 {
		t.Errorf("%+v, %v", m, err)
	}
	if in, _ := g.Tasks(); !slices.Equal(in, p.Threads()) {
		t.Errorf("tasks %v, threads %v", in, p.Threads())
	}
	// The second time there is nothing to do.
	if m, err := resctrl.MoveThreads(t.Context(), g, threads, 5); err != nil || m.Rounds != 1 || m.Threads != 0 {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestMoveThreadsUnsettled(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	other := k.Start(1)
	threads := func() ([]int, error) { return []int{other.Fork().ID()}, nil }
	m, err := resctrl.MoveThreads(t.Context(), g, threads, 3)
	if !errors.Is(err, resctrl.ErrUnsettled) || m.Rounds != 4 || m.Threads != 3 || len(m.Left) != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	if err == nil || err.Error() != "move threads to g1: 1 of 1 after 3 rounds: threads are left outside of the group" {
		t.Error(err)
	}
}

func TestMoveThreadsFails(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	p := k.Start(2)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := resctrl.MoveThreads(cancelled, g, func() ([]int, error) { return nil, nil }, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := resctrl.MoveThreads(t.Context(), g, func() ([]int, error) { return nil, syscall.ENOENT }, 1); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("the list fails: %v", err)
	}
	k.Before(func(op, name string) error {
		if op == "write" {
			return syscall.EPERM
		}
		return nil
	})
	m, err := resctrl.MoveThreads(t.Context(), g, func() ([]int, error) { return p.Threads(), nil }, 5)
	if !errors.Is(err, syscall.EPERM) || m.Threads != 0 || len(m.Left) != 2 {
		t.Errorf("%+v, %v", m, err)
	}
	k.Before(nil)
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := resctrl.MoveThreads(t.Context(), g, func() ([]int, error) { return p.Threads(), nil }, 5); !errors.Is(err, resctrl.ErrGone) {
		t.Errorf("gone: %v", err)
	}
}

func BenchmarkAddTasks(b *testing.B) {
	k := resctrltest.New(resctrltest.Intel())
	f := resctrl.Open(k)
	g, err := f.Create(b.Context(), "g1")
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1, 100} {
		ids := k.Start(n).Threads()
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				if err := g.AddTasks(ids); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
