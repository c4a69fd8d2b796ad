package vm

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tideline-io/tideline/integration/vm/internal/guest"
)

// Init names what runs as the guest's first process.
type Init string

const (
	// Own is the small init of this package alone: no service, no cgroup but the root.
	Own Init = ""
	// Systemd is Debian's systemd, with its journal and a system bus, which runs the program as a service. It is the
	// one writer of the cgroup tree, so that a program makes its cgroups by asking it, as on most nodes.
	Systemd Init = "systemd"
)

// Valid reports whether i is one of the above.
func (i Init) Valid() bool { return i == Own || i == Systemd }

// systemdPackages are the Debian packages of a root with systemd. What is dlopened for disks, keys and the network is
// left out, and so is udev: the kernel makes the few devices that there are.
var systemdPackages = []string{
	"systemd", "systemd-sysv", "libsystemd-shared", "libsystemd0",
	"dbus", "dbus-daemon", "dbus-bin", "dbus-system-bus-common", "libdbus-1-3", "libexpat1", "libapparmor1",
	"libacl1", "libaudit1", "libblkid1", "libc6", "libcap-ng0", "libcap2", "libcrypt1", "libgcc-s1", "libgcrypt20", "libgpg-error0",
	"libip4tc2", "libkmod2", "liblz4-1", "liblzma5", "libmount1", "libpam0g", "libpcre2-8-0", "libseccomp2", "libselinux1", "libssl3",
	"libuuid1", "libzstd1",
}

// systemdFiles are what makes systemd start the program and nothing else. The units that packages ask for by links
// (timers, getty, logind, tmpfiles and twenty more) are not there, as systemdRoot removes the links.
var systemdFiles = map[string]string{
	"/etc/group":  "root:x:0:\nmessagebus:x:101:\n",
	"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nmessagebus:x:101:101::/nonexistent:/bin/false\n",
	// Without an ID a boot counts as the first one, which looks at every unit there is.
	"/etc/machine-id": "7469646c696e65000000000000000001\n",
	"/etc/systemd/system/default.target": `[Unit]
Requires=systemd-journald.service dbus.service program.service
AllowIsolate=yes
`,
	"/etc/systemd/system/program.service": `[Unit]
Description=the program of this machine
After=dbus.service
FailureAction=poweroff-force

[Service]
ExecStart=` + systemdRunner + `
StandardOutput=journal+console
StandardError=journal+console
Delegate=yes
KillMode=process
TasksMax=infinity
LimitNOFILE=1048576
`,
}

// systemdRunner is where the guest has a second copy of init, the one that runs the program.
const systemdRunner = "/usr/lib/tideline-vm/init"

// systemdRoot makes the tree of a root with systemd. Its name in the cache has the hash of what it is made from.
func (a *apt) systemdRoot(ctx context.Context, cache string) (string, error) {
	dir := filepath.Join(cache, fmt.Sprintf("systemd-%x", sha256.Sum256([]byte(strings.Join(systemdPackages, " "))))[:len("systemd-")+12])
	return dir, once(dir, func(dir string) error {
		if err := a.extract(ctx, dir, systemdPackages...); err != nil {
			return err
		}
		// Debian 12 has all of them in /usr, whatever the packages say.
		for _, d := range []string{"bin", "lib", "lib64", "sbin"} {
			from, to := filepath.Join(dir, d), filepath.Join(dir, "usr", d)
			if err := os.MkdirAll(to, 0o755); err != nil {
				return err
			}
			if _, err := os.Stat(from); err == nil {
				if _, err := output(exec.CommandContext(ctx, "cp", "-a", from+"/.", to)); err != nil {
					return err
				}
			}
			if err := os.RemoveAll(from); err != nil {
				return err
			}
			if err := os.Symlink("usr/"+d, from); err != nil {
				return err
			}
		}
		wants, err := filepath.Glob(filepath.Join(dir, "usr/lib/systemd/system/*.wants"))
		if err != nil {
			return err
		}
		for _, d := range append(wants, filepath.Join(dir, "usr/share/doc"), filepath.Join(dir, "usr/share/man"), filepath.Join(dir, "usr/share/locale"),
			filepath.Join(dir, "usr/lib/systemd/system-generators")) {
			if err := os.RemoveAll(d); err != nil {
				return err
			}
		}
		return nil
	})
}

// addSystemd puts a root with systemd into the tree, with the specification of the work.
func (t *tree) addSystemd(inst installation, spec []byte) error {
	if _, err := output(exec.CommandContext(t.ctx, "cp", "-a", inst.systemd+"/.", t.dir)); err != nil {
		return err
	}
	t.bytes += 64 << 20 // no more than that
	if err := t.write(guest.SpecFile, string(spec)); err != nil {
		return err
	}
	if err := t.write(systemdRunner, string(inst.init)); err != nil {
		return err
	}
	return os.Chmod(t.host(systemdRunner), 0o755)
}
