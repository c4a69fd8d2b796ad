//go:build linux

// Init is the first process of the virtual machine of package vm. It owns the
// way from the kernel's start to the end of one program: modules, pseudo file
// systems, cgroup v2, the root disk, the program, its output, its status. It
// never decides anything: the specification in the initramfs says it all.
//
//	/init                 # started by the kernel, reads /spec.json
//
// Where the specification asks for systemd, init becomes systemd as soon as the disk is the root, and a service of it
// runs init once more for the rest.
package main

import (
	"archive/tar"
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/tideline-io/tideline/integration/vm/internal/guest"
)

func main() {
	first := os.Getpid() == 1
	port, err := openPort(first)
	if err != nil {
		// The end of process 1 is a kernel panic, which the host reports with
		// this line beside it.
		fmt.Println("init:", err)
		os.Exit(1)
	}
	status, err := run(port, first)
	if err != nil {
		port.send(guest.Failure, []byte(err.Error()))
	} else {
		port.send(guest.Exit, guest.AppendStatus(nil, status))
	}
	// A write to the port returns before the host has read it, and QEMU's end
	// would lose the last frames. So the host ends the machine when it has them.
	time.Sleep(10 * time.Second)
	syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}

func run(port *port, first bool) (int, error) {
	spec, err := readSpec()
	if err != nil {
		return 0, err
	}
	if first {
		if err := setUp(spec); err != nil {
			return 0, err
		}
	}
	if err := setUpNetwork(spec.Network); err != nil {
		return 0, err
	}
	port.send(guest.Up, nil)
	status, err := runProgram(spec, port)
	if err == nil && spec.Results {
		err = sendResults(port)
	}
	return status, err
}

// setUp does what the first process alone can do. It does not return when this process becomes systemd.
func setUp(spec guest.Spec) error {
	for _, m := range spec.Modules {
		if err := loadModule(m); err != nil {
			return err
		}
	}
	if err := switchRoot(); err != nil {
		return err
	}
	if spec.Systemd {
		// The port closes on exec, and systemd mounts the rest itself.
		return fmt.Errorf("become systemd: %w", syscall.Exec("/sbin/init", []string{"/sbin/init"}, []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}))
	}
	if err := mountAll(); err != nil {
		return err
	}
	if err := enableControllers("/sys/fs/cgroup"); err != nil {
		return err
	}
	return syscall.Sethostname([]byte("vm"))
}

// port sends frames. It is safe for concurrent use.
type port struct {
	mu sync.Mutex
	f  *os.File
}

// send ends the machine by a panic if the port is broken: there is nobody left
// to tell, and a silent guest would cost the whole time limit.
func (p *port) send(kind guest.Kind, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.f.Write(guest.Append(nil, kind, data)); err != nil {
		panic(fmt.Sprintf("write frame %c: %v", kind, err))
	}
}

// frames is a writer whose data is sent as frames of one kind.
type frames struct {
	port *port
	kind guest.Kind
}

func (w frames) Write(b []byte) (int, error) {
	for part := range slices.Chunk(b, guest.MaxData) {
		w.port.send(w.kind, part)
	}
	return len(b), nil
}

// early are the mounts that are needed to find the port and the disk; they
// move to the new root.
var early = []fileSystem{
	{"proc", "/proc", "proc", ""},
	{"dev", "/dev", "devtmpfs", ""},
	{"sys", "/sys", "sysfs", ""},
}

// late are mounted on the new root.
var late = []fileSystem{
	{"devpts", "/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666"},
	{"shm", "/dev/shm", "tmpfs", "mode=1777"},
	{"tmp", "/tmp", "tmpfs", "mode=1777"},
	{"run", "/run", "tmpfs", "mode=755"},
	// systemd's options, so that a guest behaves like a node: with
	// memory_recursiveprot a parent's memory.low protects its children.
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", "nsdelegate,memory_recursiveprot"},
}

type fileSystem struct{ source, target, kind, options string }

func (f fileSystem) mount() error {
	if err := os.MkdirAll(f.target, 0o755); err != nil {
		return err
	}
	err := syscall.Mount(f.source, f.target, f.kind, 0, f.options)
	if err != nil && err != syscall.EBUSY { // the kernel may have mounted /dev itself
		return fmt.Errorf("mount %s on %s (%s): %w", f.kind, f.target, f.options, err)
	}
	return nil
}

func mountAll() error {
	for _, f := range late {
		if err := f.mount(); err != nil {
			return err
		}
	}
	return nil
}

