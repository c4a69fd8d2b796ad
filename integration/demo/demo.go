// Package demo is Tideline's main job on real parts: one pod of each tier through the proxy into a real containerd, and
// for every container what the kubelet asked, what was decided and why, and what a process that shares no code with
// Tideline finds in the kernel's files.
//
//	bad, err := demo.Run(ctx, l, os.Stdout, demo.Options{Manifests: dir})
//	// bad: every difference between decided, explained and real
package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/policy"
)

// Policy is the built-in one. That it is a file lets explain read the same.
const Policy = `apiVersion: tideline.io/v1alpha1
kind: QoSPolicy
metadata: {name: demo}
`

// Reserved has a CPU reserved, so that the pools are smaller than the machine and can be seen, and lets LSR pods share: on a
// machine of two CPUs none is left for them.
const Reserved = Policy + `spec:
  reservedCPUs: "0"
  tiers:
    LSR: {cpu: {placement: none}}
`

// Options of a run.
type Options struct {
	Manifests string // folder with the manifests
	// BeforeCalls is called before each CRI call, with the node; nil for nothing.
	BeforeCalls func(n *node.Node, call string)
	Progress    func(string)
	Door        string   // node.CRI or node.NRI; "" for node.CRI
	CRIO        bool     // CRI-O in place of containerd; the door is NRI
	Args        []string // further arguments of the door
}

// Names of the manifests, in the order in which their pods are made.
var Names = []string{"lsr", "ls", "be", "system", "plain"}

// Run makes the pods, prints the table, and returns every difference that it found. The lab removes the pods at its end.
func Run(ctx context.Context, l *lab.Lab, out io.Writer, opts Options) (bad []string, err error) {
	if opts.Progress == nil {
		opts.Progress = func(string) {}
	}
	runtime, door, through := "containerd", "proxy", "the proxy"
	if opts.CRIO {
		runtime = "CRI-O"
	}
	if opts.Door == node.NRI {
		door, through = "plugin", runtime+" with the plugin"
	}
	opts.Progress("starting a private " + runtime + " and the " + door)
	n, err := node.Start(ctx, l, node.Options{Policy: Policy, Door: opts.Door, CRIO: opts.CRIO, Args: opts.Args})
	if err != nil {
		return nil, err
	}
	if opts.BeforeCalls != nil {
		n.Kubelet.BeforeCalls(func(call string) { opts.BeforeCalls(n, call) })
	}
	var pods []*node.Pod
	for i, name := range Names {
		spec, err := Manifest(filepath.Join(opts.Manifests, name+".yaml"), i)
		if err != nil {
			return nil, err
		}
		opts.Progress(fmt.Sprintf("creating pod %s/%s through %s", spec.Namespace, spec.Name, through))
		p, err := n.Kubelet.RunPod(ctx, spec)
		if err != nil {
			return nil, err
		}
		pods = append(pods, p)
	}
	if opts.BeforeCalls != nil {
		opts.BeforeCalls(n, "the table")
	}
	read, err := readback(ctx, pods)
	if err != nil {
		return nil, err
	}
	for i, p := range pods {
		shown, err := shown(ctx, n, p)
		if err != nil {
			return nil, err
		}
		explained, err := explain(ctx, n, filepath.Join(opts.Manifests, Names[i]+".yaml"))
		if err != nil {
			return nil, err
		}
		bad = append(bad, table(out, p, shown, explained, read)...)
	}
	st, err := n.Control.Status(ctx)
	if err != nil {
		return bad, err
	}
	fmt.Fprintf(out, "\n%s %s behind the %s door, cgroup v%d\n", st.Runtime.Name, st.Runtime.Version, st.Door, st.Cgroup.Version)
	for _, m := range missing(st) {
		fmt.Fprintln(out, "not on this machine:", m)
	}
	for _, d := range st.Degraded {
		fmt.Fprintf(out, "degraded: %s: %s\n", d.What, d.Why)
	}
	return bad, nil
}

