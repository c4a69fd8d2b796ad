// Package units checks the files of deploy/systemd on a staged install tree, with systemd's own verifier.
package units

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tideline-io/tideline/integration/own"
)

const (
	socketUnit  = "tideline-runtime-proxy.socket"
	serviceUnit = "tideline-runtime-proxy.service"
	pluginUnit  = "tideline-nri-plugin.service"
	unitDir     = "etc/systemd/system"
	systemUnits = "/usr/lib/systemd/system"
)

// sources is the folder deploy/systemd.
func sources(t *testing.T) string {
	t.Helper()
	root, err := own.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "deploy", "systemd")
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// verify runs systemd-analyze on a tree as docs/install-node.md makes it, with the services changed by edit. The tree
// has systemd's own units, since ours refer to them, and programs, since the verifier looks for ExecStart.
func verify(t *testing.T, edit func(service string) string) (output string, err error) {
	t.Helper()
	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, systemUnits), os.DirFS(systemUnits)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, unitDir, socketUnit), read(t, filepath.Join(sources(t), socketUnit)), 0o644)
	for _, unit := range []string{serviceUnit, pluginUnit} {
		write(t, filepath.Join(root, unitDir, unit), edit(read(t, filepath.Join(sources(t), unit))), 0o644)
		write(t, filepath.Join(root, "usr/local/bin", strings.TrimSuffix(unit, ".service")), "#!/bin/sh\n", 0o755)
	}
	cmd := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--root="+root, serviceUnit, socketUnit, pluginUnit)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

func needSystemd(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd: systemd-analyze is not installed: apt-get install --no-install-recommends systemd")
	}
	if _, err := os.Stat(systemUnits); err != nil {
		t.Skipf("systemd: %s is not there", systemUnits)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	needSystemd(t)
	// An unknown key is only printed, so any output is a failure.
	if out, err := verify(t, func(s string) string { return s }); err != nil || out != "" {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestVerifySees makes sure that TestVerify can fail.
func TestVerifySees(t *testing.T) {
	t.Parallel()
	needSystemd(t)
	for name, edit := range map[string]func(string) string{
		"unknown key": func(s string) string { return strings.Replace(s, "RestartSec=", "RestartSeconds=", 1) },
		"bad value":   func(s string) string { return strings.Replace(s, "Type=notify", "Type=notified", 1) },
		"no program":  func(s string) string { return strings.Replace(s, "ExecStart=/usr/local/", "ExecStart=/usr/lokal/", 1) },
	} {
		if out, err := verify(t, edit); err == nil && out == "" {
			t.Errorf("%s: systemd-analyze verify sees nothing", name)
		}
	}
}

// TestAgree: the socket that systemd hands over, the proxy's --listen and the kubelet's endpoint are one path.
func TestAgree(t *testing.T) {
	t.Parallel()
	field := func(file, pattern string) string {
		m := regexp.MustCompile(`(?m)` + pattern).FindStringSubmatch(read(t, filepath.Join(sources(t), file)))
		if m == nil {
			t.Fatalf("%s has nothing like %s", file, pattern)
		}
		return m[1]
	}
	var kubelet struct {
		APIVersion, Kind         string
		ContainerRuntimeEndpoint string
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, filepath.Join(sources(t), "kubelet.conf.d", "20-tideline.conf"))), &kubelet); err != nil {
		t.Fatal(err)
	}
	if kubelet.APIVersion != "kubelet.config.k8s.io/v1beta1" || kubelet.Kind != "KubeletConfiguration" {
		t.Errorf("kubelet drop-in is %s %s", kubelet.APIVersion, kubelet.Kind)
	}
	want := "unix://" + field(socketUnit, `^ListenStream=(.*)$`)
	if got := field(serviceUnit, `^ExecStart=.* --listen (\S+)`); got != want {
		t.Errorf("--listen is %s, want %s", got, want)
	}
	if kubelet.ContainerRuntimeEndpoint != want {
		t.Errorf("the kubelet's endpoint is %s, want %s", kubelet.ContainerRuntimeEndpoint, want)
	}
}

// TestInstallPage: every file of the repository that the commands of docs/install-node.md name is there.
func TestInstallPage(t *testing.T) {
	t.Parallel()
	root := filepath.Dir(filepath.Dir(sources(t)))
	page := read(t, filepath.Join(root, "docs", "install-node.md"))
	files := regexp.MustCompile(`(?:deploy|api)/[\w./-]*\w`).FindAllString(page, -1)
	if len(files) < 5 {
		t.Errorf("docs/install-node.md names %d files, want at least 5", len(files))
	}
	for _, f := range files {
		if _, err := os.Stat(filepath.Join(root, f)); err != nil {
			t.Errorf("docs/install-node.md names %s: %v", f, err)
		}
	}
}
