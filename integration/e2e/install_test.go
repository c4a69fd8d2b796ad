package e2e

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/policy"
)

// TestInstall: on a node whose systemd runs containerd with NRI off, install turns NRI on and puts the plugin there, in
// its unit with all of the unit's hardening; uninstall leaves nothing. The container that runs meanwhile goes on.
func TestInstall(t *testing.T) {
	if !lab.Systemd() || door != node.NRI {
		t.Skip("systemd: it needs the VM whose init is systemd, and the plugin: the proxy's needs a kubelet")
	}
	ctx, n := start(t, node.Options{})
	systemctl := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("systemctl %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if err := errors.Join(n.StopProxy(ctx, syscall.SIGTERM), n.Containerd.Stop(ctx)); err != nil {
		t.Fatal(err)
	}

	// The lab's containerd, as a package installs it: in a unit, and with NRI at its usual place, but off.
	const dropIns, containerdUnit = "/etc/containerd/conf.d", "/etc/systemd/system/containerd.service"
	config := filepath.Join(n.Lab.Dir(), "containerd.toml")
	toml, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(
		"version = 4\n", "version = 4\nimports = ['"+dropIns+"/*.toml']\n",
		"  disable = false\n  socket_path = '"+n.Containerd.NRISocket()+"'\n", "  disable = true\n  socket_path = '/var/run/nri/nri.sock'\n",
	).Replace(string(toml))
	if !strings.Contains(text, "imports") || !strings.Contains(text, "disable = true") {
		t.Fatalf("the lab's configuration of containerd is another one:\n%s", text)
	}
	unit := "[Service]\nType=notify\nDelegate=yes\nKillMode=process\nEnvironment=PATH=" + n.Lab.BinDir() + ":/usr/local/bin:/usr/bin:/bin\n" +
		"ExecStart=" + n.Lab.BinDir() + "/containerd --config " + config + "\n"
	programs, err := own.Dir()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{config: text, containerdUnit: unit} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll("/usr/local/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{own.Plugin, own.CLI} {
		data, err := os.ReadFile(filepath.Join(programs, name))
		if err == nil {
			err = os.WriteFile(filepath.Join("/usr/local/bin", name), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(n.Lab.BinDir(), "containerd")); err != nil { // the lab names it by its place in the store
		path, err := n.Lab.Part("containerd")
		if err == nil {
			err = os.Symlink(path, filepath.Join(n.Lab.BinDir(), "containerd"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	systemctl("daemon-reload")
	systemctl("start", "containerd.service")
	t.Cleanup(func() {
		out, err := exec.CommandContext(context.WithoutCancel(ctx), "systemctl", "stop", "containerd.service").CombinedOutput()
		if err = errors.Join(err, os.Remove(containerdUnit)); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	n.Control = control.Dial(control.DefaultSocket)

	tideline := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(ctx, "/usr/local/bin/tideline", args...).CombinedOutput()
		if err != nil {
			journal, _ := exec.CommandContext(ctx, "journalctl", "--no-pager", "-n", "40", "-u", "tideline-nri-plugin.service").CombinedOutput()
			t.Fatalf("tideline %v: %v:\n%s\n%s", args, err, out, journal)
		}
		t.Logf("tideline %s:\n%s", strings.Join(args, " "), out)
		return string(out)
	}
	ours := []string{"/etc/tideline", dropIns, "/etc/systemd/system/tideline-nri-plugin.service", "/var/lib/tideline", control.DefaultRunDir}
	left := func(when string) {
		t.Helper()
		for _, name := range ours {
			if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %s is there (%v)", when, name, err)
			}
		}
	}
	plain := run(t, ctx, n, manifest(t, "be"))
	before := node.Files(cgroupOf(plain, 0))

	tideline("install", "--door", "nri", "--dry-run")
	left("after a dry run")
	tideline("install", "--door", "nri", "--mode", "enforce")
	for _, u := range []string{"containerd.service", "tideline-nri-plugin.service"} {
		if state := systemctl("is-active", u); state != "active" {
			t.Errorf("%s is %s", u, state)
		}
	}
	if enabled := systemctl("is-enabled", "tideline-nri-plugin.service"); enabled != "enabled" {
		t.Errorf("the plugin's unit is %s", enabled)
	}
	if out := tideline("status"); !strings.Contains(out, "nri") || !strings.Contains(out, "enforce") {
		t.Errorf("status shows no enforcing NRI door")
	}
	spec := manifest(t, "be")
	spec.Name, spec.UID = "another", "00000000-0000-4000-8000-0000000000aa"
	want(t, "made after install", cgroupOf(run(t, ctx, n, spec), 0), map[policy.Knob]string{policy.CPUIdle: "1", policy.CPUMax: be[policy.CPUMax], policy.MemoryMax: be[policy.MemoryMax]})
	eventually(t, "the container that ran before has its bandwidth", func() bool {
		return node.Kernel(cgroupOf(plain, 0), policy.CPUMax) == be[policy.CPUMax]
	})
	if out := tideline("install", "--door", "nri"); !strings.Contains(out, "only check it") {
		t.Errorf("a second install does more than check")
	}

	tideline("uninstall")
	left("after uninstall")
	differ(t, "the container that ran before", before, node.Files(cgroupOf(plain, 0)))
	if state := systemctl("is-active", "containerd.service"); state != "active" {
		t.Errorf("containerd is %s", state)
	}
	if units := systemctl("list-units", "--all", "--no-legend", "tideline*"); units != "" {
		t.Errorf("systemd knows of %s", units)
	}
	gone := manifest(t, "be")
	gone.Name, gone.UID = "third", "00000000-0000-4000-8000-0000000000ab"
	differ(t, "made after uninstall", before, node.Files(cgroupOf(run(t, ctx, n, gone), 0)))
}
