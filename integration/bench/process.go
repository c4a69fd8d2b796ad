package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a program that listens on a socket.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer // a role ends when it is closed
	done  chan struct{}
}

// startProcess starts a program and waits until it listens.
func startProcess(ctx context.Context, log, socket string, args ...string) (*process, error) {
	f, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	defer f.Close()
	p := &process{cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = f, f
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	go func() { // ends with the process; end waits for it
		_ = p.cmd.Wait() // it is ended by a signal
		close(p.done)
	}()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		c, err := net.Dial("unix", socket)
		if err == nil {
			return p, c.Close()
		}
		select {
		case <-time.After(20 * time.Millisecond):
			continue
		case <-p.done:
			err = errors.New("it ended")
		case <-ctx.Done():
			err = ctx.Err()
		}
		p.end()
		said, _ := os.ReadFile(log) // it is for people
		return nil, fmt.Errorf("start %s: %w: %s", args[0], err, bytes.TrimSpace(said))
	}
}

// end ends the process and waits for it.
func (p *process) end() {
	p.stdin.Close()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// Memory is resident memory in bytes: Anon is the program's own, File are pages of its file that are mapped, which the
// kernel can drop and the file has anyway.
type Memory struct{ Anon, File int64 }

// Sum is what the bar is about.
func (m Memory) Sum() int64 { return m.Anon + m.File }

// memory reads /proc/PID/status:
//
//	RssAnon:	    9876 kB
//	RssFile:	   11264 kB
func (p *process) memory() (m Memory, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return m, fmt.Errorf("read resident memory: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		kib, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			continue
		}
		switch f[0] {
		case "RssAnon:":
			m.Anon = kib << 10
		case "RssFile:":
			m.File = kib << 10
		}
	}
	if m.Anon == 0 {
		return m, fmt.Errorf("read resident memory: no RssAnon in %q", b)
	}
	return m, nil
}

// cpu reads the sum of utime and stime from /proc/PID/stat, fields 14 and 15, in ticks of 10 ms:
//
//	1234 (tideline-runtim) S 1 1234 1234 0 -1 4194560 2011 0 0 0 153 87 0 0 20 …
func (p *process) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return 0, fmt.Errorf("read CPU time: %q", b)
	}
	var ticks int64
	for _, x := range f[11:13] {
		n, err := strconv.ParseInt(x, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// machine tells what the numbers depend on.
func machine() string {
	var u unix.Utsname
	kernel := "unknown"
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	model := "CPUs"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(b), "model name\t: "); ok {
			model, _, _ = strings.Cut(rest, "\n")
		}
	}
	load := "unknown"
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load = strings.Join(strings.Fields(string(b))[:3], " ")
	}
	return fmt.Sprintf("%d x %s, kernel %s, load at the start %s, %s", runtime.NumCPU(), model, kernel, load, runtime.Version())
}
