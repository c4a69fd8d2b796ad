// Package hostfs reads what Tideline may know of a machine from /sys and /proc under an injected root, and carries the
// same facts to another machine as a text snapshot. It writes nothing, reads no process but itself, and decides nothing.
//
//	h := hostfs.Open("/")
//	facts, err := h.ReadFacts()
//	err = hostfs.Snapshot(h, file)       // for a bug report, or a test
//	facts, err = hostfs.FromSnapshot(data)
//
// What is missing or unreadable is unknown, and named in Facts.Problems; it is no error.
package hostfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/policy"
)

// Facts is what one reading of a machine gave. The zero value of a field means unknown unless it says otherwise.
type Facts struct {
	Node          policy.Node
	Kernel        string // release, "6.1.0-57-amd64"
	CgroupDriver  string // "systemd" or "cgroupfs", from the name of the kubelet's top cgroup; "" while there is none
	PageSizeBytes int64
	MemTotalBytes int64
	CPUs          []CPU      // online ones, by ID
	NUMANodes     []NUMANode // online ones, by ID; none on a kernel without NUMA

	Present  cpuset.CPUSet // CPUs that the machine has, the online ones and others; empty means unknown
	Isolated cpuset.CPUSet // CPUs that the kernel's scheduler leaves alone (isolcpus=), offline ones too

	PSI      bool     // /proc/pressure can be read
	Resctrl  *Resctrl // nil where resctrl is not mounted
	Problems []string // "FILE: what is wrong", in the order of reading
}

// CPU is one online logical CPU. A number that the kernel does not give is -1.
type CPU struct {
	ID       int
	Package  int
	Die      int
	Core     int // unique within its package
	NUMANode int
	L2, L3   Cache
	Siblings cpuset.CPUSet // of its core, itself included
	// Efficient is set on the smaller cores of a hybrid machine. Where the kernel does not tell, all cores are alike.
	Efficient bool
}

// Cache is a level of cache that a CPU has, by what the kernel tells of it.
type Cache struct {
	ID    int // unique for its level; that of level 3 is also its resctrl domain
	First int // where there is no ID, the least of the CPUs that share it
}

// NUMANode is one memory node.
type NUMANode struct {
	ID            int
	CPUs          cpuset.CPUSet // may be empty
	MemTotalBytes int64
	Distances     []int // to the online nodes, in their order
}

// Host is a machine's file system. It holds nothing open; its methods may be called by several goroutines.
type Host struct {
	// Clock dates snapshots; nil means time.Now. Set it before use.
	Clock func() time.Time

	root string
}

// Open names a machine by the root of its file system. It does no I/O.
func Open(root string) *Host { return &Host{root: root} }

// ReadFacts reads the machine. The error is about the root itself; all else is in Facts.Problems.
func (h *Host) ReadFacts() (Facts, error) {
	root, err := os.OpenRoot(h.root)
	if err != nil {
		return Facts{}, fmt.Errorf("read facts: %w", err)
	}
	defer root.Close()
	f := readFacts(live{root})
	if f.Resctrl != nil {
		f.Resctrl.Files = openTree(h.root, f.Resctrl.Mount.Point)
	}
	return f, nil
}

// source is where files come from: a machine or a snapshot. Names are relative to the root. Missing is fs.ErrNotExist.
type source interface {
	text(name string) (string, error)
	// names lists a directory, sorted.
	names(dir string) ([]string, error)
	// cgroups looks at a controller's hierarchy, mounted at that place.
	cgroups(mount, controller string, version int) (cgroupFiles, error)
	pageSize() int64
}

// cgroupFiles is what the hierarchy of a controller offers. Only the files of that controller are listed.
type cgroupFiles struct {
	root     []string // in the root cgroup
	child    []string // in a child that has the controller; nil if there is no such child
	kubepods []string // names of the root's children that are the kubelet's

	noController bool // set by readFacts: the unified hierarchy does not have the controller
}

// live is a machine.
type live struct{ root *os.Root }

const maxFile = 1 << 20

func (l live) text(name string) (string, error) {
	f, err := l.root.Open(name)
	if err != nil {
		return "", cause(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", cause(err)
	}
	if len(data) > maxFile {
		return "", fmt.Errorf("longer than %d bytes", maxFile)
	}
	return string(data), nil
}

func (l live) names(dir string) ([]string, error) {
	f, err := l.root.Open(dir)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, cause(err)
}

func (l live) pageSize() int64 { return int64(os.Getpagesize()) }

// maxChildren bounds the search for a child that has the controller.
const maxChildren = 256

func (l live) cgroups(mount, controller string, version int) (cgroupFiles, error) {
	var files cgroupFiles
	names, err := l.names(mount)
	if err != nil {
		return files, err
	}
	files.root = own(names, controller)
	var children []string
	for _, name := range names {
		// Files of a hierarchy are all named CONTROLLER.something or, on v1, like the three here.
		if name == "tasks" || name == "notify_on_release" || name == "release_agent" {
			continue
		}
		if info, err := l.root.Lstat(path.Join(mount, name)); err != nil || !info.IsDir() {
			continue
		}
		if isKubepods(name) {
			files.kubepods = append(files.kubepods, name)
			continue
		}
		children = append(children, name)
	}
	children = append(slices.Clone(files.kubepods), children...)
	for _, child := range children[:min(len(children), maxChildren)] {
		dir := path.Join(mount, child)
		if version == 2 {
			if text, err := l.text(path.Join(dir, "cgroup.controllers")); err != nil || !slices.Contains(strings.Fields(text), controller) {
				continue
			}
		}
		names, err := l.names(dir)
		if err != nil {
			continue
		}
		if files.child = own(names, controller); files.child == nil {
			files.child = []string{}
		}
		break
	}
	return files, nil
}

func own(names []string, controller string) []string {
	var files []string
	for _, name := range names {
		if strings.HasPrefix(name, controller+".") {
			files = append(files, name)
		}
	}
	return files
}

// isKubepods knows the top cgroup of the kubelet under either driver, but for one that was moved by cgroupRoot.
func isKubepods(name string) bool { return name == "kubepods" || name == "kubepods.slice" }

// cause drops the path that the os package adds; the caller names the file.
func cause(err error) error {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		return pe.Err
	}
	return err
}

// hierarchyOf finds where a controller is: its v1 mount, else the unified one. Version 0 means nowhere.
func hierarchyOf(mounts []cgroup.Mount, k policy.Knob) (mount string, version int) {
	for _, m := range mounts {
		above, whole := m.Above() // whether those above really are the root is for who writes there to find out
		switch {
		case !whole:
		case m.Type == "cgroup" && above == 0 && slices.Contains(m.Options, cgroup.Controller(1, k)):
			mount, version = m.Point, 1
		case m.Type == "cgroup2" && version != 1:
			mount, version = m.Point, 2
		}
	}
	return strings.TrimPrefix(path.Clean(mount), "/"), version
}
