package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Above counts the ".." of a root that is nothing else: a container with a cgroup namespace of its own sees the mount of
// all of the host's hierarchy so, one for each cgroup from the hierarchy's root down to its own. It is 0 for "/", and ok is
// false for a mount that shows a part.
//
//	690 680 0:29 /../../../.. /sys/fs/cgroup rw,relatime - cgroup2 cgroup rw
func (m Mount) Above() (n int, ok bool) {
	rest := m.Root
	for rest != "/" && rest != "" {
		if rest, ok = strings.CutPrefix(rest, "/.."); !ok || rest != "" && rest[0] != '/' {
			return 0, false
		}
		n++
	}
	return n, m.Root != "" && (n == 0 || rest == "")
}

// isTop tells the root of the unified hierarchy from all below it, which have this file. Where a mount's root is seen as
// ".." it may be any cgroup above ours.
func isTop(d Dir) bool {
	_, err := d.ReadFile("cgroup.type")
	return errors.Is(err, fs.ErrNotExist)
}

// namespaceRoot finds the cgroup that is the root of this process's cgroup namespace, that many levels below a mount's
// root. No file names it from inside, so it is looked for as the one that holds this process.
func namespaceRoot(root string, m Mount, levels int) (Path, error) {
	text, err := readProc(root, "self/cgroup")
	if err != nil {
		return "", err
	}
	if !slices.Contains(strings.Split(text, "\n"), "0::/") {
		return "", fmt.Errorf("this process is not in the root of its cgroup namespace: /proc/self/cgroup has %q", text)
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	self := strconv.Itoa(os.Getpid())
	top := strings.TrimPrefix(path.Clean(m.Point), "/")
	var found Path
	err = fs.WalkDir(dir.FS(), top, func(name string, e fs.DirEntry, err error) error {
		switch {
		case name == top:
			return err
		case err != nil: // cgroups come and go
			return fs.SkipDir
		case !e.IsDir():
			return nil
		}
		at := strings.TrimPrefix(name, top)
		if strings.Count(at, "/") < levels {
			return nil
		}
		// A threaded cgroup has no list.
		if procs, err := fs.ReadFile(dir.FS(), name+"/cgroup.procs"); err == nil && slices.Contains(strings.Fields(string(procs)), self) {
			found = Path(at)
			return fs.SkipAll
		}
		return fs.SkipDir
	})
	if err == nil && found == "" {
		err = fmt.Errorf("no cgroup %d levels below %s holds this process: run it in the host's PID namespace", levels, m.Point)
	}
	if err == nil {
		err = checkPath(string(found))
	}
	return found, err
}

// absolute turns a path of the unified hierarchy as /proc/PID/cgroup shows it, from the root of the reader's cgroup
// namespace, into one from the hierarchy's root.
func absolute(shown string, namespace Path) (string, error) {
	outside := shown == "/.." || strings.HasPrefix(shown, "/../")
	if namespace == "" {
		if outside {
			return "", fmt.Errorf("%q is outside of our cgroup namespace: mount the host's /sys/fs/cgroup, all of it, or run in the host's cgroup namespace", shown)
		}
		return shown, nil
	}
	at, rest := string(namespace), shown
	for rest == "/.." || strings.HasPrefix(rest, "/../") {
		up := strings.LastIndexByte(at, '/')
		if up < 0 {
			return "", fmt.Errorf("%q, seen from %s, is above the root of the hierarchy", shown, namespace)
		}
		at, rest = at[:up], rest[len("/.."):]
	}
	if rest == "/" {
		rest = ""
	}
	return at + rest, nil
}
