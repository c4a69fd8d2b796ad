// Package vm runs one Linux program in a small virtual machine with a Debian
// kernel: real cgroup v2 with every controller, PSI and, on request, several
// NUMA nodes, none of which a test can have on a machine that is not its own.
// It owns the kernel, the disk image, the guest's first process and QEMU. It
// never touches the cgroups, the network or the boot files of the machine that
// it runs on; of that it only installs Debian packages that are missing.
//
//	exit, err := vm.Run(ctx, vm.Config{
//		Files: map[string]string{"/bin/check": "bin/check"}, Program: "/bin/check", NUMANodes: 2,
//	})
//
// The machine is emulated (TCG), so that it works without KVM. Ordinary Go code
// is 20 to 30 times slower than on the host, starting a process takes 0.1 s, and
// a boot some 5 s: give a test ten times its usual timeouts.
//
// A Go test can be the program of its own machine: pass os.Executable() in
// Files, "-test.run=..." in Args, and let the guest's side ask for
// os.Getenv("TIDELINE_LAB") == "vm".
package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tideline-io/tideline/integration/vm/internal/guest"
	"github.com/tideline-io/tideline/integration/vm/rdt"
)

// Config says what to run and in what machine.
//
// The guest's root is an ext4 disk with a busybox shell and its applets in
// /bin, and gigabytes of free space; writes to it are lost at the end. /tmp and
// /run are tmpfs. The root cgroup has every controller enabled for its
// children. The program runs as root with TIDELINE_LAB=vm, HOME and PATH set,
// an empty standard input and / as its working directory.
type Config struct {
	// Files are copied into the root image: guest path to host path. A directory
	// comes with all that is in it. Modes are kept, owners become root. The
	// shared libraries of dynamically linked programs come along by themselves.
	Files map[string]string
	// Links are symbolic links of the guest: guest path to target.
	Links map[string]string
	// Modules are names of kernel modules to load besides those for the disk,
	// overlay and bfq, such as veth and bridge.
	Modules []string

	Program string   // guest path
	Args    []string // without the program's name
	Env     []string // KEY=value, added to the environment above and winning over it

	CPUs      int // 0: 2
	MemoryMiB int // 0: 1024
	// NUMANodes divides CPUs and memory into as many nodes, each a socket of its
	// own. CPUs must be a multiple of it. 0: 1.
	NUMANodes int
	// ThreadsPerCore makes so many CPUs one core. The CPUs of a node must be a multiple of it. 0: 1.
	ThreadsPerCore int

	// Resctrl gives the machine hardware that resctrl can control, by a kernel that is made for it. Each NUMA node has an L3
	// of its own. The program mounts resctrl itself. nil: none, and no /sys/fs/resctrl.
	Resctrl *rdt.Options

	// Init is the guest's first process. With Systemd the root cgroup is systemd's, and so are /run and /tmp, which is no
	// tmpfs then; the program is a service.
	Init Init

	// Network gives the guest eth0 in QEMU's user network, in which 10.0.2.2 is
	// the host's loopback. Without it there is only lo.
	Network bool
	// Ports forwards TCP ports of the host's loopback to ports of the guest. It
	// implies Network.
	Ports map[int]int

	// Results is a directory of the host to which the guest's /results is copied
	// at the program's end, whatever its exit status. It is made if needed. Only
	// regular files, directories and symbolic links can be copied.
	Results string

	Limit    time.Duration // from QEMU's start, 0: 5 minutes
	Stdout   io.Writer     // the program's output and errors, nil: os.Stdout
	Progress io.Writer     // a line for each slow step, nil: os.Stderr
}

// GuestError is a machine that ended, or was ended, without an exit status of
// the program: a kernel panic, a program that could not be started, the time
// limit. Err is context.DeadlineExceeded for the limit, and may be nil.
type GuestError struct {
	Reason string
	Serial string // the end of the kernel's console and of QEMU's messages
	Err    error
}

func (e *GuestError) Error() string {
	if e.Serial == "" {
		return "run guest: " + e.Reason
	}
	return "run guest: " + e.Reason + "; the console's end:\n" + e.Serial
}

func (e *GuestError) Unwrap() error { return e.Err }

