package policy_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
)

var update = flag.Bool("update", false, "write testdata/*.golden")

// typical are pods as the kubelet sends them.
var typical = []struct {
	name        string
	qos         v1alpha1.KubeQoS
	annotations map[string]string
	container   policy.Container
}{
	{"a Guaranteed pod of 2 CPUs and 4 GiB", v1alpha1.Guaranteed, nil,
		app(shares(2048), quota(200000), limit(4<<30), oom(-997))},
	{"a Burstable pod with requests and limits", v1alpha1.Burstable, map[string]string{v1alpha1.AnnotationRequests: `{"containers":{"app":{"cpu":"500m","memory":"1Gi"}}}`},
		app(shares(512), quota(100000), limit(2<<30), oom(937))},
	{"a Burstable pod without limits, requests unknown", v1alpha1.Burstable, nil,
		app(shares(512), oom(968))},
	{"a BestEffort pod", v1alpha1.BestEffort, nil,
		app(shares(2), oom(1000))},
	{"a pod of 2 batch CPUs and 2 GiB of batch memory", v1alpha1.BestEffort, map[string]string{v1alpha1.AnnotationBatchResources: batch2},
		app(shares(2), oom(1000))},
	{"a pod of 2 batch CPUs that was there before us", v1alpha1.BestEffort, map[string]string{v1alpha1.AnnotationBatchResources: batch2},
		app(shares(2), oom(1000), state(policy.Adopted))},
	{"a pod that the CPU manager pinned to 0-3", v1alpha1.Guaranteed, nil,
		app(shares(4096), quota(400000), limit(1<<30), oom(-997), cpus("0-3"))},
	{"a pod that lowers what its tier gives", v1alpha1.BestEffort, map[string]string{
		v1alpha1.AnnotationRequests:       req1Gi,
		v1alpha1.AnnotationBatchResources: batch2,
		v1alpha1.AnnotationIOQoS:          `{"weight":5,"max":[{"device":"ssd","wbps":10485760}]}`,
	}, app(shares(2), oom(1000))},
	{"a pod that asks for more than its tier gives", v1alpha1.Burstable, map[string]string{v1alpha1.AnnotationIOQoS: `{"weight":1000}`},
		app(shares(512), oom(968))},
}

// TestGolden shows every tier on both cgroup versions. A change of these files is a change of values on live nodes.
func TestGolden(t *testing.T) {
	p := compile(t, func(s *v1alpha1.QoSPolicySpec) { s.ReservedCPUs = "0-1" })
	for _, tier := range append(v1alpha1.Tiers(), v1alpha1.None) {
		name := string(tier)
		if tier == v1alpha1.None {
			name = "none"
		}
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			fmt.Fprintf(&b, "# Tier %s by our label, default policy with CPUs 0-1 of 0-7 reserved, disks 254:0 (ssd) and 8:0 (rotational).\n", name)
			b.WriteString("# A pod of LSE or LSR that asks for whole CPUs was given 4-5, on memory node 1.\n")
			b.WriteString("# Written by go test ./internal/policy -run TestGolden -update\n")
			for _, n := range []policy.Node{v2(), v1()} {
				for _, c := range typical {
					pod := policy.Pod{Namespace: "shop", Name: "web-1", KubeQoS: c.qos, Annotations: c.annotations}
					if tier != v1alpha1.None {
						pod.Labels = map[string]string{v1alpha1.LabelQoS: string(tier)}
					}
					pod.Resources = c.container.Asked
					if _, exclusive, err := p.Placing(pod); exclusive {
						pod.Placed = &policy.Placed{CPUs: "4-5", Mems: "1"}
						if err != nil {
							pod.Placed = &policy.Placed{Why: err.Error()}
						}
					}
					fmt.Fprintf(&b, "\n## cgroup v%d: %s\n", n.CgroupVersion, c.name)
					asked := []string{}
					for _, k := range policy.Knobs() {
						if v := c.container.Asked.Value(k); v != "" {
							asked = append(asked, string(k)+"="+v)
						}
					}
					fmt.Fprintf(&b, "kubelet    %s\n", strings.Join(asked, ", "))
					show(&b, "container", p.Container(n, pod, c.container))
					show(&b, "pod", p.Pod(n, pod, []policy.Container{c.container}))
				}
			}
			file := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), b.String()); diff != "" {
				t.Errorf("%s (-file +got):\n%s", file, diff)
			}
		})
	}
}

func show(b *strings.Builder, what string, d policy.Decision) {
	if len(d.Settings)+len(d.Notes) == 0 && d.Refusal == nil {
		fmt.Fprintf(b, "%-10s nothing\n", what)
	}
	if d.Refusal != nil {
		fmt.Fprintf(b, "%-10s REFUSED for %s: %s\n", what, d.Refusal.Key, d.Refusal.Message)
	}
	for _, s := range d.Settings {
		inert := ""
		if s.Inert != "" {
			inert = " [inert: " + s.Inert + "]"
		}
		fmt.Fprintf(b, "%-10s %s = %s%s\n%-10s     %s: %s\n", what, s.Knob, s.Value, inert, "", s.Rule, s.Reason)
	}
	for _, n := range d.Notes {
		fmt.Fprintf(b, "%-10s (%s) %s\n", what, n.Code, n.Message)
	}
}
