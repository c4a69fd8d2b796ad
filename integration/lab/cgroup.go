package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// Unified reports whether the machine has cgroup v2 alone. Else each v1
// controller has a hierarchy below /sys/fs/cgroup, and there may be a v2 one
// for the rest beside them.
func Unified() bool {
	return isFS(cgroupRoot, unix.CGROUP2_SUPER_MAGIC)
}

// Systemd reports whether this is a VM whose cgroups are systemd's: it owns the root, and pods are slices that it is
// asked for.
func Systemd() bool {
	_, err := os.Stat("/run/systemd/system") // as sd_booted(3) does it
	return err == nil && os.Getenv(Env) == roleVM && Unified()
}

func isFS(path string, magic int64) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && int64(st.Type) == magic
}

// hierarchies returns the roots of all cgroup hierarchies.
func hierarchies() ([]string, error) {
	if Unified() {
		return []string{cgroupRoot}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, fmt.Errorf("list the cgroup hierarchies: %w", err)
	}
	var roots []string
	for _, e := range entries { // "cpu -> cpu,cpuacct" is no folder
		path := filepath.Join(cgroupRoot, e.Name())
		if e.IsDir() && (isFS(path, unix.CGROUP_SUPER_MAGIC) || isFS(path, unix.CGROUP2_SUPER_MAGIC)) {
			roots = append(roots, path)
		}
	}
	if len(roots) == 0 {
		return nil, fmt.Errorf("list the cgroup hierarchies: none is mounted below %s", cgroupRoot)
	}
	return roots, nil
}

// makeCgroup makes the cgroup called name, relative to the root, in all
// hierarchies, fit to be the parent of pods.
func makeCgroup(name string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := root
		for _, elem := range strings.Split(name, "/") {
			if Unified() {
				if err := enableControllers(dir); err != nil {
					return err
				}
			}
			parent := dir
			dir = filepath.Join(dir, elem)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("make a cgroup: %w", err)
			}
			if err := inheritCPUSet(parent, dir); err != nil {
				return err
			}
		}
		if Unified() {
			if err := enableControllers(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// enableControllers enables every controller for the children of dir. One that
// can't be enabled, as cpu while there are realtime tasks, leaves the others.
func enableControllers(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("list controllers: %w", err)
	}
	path := filepath.Join(dir, "cgroup.subtree_control")
	var errs []error
	enabled := false
	for _, c := range strings.Fields(string(b)) {
		if err := os.WriteFile(path, []byte("+"+c), 0); err != nil {
			errs = append(errs, fmt.Errorf("write %s: +%s: %w", path, c, err))
			continue
		}
		enabled = true
	}
	if !enabled {
		return fmt.Errorf("enable cgroup controllers in %s: %w", dir, errors.Join(append(errs, errors.New("none could be"))...))
	}
	return nil
}

// inheritCPUSet copies the CPUs and memory nodes of a v1 cpuset, which a new
// one has none of: no process could enter it.
func inheritCPUSet(parent, dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		if Unified() {
			return nil // inherited by the kernel
		}
		b, err := os.ReadFile(filepath.Join(parent, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another controller
		}
		if err != nil {
			return fmt.Errorf("read a cpuset: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0); err != nil {
			return fmt.Errorf("write %s: %q: %w", filepath.Join(dir, name), b, err)
		}
	}
	return nil
}

// folders returns the folders of the cgroup called name and of those below it
// in all hierarchies, children first.
func folders(name string) []string {
	roots, err := hierarchies()
	if err != nil || name == "" {
		return nil
	}
	var dirs []string
	for _, root := range roots {
		var below []string
		// Cgroups may go while we look.
		_ = filepath.WalkDir(filepath.Join(root, name), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				below = append(below, path)
			}
			return nil
		})
		for i := len(below) - 1; i >= 0; i-- {
			dirs = append(dirs, below[i])
		}
	}
	return dirs
}

// thaw lets every frozen process of a cgroup go on.
func thaw(name string) {
	for _, dir := range folders(name) {
		// A write to a file that is not there, in another hierarchy, fails.
		_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
		_ = os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("0"), 0)
	}
}

// removeCgroup kills what runs in the cgroup called name and removes it with
// all below it. Nothing is done where it does not exist.
func removeCgroup(name string, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		thaw(name)
		dirs := folders(name)
		if len(dirs) == 0 {
			return nil
		}
		var errs []error
		for _, dir := range dirs {
			killAll(dir)
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove a cgroup: %w", err))
			}
		}
		if len(errs) > 0 && time.Now().After(end) {
			return errors.Join(errs...)
		}
	}
}

// killAll kills the processes of one cgroup that this pid namespace sees.
func killAll(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// MakeCgroup makes the cgroup at an absolute path, below the lab's own, with all controllers for its children, as the
// kubelet makes those of its pods. The lab removes it at its end.
func MakeCgroup(path string) error { return makeCgroup(strings.TrimPrefix(path, "/")) }

// RemoveCgroup removes the cgroup at an absolute path, below the lab's own, with all below it, and ends what runs there.
func RemoveCgroup(path string) error {
	if Systemd() && strings.HasSuffix(path, ".slice") {
		return removeSlice(path)
	}
	return removeCgroup(strings.TrimPrefix(path, "/"), 10*time.Second)
}

// removeSlice stops a slice with all below it. What runs there is killed first, as systemd would wait 90 s for each
// process that does not heed a SIGTERM.
func removeSlice(path string) error {
	kill := filepath.Join(cgroupRoot, path, "cgroup.kill")
	if err := os.WriteFile(kill, []byte("1"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write %s: 1: %w", kill, err)
	}
	if out, err := exec.Command("systemctl", "stop", filepath.Base(path)).CombinedOutput(); err != nil {
		return fmt.Errorf("stop %s: %w: %s", filepath.Base(path), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// RemoveEmptyCgroup removes the cgroup at an absolute path from the hierarchies in which there is nothing in it. It is
// for what a program of the lab has made outside of the lab's own.
func RemoveEmptyCgroup(path string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, root := range roots {
		err := os.Remove(filepath.Join(root, path)) // rmdir, which the kernel refuses while it is in use
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EBUSY) {
			errs = append(errs, fmt.Errorf("remove a cgroup: %w", err))
		}
	}
	return errors.Join(errs...)
}
