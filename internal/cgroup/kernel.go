package cgroup

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Kernel opens cgroups. The real one is used unless Config names another; cgrouptest has a fake.
type Kernel interface {
	// OpenDir opens the cgroup of that path ("/" for the root) in the hierarchy mounted there. A missing one is an fs.ErrNotExist.
	OpenDir(m Mount, path string) (Dir, error)
}

// Dir is an open cgroup of one hierarchy. It stays the same cgroup even if another is made under its name.
type Dir interface {
	// ID tells this cgroup from every other of this boot.
	ID() ID
	// ReadFile returns a file's text.
	ReadFile(name string) (string, error)
	// WriteFile hands data to a file in one write. It creates nothing.
	WriteFile(name, data string) error
	// Children returns the names of the cgroups directly below, in no order.
	Children() ([]string, error)
	Close() error
}

// ID identifies a cgroup's directory. The inode number is the kernfs node's id, which the kernel hands out in turn (64 bits
// since 5.5, 32 bits that wrap before), so a cgroup that is removed and made again under the same name has another. Times are no help: kernfs inodes
// are made when they are looked at, and their ctime is that moment.
type ID struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// isGone knows the answers of files whose cgroup or process was removed while they were open.
func isGone(err error) bool { return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH) }

// isFull knows the answer to an empty cpuset of a cgroup that has tasks.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) }

func isInvalid(err error) bool { return errors.Is(err, unix.EINVAL) }
