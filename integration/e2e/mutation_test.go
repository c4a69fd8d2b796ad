package e2e

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/own"
)

// TestMutations: each way by which a value reaches the kernel, disabled on purpose, turns the demo red. A check that
// can't fail would be worth nothing.
func TestMutations(t *testing.T) {
	root, err := own.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []struct{ name, file, from, to string }{
		// Not cpuset.cpus: it has two ways, the message and the file, and each makes good for the other. See make storm.
		{"quota not sent", "internal/apply/cri/cri.go", "res.CpuQuota, res.CpuPeriod = m.Quota, m.Period", "_ = m"},
		{"memory limit not sent", "internal/apply/cri/cri.go", "if res.MemoryLimitInBytes, err = limit(s.Value); err != nil {", "if _, err = limit(s.Value); err != nil {"},
		{"files not written", "internal/engine/container.go", "e.cfg.Cgroups.WriteAll(path, settings)", "[]cgroup.Change(nil), error(nil)"},
	} {
		t.Run(m.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			t.Setenv(own.DirEnv, mutant(t, ctx, root, m.file, m.from, m.to))
			bad, err := demo.Run(ctx, lab.ForTest(t, "mutant"), io.Discard, demo.Options{Manifests: manifests(t)})
			if err == nil && len(bad) == 0 {
				t.Errorf("the demo passes though %s", m.name)
			}
			t.Logf("error %v, differences %q", err, bad)
		})
	}
}

// mutant builds the proxy with one place of its source changed, beside the other programs as they are.
func mutant(t *testing.T, ctx context.Context, root, file, from, to string) string {
	t.Helper()
	src := filepath.Join(root, file)
	b, err := os.ReadFile(src)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), from); n != 1 {
		t.Fatalf("%s has %d places %q, want 1: name the place anew", file, n, from)
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]map[string]string{"Replace": {src: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string]string{changed: strings.Replace(string(b), from, to, 1), overlay: string(list)} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "bin")
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-trimpath", "-o", filepath.Join(bin, own.Proxy), "./runtime-proxy")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the mutant: %v\n%s", err, out)
	}
	real, err := own.Dir()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{own.CLI, own.Readback} {
		if err := os.Symlink(filepath.Join(real, name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}
