package vm

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tideline-io/tideline/integration/vm/internal/guest"
)

// machine is what QEMU's command line depends on.
type machine struct {
	vmlinux, initrd, disk      string
	cpus, memoryMiB, numaNodes int
	threads                    int // of a core
	network                    bool
	ports                      map[int]int
	amd                        bool
}

// portFD is the file descriptor of QEMU at which the guest's frames come out:
// the first of exec.Cmd's ExtraFiles.
const portFD = 3

// kernelArgs are the kernel's command line. Page table isolation alone makes
// system calls eight times slower under TCG. The TSC is measured wrongly on a
// loaded host, by a factor of 12 in one run, so the clock is the HPET.
const kernelArgs = "console=ttyS0 panic=-1 quiet mitigations=off nopti no_timer_check clocksource=hpet notsc psi=1"

func (m machine) args() []string {
	// Less what TCG can't emulate and would warn of.
	cpu := "Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm"
	if m.amd {
		cpu = "EPYC-Rome,-x2apic"
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none", "-serial", "stdio",
		"-M", "q35",
		// With a thread per CPU one boot in 20 died of "Oops: int3": TCG and the
		// kernel's self-modifying code race.
		"-accel", "tcg,thread=single",
		"-cpu", cpu,
		"-m", fmt.Sprintf("%dM", m.nodeMiB()*m.numaNodes),
		"-smp", fmt.Sprintf("%d,sockets=%d,cores=%d,threads=%d", m.cpus, m.numaNodes, m.cpus/m.numaNodes/m.threads, m.threads),
	}
	if m.numaNodes > 1 {
		per := m.cpus / m.numaNodes
		for n := range m.numaNodes {
			args = append(args,
				"-object", fmt.Sprintf("memory-backend-ram,id=mem%d,size=%dM", n, m.nodeMiB()),
				"-numa", fmt.Sprintf("node,nodeid=%d,cpus=%d-%d,memdev=mem%d", n, n*per, (n+1)*per-1, n))
		}
	}
	args = append(args,
		"-kernel", m.vmlinux, "-initrd", m.initrd, "-append", kernelArgs,
		"-drive", "file="+strings.ReplaceAll(m.disk, ",", ",,")+",if=none,id=root,format=raw,cache=unsafe",
		"-device", "virtio-blk-pci,drive=root",
		"-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=port,fd=%d", portFD),
		"-device", "virtserialport,chardev=port,name="+guest.PortName)
	if m.network {
		netdev := "user,id=net"
		for _, host := range slices.Sorted(maps.Keys(m.ports)) {
			netdev += fmt.Sprintf(",hostfwd=tcp:127.0.0.1:%d-:%d", host, m.ports[host])
		}
		// Without the boot ROM, which is in a package that we don't install.
		args = append(args, "-netdev", netdev, "-device", "virtio-net-pci,netdev=net,romfile=")
	}
	return args
}

// nodeMiB is the memory of one node. QEMU wants the sum of the nodes to be the
// whole, so what can't be divided is left out.
func (m machine) nodeMiB() int { return m.memoryMiB / m.numaNodes }

// boot runs the machine to its end. It calls up once the guest runs and no
// longer needs the names of its files.
func (c *Config) boot(ctx context.Context, m machine, up func()) (int, error) {
	start := time.Now()
	limited, cancel := context.WithTimeoutCause(ctx, c.Limit, fmt.Errorf("limit of %s reached", c.Limit))
	defer cancel()

	ours, theirs, err := socketPair()
	if err != nil {
		return -1, err
	}
	defer ours.Close()
	var console tail
	cmd := exec.CommandContext(limited, "qemu-system-x86_64", m.args()...)
	cmd.Stdout, cmd.Stderr = &console, &console
	cmd.ExtraFiles = []*os.File{theirs}
	// If this process is killed, nothing else would end QEMU. The signal comes
	// when the starting thread ends, hence the lock.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return -1, fmt.Errorf("start QEMU: %w", err)
	}
	exit, err := c.follow(ours, func() {
		fmt.Fprintf(c.Progress, "vm: up after %.1f s\n", time.Since(start).Seconds())
		up()
	})
	// The disk is thrown away, so there is nothing to shut down in order. A
	// machine that ended by itself may still have its last words to say.
	if !errors.Is(err, errEnded) {
		cmd.Process.Kill()
	}
	// Its error says how QEMU ended, and so does its state.
	_ = cmd.Wait()
	if err == nil {
		return exit, nil
	}
	failure := &GuestError{Reason: err.Error(), Serial: console.String(), Err: err}
	switch {
	case limited.Err() != nil:
		failure.Err = limited.Err()
		failure.Reason = fmt.Sprintf("no exit status of %s: %v", c.Program, context.Cause(limited))
	case errors.Is(err, errEnded):
		failure.Err = nil
		failure.Reason = fmt.Sprintf("no exit status of %s: the machine ended (QEMU: %s)", c.Program, cmd.ProcessState)
	}
	return -1, failure
}

