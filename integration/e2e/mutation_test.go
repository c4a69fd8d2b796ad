package e2e

import (
	"context"
	"encoding/json"
	"fmt"
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
// can't fail would be worth nothing. The mutants do not reconcile, which would make good for each of them within seconds.
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
			t.Setenv(own.DirEnv, mutant(t, ctx, root, []change{{m.file, m.from, m.to}, {"internal/engine/pools.go", "e.reconcileFiles(ctx, drifts)", "_ = drifts"}}))
			bad, err := demo.Run(ctx, lab.ForTest(t, "mutant"), io.Discard, demo.Options{Manifests: manifests(t)})
			if err == nil && len(bad) == 0 {
				t.Errorf("the demo passes though %s", m.name)
			}
			t.Logf("error %v, differences %q", err, bad)
		})
	}
}

// change is one place of a source file.
type change struct{ file, from, to string }

// mutant builds the proxy with some places of its source changed, beside the other programs as they are.
func mutant(t *testing.T, ctx context.Context, root string, changes []change) string {
	t.Helper()
	dir := t.TempDir()
	overlay, replace := filepath.Join(dir, "overlay.json"), map[string]string{}
	for i, c := range changes {
		src := filepath.Join(root, c.file)
		b, err := os.ReadFile(src)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(b), c.from); n != 1 {
			t.Fatalf("%s has %d places %q, want 1: name the place anew", c.file, n, c.from)
		}
		replace[src] = filepath.Join(dir, fmt.Sprintf("changed%d.go", i))
		if err := os.WriteFile(replace[src], []byte(strings.Replace(string(b), c.from, c.to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		t.Fatal(err)
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
