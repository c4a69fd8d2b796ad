package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/tideline-io/tideline/internal/policy"
)

const maxProcFile = 1 << 20

// Container returns the cgroup of the container whose first process is pid, from ROOT/proc/PID/cgroup. The number
// may come to mean another process at any time: the path must name the container. See ParseProc for the rules. A process that is gone is ErrGone.
func (f *FS) Container(pid int, id string) (Path, error) {
	if pid <= 0 {
		return "", fmt.Errorf("find cgroup of container %q: bad process id %d", id, pid)
	}
	text, err := readProc(f.root, strconv.Itoa(pid)+"/cgroup")
	// A process that ends between open and read answers ESRCH.
	if errors.Is(err, fs.ErrNotExist) || isGone(err) {
		return "", fmt.Errorf("find cgroup of container %q, process %d: %w", id, pid, ErrGone)
	}
	if err != nil {
		return "", fmt.Errorf("find cgroup of container %q: %w", id, err)
	}
	p, err := ParseProc(text, id, f.namespace)
	if err != nil {
		return "", fmt.Errorf("find cgroup of container %q, process %d: %w", id, pid, err)
	}
	return p, nil
}

// Find returns the cgroup of a container below its pod's, without asking the runtime: under the name that containerd and CRI-O
// give it with the cgroupfs driver, and as a systemd scope. ErrGone where there is none of these: it has not been started,
// or has ended.
func (f *FS) Find(pod Path, id string) (Path, error) {
	h, ok := f.mounts["cpuset"]
	if !ok {
		return "", fmt.Errorf("find cgroup of container %.300q: %w", id, ErrUnsupported{Feature: string(policy.CPUSetCPUs), Need: "controller cpuset in a mounted hierarchy"})
	}
	for _, name := range []string{id, "cri-containerd-" + id + ".scope", "crio-" + id, "crio-" + id + ".scope"} {
		p := Path(string(pod) + "/" + name)
		err := checkPath(string(p))
		if err == nil && (id == "" || strings.Contains(id, "/")) {
			err = errors.New("no name")
		}
		if err != nil {
			return "", fmt.Errorf("find cgroup of container %.300q: %w: %w", id, ErrRefused, err)
		}
		g, err := f.openIn(h, p)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("find cgroup of container %.300q: %w", id, err)
		}
		g.Close()
		return p, nil
	}
	return "", fmt.Errorf("find cgroup of container %.300q below %s: %w", id, pod, ErrGone)
}

// Bounds of what a container nests in its cgroup, which it may do as it likes.
const (
	maxNested      = 1024
	maxNestedDepth = 32
)

// Threads returns the thread IDs of a container, those in cgroups that it nests in its own too. An answer is out of date when
// it is given: threads come and go. A cgroup that is gone is ErrGone.
func (f *FS) Threads(p Path) ([]int, error) {
	h, ok := f.mounts["cpuset"]
	if !ok {
		return nil, fmt.Errorf("list threads of %s: %w", p, ErrUnsupported{Feature: string(policy.CPUSetCPUs), Need: "controller cpuset in a mounted hierarchy"})
	}
	if err := permit(p, policy.CPUSetCPUs); err != nil {
		return nil, fmt.Errorf("list threads of %s: %w", p, err)
	}
	file := "tasks"
	if h.version == 2 {
		file = "cgroup.threads"
	}
	var out []int
	nested := []Path{p}
	for n := 0; len(nested) > 0; n++ {
		at := nested[len(nested)-1]
		nested = nested[:len(nested)-1]
		if n == maxNested {
			return out, fmt.Errorf("list threads of %s: more than %d cgroups nested in it", p, maxNested)
		}
		ids, below, err := f.threads(h, at, file)
		switch {
		case errors.Is(err, ErrGone) && at != p:
			continue // a nested one went meanwhile
		case err != nil:
			return out, fmt.Errorf("list threads of %s: %w", at, err)
		}
		out = append(out, ids...)
		if strings.Count(string(at), "/")-strings.Count(string(p), "/") < maxNestedDepth {
			for _, name := range below {
				nested = append(nested, Path(string(at)+"/"+name))
			}
		}
	}
	return out, nil
}

// threads reads one cgroup.
func (f *FS) threads(h hierarchy, p Path, file string) (ids []int, below []string, err error) {
	g, err := f.openIn(h, p)
	if err != nil {
		return nil, nil, err
	}
	defer g.Close()
	text, err := g.ReadFile(file)
	if err != nil {
		return nil, nil, f.explain(g, err)
	}
	for line := range strings.Lines(text) {
		id, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || id <= 0 { // 0 is one in another PID namespace
			return nil, nil, fmt.Errorf("%s holds %.32q: the door has to run in the host's PID namespace", file, line)
		}
		ids = append(ids, id)
	}
	below, err = g.Children()
	return ids, below, f.explain(g, err)
}

