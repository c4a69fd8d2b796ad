package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideline-io/tideline/integration/images"
	"github.com/tideline-io/tideline/integration/parts"
)

// A Lab is one node: a folder, a cgroup, and the programs in them. Only one at
// a time can have a kubelet or a control plane: their ports are fixed.
type Lab struct {
	name   string
	dir    string
	cgroup string // relative to the root
	store  *parts.Store

	mu        sync.Mutex
	processes []*Process
	closers   []func() error
}

// New makes a lab. The name has to be unique among the labs of the program
// that are not closed, and is part of paths: keep it short.
func New(name string) (*Lab, error) {
	run, dir := os.Getenv(nameEnv), os.Getenv(dirEnv)
	if run == "" || dir == "" {
		return nil, errors.New("make a lab: the program is not isolated, call lab.Isolate at the start of main or TestMain")
	}
	if name == "" || strings.ContainsAny(name, "/ \t\n") || strings.HasPrefix(name, ".") {
		return nil, fmt.Errorf("make a lab: name %q: want one path element", name)
	}
	store, err := parts.Open(os.Stderr)
	if err != nil {
		return nil, fmt.Errorf("make a lab: %w", err)
	}
	l := &Lab{name: name, dir: filepath.Join(dir, name), cgroup: run + "/" + name, store: store}
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a lab: %w", err)
	}
	if err := os.Mkdir(l.BinDir(), 0o755); err != nil {
		return nil, fmt.Errorf("make a lab: %w", err)
	}
	if Systemd() {
		l.cgroup = ""
		l.onClose(func() error { return RemoveCgroup("/kubepods.slice") })
		return l, nil
	}
	if err := makeCgroup(l.cgroup); err != nil {
		return nil, errors.Join(fmt.Errorf("make a lab: %w", err), l.Close())
	}
	return l, nil
}

// TB is what ForTest needs of a *testing.T.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// ForTest makes a lab that is closed at the end of the test. When the test
// failed the ends of all logs are printed.
func ForTest(t TB, name string) *Lab {
	t.Helper()
	l, err := New(name)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", l.LogTails(40))
		}
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	return l
}

// Dir returns the lab's folder. Close removes it.
func (l *Lab) Dir() string { return l.dir }

// BinDir returns a folder with the programs that were asked for through Part,
// each under its name. It comes first in the PATH of the lab's processes.
func (l *Lab) BinDir() string { return filepath.Join(l.dir, "bin") }

// CgroupParent returns the absolute path of the lab's cgroup, below the root
// of every hierarchy. All pods belong below it. Where Systemd reports true it is
// "/": pods belong below kubepods.slice, and there is one lab at a time.
func (l *Lab) CgroupParent() string { return "/" + l.cgroup }

// CgroupFile returns the path of a file of a cgroup: controller names the v1
// hierarchy, and does not matter on a machine with cgroup v2 alone; "unified"
// names the v2 hierarchy beside v1 ones. The cgroup is an absolute one, such
// as CgroupParent() + "/pod1".
func CgroupFile(controller, cgroup, file string) string {
	if Unified() {
		controller = ""
	}
	return filepath.Join(cgroupRoot, controller, cgroup, file)
}

// Part returns the program of a part, also linked into BinDir. Parts are not
// built here, since there is no network.
func (l *Lab) Part(name string) (string, error) {
	path, err := l.store.Path(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: it has to be prepared, by lab.Isolate(lab.Parts(%q))", err, name)
	}
	if err != nil {
		return "", err
	}
	if err := os.Symlink(path, filepath.Join(l.BinDir(), name)); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("link part %s: %w", name, err)
	}
	return path, nil
}

// partsInBin links parts into BinDir.
func (l *Lab) partsInBin(names ...string) error {
	for _, name := range names {
		if _, err := l.Part(name); err != nil {
			return err
		}
	}
	return nil
}

// track has Close stop a process.
func (l *Lab) track(p *Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.processes = append(l.processes, p)
}

// onClose has Close call f.
func (l *Lab) onClose(f func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closers = append(l.closers, f)
}

// LogTails returns the last lines of the logs of all processes.
func (l *Lab) LogTails(lines int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	seen := map[string]bool{}
	for _, p := range l.processes {
		if !seen[p.log] {
			seen[p.log] = true
			fmt.Fprintf(&b, "--- the end of %s\n%s\n", filepath.Base(p.log), p.LogTail(lines))
		}
	}
	return b.String()
}

// Close ends every process of the lab, containers and their shims included,
// and removes its mounts, its cgroup and its folder. It asks none of them: the
// end of a container costs seconds when it is asked for.
func (l *Lab) Close() error {
	l.mu.Lock()
	processes, closers := l.processes, l.closers
	l.processes, l.closers = nil, nil
	l.mu.Unlock()
	var errs []error
	for _, p := range slices.Backward(processes) {
		errs = append(errs, p.Kill())
	}
	for _, f := range slices.Backward(closers) {
		errs = append(errs, f())
	}
	// Twice, since a shim that was about to start a container may have had
	// the time to do so.
	for range 2 {
		errs = append(errs, l.killShims(), removeCgroup(l.cgroup, 20*time.Second))
	}
	errs = append(errs, l.unmountAll())
	if os.Getenv(KeepEnv) == "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	return errors.Join(errs...)
}

// killShims kills the shims of the lab's containerd. They have left their
// parent on purpose; what tells them is the socket in their arguments:
//
//	/…/containerd-shim-runc-v2 -namespace k8s.io -id 81b… -address /…/containerd.sock
func (l *Lab) killShims() error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("find shims: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue // it ended
		}
		args := strings.Split(string(b), "\x00")
		if filepath.Base(args[0]) == "containerd-shim-runc-v2" && slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, l.dir+"/") }) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
	return nil
}

// unmountAll unmounts all below the lab's folder, the last mount first.
func (l *Lab) unmountAll() error {
	// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	var errs []error
	for _, line := range slices.Backward(strings.Split(string(b), "\n")) {
		f := strings.Fields(line)
		if len(f) < 5 || !strings.HasPrefix(f[4], l.dir+"/") {
			continue
		}
		if err := unix.Unmount(f[4], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", f[4], err))
		}
	}
	return errors.Join(errs...)
}

// StartRegistry starts a registry in this process and has the lab's containerd
// pull every image from it, whatever its host; before that it can pull none.
// The lab stops it on Close.
func (l *Lab) StartRegistry(ctx context.Context) (*images.Registry, error) {
	r, err := images.Serve(ctx, l.store, "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the registry: %w", err)
	}
	l.onClose(r.Close)
	if err := l.writeHosts(r.Address()); err != nil {
		return nil, fmt.Errorf("start the registry: %w", err)
	}
	return r, nil
}
