package resctrl

import (
	"errors"
	"io/fs"
	"syscall"
)

// Files is a mounted resctrl file system. OS is the real one; resctrltest.Kernel behaves like it without hardware. Names
// are relative to the mount point, with slashes, "." for the root group. Errors wrap a syscall.Errno where there is one.
type Files interface {
	ReadFile(name string) (string, error)
	// WriteFile hands data to the kernel in one write. It creates nothing.
	WriteFile(name, data string) error
	Mkdir(name string) error
	Rmdir(name string) error
	Rename(from, to string) error
	ReadDir(name string) ([]Entry, error)
}

// Entry is a name in a directory.
type Entry struct {
	Name string
	Dir  bool
}

// maxFile bounds what is read of one file. A tasks file with all of Linux' 4 million ids is 30 MiB.
const maxFile = 64 << 20

// FromFS reads a copy of a resctrl tree, as a snapshot of a machine has it. Every change is EROFS.
func FromFS(f fs.FS) Files { return copied{f} }

type copied struct{ fs fs.FS }

func (c copied) ReadFile(name string) (string, error) {
	data, err := fs.ReadFile(c.fs, name)
	return string(data), errno(err)
}

func (c copied) ReadDir(name string) ([]Entry, error) {
	found, err := fs.ReadDir(c.fs, name)
	if err != nil {
		return nil, errno(err)
	}
	return entries(found), nil
}

func (copied) WriteFile(string, string) error { return syscall.EROFS }
func (copied) Mkdir(string) error             { return syscall.EROFS }
func (copied) Rmdir(string) error             { return syscall.EROFS }
func (copied) Rename(string, string) error    { return syscall.EROFS }

func entries(found []fs.DirEntry) []Entry {
	list := make([]Entry, 0, len(found))
	for _, e := range found {
		if e.IsDir() || e.Type().IsRegular() {
			list = append(list, Entry{Name: e.Name(), Dir: e.IsDir()})
		}
	}
	return list
}

// errno takes the path out of an error of os or io/fs: Error has it already.
func errno(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}
