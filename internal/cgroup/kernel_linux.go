package cgroup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// realKernel reads and writes the files below root.
type realKernel struct{ root string }

func (k realKernel) OpenDir(m Mount, path string) (Dir, error) {
	point := filepath.Join(k.root, m.Point)
	base, err := unix.Open(point, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", point, err)
	}
	defer unix.Close(base)
	var st unix.Stat_t
	if err := unix.Fstat(base, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", point, err)
	}
	// Mounted over, or mounted anew: what lies there is not the hierarchy that mountinfo described.
	if unix.Major(st.Dev) != m.Major || unix.Minor(st.Dev) != m.Minor {
		return nil, fmt.Errorf("open %s: another file system is mounted there", point)
	}
	fd, err := openBeneath(base, st.Dev, strings.TrimPrefix(path, "/"))
	if err != nil {
		return nil, fmt.Errorf("open %s%s: %w", point, path, err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("stat %s%s: %w", point, path, err)
	}
	return &realDir{fd: fd, id: ID{Dev: st.Dev, Ino: st.Ino}}, nil
}

// openBeneath opens a directory without following a link or crossing a mount. os.Root would follow links that stay
// inside and would cross mounts. Kernels before 5.6, and sandboxes that filter unknown calls, lack openat2.
func openBeneath(base int, dev uint64, path string) (int, error) {
	if path == "" {
		path = "."
	}
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat2(base, path, &unix.OpenHow{
		Flags:   flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return walk(base, dev, path)
	}
	return fd, err
}

// walk is openat2 by hand, one component at a time. It notices other file systems but not a bind mount of the same one.
func walk(base int, dev uint64, path string) (int, error) {
	at, owned := base, false
	for name := range strings.SplitSeq(path, "/") {
		fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if owned {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at, owned = fd, true
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return -1, err
		}
		if st.Dev != dev {
			unix.Close(fd)
			return -1, unix.EXDEV
		}
	}
	return at, nil
}

type realDir struct {
	fd int
	id ID
}

func (d *realDir) ID() ID       { return d.id }
func (d *realDir) Close() error { return unix.Close(d.fd) }

const maxFile = 1 << 20

func (d *realDir) ReadFile(name string) (string, error) {
	fd, err := d.open(name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var text []byte
	buf := make([]byte, 4096)
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
	return "", fmt.Errorf("longer than %d bytes", maxFile)
}

// Children reads the directory anew through a descriptor of its own: an O_PATH one can't be read.
func (d *realDir) Children() ([]string, error) {
	fd, err := unix.Openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), "cgroup")
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// WriteFile uses bare descriptors: os.File would split a short write, and its Fd would clear O_NONBLOCK.
func (d *realDir) WriteFile(name, data string) error {
	flags := unix.O_WRONLY
	if name == "memory.high" || name == "memory.max" {
		// From kernel 6.16 on this keeps the writer out of reclaim and the OOM killer: the cgroup's own tasks pay on
		// their next charge. Older kernels ignore the flag and block (commit c8e6002bd611, "memcg: introduce
		// non-blocking limit setting option").
		flags |= unix.O_NONBLOCK
	}
	fd, err := d.open(name, flags)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		// One write call: the kernel reads each as a whole value.
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

func (d *realDir) open(name string, flags int) (int, error) {
	fd, err := unix.Openat(d.fd, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Dev != d.id.Dev {
		unix.Close(fd)
		return -1, fmt.Errorf("%s is not a file of the hierarchy", name)
	}
	return fd, nil
}
