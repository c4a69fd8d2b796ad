// Package cgrouptest is a fake of the kernel's cgroup file systems in a directory, for tests. It takes, refuses and
// reshapes values as the kernel does; the test TestRealKernel of package cgroup runs the same operations on both.
// The files are the only state: a test may read them, and write them where it means to go behind the kernel's back.
//
//	k, err := cgrouptest.New(t.TempDir(), cgrouptest.V2)
//	err = k.Make("/kubepods/burstable/podX/ID")
//	f, err := cgroup.Open(k.Config(t.TempDir()))
//
// It knows the files that package cgroup writes and no others, has no tasks and accounts for nothing.
package cgrouptest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tideline-io/tideline/internal/cgroup"
)

// Layout says which hierarchies there are.
type Layout string

// Layouts.
const (
	V1 Layout = "v1" // hybrid: a mount for each v1 controller, and a unified one without any
	V2 Layout = "v2" // unified
)

// Kernel is the fake. It is safe for several goroutines; the exported fields are to be set before it is used.
type Kernel struct {
	// Hook sees every write before the rules do. Its error is the write's. It may call the Kernel.
	Hook func(p cgroup.Path, file, data string) error
	// Devices are the numbers of the block devices there are: 254:0 and 8:0 unless changed.
	Devices []string
	// IdleWeight is what cpu.weight shows under idle: 0, or 1 as from kernel 6.12 on.
	IdleWeight string

	root    string
	layout  Layout
	without []string
	cpus    int
	nodes   int
	dev     uint64

	mu        sync.Mutex
	ids       map[string]uint64 // by directory; a directory that is not here is removed
	populated map[string]bool   // cgroups that a process was put into
	lastID    uint64
	writes    []Write
}

// Write is one write that reached the rules, refused ones included.
type Write struct {
	Path cgroup.Path
	File string
	Data string
	Err  error
}

// New makes the root cgroups and mountinfo below dir. The kernel lacks the files named by without.
func New(dir string, layout Layout, without ...string) (*Kernel, error) {
	k := &Kernel{root: dir, layout: layout, without: without, Devices: []string{"254:0", "8:0"}, IdleWeight: "0", ids: map[string]uint64{}, populated: map[string]bool{}}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", dir, err)
	}
	k.dev = st.Dev
	k.cpus, k.nodes = 4, 1
	var mountinfo strings.Builder
	for i, h := range hierarchies(layout) {
		fmt.Fprintf(&mountinfo, "%d 22 %d:%d / %s rw,relatime - %s %s rw%s\n", 31+i, unix.Major(st.Dev), unix.Minor(st.Dev), h.point, h.fstype, h.fstype, h.option)
		if err := os.MkdirAll(filepath.Join(dir, h.point), 0o755); err != nil {
			return nil, err
		}
		if err := k.populate(h, "/"); err != nil {
			return nil, err
		}
	}
	if err := k.SetProc("self/mountinfo", mountinfo.String()); err != nil {
		return nil, err
	}
	return k, k.SetProc("sys/kernel/random/boot_id", "6ba7b810-9dad-11d1-80b4-00c04fd430c8\n")
}

// Config opens the fake: cgroup.Open(k.Config(stateDir)).
func (k *Kernel) Config(stateDir string) cgroup.Config {
	return cgroup.Config{Root: k.root, StateDir: stateDir, Kernel: k}
}

// Root is the directory that stands for "/".
func (k *Kernel) Root() string { return k.root }

// SetProc writes a file below /proc.
func (k *Kernel) SetProc(name, text string) error {
	file := filepath.Join(k.root, "proc", name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// SetSize changes the machine from 4 CPUs and 1 memory node. Cgroups that exist keep their lists.
func (k *Kernel) SetSize(cpus, nodes int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cpus, k.nodes = cpus, nodes
	if k.layout == V2 {
		return nil
	}
	dir := filepath.Join(k.root, "sys/fs/cgroup/cpuset")
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "cpuset.cpus"), []byte(upTo(cpus)), 0o644),
		os.WriteFile(filepath.Join(dir, "cpuset.mems"), []byte(upTo(nodes)), 0o644),
	)
}

func upTo(n int) string {
	if n <= 1 {
		return "0\n"
	}
	return fmt.Sprintf("0-%d\n", n-1)
}

// AddProcess writes /proc/PID/cgroup of a process in a cgroup.
func (k *Kernel) AddProcess(pid int, p cgroup.Path) error {
	var text strings.Builder
	hs := hierarchies(k.layout)
	for i := len(hs) - 1; i >= 0; i-- {
		number := i + 1
		if hs[i].fstype == "cgroup2" {
			number = 0
		}
		fmt.Fprintf(&text, "%d:%s:%s\n", number, strings.TrimPrefix(hs[i].option, ","), p)
	}
	k.mu.Lock()
	k.populated[string(p)] = true
	k.mu.Unlock()
	return k.SetProc(strconv.Itoa(pid)+"/cgroup", text.String())
}

// SetThreads makes these the threads of a cgroup.
func (k *Kernel) SetThreads(p cgroup.Path, ids ...int) error {
	var text strings.Builder
	for _, id := range ids {
		fmt.Fprintln(&text, id)
	}
	file := "cgroup.threads"
	if k.layout != V2 {
		file = "tasks"
	}
	h, err := k.holding(file)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return os.WriteFile(k.file(h, string(p), file), []byte(text.String()), 0o644)
}

// Mkdir makes a cgroup and its missing ancestors in every hierarchy, with the kernel's defaults.
func (k *Kernel) Mkdir(p cgroup.Path) error { return k.mkdir(p, false) }