// Run boots a machine, runs the program in it, and returns the program's exit
// status: 128 + n if signal n ended it. With an error the status is -1, and the
// error is a *GuestError if the machine was started. The machine is gone when
// Run returns, or when the process dies. Run needs root and a working directory inside the repository.
//
// The first call installs and downloads what is needed, under .cache/vm of the
// repository; remove that directory to get a newer kernel.
func Run(ctx context.Context, cfg Config) (exit int, err error) {
	if err := cfg.complete(); err != nil {
		return -1, err
	}
	defer func() {
		// A command that the context killed says only that it was killed.
		if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}()
	inst, err := prepare(ctx, cfg.Progress, cfg.Init, cfg.Resctrl)
	if err != nil {
		return -1, err
	}
	dir, err := os.MkdirTemp("", "tideline-vm-")
	if err != nil {
		return -1, err
	}
	defer os.RemoveAll(dir)

	modules := slices.Concat([]string{"virtio_blk", "overlay", "bfq"}, cfg.Modules)
	if cfg.Network {
		modules = append(modules, "virtio_net")
	}
	initrd, err := inst.initrd(ctx, modules, cfg.spec())
	if err != nil {
		return -1, err
	}
	m := machine{
		vmlinux: inst.kernel.vmlinux, initrd: dir + "/initrd", disk: dir + "/root.img",
		cpus: cfg.CPUs, memoryMiB: cfg.MemoryMiB, numaNodes: cfg.NUMANodes, threads: cfg.ThreadsPerCore,
		network: cfg.Network, ports: cfg.Ports,
		amd: cfg.Resctrl != nil && cfg.Resctrl.Vendor == rdt.AMD,
	}
	if err := os.WriteFile(m.initrd, initrd, 0o600); err != nil {
		return -1, err
	}
	if err := writeRoot(ctx, m.disk, dir+"/root", inst, cfg); err != nil {
		return -1, err
	}
	return cfg.boot(ctx, m, func() { os.RemoveAll(dir) })
}

// complete checks the configuration, all of it, and sets the defaults.
func (c *Config) complete() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	c.CPUs, c.MemoryMiB, c.NUMANodes, c.ThreadsPerCore = orDefault(c.CPUs, 2), orDefault(c.MemoryMiB, 1024), orDefault(c.NUMANodes, 1), orDefault(c.ThreadsPerCore, 1)
	c.Limit = orDefault(c.Limit, 5*time.Minute)
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Progress == nil {
		c.Progress = os.Stderr
	}
	c.Network = c.Network || len(c.Ports) > 0

	if !c.Init.Valid() {
		bad("init %q: want %q or nothing", c.Init, Systemd)
	}
	if c.Program == "" {
		bad("no program")
	}
	for _, p := range slices.Sorted(maps.Keys(c.Files)) {
		if err := checkGuestPath(p); err != nil {
			bad("file %q: %w", p, err)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(c.Links)) {
		if err := checkGuestPath(p); err != nil {
			bad("link %q: %w", p, err)
		}
	}
	for _, e := range c.Env {
		if !strings.Contains(e, "=") {
			bad("environment %q: want KEY=value", e)
		}
	}
	if c.CPUs < 0 || c.NUMANodes < 0 || c.CPUs%c.NUMANodes != 0 {
		bad("%d CPUs can't be divided among %d NUMA nodes", c.CPUs, c.NUMANodes)
	} else if c.ThreadsPerCore < 0 || c.CPUs/c.NUMANodes%c.ThreadsPerCore != 0 {
		bad("%d CPUs of a node can't be divided into cores of %d threads", c.CPUs/c.NUMANodes, c.ThreadsPerCore)
	} else if c.MemoryMiB < 256*c.NUMANodes {
		bad("memory %d MiB: want 256 for each of %d NUMA nodes", c.MemoryMiB, c.NUMANodes)
	}
	if c.Resctrl != nil {
		if err := c.Resctrl.Check(); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Limit < 0 {
		bad("limit %s: negative", c.Limit)
	}
	for _, host := range slices.Sorted(maps.Keys(c.Ports)) {
		if to := c.Ports[host]; host < 1 || host > 65535 || to < 1 || to > 65535 {
			bad("port %d to %d: want 1 to 65535", host, to)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("check configuration: %w", errors.Join(errs...))
	}
	return nil
}

func orDefault[T comparable](value, standard T) T {
	var zero T
	if value == zero {
		return standard
	}
	return value
}

// checkGuestPath refuses what would not be seen in the guest.
func checkGuestPath(p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
		return errors.New("want a clean absolute path")
	}
	switch top, _, _ := strings.Cut(p[1:], "/"); top {
	case "dev", "proc", "run", "sys", "tmp":
		return errors.New("the guest mounts a file system over it")
	}
	return nil
}

// spec is init's part of the configuration. Modules are the initrd's business.
func (c *Config) spec() guest.Spec {
	return guest.Spec{
		Systemd: c.Init == Systemd, Network: c.Network, Results: c.Results != "",
		Program: c.Program, Args: c.Args,
		Env: environment(c.Env),
	}
}

// environment adds to the guest's own environment; the last value of a key wins.
func environment(more []string) []string {
	env := map[string]string{
		"HOME":         "/root",
		"PATH":         "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"TIDELINE_LAB": "vm",
	}
	for _, e := range more {
		k, v, _ := strings.Cut(e, "=")
		env[k] = v
	}
	var list []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}
