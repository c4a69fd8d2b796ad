package policy_test

import (
	"testing"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
)

// compile is the default policy, changed by edit.
func compile(t testing.TB, edit func(*v1alpha1.QoSPolicySpec)) *policy.Policy {
	t.Helper()
	spec := v1alpha1.Default().Spec
	if edit != nil {
		edit(&spec)
	}
	p, err := policy.Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func tierOf(spec *v1alpha1.QoSPolicySpec, tier v1alpha1.Tier, edit func(*v1alpha1.TierPolicy)) {
	tp := spec.Tiers[tier]
	edit(&tp)
	spec.Tiers[tier] = tp
}

// v2 and v1 are machines that carry all that their cgroup version has.
func v2() policy.Node {
	return policy.Node{CgroupVersion: 2, Online: online(8), Features: features(), Devices: []policy.Device{
		{Name: "vda", Number: "254:0"}, {Name: "sda", Number: "8:0", Rotational: true},
	}}
}

func v1() policy.Node {
	n := v2()
	n.CgroupVersion = 1
	n.Features[policy.MemoryLow] = policy.Feature{Support: policy.Unsupported, Need: "cgroup v2"}
	n.Features[policy.MemoryHigh] = policy.Feature{Support: policy.Unsupported, Need: "cgroup v2"}
	return n
}

func features() map[policy.Knob]policy.Feature {
	f := map[policy.Knob]policy.Feature{}
	for _, k := range policy.Knobs() {
		f[k] = policy.Feature{Support: policy.Supported}
	}
	return f
}

// online is the CPUs 0 to n-1.
func online(n int) cpuset.CPUSet {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return cpuset.New(all...)
}

// labelled is a pod of a tier by our label, with annotations as key, value pairs.
func labelled(tier v1alpha1.Tier, annotations ...string) policy.Pod {
	pod := policy.Pod{Namespace: "shop", Name: "web-1", KubeQoS: v1alpha1.Burstable, Labels: map[string]string{v1alpha1.LabelQoS: string(tier)}}
	for i := 0; i < len(annotations); i += 2 {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[annotations[i]] = annotations[i+1]
	}
	return pod
}

// app is a managed container, changed by edits.
func app(edits ...func(*policy.Container)) policy.Container {
	c := policy.Container{Name: "app", State: policy.Managed}
	for _, e := range edits {
		e(&c)
	}
	return c
}

func shares(n int64) func(*policy.Container) {
	return func(c *policy.Container) { c.Asked.CPUShares = &n }
}

func quota(n int64) func(*policy.Container) {
	return func(c *policy.Container) { c.Asked.CPUQuota, c.Asked.CPUPeriod = &n, new(int64(100000)) }
}

func limit(n int64) func(*policy.Container) {
	return func(c *policy.Container) { c.Asked.MemoryLimit = &n }
}

func oom(n int64) func(*policy.Container) {
	return func(c *policy.Container) { c.Asked.OOMScoreAdj = &n }
}

func cpus(s string) func(*policy.Container) {
	return func(c *policy.Container) { c.Asked.CPUSetCPUs = s }
}

func unified(k policy.Knob, v string) func(*policy.Container) {
	return func(c *policy.Container) {
		if c.Asked.Unified == nil {
			c.Asked.Unified = map[string]string{}
		}
		c.Asked.Unified[string(k)] = v
	}
}

func state(s policy.State) func(*policy.Container) { return func(c *policy.Container) { c.State = s } }

// values are the settings of a decision by knob.
func values(d policy.Decision) map[policy.Knob]string {
	m := map[policy.Knob]string{}
	for _, s := range d.Settings {
		m[s.Knob] = s.Value
	}
	return m
}

// codes are the notes of a decision as "code knob".
func codes(d policy.Decision) []string {
	var out []string
	for _, n := range d.Notes {
		s := string(n.Code)
		if n.Knob != "" {
			s += " " + string(n.Knob)
		}
		out = append(out, s)
	}
	return out
}

const (
	batch2 = `{"containers":{"app":{"requests":{"kubernetes.io/batch-cpu":"2k"},"limits":{"kubernetes.io/batch-cpu":"2k","kubernetes.io/batch-memory":"2Gi"}}}}`
	req1Gi = `{"containers":{"app":{"cpu":"500m","memory":"1Gi"},"bare":{"cpu":"1"}}}`
)