// Make is Mkdir by a kubelet or runtime: on v1 the cpusets of new cgroups are copied from their parents.
func (k *Kernel) Make(p cgroup.Path) error { return k.mkdir(p, true) }

func (k *Kernel) mkdir(p cgroup.Path, inherit bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range hierarchies(k.layout) {
		at := "/"
		for name := range strings.SplitSeq(strings.TrimPrefix(string(p), "/"), "/") {
			parent := at
			at = path.Join(at, name)
			if _, ok := k.ids[h.point+at]; ok {
				continue
			}
			if err := os.Mkdir(k.file(h, at, ""), 0o755); err != nil {
				return err
			}
			if err := k.populate(h, at); err != nil {
				return err
			}
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if !inherit || h.option != ",cpuset" {
					continue
				}
				text, err := os.ReadFile(k.file(h, parent, file))
				if err != nil {
					return err
				}
				if err := os.WriteFile(k.file(h, at, file), text, 0o644); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Rmdir removes a cgroup and all below it from every hierarchy, as the end of a container does.
func (k *Kernel) Rmdir(p cgroup.Path) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, h := range hierarchies(k.layout) {
		dir := h.point + string(p)
		for at := range k.ids {
			if at == dir || strings.HasPrefix(at, dir+"/") {
				delete(k.ids, at)
			}
		}
		errs = append(errs, os.RemoveAll(filepath.Join(k.root, dir)))
	}
	return errors.Join(errs...)
}

// Unplug makes the kernel forget a block device ("254:0"), and its limits with it.
func (k *Kernel) Unplug(device string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Devices = slices.DeleteFunc(slices.Clone(k.Devices), func(d string) bool { return d == device })
	return filepath.WalkDir(filepath.Join(k.root, "sys/fs/cgroup"), func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() != "io.max" && !strings.HasPrefix(d.Name(), "blkio.throttle.") {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var kept strings.Builder
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, device+" ") {
				kept.WriteString(line)
			}
		}
		return os.WriteFile(file, []byte(kept.String()), 0o644)
	})
}

// Set writes a file as another writer would, the kubelet or the runtime say. It is not in Writes.
func (k *Kernel) Set(p cgroup.Path, file, data string) error {
	h, err := k.holding(file)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.apply(h, string(p), file, data)
}

// Get reads a file.
func (k *Kernel) Get(p cgroup.Path, file string) (string, error) {
	h, err := k.holding(file)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(k.file(h, string(p), file))
	return strings.TrimSuffix(string(text), "\n"), err
}

// Writes returns the writes so far that came through OpenDir, in order.
func (k *Kernel) Writes() []Write {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.writes)
}

func (k *Kernel) holding(file string) (hierarchy, error) {
	for _, h := range hierarchies(k.layout) {
		if _, ok := h.files[file]; ok {
			return h, nil
		}
	}
	return hierarchy{}, fmt.Errorf("file %s: %w", file, fs.ErrNotExist)
}

func (k *Kernel) file(h hierarchy, p, file string) string {
	return filepath.Join(k.root, h.point, p, file)
}

// populate gives a new cgroup its files.
func (k *Kernel) populate(h hierarchy, p string) error {
	k.lastID++
	k.ids[h.point+p] = k.lastID
	for name, text := range h.files {
		if slices.Contains(k.without, name) {
			continue
		}
		if p == "/" {
			rootText, ok := h.rootFiles[name]
			if !ok {
				continue
			}
			text = rootText
		}
		switch name {
		case effectiveCPUs:
			text = upTo(k.cpus)
		case effectiveMems:
			text = upTo(k.nodes)
		}
		if err := os.WriteFile(k.file(h, p, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// OpenDir implements cgroup.Kernel.
func (k *Kernel) OpenDir(m cgroup.Mount, p string) (cgroup.Dir, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range hierarchies(k.layout) {
		if h.point != m.Point {
			continue
		}
		id, ok := k.ids[h.point+p]
		if !ok {
			return nil, fmt.Errorf("open %s%s: %w", h.point, p, unix.ENOENT)
		}
		return &dir{k: k, h: h, path: p, id: id}, nil
	}
	return nil, fmt.Errorf("open %s: nothing is mounted there: %w", m.Point, unix.ENOENT)
}

type dir struct {
	k    *Kernel
	h    hierarchy
	path string
	id   uint64
}

func (d *dir) ID() cgroup.ID { return cgroup.ID{Dev: d.k.dev, Ino: d.id} }
func (d *dir) Close() error  { return nil }

func (d *dir) live() bool { return d.k.ids[d.h.point+d.path] == d.id }

func (d *dir) ReadFile(name string) (string, error) {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	if !d.live() {
		return "", unix.ENOENT
	}
	text, err := os.ReadFile(d.k.file(d.h, d.path, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", unix.ENOENT
	}
	return string(text), err
}

func (d *dir) Children() ([]string, error) {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	if !d.live() {
		return nil, unix.ENOENT
	}
	at := d.h.point + strings.TrimSuffix(d.path, "/") + "/"
	var names []string
	for p := range d.k.ids {
		if name, ok := strings.CutPrefix(p, at); ok && name != "" && !strings.Contains(name, "/") {
			names = append(names, name)
		}
	}
	return names, nil
}

func (d *dir) WriteFile(name, data string) error {
	if d.k.Hook != nil {
		if err := d.k.Hook(cgroup.Path(d.path), name, data); err != nil {
			return err
		}
	}
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	err := error(unix.ENODEV)
	if d.live() {
		err = d.k.apply(d.h, d.path, name, data)
	}
	d.k.writes = append(d.k.writes, Write{cgroup.Path(d.path), name, data, err})
	return err
}
