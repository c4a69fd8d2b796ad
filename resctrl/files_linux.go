package resctrl

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// OS is the resctrl file system mounted at root, or a copy of one in a directory. It opens what it needs for each call,
// so that it never keeps anybody from unmounting. No symbolic link is followed, and nothing outside of root or on another
// file system below it is touched.
func OS(root string) Files { return mounted{root} }

type mounted struct{ root string }

func (m mounted) ReadFile(name string) (string, error) {
	fd, err := m.open(name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var text []byte
	buf := make([]byte, 16<<10)
	for len(text) < maxFile {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return "", err
		case n == 0:
			return string(text), nil
		}
		text = append(text, buf[:n]...)
	}
	return "", fmt.Errorf("longer than %d bytes: %w", maxFile, unix.EFBIG)
}

// WriteFile uses a bare descriptor: os.File would split a write that the kernel takes only a part of, and each part
// would be a command of its own.
func (m mounted) WriteFile(name, data string) error {
	fd, err := m.open(name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Write(fd, []byte(data))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n != len(data):
			return fmt.Errorf("kernel took %d of %d bytes: %w", n, len(data), io.ErrShortWrite)
		}
		return nil
	}
}

func (m mounted) Mkdir(name string) error {
	return m.at(name, func(dir int, base string) error { return unix.Mkdirat(dir, base, 0o755) })
}

func (m mounted) Rmdir(name string) error {
	return m.at(name, func(dir int, base string) error { return unix.Unlinkat(dir, base, unix.AT_REMOVEDIR) })
}

func (m mounted) Rename(from, to string) error {
	return m.at(from, func(dir1 int, base1 string) error {
		return m.at(to, func(dir2 int, base2 string) error { return unix.Renameat(dir1, base1, dir2, base2) })
	})
}

func (m mounted) ReadDir(name string) ([]Entry, error) {
	fd, err := m.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	found, err := f.ReadDir(-1)
	if err != nil {
		return nil, errno(err)
	}
	list := entries(found)
	slices.SortFunc(list, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// at hands the directory of a name to do.
func (m mounted) at(name string, do func(dir int, base string) error) error {
	if !fs.ValidPath(name) || name == "." {
		return unix.EINVAL
	}
	fd, err := m.open(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return do(fd, path.Base(name))
}

// open opens a file or directory below the root. os.Root would follow links that stay inside and would cross mounts.
func (m mounted) open(name string, flags int) (int, error) {
	if !fs.ValidPath(name) {
		return -1, unix.EINVAL
	}
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK // in a copy of a tree there may be a named pipe, which must not hold us
	}
	base, err := unix.Open(m.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(base)
	fd, err := unix.Openat2(base, name, &unix.OpenHow{
		Flags:   uint64(flags),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	// Kernels before 5.6, and sandboxes that filter unknown calls, lack openat2. EPERM may be the file's own answer too.
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		fd, err = walk(base, name, flags)
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		unix.Close(fd)
		return -1, fmt.Errorf("neither a file nor a directory: %w", unix.EINVAL)
	}
	return fd, nil
}

// walk is openat2 by hand, one component at a time. It notices other file systems but not a bind mount of the same one.
func walk(base int, name string, flags int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(base, &st); err != nil {
		return -1, err
	}
	dev := st.Dev
	at, owned := base, false
	for rest := name; ; {
		first, more, deeper := strings.Cut(rest, "/")
		how := flags
		if deeper {
			how = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		}
		fd, err := unix.Openat(at, first, how, 0)
		if owned {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return -1, err
		}
		if st.Dev != dev {
			unix.Close(fd)
			return -1, unix.EXDEV
		}
		if !deeper {
			return fd, nil
		}
		at, owned, rest = fd, true, more
	}
}
