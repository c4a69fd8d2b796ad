package kubelet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/guest"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/policy"
)

// patience is how long anything may take: an emulated VM is some 25 times slower.
func patience(d time.Duration) time.Duration {
	if lab.Unified() {
		return 12 * d
	}
	return d
}

// eventually waits until f gives nil, and fails the test with its last error.
func eventually(t *testing.T, ctx context.Context, what string, f func() error) {
	t.Helper()
	limit := patience(time.Minute)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s: %v", limit, what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// settle gives the kubelet the time to look at everything again, and to publish it.
func settle() {
	if lab.Unified() {
		time.Sleep(15 * time.Second)
	}
	time.Sleep(3 * time.Second)
}

// tiers gives the demo's pods as a user writes them. The batch pod's resources come from its annotation alone: no node
// offers batch resources here, and a pod that asks for them would not be scheduled.
func tiers(t *testing.T) map[string]*corev1.Pod {
	t.Helper()
	dir := guest.Manifests
	if os.Getenv(lab.Env) != "vm" {
		root, err := own.Root()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(root, "deploy", "examples", "demo")
	}
	pods := map[string]*corev1.Pod{}
	for i, name := range demo.Names {
		p, err := demo.Manifest(filepath.Join(dir, name+".yaml"), i)
		if err != nil {
			t.Fatal(err)
		}
		p.UID = ""
		if name == "be" {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
		}
		pods[name] = p
	}
	return pods
}

// cgroupOf is the cgroup of a pod below the kubelet's root.
func cgroupOf(l *lab.Lab, p *corev1.Pod) string {
	dir := l.CgroupParent() + "/kubepods"
	if p.Status.QOSClass != corev1.PodQOSGuaranteed {
		dir += "/" + strings.ToLower(string(p.Status.QOSClass))
	}
	return dir + "/pod" + uid(p)
}

// uid names the pod's cgroup: a static pod that an API server shows has a UID of its own there.
func uid(p *corev1.Pod) string {
	if h := p.Annotations["kubernetes.io/config.hash"]; h != "" {
		return h
	}
	return string(p.UID)
}

// containerID is the ID of a pod's only container.
func containerID(p *corev1.Pod) string {
	if len(p.Status.ContainerStatuses) != 1 {
		return ""
	}
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	return id
}

// ready says why a pod is not running and ready.
func ready(p *corev1.Pod) error {
	if p == nil {
		return fmt.Errorf("there is no such pod")
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && containerID(p) != "" {
			return nil
		}
	}
	return fmt.Errorf("pod %s is %s %s: %s", p.Name, p.Status.Phase, p.Status.Reason, brief(p.Status))
}

func brief(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// want checks kernel values of a cgroup, but for knobs that the machine lacks.
func want(t *testing.T, when, cgroup string, values map[policy.Knob]string) {
	t.Helper()
	files := node.Files(cgroup)
	for _, k := range policy.Knobs() {
		v, ok := values[k]
		if !ok || !lab.Unified() && (k == policy.MemoryLow || k == policy.MemoryHigh) {
			continue
		}
		if got, _ := node.InKernel(k, files); !node.Holds(k, v, got) {
			t.Errorf("%s: %s of %s: got %q, want %q", when, k, cgroup, got, v)
		}
	}
}

// decided checks that the kernel has what the door decided for a pod, the pod's own cgroup included.
func decided(ctx context.Context, c *control.Client, l *lab.Lab, p *corev1.Pod) error {
	shown, err := c.ExplainPod(ctx, p.Namespace, p.Name)
	if err != nil {
		return err
	}
	var bad []string
	for _, x := range shown {
		dir := cgroupOf(l, p)
		if x.Level == policy.LevelContainer {
			dir += "/" + containerID(p)
		}
		files := node.Files(dir)
		for _, r := range x.Rows {
			if r.Wanted == "" || r.Knob.OfProcess() {
				continue
			}
			if got, _ := node.InKernel(r.Knob, files); !node.Holds(r.Knob, r.Wanted, got) {
				bad = append(bad, fmt.Sprintf("%s of %s: decided %q, in the kernel %q", r.Knob, dir, r.Wanted, got))
			}
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("%s", strings.Join(bad, "; "))
	}
	return nil
}

// A record is what the kubelet and the API server believed at the steps of a scenario.
type record struct {
	steps []string
	said  map[string]string
	log   map[string]bool // the kubelet's error messages
}

func newRecord() *record { return &record{said: map[string]string{}, log: map[string]bool{}} }

// note keeps a normalised value under the name of a step.
func (r *record) note(step string, v any) {
	if _, ok := r.said[step]; !ok {
		r.steps = append(r.steps, step)
	}
	r.said[step] = normal(v)
}

// same compares two records: of what was said at each step, and of the error log, nothing is added with us.
func same(t *testing.T, without, with *record) {
	t.Helper()
	for _, step := range without.steps {
		a, b := without.said[step], with.said[step]
		if a != b {
			t.Errorf("%s: differs without us (-) and with us (+):\n%s", step, diff(a, b))
		}
	}
	for _, m := range sortedKeys(with.log) {
		if !without.log[m] {
			t.Errorf("the kubelet's error log has a line with us alone: %s", m)
		}
	}
	for _, m := range sortedKeys(without.log) {
		if !with.log[m] {
			// One that it has lost tells of a race of its own at its start: we can't keep it from saying something.
			t.Logf("the kubelet's error log has a line without us alone: %s", m)
		}
	}
}

func sortedKeys(m map[string]bool) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// diff shows the lines that only one of two texts has.
func diff(a, b string) string {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	var out strings.Builder
	for _, l := range as {
		if !slices.Contains(bs, l) {
			fmt.Fprintf(&out, "  - %s\n", l)
		}
	}
	for _, l := range bs {
		if !slices.Contains(as, l) {
			fmt.Fprintf(&out, "  + %s\n", l)
		}
	}
	if out.Len() == 0 {
		return "  the same lines in another order:\n" + a + "\n---\n" + b
	}
	return out.String()
}

// normal writes a value as JSON with a path a line, without times, IDs and addresses.
func normal(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	var tree any
	if err := json.Unmarshal(b, &tree); err != nil {
		return err.Error()
	}
	var lines []string
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if len(v) == 0 {
				lines = append(lines, path+" = {}")
			}
			for k, x := range v {
				switch k {
				case "startTime", "startedAt", "finishedAt", "lastTransitionTime", "lastProbeTime", "lastHeartbeatTime", "containerID", "podIP", "podIPs", "hostIP", "hostIPs":
					x = "(" + k + ")"
				}
				walk(path+"."+k, x)
			}
		case []any:
			for i, x := range v {
				name := fmt.Sprint(i)
				if m, ok := x.(map[string]any); ok { // conditions come in any order
					if s, ok := m["type"].(string); ok {
						name = s
					}
				}
				walk(path+"["+name+"]", x)
			}
		default:
			lines = append(lines, fmt.Sprintf("%s = %v", path, v))
		}
	}
	walk("", tree)
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// What differs between two runs of one kubelet in its messages.
var changing = []struct {
	is   *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\b[0-9a-f]{12,64}\b`), "ID"},
	{regexp.MustCompile(`/\S*\.sock\b`), "SOCKET"},
	{regexp.MustCompile(`[0-9]+(\.[0-9]+)?`), "N"},
}

// races are what the kubelet says, or does not, whatever its runtime: it asks for containers that it has removed itself,
// hears twice of a manifest that is gone, and at its start looks for its node before it has registered it, and for pods
// before it has seen the runtime.
var races = []*regexp.Regexp{
	regexp.MustCompile(`^"(ContainerStatus|PodSandboxStatus) from runtime service failed" err="rpc error: code = NotFound `),
	regexp.MustCompile(`^"Could not get metadata" err="stat LAB/manifests/`),
	regexp.MustCompile(`^"Unable to process watch event" err="the pod with key `),
	regexp.MustCompile(`^"Skipping pod synchronization" err="(.*, )?\[?(container runtime status check may not have completed yet|PLEG is not healthy: pleg has yet to be successful)`),
	regexp.MustCompile(`nodes? \\?"nodeN\\?" not found`),
	regexp.MustCompile(`^"failed to read (memory|CPU) cgroup .* for the pod" err="failed to read .*: no such file or directory"`), // it is being removed
}

// errorLog adds the error messages of a kubelet's log from an offset on, without times, IDs and numbers, and gives the
// log's end:
//
//	E1130 14:50:41.123456   12345 pod_workers.go:1324] "Error syncing pod" err="…" pod="demo/ls"
func (r *record) errorLog(t *testing.T, l *lab.Lab, path string, offset int64) int64 {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(b[offset:])); s.Scan(); {
		line := s.Text()
		head, message, ok := strings.Cut(line, "] ")
		if !ok || !regexp.MustCompile(`^E[0-9]{4} `).MatchString(head) {
			continue
		}
		message = strings.ReplaceAll(message, l.Dir(), "LAB")
		message = strings.ReplaceAll(message, l.CgroupParent(), "/LAB")
		for _, c := range changing {
			message = c.is.ReplaceAllString(message, c.name)
		}
		if !slices.ContainsFunc(races, func(r *regexp.Regexp) bool { return r.MatchString(message) }) {
			r.log[message] = true
		}
	}
	return int64(len(b))
}

// staticPods asks the kubelet itself for its pods, by name without the node's.
func staticPods(ctx context.Context, k *lab.Kubelet) (map[string]*corev1.Pod, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.URL()+"/pods", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("decode the kubelet's pods: %w: %.200s", err, b)
	}
	pods := map[string]*corev1.Pod{}
	for i := range list.Items {
		pods[strings.TrimSuffix(list.Items[i].Name, "-"+lab.NodeName)] = &list.Items[i]
	}
	return pods, nil
}
