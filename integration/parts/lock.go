package parts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// lock takes the lock file at path and returns what gives it back. The kernel
// gives it back as well when the process ends in any way.
func (s *Store) lock(ctx context.Context, path, what string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock of %s: %w", what, err)
	}
	for told := false; ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			s.Progress("waiting for another process that makes %s …", what)
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for the lock of %s: %w", what, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Lock takes a lock in the folder of built things, for makers of other things
// than parts, and returns what gives it back.
func (s *Store) Lock(ctx context.Context, name string) (func(), error) {
	dir, err := s.CacheDir()
	if err != nil {
		return nil, err
	}
	if dir == "" {
		return func() {}, nil
	}
	return s.lock(ctx, dir+"/"+name+".lock", name)
}

// setGroup gives cmd a process group of its own, which ends with its context
// and with this process.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
