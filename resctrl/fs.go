package resctrl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"syscall"
	"time"
)

// FS is a mounted resctrl file system. It keeps nothing in memory: each call reads the kernel. It may be used by several
// goroutines; changes wait for each other, since the kernel has one last_cmd_status for everybody. A change of another
// process at the same moment may put its status text into our error, never its errno.
type FS struct {
	files Files
	mu    sync.Mutex // a change and the status that it left
}

// Open makes an FS of Files. It reads nothing.
func Open(files Files) *FS { return &FS{files: files} }

// limboWait bounds how long Create waits for RMIDs that are in limbo: the kernel looks for clean ones each second.
const (
	limboWait  = 5 * time.Second
	limboPause = 100 * time.Millisecond
)

// Root is the group that all tasks are in that are in no other.
func (f *FS) Root() *Group { return &Group{fs: f, path: "."} }

// Groups lists the control groups but the root, by name, whoever made them.
func (f *FS) Groups() ([]*Group, error) {
	list, err := f.readDir(".")
	if err != nil {
		return nil, err
	}
	var groups []*Group
	mounted := false
	for _, e := range list {
		if e.Name == "info" {
			mounted = true
		}
		if e.Dir && !reserved(e.Name) {
			groups = append(groups, &Group{fs: f, path: e.Name})
		}
	}
	if !mounted {
		return nil, &Error{Op: "read", Path: ".", Err: ErrNotMounted}
	}
	return groups, nil
}

// reserved are the directories of the root that are no groups.
func reserved(name string) bool { return name == "info" || name == "mon_data" || name == "mon_groups" }

// Group finds a control group by its name, "" for the root. ErrGone means that there is none.
func (f *FS) Group(name string) (*Group, error) {
	if name == "" {
		return f.Root(), nil
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	g := &Group{fs: f, path: name}
	if _, err := f.read(name + "/tasks"); err != nil {
		return nil, err
	}
	return g, nil
}

// Create makes a control group. Where RMIDs are in limbo it tries again until ctx ends, 5 seconds at most; other errors
// come back at once: ErrNoCLOSID, ErrNoRMID, fs.ErrExist. A new group has all ways that no exclusive group owns, and no
// bandwidth limit.
func (f *FS) Create(ctx context.Context, name string) (*Group, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := f.mkdir(ctx, name); err != nil {
		return nil, err
	}
	return &Group{fs: f, path: name}, nil
}

// checkName refuses what is no name of a group before it gets to a path.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > 255 || reserved(name) || strings.ContainsAny(name, "/\n\x00") {
		return fmt.Errorf("group name %s: %w", quote(name), ErrRefused)
	}
	return nil
}

func (f *FS) mkdir(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, limboWait)
	defer cancel()
	for {
		f.mu.Lock()
		err := f.files.Mkdir(name)
		if err != nil {
			err = f.failed("mkdir", name, "", err)
		}
		f.mu.Unlock()
		if !errors.Is(err, ErrRMIDBusy) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(limboPause):
		}
	}
}

func (f *FS) readDir(name string) ([]Entry, error) {
	list, err := f.files.ReadDir(name)
	if err != nil {
		return nil, f.failed("read", name, "", err)
	}
	return list, nil
}

func (f *FS) read(name string) (string, error) {
	text, err := f.files.ReadFile(name)
	if err != nil {
		return "", f.failed("read", name, "", err)
	}
	return text, nil
}

func (f *FS) write(name, data string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.files.WriteFile(name, data); err != nil {
		return f.failed("write", name, data, err)
	}
	return nil
}

// failed adds what the kernel says to an error, the lock held for changes.
func (f *FS) failed(op, name, data string, err error) error {
	e := &Error{Op: op, Path: name, Data: strings.TrimSuffix(data, "\n"), Err: err}
	if op != "read" {
		e.Status = f.status(op, name, err)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EPERM) {
		if _, there := f.files.ReadDir("info"); errors.Is(there, fs.ErrNotExist) {
			e.Err = fmt.Errorf("%w: %w", ErrNotMounted, err)
		}
	}
	return e
}

// status reads info/last_cmd_status after a failure. Writes to schemata, tasks and mode clear it first, so that all of it
// is theirs. The others add to it: the last line is theirs, and only of failures that leave one.
func (f *FS) status(op, name string, err error) string {
	appends := op == "mkdir" || op == "rmdir" || strings.HasSuffix(name, "/cpus_list") || name == "cpus_list"
	switch {
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.EACCES):
		return ""
	case appends && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EBUSY) && !strings.HasSuffix(name, "cpus_list"):
		return ""
	}
	text, readErr := f.files.ReadFile("info/last_cmd_status")
	text = strings.TrimSpace(text)
	if readErr != nil || text == "ok" {
		return ""
	}
	if appends {
		text = text[strings.LastIndexByte(text, '\n')+1:]
	}
	return text
}
