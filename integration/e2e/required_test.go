package e2e

import (
	"context"
	"fmt"
	"regexp"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/node"
)

// Keys of the runtime's validator. docs/doors.md says how an operator uses them.
const (
	required = "required-plugins.noderesource.dev"
	tolerate = "tolerate-missing-plugins.example.com"
)

// missing is what a creation fails with while the plugin is away.
var missing = regexp.MustCompile(`validation error: required plugin "(90-)?tideline" not present$`)

// validator turns the runtime's validator on, and loses nothing of what is there.
func validator(t *testing.T, ctx context.Context, n *node.Node, more string) {
	t.Helper()
	if err := n.Containerd.Configure(ctx, "  [plugins.'io.containerd.nri.v1.nri'.default_validator]\n  enable = true\n"+more); err != nil {
		t.Fatal(err)
	}
	connected(t, ctx, n)
}

// sandbox makes the sandbox of one of the demo's pods under another name and with more annotations.
func sandbox(t *testing.T, ctx context.Context, n *node.Node, from, name string, i int, annotations map[string]string) *node.Pod {
	t.Helper()
	spec := manifest(t, from)
	spec.Name, spec.UID = name, demo.UID(100+i)
	for k, v := range annotations {
		metav1.SetMetaDataAnnotation(&spec.ObjectMeta, k, v)
	}
	p, err := n.Kubelet.RunSandbox(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// complete makes and starts the pod's container.
func complete(ctx context.Context, n *node.Node, p *node.Pod) error {
	c, err := n.Kubelet.Create(ctx, p, kubeContainers(p.Spec, n)[0])
	if err != nil {
		return err
	}
	return n.Kubelet.StartContainer(ctx, c)
}

// TestRequired: with the runtime's validator on, a container that requires the plugin is not made without it, and is once
// it is back. Others are made either way.
func TestRequired(t *testing.T) {
	needsNRI(t)
	ctx, n := start(t, node.Options{Policy: demo.Reserved})
	validator(t, ctx, n, "")
	testRequired(t, ctx, n, []requiring{
		{"container", "lsr", map[string]string{required + "/container.app": "[tideline]"}, true},
		{"pod", "lsr", map[string]string{required + "/pod": "[tideline]"}, true},
		{"short", "lsr", map[string]string{required: "[tideline]"}, true},
		{"with-index", "lsr", map[string]string{required: "[90-tideline]"}, true},
		{"container-wins", "lsr", map[string]string{required: "[tideline]", required + "/container.app": "[]"}, false},
		{"another-container", "lsr", map[string]string{required + "/container.sidecar": "[tideline]"}, false},
		{"tier-alone", "lsr", nil, false},
		{"plain", "plain", nil, false},
	})
}

// TestRequiredEverywhere: the same where the runtime requires the plugin of all containers but those that tolerate it.
func TestRequiredEverywhere(t *testing.T) {
	needsNRI(t)
	ctx, n := start(t, node.Options{Policy: demo.Reserved})
	validator(t, ctx, n, "  required_plugins = ['tideline']\n  tolerate_missing_plugins_annotation = '"+tolerate+"'\n")
	testRequired(t, ctx, n, []requiring{
		{"plain", "plain", nil, true},
		{"tolerant", "plain", map[string]string{tolerate: "true"}, false},
		{"tolerant-container", "plain", map[string]string{tolerate + "/container.app": "true"}, false},
		{"intolerant", "plain", map[string]string{tolerate: "false"}, true},
		{"both", "plain", map[string]string{tolerate: "true", required: "[tideline]"}, false},
	})
}

// requiring is a pod for testRequired.
type requiring struct {
	name, from  string // from: the demo's pod that it is made from
	annotations map[string]string
	refused     bool
}

func testRequired(t *testing.T, ctx context.Context, n *node.Node, cases []requiring) {
	t.Helper()
	if err := n.StopProxy(ctx, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var pods []*node.Pod
	for i, c := range cases {
		p := sandbox(t, ctx, n, c.from, c.name, i, c.annotations)
		pods = append(pods, p)
		err := complete(ctx, n, p)
		t.Logf("%s without the plugin: %v", c.name, err)
		if c.refused != (err != nil) || err != nil && !missing.MatchString(err.Error()) {
			t.Errorf("%s without the plugin: got error %v; refused: %t", c.name, err, c.refused)
		}
	}
	if err := n.StartProxy(ctx); err != nil {
		t.Fatal(err)
	}
	for i, p := range pods {
		if !cases[i].refused {
			continue
		}
		if err := complete(ctx, n, p); err != nil {
			t.Errorf("%s with the plugin back: %v", cases[i].name, err)
		}
	}
	for i, p := range pods {
		if cases[i].from != "plain" {
			right(t, ctx, n, "with the plugin back", []*node.Pod{p})
		}
	}
}

// TestRequiredGap: the validator asks who was registered when the creation began. A plugin that is lost in that very
// creation, or since the last hook, still counts. What it missed is made good when it is back; the next creation fails.
func TestRequiredGap(t *testing.T) {
	needsNRI(t)
	ctx, n := start(t, node.Options{Policy: demo.Reserved})
	validator(t, ctx, n, "")
	for i, c := range []struct {
		name         string
		lose, regain func() error
	}{
		{"killed", func() error { return n.StopProxy(ctx, syscall.SIGKILL) }, func() error { return n.StartProxy(ctx) }},
		{"stalled", func() error { return n.Proxy().Signal(syscall.SIGSTOP) }, func() error { return n.Proxy().Signal(syscall.SIGCONT) }},
	} {
		var pods []*node.Pod
		for j := range 2 {
			pods = append(pods, sandbox(t, ctx, n, "lsr", fmt.Sprintf("%s-%d", c.name, j), 2*i+j, map[string]string{required: "[tideline]"}))
		}
		if err := c.lose(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // the runtime sees the end of a connection
		for j, p := range pods {
			err := complete(ctx, n, p)
			t.Logf("%s: creation %d: %v", c.name, j, err)
			switch {
			case j == 0 && err != nil:
				t.Errorf("%s: the first creation: got error %v: a runtime that refuses it has no gap, and docs/doors.md says it has", c.name, err)
			case j == 1 && (err == nil || !missing.MatchString(err.Error())):
				t.Errorf("%s: the second creation: got error %v, want %s", c.name, err, missing)
			}
		}
		if err := c.regain(); err != nil {
			t.Fatal(err)
		}
		connected(t, ctx, n)
		if err := eventuallyNil(ctx, func() error { return complete(ctx, n, pods[1]) }); err != nil {
			t.Fatalf("%s: with the plugin back: %v", c.name, err)
		}
		right(t, ctx, n, c.name+", with the plugin back", pods)
	}
}
