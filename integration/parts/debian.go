package parts

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// proofs maps a Debian package to a file that is there when the package is.
// A look at a file is a hundred times cheaper than a question to dpkg, and
// true as well on a machine that got the file in another way.
var proofs = map[string]string{
	"gcc":            "/usr/bin/gcc",
	"libc6-dev":      "/usr/include/stdlib.h",
	"libseccomp-dev": "/usr/include/seccomp.h",
	"pkg-config":     "/usr/bin/pkg-config",
	"iptables":       "/usr/sbin/iptables",
	"nftables":       "/usr/sbin/nft",
	"mount":          "/usr/bin/mount",
	"conntrack":      "/usr/sbin/conntrack",
	"iproute2":       "/usr/bin/ip",
	"e2fsprogs":      "/usr/sbin/mke2fs",
	"libglib2.0-0":   "/usr/share/doc/libglib2.0-0/copyright",
	"libsystemd0":    "/usr/share/doc/libsystemd0/copyright",
}

// Install installs those of the named Debian packages that are missing.
func (s *Store) Install(ctx context.Context, packages ...string) error {
	var missing []string
	for _, p := range packages {
		proof, ok := proofs[p]
		if !ok {
			return fmt.Errorf("install Debian package %s: the table of proofs does not have it", p)
		}
		if _, err := os.Stat(proof); err != nil && !slices.Contains(missing, p) {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	unlock, err := s.Lock(ctx, "apt")
	if err != nil {
		return err
	}
	defer unlock()
	s.Progress("installing Debian packages %s …", strings.Join(missing, ", "))
	start := time.Now()
	if err := s.apt(ctx, "", append([]string{"install", "-y", "--no-install-recommends"}, missing...)...); err != nil {
		return err
	}
	s.Progress("Debian packages installed in %.0f s", time.Since(start).Seconds())
	return nil
}

// apt runs apt-get, after an update where there are no package lists or they
// are too old to find the packages.
func (s *Store) apt(ctx context.Context, dir string, args ...string) error {
	get := func(args ...string) error {
		// The machine's own timers may hold the lock of dpkg for a while.
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q", "-o", "DPkg::Lock::Timeout=300", "-o", "APT::Sandbox::User=root"}, args...)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
		return run(cmd)
	}
	lists, err := filepath.Glob("/var/lib/apt/lists/*_Packages*")
	if err != nil {
		return err
	}
	if len(lists) > 0 && get(args...) == nil {
		return nil
	}
	s.Progress("apt-get update …")
	if err := get("update"); err != nil {
		return err
	}
	return get(args...)
}

// unpack puts the file p.DebianFile of the Debian package p.DebianPackage into
// dir under the part's name, without installing the package.
func (s *Store) unpack(ctx context.Context, p Part, dir string) error {
	temp, err := os.MkdirTemp(dir, "deb-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := s.apt(ctx, temp, "download", p.DebianPackage); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(temp, "*.deb"))
	if err != nil {
		return err
	}
	if len(debs) != 1 {
		return fmt.Errorf("download Debian package %s: got %d files, want 1", p.DebianPackage, len(debs))
	}
	if err := run(exec.CommandContext(ctx, "dpkg", "-x", debs[0], temp)); err != nil {
		return err
	}
	return os.Rename(filepath.Join(temp, p.DebianFile), filepath.Join(dir, p.Name))
}
