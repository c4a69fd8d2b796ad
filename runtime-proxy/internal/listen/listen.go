// Package listen gives the proxy its listening socket: one that systemd hands over, or a unix socket that it makes, with
// the owner and mode of the runtime's.
//
//	l, from, err := listen.Open("/run/tideline/cri.sock", "/run/containerd/containerd.sock")
package listen

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
)

// Open gives the listener for path. from says where it comes from: "systemd" or "own". A socket that systemd hands over
// must be the one at path: a unit that disagrees with the command line is an error, not a surprise.
//
// A socket that is there is replaced only when it is a socket and nobody answers on it. The new one gets the owner and
// mode of the file model, the runtime's socket, where that exists; else it is for root alone.
func Open(path, model string) (l net.Listener, from string, err error) {
	handed, err := activation.Listeners()
	if err != nil {
		return nil, "", fmt.Errorf("take sockets from systemd: %w", err)
	}
	for _, h := range handed {
		if h == nil {
			continue
		}
		if h.Addr().Network() == "unix" && h.Addr().String() == path {
			l = h
			continue
		}
		return nil, "", fmt.Errorf("systemd hands over %s, and --listen says unix://%s: make ListenStream= of the socket unit and --listen agree", h.Addr(), path)
	}
	if l != nil {
		l.(*net.UnixListener).SetUnlinkOnClose(false) // it is systemd's
		return l, "systemd", nil
	}
	if err := clear(path); err != nil {
		return nil, "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, "", fmt.Errorf("make folder of socket: %w", err)
	}
	// Between bind and chmod nobody but root may connect.
	old := syscall.Umask(0o177)
	l, err = net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, "", fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := like(path, model); err != nil {
		l.Close()
		return nil, "", err
	}
	return l, "own", nil
}

// clear removes a stale socket.
func clear(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and no socket: move it away, or choose another --listen", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("somebody answers on %s: stop that program first, or choose another --listen", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("try %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}

// like gives path the owner and mode of model.
func like(path, model string) error {
	info, err := os.Stat(model)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the runtime is not up yet; root, 0600, is what containerd's socket has by default, but for its group
	}
	if err != nil {
		return fmt.Errorf("look at the runtime's socket: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := os.Lchown(path, int(st.Uid), int(st.Gid)); err != nil {
			return fmt.Errorf("give %s the owner of %s: %w", path, model, err)
		}
	}
	if err := os.Chmod(path, info.Mode().Perm()); err != nil {
		return fmt.Errorf("give %s the mode of %s: %w", path, model, err)
	}
	return nil
}
