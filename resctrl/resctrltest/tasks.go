package resctrltest

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

type task struct {
	process *Process
	group   *group // its monitoring group, or its control group
}

// Process is a process with its threads.
type Process struct {
	kernel *Kernel
	id     int
}

// writer is the task that writes: "0" in a tasks file.
const writer = 3

// start makes a process whose threads begin in a group.
func (k *Kernel) start(threads int, g *group) *Process {
	p := &Process{kernel: k, id: k.lastID + 1}
	for range threads {
		k.lastID++
		k.tasks[k.lastID] = &task{process: p, group: g}
	}
	return p
}

// Start makes a process of so many threads in the root group.
func (k *Kernel) Start(threads int) *Process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.start(max(1, threads), k.root)
}

// ID is the process' id, and that of its first thread.
func (p *Process) ID() int { return p.id }

// Threads are the ids of the threads that live, by number.
func (p *Process) Threads() []int {
	p.kernel.mu.Lock()
	defer p.kernel.mu.Unlock()
	var ids []int
	for _, id := range slices.Sorted(maps.Keys(p.kernel.tasks)) {
		if p.kernel.tasks[id].process == p {
			ids = append(ids, id)
		}
	}
	return ids
}

// Clone makes a thread by another, in whose group it begins. It is 0 if that thread has ended.
func (p *Process) Clone(thread int) int {
	k := p.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.tasks[thread]
	if t == nil || t.process != p {
		return 0
	}
	k.lastID++
	k.tasks[k.lastID] = &task{process: p, group: t.group}
	return k.lastID
}

// Fork makes a process of one thread, in the group of the first thread that lives.
func (p *Process) Fork() *Process {
	threads := p.Threads()
	k := p.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(threads) == 0 {
		return k.start(1, k.root)
	}
	return k.start(1, k.tasks[threads[0]].group)
}

// Exit ends the process, or only some of its threads.
func (p *Process) Exit(threads ...int) {
	if len(threads) == 0 {
		threads = p.Threads()
	}
	p.kernel.mu.Lock()
	defer p.kernel.mu.Unlock()
	for _, id := range threads {
		if t := p.kernel.tasks[id]; t != nil && t.process == p {
			delete(p.kernel.tasks, id)
		}
	}
}

func (k *Kernel) storeTasks(g *group, data string) error {
	if k.old() {
		// One id a write, and no text but for tasks that are not there.
		id, err := parseID(trim(data))
		if err != nil || id < 0 {
			return syscall.EINVAL
		}
		k.hush()
		return k.moveTask(g, id)
	}
	k.hush()
	for rest := data; rest != "" && rest[0] != '\n'; {
		var text string
		text, rest, _ = strings.Cut(rest, ",")
		text = trim(text)
		id, err := parseID(text)
		if err != nil {
			k.say("Task list parsing error pid %s\n", text)
			return syscall.EINVAL
		}
		if id < 0 {
			k.say("Invalid pid %d\n", id)
			return syscall.EINVAL
		}
		if err := k.moveTask(g, id); err != nil {
			k.say("Error while processing task %d\n", id)
			return err
		}
	}
	return nil
}

// parseID reads as the kernel's kstrtoint with base 0 does.
func parseID(text string) (int, error) {
	if strings.Contains(text, "_") {
		return 0, syscall.EINVAL
	}
	id, err := strconv.ParseInt(text, 0, 32)
	return int(id), err
}

func (k *Kernel) moveTask(g *group, id int) error {
	if id == 0 {
		id = writer
	}
	t := k.tasks[id]
	if t == nil {
		k.say("No task %d\n", id)
		return syscall.ESRCH
	}
	if g.parent != nil && t.group.control() != g.parent {
		k.say("Can't move task to different control group\n")
		return syscall.EINVAL
	}
	t.group = g
	return nil
}