// shown asks the proxy what a pod has. One that was started a moment ago may not have read the runtime's pods yet.
func shown(ctx context.Context, n *node.Node, p *node.Pod) ([]control.Explained, error) {
	for end := time.Now().Add(time.Minute); ; {
		x, err := n.Control.ExplainPod(ctx, p.Spec.Namespace, p.Spec.Name)
		if !errors.Is(err, control.ErrNotFound) || time.Now().After(end) {
			return x, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Manifest reads a pod, gives it the UID that an API server would, and does what admission does.
func Manifest(file string, i int) (*corev1.Pod, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var p corev1.Pod
	if err := yaml.UnmarshalStrict(b, &p); err != nil {
		return nil, fmt.Errorf("parse %s: %w", file, err)
	}
	p.UID = UID(i + 1)
	kube.Admit(&p)
	return &p, nil
}

// UID is the i-th UID.
func UID(i int) types.UID { return types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i)) }

// found is what readback tells of a container.
type found struct {
	Files map[string]string `json:"files"`
	Pod   map[string]string `json:"pod"`
}

func readback(ctx context.Context, pods []*node.Pod) (map[string]found, error) {
	dir, err := own.Dir()
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, p := range pods {
		for _, c := range p.Containers {
			ids = append(ids, c.ID)
		}
	}
	var out map[string]found
	return out, runJSON(ctx, &out, filepath.Join(dir, own.Readback), ids...)
}

// explanation is the part of `tideline explain -o json` that is compared.
type explanation struct {
	Pods []struct {
		Pod        knobs `json:"pod"`
		Containers []struct {
			Name string `json:"name"`
			knobs
		} `json:"containers"`
	} `json:"pods"`
}

type knobs struct {
	Knobs []struct {
		Knob  policy.Knob `json:"knob"`
		Value string      `json:"value"`
		Ours  bool        `json:"ours"`
	} `json:"knobs"`
}

// decided gives the values that are ours.
func (k knobs) decided() map[policy.Knob]string {
	m := map[policy.Knob]string{}
	for _, x := range k.Knobs {
		if x.Ours {
			m[x.Knob] = x.Value
		}
	}
	return m
}

func explain(ctx context.Context, n *node.Node, manifest string) (explanation, error) {
	var out explanation
	dir, err := own.Dir()
	if err != nil {
		return out, err
	}
	err = runJSON(ctx, &out, filepath.Join(dir, own.CLI), "explain", "-f", manifest, "--policy", n.PolicyFile(), "-o", "json")
	if err == nil && len(out.Pods) != 1 {
		err = fmt.Errorf("explain %s: %d pods, want 1", manifest, len(out.Pods))
	}
	return out, err
}

func runJSON(ctx context.Context, into any, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("run %s: %w: %s", filepath.Base(program), err, stderr.Bytes())
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("parse what %s printed: %w", filepath.Base(program), err)
	}
	return nil
}

// table prints a pod and its containers, and returns the differences.
func table(out io.Writer, p *node.Pod, shown []control.Explained, explained explanation, read map[string]found) (bad []string) {
	differs := func(format string, args ...any) string {
		bad = append(bad, p.Spec.Namespace+"/"+p.Spec.Name+": "+fmt.Sprintf(format, args...))
		return "✗"
	}
	for _, x := range shown {
		var real map[string]string
		var want map[policy.Knob]string
		title := "pod " + p.Spec.Namespace + "/" + p.Spec.Name
		if x.Level == policy.LevelPod {
			if len(p.Containers) > 0 {
				real = read[p.Containers[0].ID].Pod
			}
			want = explained.Pods[0].Pod.decided()
			fmt.Fprintf(out, "\n%s   %s\n", title, tier(x.Decision))
		} else {
			real = read[x.ID].Files
			for _, c := range explained.Pods[0].Containers {
				if c.Name == x.Name {
					want = c.decided()
				}
			}
			fmt.Fprintf(out, "  container %s  %s\n", x.Name, x.ID[:12])
		}
		rows := [][4]string{{"knob", "asked", "decided", "kernel"}}
		var reasons []string
		got := map[policy.Knob]string{}
		for _, r := range x.Rows {
			kernel, ok := node.InKernel(r.Knob, real)
			if r.Asked == "" && r.Wanted == "" {
				continue
			}
			mark := ""
			if r.Wanted != "" {
				got[r.Knob] = r.Wanted
				mark = "✓"
				if !ok || !node.Holds(r.Knob, r.Wanted, kernel) {
					mark = differs("%s: decided %q, in the kernel %q", r.Knob, r.Wanted, kernel)
				}
			}
			rows = append(rows, [4]string{string(r.Knob), dash(r.Asked), dash(r.Wanted), strings.TrimSpace(dash(kernel) + " " + mark)})
			reasons = append(reasons, r.Reason)
		}
		for _, k := range policy.Knobs() {
			elsewhere := slices.ContainsFunc(x.Decision.Notes, func(n policy.Note) bool { return n.Code == policy.NoteUnsupported && n.Knob == k })
			if k == policy.CPUSetCPUs && want[k] == "" && got[k] != "" { // explain knows of no other pod, whose CPUs these are not
				elsewhere = true
			}
			if got[k] != want[k] && !elsewhere { // explain knows of no door
				differs("%s: decided %q, explain says %q", k, got[k], want[k])
			}
		}
		if len(rows) > 1 {
			print(out, rows, reasons)
		}
	}
	return bad
}

func tier(d policy.Decision) string {
	switch s := d.Source; s.Kind {
	case policy.FromLabel, policy.FromAlias:
		return fmt.Sprintf("tier %s by label %s=%s", d.Tier, s.Key, s.Value)
	case policy.FromRule:
		return fmt.Sprintf("tier %s by rule %s", d.Tier, s.Rule)
	}
	return "no tier: it leaves the CPUs that other pods own, and nothing else"
}

func print(out io.Writer, rows [][4]string, reasons []string) {
	width := [4]int{14, 16, 16, 18}
	for _, r := range rows {
		for i, c := range r {
			width[i] = max(width[i], len([]rune(c)))
		}
	}
	for i, r := range rows {
		reason := "reason"
		if i > 0 {
			reason = reasons[i-1]
		}
		line := "    "
		for j, c := range r {
			line += c + strings.Repeat(" ", width[j]-len([]rune(c))+2)
		}
		fmt.Fprintln(out, strings.TrimRight(line+reason, " "))
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// missing tells the knobs that this machine can't carry.
func missing(st control.Status) []string {
	var out []string
	for _, k := range policy.Knobs() {
		if f := st.Cgroup.Features[k]; f.Support == policy.Unsupported {
			out = append(out, fmt.Sprintf("%s (needs %s)", k, f.Need))
		}
	}
	return out
}
