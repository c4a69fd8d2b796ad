package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideline-io/tideline/integration/images"
	"github.com/tideline-io/tideline/integration/parts"
)

// Env names the environment variable with the role of a process: empty for
// the outer one, or one of the roles below. A VM sets it to "vm".
const Env = "TIDELINE_LAB"

const (
	roleInit    = "init"    // pid 1 of the namespaces
	roleInside  = "inside"  // the program itself
	roleJanitor = "janitor" // removes what the namespaces do not
	roleVM      = "vm"      // the program in a VM that is all ours

	nameEnv = "TIDELINE_LAB_NAME" // the name of the run, also of its cgroups
	dirEnv  = "TIDELINE_LAB_DIR"  // the work folder of the run
	// KeepEnv names the environment variable that, when it is not empty,
	// keeps the work folders with the logs.
	KeepEnv = "TIDELINE_LAB_KEEP"
)

// forwarded are the signals that the inside process gets from the outer one.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}

// A Preparation runs before the program is isolated, while there is a network.
type Preparation func(context.Context) error

// Parts prepares parts, and the archive of images where one of them is for
// images. Inside, only parts that were prepared are there for sure.
func Parts(names ...string) Preparation {
	return func(ctx context.Context) error {
		store, err := parts.Open(os.Stderr)
		if err != nil {
			return err
		}
		if _, err := store.Build(ctx, names...); err != nil {
			return err
		}
		if slices.ContainsFunc(names, func(n string) bool { return slices.Contains(parts.Images(), n) }) {
			_, err = images.Archive(ctx, store)
		}
		return err
	}
}

// Isolate has to be the first call of main or TestMain. It runs the program
// again, with the same arguments, in mount, network and pid namespaces of its
// own, and ends the process with the status of that run: it returns in the
// inside process only. It needs root. In a VM it only completes the mounts.
//
// The inside process is in a process group of its own, so it must not read
// from a terminal.
func Isolate(preparations ...Preparation) {
	var status int
	var err error
	switch role := os.Getenv(Env); role {
	case roleInside:
		return
	case roleVM:
		if err = enterVM(); err == nil {
			return
		}
	case roleInit:
		status, err = runInit()
	case roleJanitor:
		err = runJanitor(os.Stdin)
	case "":
		status, err = runOuter(preparations)
	default:
		err = fmt.Errorf("read role %s=%q: unknown", Env, role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		status = 1
	}
	os.Exit(status)
}

// runOuter prepares, starts the namespaces, waits for their end, and has
// everything removed.
func runOuter(preparations []Preparation) (int, error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("isolate: the lab needs root for its namespaces and cgroups")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	for _, prepare := range preparations {
		if err := prepare(ctx); err != nil {
			return 0, fmt.Errorf("prepare: %w", err)
		}
	}
	stop()

	dir, err := makeWorkFolder()
	if err != nil {
		return 0, err
	}
	env := append(os.Environ(), nameEnv+"="+filepath.Base(dir), dirEnv+"="+dir)
	clean, err := startJanitor(env)
	if err != nil {
		return 0, errors.Join(err, os.RemoveAll(dir))
	}
	status, err := runNamespaces(env)
	return status, errors.Join(err, clean())
}

// makeWorkFolder makes the work folder of a run. Its name is the name of the
// run's cgroups too: a pid alone would not be unique, since pid namespaces,
// those of a run inside a run as well, share the cgroup hierarchies.
func makeWorkFolder() (string, error) {
	dir, err := os.MkdirTemp("", fmt.Sprintf("tideline-lab-%d-*", os.Getpid()))
	if err != nil {
		return "", fmt.Errorf("make the work folder: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the work folder: %w", err)
	}
	return dir, nil
}

// runNamespaces runs this program as pid 1 of new namespaces and returns its
// exit status.
func runNamespaces(env []string) (int, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)

	// Pdeathsig is about the thread that forks, not about the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := self(env, roleInit)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
		// The terminal's own signals must come once: from us.
		Setpgid: true,
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start pid 1 of the namespaces: %w", err)
	}
	ended := make(chan struct{})
	forwarding := make(chan struct{})
	go func() {
		defer close(forwarding)
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s) // it may have ended already
			case <-ended:
				return
			}
		}
	}()
	err := cmd.Wait()
	close(ended)
	<-forwarding
	if err != nil && cmd.ProcessState == nil {
		return 0, fmt.Errorf("wait for pid 1 of the namespaces: %w", err)
	}
	return exitStatus(cmd.ProcessState.Sys().(syscall.WaitStatus)), nil
}

// self is a command that runs this program again in another role.
func self(env []string, role string) *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: os.Args, Env: append(slices.Clone(env), Env+"="+role)}
}