// errEnded says that the guest's frames ended without the last one.
var errEnded = errors.New("the machine ended")

// follow reads the guest's frames to the last one.
func (c *Config) follow(port io.Reader, up func()) (exit int, err error) {
	results := newUnpacker(c.Results)
	defer func() {
		if err = errors.Join(err, results.close(err)); err != nil {
			exit = -1
		}
	}()
	for {
		f, err := guest.Read(port)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return -1, errEnded
		}
		if err != nil {
			return -1, err
		}
		switch f.Kind {
		case guest.Up:
			up()
		case guest.Output:
			if _, err := c.Stdout.Write(f.Data); err != nil {
				return -1, fmt.Errorf("write output: %w", err)
			}
		case guest.Results:
			if _, err := results.Write(f.Data); err != nil {
				return -1, err
			}
		case guest.Failure:
			return -1, errors.New(string(f.Data))
		case guest.Exit:
			return guest.ParseStatus(f.Data)
		}
	}
}

// socketPair returns a connection and the file for its other end.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "port"), os.NewFile(uintptr(fds[1]), "port")
	defer ours.Close() // FileConn has its own copy
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// tail is a writer that keeps the end of what it gets, without the carriage
// returns of a console. It is safe for concurrent use.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 8 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range p {
		if c != '\r' {
			t.b = append(t.b, c)
		}
	}
	if extra := len(t.b) - tailBytes; extra > 0 {
		t.b = append(t.b[:0], t.b[extra:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}

// unpacker writes the files of a tar stream to a directory.
type unpacker struct {
	w    *io.PipeWriter
	done chan error
}

func newUnpacker(dir string) *unpacker {
	if dir == "" {
		return &unpacker{}
	}
	r, w := io.Pipe()
	u := &unpacker{w: w, done: make(chan error, 1)}
	go func() {
		err := unpack(dir, r)
		r.CloseWithError(err)
		u.done <- err
	}()
	return u
}

func (u *unpacker) Write(b []byte) (int, error) { return u.w.Write(b) }

// close waits for the files. Given the error of the stream's source, that is
// what failed, and not the unpacking.
func (u *unpacker) close(source error) error {
	if u.w == nil {
		return nil
	}
	u.w.CloseWithError(source)
	if err := <-u.done; source == nil {
		return err
	}
	return nil
}

func unpack(dir string, r io.Reader) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// A Root, so that no name or link of the guest leads outside.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err == io.EOF {
			_, err := io.Copy(io.Discard, r) // the padding, so that its writer can go on
			return err
		}
		if err != nil {
			return fmt.Errorf("unpack results: %w", err)
		}
		if err := unpackEntry(root, h, t); err != nil {
			return fmt.Errorf("unpack result %s: %w", h.Name, err)
		}
	}
}

func unpackEntry(root *os.Root, h *tar.Header, r io.Reader) error {
	perm := h.FileInfo().Mode().Perm()
	if err := root.MkdirAll(filepath.Dir(filepath.Clean(h.Name)), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(filepath.Clean(h.Name), 0o755)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, h.Name)
	case tar.TypeReg:
		f, err := root.OpenFile(h.Name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, perm)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Chmod(perm), f.Close()) // the umask cut the mode
	}
	return fmt.Errorf("unknown type %c", h.Typeflag)
}
