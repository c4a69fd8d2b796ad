package e2e

import (
	"bytes"
	"context"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
)

// TestRestartEverywhere: the proxy killed between any two calls of the demo, and started again, gives the same table.
func TestRestartEverywhere(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	kills := 0
	table := func(name string, before func(*node.Node, string)) string {
		var out bytes.Buffer
		bad, err := demo.Run(ctx, lab.ForTest(t, name), &out, demo.Options{Manifests: manifests(t), Door: door, BeforeCalls: before})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range bad {
			t.Errorf("%s: differs: %s", name, b)
		}
		return regexp.MustCompile(`\b[0-9a-f]{12}\b`).ReplaceAllString(out.String(), "ID")
	}
	calm := table("calm", nil)
	killed := table("killed", func(n *node.Node, call string) {
		if err := n.RestartProxy(ctx, syscall.SIGKILL); err != nil {
			t.Fatalf("restart before %s: %v", call, err)
		}
		kills++
	})
	if calm != killed {
		t.Errorf("the tables differ; undisturbed:\n%s\nkilled:\n%s", calm, killed)
	}
	if kills < 15 {
		t.Errorf("killed %d times, want at least once for each of the demo's calls", kills)
	}
	t.Logf("killed %d times", kills)
}
