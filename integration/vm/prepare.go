package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tideline-io/tideline/integration/parts"
	"github.com/tideline-io/tideline/integration/vm/rdt"
)

// kernelPackage is the Debian meta package of the kernel. Its cloud variant has
// all that is needed (cgroup v2 with iocost and bfq, PSI, NUMA, resctrl,
// overlay), ext4 and virtio-serial without modules, and is a third as large.
const kernelPackage = "linux-image-6.12-cloud-amd64"

// installation is what machines have in common, made once per repository.
type installation struct {
	kernel  kernel
	busybox string // static, host path
	init    []byte // a static program
	systemd string // the tree of a root with systemd, "" where it is not wanted
}

// Prepare does what the first Run would do beforehand: for one whose Run has no network. Its progress goes to standard error.
func Prepare(ctx context.Context) error {
	_, err := prepare(ctx, os.Stderr, Own, nil)
	return err
}

// prepare makes the installation or finds it. Processes that come at the same
// time wait for each other.
func prepare(ctx context.Context, progress io.Writer, init Init, resctrl *rdt.Options) (installation, error) {
	store, err := parts.Open(progress)
	if err != nil {
		return installation{}, err
	}
	if store.Fixed() != "" {
		return installation{}, fmt.Errorf("prepare machine: %s is set, so nothing can be built", parts.DirEnv)
	}
	cache, err := store.CacheDir("vm")
	if err != nil {
		return installation{}, err
	}
	var in installation
	in.kernel.dir = filepath.Join(cache, kernelPackage)
	in.kernel.vmlinux = filepath.Join(in.kernel.dir, "vmlinux")
	unlock, err := store.Lock(ctx, "vm")
	if err != nil {
		return installation{}, err
	}
	defer unlock()

	a := apt{store: store, progress: progress}
	if err := a.installTools(ctx); err != nil {
		return installation{}, err
	}
	if err := once(in.kernel.dir, func(dir string) error { return a.kernel(ctx, dir) }); err != nil {
		return installation{}, err
	}
	if resctrl != nil {
		if in.kernel.vmlinux, err = patchKernel(cache, in.kernel.vmlinux, *resctrl, progress); err != nil {
			return installation{}, err
		}
	}
	if init == Systemd {
		if in.systemd, err = a.systemdRoot(ctx, cache); err != nil {
			return installation{}, err
		}
	}
	paths, err := store.Build(ctx, "busybox")
	if err != nil {
		return installation{}, err
	}
	in.busybox = paths["busybox"]
	in.init, err = buildInit(ctx, cache)
	return in, err
}

// buildInit builds init and returns it. Go does so only if its sources changed.
func buildInit(ctx context.Context, cache string) ([]byte, error) {
	file := filepath.Join(cache, "init")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file, "./vm/init")
	build.Dir = filepath.Join(cache, "..", "..", "integration")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if _, err := output(build); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}

// once makes a directory unless it is there. It appears only when it is whole.
func once(dir string, fill func(dir string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return err
	}
	if err := fill(part); err != nil {
		return err
	}
	return os.Rename(part, dir)
}

// output runs a command and returns its standard output. The error has the
// command line and what the command said on standard error.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// apt fetches Debian packages.
type apt struct {
	store    *parts.Store
	progress io.Writer
	updated  bool
}

// tools are the programs that are used, and the packages that have them.
var tools = []struct{ program, pkg string }{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"mke2fs", "e2fsprogs"},
	{"zstd", "zstd"},
	{"xz", "xz-utils"},
}

func (a *apt) installTools(ctx context.Context) error {
	var missing []string
	for _, t := range tools {
		if _, err := exec.LookPath(t.program); err != nil {
			missing = append(missing, t.pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	fmt.Fprintf(a.progress, "vm: installing %s\n", strings.Join(missing, " "))
	return a.retry(ctx, func() error {
		args := append([]string{"install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"}, missing...)
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		_, err := output(cmd)
		return err
	})
}

// retry tries again with fresh package lists, once: a new machine has none, and
// an old one names files that are gone. The lock keeps the makers of parts away,
// as apt-get does not wait for another one that holds the lists.
func (a *apt) retry(ctx context.Context, try func() error) error {
	unlock, err := a.store.Lock(ctx, "apt")
	if err != nil {
		return err
	}
	defer unlock()
	err = try()
	if err == nil || a.updated {
		return err
	}
	fmt.Fprintln(a.progress, "vm: updating the package lists")
	if _, uerr := output(exec.CommandContext(ctx, "apt-get", "update")); uerr != nil {
		return errors.Join(err, uerr)
	}
	a.updated = true
	return try()
}

// kernel makes the tree of a kernel package, with the unpacked kernel in it.
func (a *apt) kernel(ctx context.Context, dir string) error {
	name, err := a.dependency(ctx, kernelPackage)
	if err != nil {
		return err
	}
	if err := a.extract(ctx, dir, name); err != nil {
		return err
	}
	return writeVmlinux(ctx, dir)
}

// dependency returns the package of a meta package.
func (a *apt) dependency(ctx context.Context, meta string) (string, error) {
	var name string
	err := a.retry(ctx, func() error {
		out, err := output(exec.CommandContext(ctx, "apt-cache", "depends", "--important", meta))
		if err != nil {
			return err
		}
		name, err = parseDepends(string(out))
		return err
	})
	return name, err
}

// parseDepends reads the first dependency of
//
//	linux-image-6.12-cloud-amd64
//	  Depends: linux-image-6.12.117+deb12-cloud-amd64
func parseDepends(out string) (string, error) {
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok {
			return name, nil
		}
	}
	return "", fmt.Errorf("parse apt-cache depends %q: no dependency", out)
}

// extract downloads packages and unpacks them into a directory, without
// installing them.
func (a *apt) extract(ctx context.Context, dir string, names ...string) error {
	fmt.Fprintf(a.progress, "vm: downloading %s\n", strings.Join(names, " "))
	tmp, err := os.MkdirTemp("", "tideline-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	err = a.retry(ctx, func() error {
		// apt's own user can't write into a directory of ours.
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"download", "-o", "APT::Sandbox::User=root"}, names...)...)
		cmd.Dir = tmp
		_, err := output(cmd)
		return err
	})
	if err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil {
		return err
	}
	if len(debs) != len(names) {
		return fmt.Errorf("download %v: got %v", names, debs)
	}
	for _, deb := range debs {
		if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "--extract", deb, dir)); err != nil {
			return err
		}
	}
	return nil
}