// Named returns the cgroup of a container whose runtime tells its name, as ParsePath reads it, and not its first process.
// The name must be the container's own. Whether there is such a cgroup is for the caller to find out.
func (f *FS) Named(name, id string) (Path, error) {
	p, err := ParsePath(name)
	if err != nil {
		return "", fmt.Errorf("find cgroup of container %q: %w", id, err)
	}
	if own, err := cut(string(p), id); id == "" || err != nil || own != p {
		return "", fmt.Errorf("find cgroup of container %q: %q is not its name", id, p)
	}
	return p, nil
}

func readProc(root, name string) (string, error) {
	proc, err := os.OpenRoot(root)
	if err != nil {
		return "", err
	}
	defer proc.Close()
	f, err := proc.Open("proc/" + name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxProcFile+1))
	if err != nil {
		return "", err
	}
	if len(data) > maxProcFile {
		return "", fmt.Errorf("read /proc/%s: longer than %d bytes", name, maxProcFile)
	}
	return string(data), nil
}

// ParseProc finds a container's cgroup in the text of /proc/PID/cgroup:
//
//	9:name=systemd:/
//	4:memory:/kubepods/burstable/podX/0a1b…
//	1:cpu:/kubepods/burstable/podX/0a1b…
//	0::/kubepods/burstable/podX/0a1b…
//
// The path is cut after the outermost component that is the ID or ends in "-ID" (before ".scope"), since a container may
// nest groups of its own, under any name, below it. All v1 hierarchies with a controller of ours must give the same
// path; where there is none, the v2 line counts. On a hybrid host a v2 line without the ID is no contradiction, as not
// every runtime joins that hierarchy, but one with the ID must agree.
//
// A reader in a cgroup namespace is shown the v2 path from its namespace's root, which namespace names; it is "" for the
// host's:
//
//	0::/../../podX/0a1b…
func ParseProc(text, id string, namespace Path) (Path, error) {
	if id == "" || strings.ContainsAny(id, "/\n\x00") {
		return "", fmt.Errorf("bad container ID %q", id)
	}
	if namespace != "" {
		if err := checkPath(string(namespace)); err != nil {
			return "", fmt.Errorf("bad cgroup namespace %q: %w", namespace, err)
		}
	}
	var v1 []string
	var v2 *string
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		number, rest, ok := strings.Cut(line, ":")
		controllers, path, ok2 := strings.Cut(rest, ":")
		if _, err := strconv.ParseUint(number, 10, 32); err != nil || !ok || !ok2 {
			return "", fmt.Errorf("bad line %q", line)
		}
		switch {
		case number == "0" && controllers == "":
			if v2 != nil {
				return "", fmt.Errorf("two lines of the unified hierarchy")
			}
			v2 = &path
		case slices.ContainsFunc(strings.Split(controllers, ","), func(c string) bool { return slices.Contains(controllersV1, c) }):
			v1 = append(v1, path)
		}
	}
	var found Path
	for i, path := range v1 {
		p, err := cut(path, id)
		if err != nil {
			return "", err
		}
		if i > 0 && p != found {
			return "", fmt.Errorf("hierarchies disagree: %s and %s", found, p)
		}
		found = p
	}
	if v2 == nil {
		if found == "" {
			return "", fmt.Errorf("no line with a controller of ours")
		}
		return found, nil
	}
	var p Path
	path, err := absolute(*v2, namespace)
	if err == nil {
		p, err = cut(path, id)
	}
	switch {
	case found == "":
		return p, err
	case err == nil && p != found:
		return "", fmt.Errorf("hierarchies disagree: %s and, unified, %s", found, p)
	}
	return found, nil
}

// cut looks from the left: everything above the container was named by the kubelet and the runtime, everything below
// by the container, which may imitate its own ID.
func cut(path, id string) (Path, error) {
	end := 0
	for name := range strings.SplitSeq(path, "/") {
		end += len(name) + 1
		// A removed v2 cgroup is shown with this ending. Only on the ID's own component is it the kernel's word.
		live, deleted := strings.CutSuffix(name, " (deleted)")
		if deleted && end-1 == len(path) && holds(live, id) {
			return "", ErrGone
		}
		if holds(name, id) {
			return ParsePath(path[:end-1])
		}
	}
	return "", fmt.Errorf("no component of %q holds the container's ID", path)
}

func holds(name, id string) bool {
	if name == id {
		return true
	}
	unit, ok := strings.CutSuffix(name, ".scope")
	return strings.HasSuffix(name, "-"+id) || ok && (unit == id || strings.HasSuffix(unit, "-"+id))
}