// exitStatus is the status by which a shell knows how a process ended.
func exitStatus(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// runInit is pid 1 of the namespaces: it makes them liveable, starts the
// program, reaps, and ends with the program's status. Its end kills every
// process inside.
func runInit() (int, error) {
	if err := setUpNamespaces(); err != nil {
		return 0, err
	}
	name := os.Getenv(nameEnv)
	if err := makeCgroup(name); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	// os/exec would wait for its child only, or race with the reaping below.
	env := append(slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, Env+"=") }), Env+"="+roleInside)
	main, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 0, fmt.Errorf("start the program in its namespaces: %w", err)
	}
	go func() { // ends with the process
		for s := range signals {
			_ = syscall.Kill(main, s.(syscall.Signal))
		}
	}()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the program in its namespaces: %w", err)
		case pid == main:
			// A task that is frozen by the v1 freezer can't be killed, and
			// the end of a pid namespace waits for all its tasks.
			thaw(name)
			return exitStatus(ws), nil
		}
	}
}

// startJanitor starts a process that outlives this one, and returns what has
// it do its work and waits for its end.
func startJanitor(env []string) (func() error, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the janitor: %w", err)
	}
	var said bytes.Buffer
	cmd := self(env, roleJanitor)
	cmd.Args = []string{os.Args[0], "(lab janitor)"}
	cmd.Stdin, cmd.Stderr = r, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends our group must not end it
	err = cmd.Start()
	r.Close()
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("start the janitor: %w", err)
	}
	return func() error {
		w.Close()
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("clean up: %w: %s", err, bytes.TrimSpace(said.Bytes()))
		}
		return nil
	}, nil
}

// runJanitor waits for the end of the outer process, which holds the other
// end of r, and removes what outlives the namespaces.
func runJanitor(r io.Reader) error {
	signal.Ignore(forwarded...)
	if _, err := io.Copy(io.Discard, r); err != nil {
		return fmt.Errorf("wait for the outer process: %w", err)
	}
	err := removeCgroup(os.Getenv(nameEnv), 30*time.Second)
	if dir := os.Getenv(dirEnv); os.Getenv(KeepEnv) == "" {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// setUpNamespaces gives new mount, pid and network namespaces their own /proc
// and loopback, and empty folders in place of those that programs use whatever
// their configuration says: runc keeps its state in /run/containerd/runc, the
// kubelet writes /var/log/containers and /var/lib/kubelet/device-plugins, CNI
// writes /var/lib/cni/results, and CRI-O /var/lib/containers/cache.
func setUpNamespaces() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	resolv, resolvErr := os.ReadFile(resolvConf)
	for _, dir := range []string{"/run", "/var/log/containers", "/var/lib/kubelet", "/var/lib/cni", "/var/lib/containers"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make a mount point: %w", err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return fmt.Errorf("mount a tmpfs over %s: %w", dir, err)
		}
	}
	if err := restoreResolvConf(resolv, resolvErr); err != nil {
		return err
	}
	return loopbackUp()
}

const resolvConf = "/etc/resolv.conf"

// restoreResolvConf puts back the target of /etc/resolv.conf where it was in
// /run: containerd copies the file into every pod, and fails without it.
func restoreResolvConf(content []byte, err error) error {
	if _, statErr := os.Stat(resolvConf); statErr == nil {
		return nil
	}
	target, linkErr := os.Readlink(resolvConf)
	if linkErr != nil {
		return nil // there was none; the lab is as good as the machine
	}
	if err != nil {
		content = nil
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(resolvConf), target)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("restore %s: %w", resolvConf, err)
	}
	if err := os.WriteFile(target, content, 0o644); err != nil {
		return fmt.Errorf("restore %s: %w", resolvConf, err)
	}
	return nil
}

// enterVM completes what the init of a VM may have left out, and makes the
// names that runOuter makes elsewhere.
func enterVM() error {
	for _, m := range []struct{ dir, fs string }{{"/proc", "proc"}, {"/sys", "sysfs"}, {"/run", "tmpfs"}, {"/sys/fs/cgroup", "cgroup2"}} {
		if err := mountOnce(m.dir, m.fs); err != nil {
			return err
		}
	}
	if _, err := os.Stat(resolvConf); err != nil {
		if err := os.WriteFile(resolvConf, nil, 0o644); err != nil {
			return fmt.Errorf("make %s: %w", resolvConf, err)
		}
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := os.MkdirAll(os.TempDir(), 0o1777); err != nil {
		return fmt.Errorf("make the folder for temporary files: %w", err)
	}
	dir, err := makeWorkFolder()
	if err != nil {
		return err
	}
	if !Systemd() {
		if err := makeCgroup(filepath.Base(dir)); err != nil {
			return err
		}
	}
	return errors.Join(os.Setenv(nameEnv, filepath.Base(dir)), os.Setenv(dirEnv, dir))
}

// mountOnce mounts a file system on dir unless something is mounted there.
func mountOnce(dir, fs string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	var at, above unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &at), unix.Stat(filepath.Dir(dir), &above)); err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	if at.Dev != above.Dev {
		return nil
	}
	if err := unix.Mount(fs, dir, fs, 0, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", fs, dir, err)
	}
	return nil
}
