package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/install"
)

// aNode makes the node of internal/install's fixture.
func aNode(t *testing.T) string {
	t.Helper()
	a, err := txtar.ParseFile("../../internal/install/testdata/node.txtar")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, f := range a.Files {
		text := string(f.Data)
		if strings.HasSuffix(f.Name, "/cmdline") {
			text = strings.ReplaceAll(strings.TrimSpace(text), " ", "\x00") + "\x00"
		}
		name := filepath.Join(root, f.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestInstall(t *testing.T) {
	t.Parallel()
	socket := fakeDoor(t, control.Status{Door: "cri", Mode: control.ModeObserve, StartMode: control.ModeObserve, Runtime: control.Runtime{Connected: true}}, nil, control.DisableReport{})
	root, fail := aNode(t), ""
	run := func(args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		c := &cli{stdout: &out, stderr: &errs, name: "tideline", root: root, waits: install.Waits{Limit: 2 * time.Second, Every: time.Millisecond, Steady: 1}}
		c.exec = func(_ context.Context, args []string) (string, error) {
			switch command := strings.Join(args, " "); {
			case command == fail:
				return "", errors.New("exit status 1: no such unit")
			case strings.HasSuffix(command, "config dump"):
				data, err := os.ReadFile(filepath.Join(root, "lib/dump-on"))
				return string(data), err
			}
			return "active\n", nil
		}
		code = c.run(t.Context(), append(args, "--control", socket))
		return code, out.String(), errs.String()
	}
	code, dry, errs := run("install", "--door", "cri", "--dry-run")
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	golden(t, "install-dry-run.txt", dry)
	if _, err := os.Stat(filepath.Join(root, install.StateFile)); err == nil {
		t.Error("--dry-run wrote")
	}

	fail = "systemctl restart kubelet.service"
	code, out, errs := run("install", "--door", "cri")
	if code != 1 || !strings.HasPrefix(out, dry) {
		t.Errorf("exit code %d, and not the plan of --dry-run first:\n%s", code, out)
	}
	golden(t, "install-stopped.txt", errs)

	fail = ""
	if code, out, errs = run("install", "--door", "cri"); code != 0 || !strings.Contains(out, "\nDone. See tideline check and tideline status;") {
		t.Errorf("again: exit code %d: %s%s", code, out, errs)
	}
	fail = "systemctl is-active kubelet.service"
	if code, _, errs = run("uninstall"); code != 1 || !strings.Contains(errs, "systemctl does not tell how kubelet.service is: exit status 1: no such unit") || !strings.HasSuffix(errs, "\nEverything of Tideline is gone; this check alone failed.\n") {
		t.Errorf("the kubelet does not come back: exit code %d: %s", code, errs)
	}
	fail = ""
	if code, out, errs = run("install", "--door", "cri"); code != 0 {
		t.Errorf("once more: exit code %d: %s%s", code, out, errs)
	}
	if code, out, errs = run("uninstall"); code != 0 || !strings.Contains(out, "0 kernel values put back") || !strings.Contains(out, "\nDone. ") {
		t.Errorf("uninstall: exit code %d: %s%s", code, out, errs)
	}
	if code, out, _ = run("uninstall"); code != 0 || out != "Plan: nothing is installed by this command\n" {
		t.Errorf("uninstall again: exit code %d: %q", code, out)
	}
	if code, _, errs = run("install"); code != 1 || errs != "error: --door \"\": want cri or nri\n" {
		t.Errorf("no door: exit code %d: %q", code, errs)
	}
}

func TestExecute(t *testing.T) {
	t.Parallel()
	if out, err := execute(t.Context(), []string{"sh", "-c", "echo out; echo why >&2; exit 3"}); out != "out\n" || err == nil || err.Error() != "exit status 3: why" {
		t.Errorf("%q, %v", out, err)
	}
}
