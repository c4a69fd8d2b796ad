package install

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
)

// tree is the node's file system for the files of ours. No name of theirs may lead elsewhere: a link anywhere in a path, or
// a folder that others may write, is an error.
type tree struct {
	root  *os.Root
	owner int
}

func openTree(root string) (*tree, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	return &tree{r, ownerOf(root)}, nil
}

func (t *tree) Close() { t.root.Close() }

// check gives the file's own facts, nil where there is none, after a look at every folder above it.
func (t *tree) check(name string) (fs.FileInfo, error) {
	if dir := path.Dir(name); dir != "/" {
		info, err := t.check(dir)
		if err != nil || info == nil {
			return nil, err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !info.IsDir() || !ok || int(st.Uid) != t.owner || info.Mode().Perm()&0o022 != 0 {
			return nil, fmt.Errorf("%s is refused: it has to be a folder that root alone may write", dir)
		}
	}
	info, err := t.root.Lstat(name[1:])
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, fmt.Errorf("%s is refused: it is a symbolic link, and this command writes to no place that it was not told", name)
	}
	return info, nil
}

// read gives a regular file's text.
func (t *tree) read(name string) (text string, there bool, err error) {
	info, err := t.check(name)
	if err != nil || info == nil {
		return "", false, err
	}
	if !info.Mode().IsRegular() {
		return "", false, fmt.Errorf("%s is refused: it is no regular file", name)
	}
	f, err := t.root.OpenFile(name[1:], os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 1<<20))
	return string(data), true, err
}

// is says whether was stands at name.
func (t *tree) is(name string, was *string) error {
	text, there, err := t.read(name)
	if err == nil && (there != (was != nil) || there && text != *was) {
		err = fmt.Errorf("%s was changed meanwhile by somebody else", name)
	}
	return err
}

// write puts a file in place, whole or not at all, over a power cut too. Folders are made.
func (t *tree) write(name, text string, mode fs.FileMode) (err error) {
	if _, err := t.check(name); err != nil {
		return err
	}
	if err := t.root.MkdirAll(path.Dir(name)[1:], 0o755); err != nil {
		return err
	}
	tmp := path.Join(path.Dir(name), ".tideline.tmp")[1:] // no suffix that systemd, the kubelet or an import takes
	_ = t.root.Remove(tmp)                                // of a process that was killed
	f, err := t.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { _ = t.root.Remove(tmp) }() // after the rename there is none
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := t.root.Rename(tmp, name[1:]); err != nil {
		return err
	}
	return t.sync(path.Dir(name))
}

func (t *tree) remove(name string) error {
	if _, err := t.check(name); err != nil {
		return err
	}
	if err := t.root.Remove(name[1:]); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return t.sync(path.Dir(name))
}

// removeFolder removes a folder that is empty.
func (t *tree) removeFolder(name string) error {
	err := t.root.Remove(name[1:])
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return err
}

func (t *tree) removeTree(name string) error {
	if _, err := t.check(name); err != nil {
		return err
	}
	return t.root.RemoveAll(name[1:])
}

func (t *tree) sync(dir string) error {
	d, err := t.root.Open("." + dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