func openPort(first bool) (*port, error) {
	for _, f := range early {
		if !first {
			break
		}
		if err := f.mount(); err != nil {
			return nil, err
		}
	}
	var name string
	err := retry(func() error {
		files, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, f := range files {
			if b, _ := os.ReadFile(f); strings.TrimSpace(string(b)) == guest.PortName {
				name = filepath.Base(filepath.Dir(f))
				return nil
			}
		}
		return fmt.Errorf("find virtio port %s: only %v", guest.PortName, files)
	})
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile("/dev/"+name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &port{f: f}, nil
}

// retry waits for devices, which appear some time after their driver.
func retry(try func() error) error {
	var err error
	for range 200 {
		if err = try(); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

func readSpec() (guest.Spec, error) {
	var spec guest.Spec
	b, err := os.ReadFile(guest.SpecFile)
	if err != nil {
		return spec, err
	}
	if err := json.Unmarshal(b, &spec); err != nil {
		return spec, fmt.Errorf("read %s: %w", guest.SpecFile, err)
	}
	return spec, nil
}

func loadModule(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	params := []byte{0}
	_, _, errno := syscall.Syscall(syscall.SYS_INIT_MODULE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&params[0])))
	if errno != 0 && errno != syscall.EEXIST {
		return fmt.Errorf("load module %s: %w", file, errno)
	}
	return nil
}

// switchRoot makes the disk the root: runc needs pivot_root, which the kernel
// refuses while the root is an initramfs.
func switchRoot() error {
	const root = "/newroot"
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	err := retry(func() error {
		// Without noinit_itable the kernel zeroes the rest of the inode tables in
		// the background, which is work for a disk that lives for seconds.
		return syscall.Mount(guest.RootDevice, root, "ext4", syscall.MS_NOATIME, "noinit_itable")
	})
	if err != nil {
		return fmt.Errorf("mount %s: %w", guest.RootDevice, err)
	}
	for _, f := range early {
		if err := syscall.Mount(f.target, root+f.target, "", syscall.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", f.target, err)
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := syscall.Mount(".", "/", "", syscall.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := syscall.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return os.Chdir("/")
}

func enableControllers(cgroup string) error {
	b, err := os.ReadFile(cgroup + "/cgroup.controllers")
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(b)) {
		if err := os.WriteFile(cgroup+"/cgroup.subtree_control", []byte("+"+c), 0); err != nil {
			return fmt.Errorf("enable controller %s: %w", c, err)
		}
	}
	return nil
}

func setUpNetwork(user bool) error {
	script := "ip link set lo up"
	if user {
		// The addresses are those of QEMU's user network: 10.0.2.2 is the host.
		script += " && ip addr add 10.0.2.15/24 dev eth0 && ip link set eth0 up && ip route add default via 10.0.2.2"
	}
	out, err := exec.Command("/bin/busybox", "sh", "-c", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("set up network: %w: %s", err, out)
	}
	return nil
}

// runProgram runs the program and reaps every orphan of it, as process 1 must.
// A program that was ended by a signal has the status 128 + signal, as in a
// shell.
func runProgram(spec guest.Spec, port *port) (int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	// A pipe and not the port itself, because a program may open /dev/stdout
	// again, and a port can be open only once.
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	p, err := os.StartProcess(spec.Program, append([]string{spec.Program}, spec.Args...), &os.ProcAttr{
		Dir: "/", Env: spec.Env, Files: []*os.File{null, w, w},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	w.Close()
	if err != nil {
		return 0, fmt.Errorf("start program: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(frames{port, guest.Output}, struct{ io.Reader }{r})
		done <- err
	}()
	var ws syscall.WaitStatus
	for {
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait for program: %w", err)
		}
		if pid == p.Pid {
			break
		}
	}
	// Daemons that the program left may keep the pipe open for ever.
	if err := r.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	if err := <-done; err != nil && !os.IsTimeout(err) {
		return 0, fmt.Errorf("copy output: %w", err)
	}
	if ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return ws.ExitStatus(), nil
}

func sendResults(port *port) error {
	// 64 KiB, because each frame costs some microseconds of emulated interrupts.
	buf := bufio.NewWriterSize(frames{port, guest.Results}, 64<<10)
	t := tar.NewWriter(buf)
	if err := t.AddFS(os.DirFS(guest.ResultsDir)); err != nil {
		return fmt.Errorf("send %s: %w", guest.ResultsDir, err)
	}
	if err := t.Close(); err != nil {
		return fmt.Errorf("send %s: %w", guest.ResultsDir, err)
	}
	return buf.Flush()
}
