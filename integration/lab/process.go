package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A ProcessSpec says what StartProcess starts.
type ProcessSpec struct {
	// Name is the name of the log file, without .log.
	Name string
	Path string
	Args []string
	// Env is added to the environment of the lab.
	Env []string
	// Dir is the working directory; the lab's folder by default.
	Dir string
	// Ready returns nil as soon as the process can be used; nil means it can
	// at once.
	Ready func(context.Context) error
	// Timeout is how long the process may take to be ready: 60 s by default.
	// A machine under load needs ten times what an idle one does.
	Timeout time.Duration
}

// A Process is a program that the lab started. Its methods may be called from
// several goroutines.
type Process struct {
	spec ProcessSpec
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed after err is set
	err  error
}

// StartProcess starts a program in the lab and waits until it is ready. Its
// output goes to a log file in the lab's folder; a process of the same name
// that ran before has the beginning of it. The lab stops it on Close.
func (l *Lab) StartProcess(ctx context.Context, spec ProcessSpec) (*Process, error) {
	p := &Process{spec: spec, log: filepath.Join(l.dir, spec.Name+".log"), done: make(chan struct{})}
	if spec.Timeout == 0 {
		spec.Timeout = 60 * time.Second
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer log.Close()
	p.cmd = exec.Command(spec.Path, spec.Args...)
	p.cmd.Dir = spec.Dir
	if p.cmd.Dir == "" {
		p.cmd.Dir = l.dir
	}
	p.cmd.Env = append(os.Environ(), append([]string{"PATH=" + l.BinDir() + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, spec.Env...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	go func() { // ends with the process; Stop and Kill wait for it
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	l.track(p)
	if spec.Ready == nil {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(ctx, spec.Timeout)
	defer cancel()
	if err := p.waitReady(ctx, spec.Ready); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w; the end of %s:\n%s", spec.Name, err, p.log, p.LogTail(30)), p.Kill())
	}
	return p, nil
}

// waitReady asks ready until it says yes.
func (p *Process) waitReady(ctx context.Context, ready func(context.Context) error) error {
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended before it was ready: %w", errors.Join(p.err, err))
		case <-ctx.Done():
			return fmt.Errorf("wait until it is ready: %w: %w", ctx.Err(), err)
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// PID returns the process's id as the lab sees it.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the process ended; call it after Done.
func (p *Process) Err() error { return p.err }

// LogPath returns the path of the log file.
func (p *Process) LogPath() string { return p.log }

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to %s: %w", s, p.spec.Name, err)
	}
	return nil
}

// Stop sends SIGTERM and waits for the end; when ctx ends first, it kills and
// says so.
func (p *Process) Stop(ctx context.Context) error { return p.endBy(ctx, syscall.SIGTERM) }

// endBy sends a signal and waits for the end it leads to.
func (p *Process) endBy(ctx context.Context, s syscall.Signal) error {
	if err := p.Signal(s); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("stop %s: it did not end after %v: %w", p.spec.Name, s, ctx.Err()), p.Kill())
	}
}

// Kill sends SIGKILL and waits for the end.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// LogTail returns the last lines of the log.
func (p *Process) LogTail(lines int) string {
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const most = 64 << 10
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		_, err = f.Seek(max(0, end-most), io.SeekStart)
		if err != nil {
			return err.Error()
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// SocketReady returns a check that something listens on the unix socket path.
func SocketReady(path string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// HTTPReady returns a check that a GET of url by client gives status 200.
func HTTPReady(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("get %s: status %s", url, resp.Status)
		}
		return nil
	}
}
