package policy_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/cpuset"
	"pgregory.net/rapid"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

func drawNode(t *rapid.T) policy.Node {
	n := policy.Node{
		CgroupVersion: rapid.IntRange(1, 2).Draw(t, "cgroup version"),
		Online:        cpuset.New(rapid.SliceOfN(rapid.IntRange(0, 12), 0, 12).Draw(t, "online")...),
		Features:      map[policy.Knob]policy.Feature{},
	}
	for _, k := range policy.Knobs() {
		switch rapid.IntRange(0, 5).Draw(t, "feature "+string(k)) {
		case 0:
			n.Features[k] = policy.Feature{Support: policy.Unsupported, Need: "a better kernel"}
		case 1:
			n.Features[k] = policy.Feature{Support: policy.Supported, Inert: "nothing reads it"}
		case 2:
			n.Features[k] = policy.Feature{Support: policy.Supported}
		}
	}
	if rapid.Bool().Draw(t, "disks") {
		n.Devices = v2().Devices
	}
	return n
}

// drawPod makes pods with and without each label and annotation, good, bad and too much.
func drawPod(t *rapid.T, tier string) policy.Pod {
	pod := policy.Pod{
		Namespace:   rapid.SampledFrom([]string{"shop", "kube-system", ""}).Draw(t, "namespace"),
		KubeQoS:     rapid.SampledFrom([]v1alpha1.KubeQoS{v1alpha1.Guaranteed, v1alpha1.Burstable, v1alpha1.BestEffort, v1alpha1.Unknown}).Draw(t, "class"),
		Labels:      map[string]string{},
		Annotations: map[string]string{},
	}
	if tier != "" {
		pod.Labels[v1alpha1.LabelQoS] = tier
	}
	maybe := func(m map[string]string, key string, values ...string) {
		if v := rapid.SampledFrom(append(values, "-")).Draw(t, key); v != "-" {
			m[key] = v
		}
	}
	maybe(pod.Labels, v1alpha1.AliasKoordinatorQoS, "LSE", "LSR", "LS", "BE", "SYSTEM", "X", "")
	maybe(pod.Annotations, v1alpha1.AliasVolcanoQoS, "LC", "HLS", "LS", "BE", "X", "")
	maybe(pod.Annotations, v1alpha1.AliasKatalystQoS, "dedicated_cores", "shared_cores", "X")
	maybe(pod.Annotations, v1alpha1.AnnotationRequests, req1Gi, `{"containers":{"app":{"memory":"8E"}}}`, `{`, "")
	maybe(pod.Annotations, v1alpha1.AnnotationBatchResources, batch2, `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"1","kubernetes.io/batch-memory":"1"}}}}`,
		`{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"8E","kubernetes.io/batch-memory":"8E"}}}}`, `{}`)
	maybe(pod.Annotations, v1alpha1.AliasKoordinatorBatch, batch2, `[]`)
	maybe(pod.Annotations, v1alpha1.AnnotationMemoryQoS, `{"low":"20%"}`, `{"high":"20%"}`, `{"low":"100%"}`, `{"high":"95%"}`, `null`)
	maybe(pod.Annotations, v1alpha1.AnnotationIOQoS, `{"weight":1}`, `{"weight":1000}`, `{"max":[{"device":"all","rbps":7}]}`, `{"max":[{"device":"1:1","rbps":7}]}`, `7`)
	maybe(pod.Annotations, v1alpha1.AnnotationCPUPlacement, `{"numa":"spread"}`, `{"smt":"use"}`, `{"smt":"idle"}`, `{"cores":1}`)
	return pod
}

func drawContainer(t *rapid.T) policy.Container {
	c := policy.Container{
		Name:  rapid.SampledFrom([]string{"app", "bare", "other"}).Draw(t, "container"),
		State: rapid.SampledFrom([]policy.State{policy.Managed, policy.Adopted, policy.Missed}).Draw(t, "state"),
	}
	number := func(name string, values ...int64) *int64 {
		if v := rapid.SampledFrom(append(values, -7)).Draw(t, name); v != -7 {
			return &v
		}
		return nil
	}
	c.Asked.CPUShares = number("shares", 2, 512, 262144)
	c.Asked.CPUQuota = number("quota", -1, 0, 1000, 150000, 1<<62)
	c.Asked.CPUPeriod = number("period", 0, 1000, 100000, -1)
	c.Asked.MemoryLimit = number("limit", 0, -1, 4096, 1<<30, 1<<62)
	c.Asked.OOMScoreAdj = number("oom", -1000, 0, 899, 1000, 5000)
	c.Asked.CPUSetCPUs = rapid.SampledFrom([]string{"", "0", "0-3", "5,7", "0-8191", "x", "0-99999999"}).Draw(t, "cpus")
	for _, k := range []policy.Knob{policy.MemoryLow, policy.MemoryHigh, policy.CPUMaxBurst, policy.IOMax} {
		if v := rapid.SampledFrom([]string{"-", "0", "4096", "max", "x"}).Draw(t, "unified "+string(k)); v != "-" {
			unified(k, v)(&c)
		}
	}
	return c
}

func drawPolicy(t *rapid.T) *policy.Policy {
	p, err := policy.Compile(drawSpec(t))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func drawSpec(t *rapid.T) v1alpha1.QoSPolicySpec {
	spec := v1alpha1.Default().Spec
	spec.ReservedCPUs = rapid.SampledFrom([]string{"", "0", "0-3", "0-8191", "99"}).Draw(t, "reserved")
	if rapid.Bool().Draw(t, "io.max") {
		tierOf(&spec, v1alpha1.BE, func(tp *v1alpha1.TierPolicy) { tp.IO.Max = []v1alpha1.DeviceMax{{Device: "all", RBps: 100}} })
	}
	spec.Untiered = rapid.SampledFrom(v1alpha1.Untiereds()).Draw(t, "untiered")
	tierOf(&spec, v1alpha1.LSE, func(tp *v1alpha1.TierPolicy) {
		tp.CPU.SMT = rapid.SampledFrom(v1alpha1.SMTs()).Draw(t, "smt")
		tp.CPU.NUMA = rapid.SampledFrom(v1alpha1.NUMAs()).Draw(t, "numa")
	})
	return spec
}

var labels = []string{"LSE", "LSR", "LS", "BE", "SYSTEM", "XL", ""}

func TestDecisionsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, n, pod, c := drawPolicy(t), drawNode(t), drawPod(t, rapid.SampledFrom(labels).Draw(t, "tier")), drawContainer(t)
		d, pd := p.Container(n, pod, c), p.Pod(n, pod, []policy.Container{c})
		checkForm(t, d, policy.LevelContainer)
		checkForm(t, pd, policy.LevelPod)
		if diff := cmp.Diff(d, p.Container(n, pod, c)); diff != "" {
			t.Fatalf("the same facts give another decision:\n%s", diff)
		}
		if diff := cmp.Diff(pd, p.Pod(n, pod, []policy.Container{c})); diff != "" {
			t.Fatalf("the same facts give another decision for the pod:\n%s", diff)
		}
		if d.Tier != pd.Tier || d.Source != pd.Source {
			t.Fatalf("container is %s, pod is %s", d.Tier, pd.Tier)
		}
		if (d.Refusal != nil) && p.OnError(pod) != v1alpha1.Refuse {
			t.Fatalf("refused, though the failure policy is to pass: %+v", d.Refusal)
		}
		got := values(d)
		for k, v := range values(pd) {
			if k == policy.CPUWeight || k == policy.CPUIdle {
				t.Fatalf("%s of a pod is %s: the kubelet would publish it as its request", k, v)
			}
		}
		for _, s := range append(d.Settings, pd.Settings...) {
			if n.Features[s.Knob].Support == policy.Unsupported {
				t.Fatalf("%s is written, though the kernel lacks it", s.Knob)
			}
			if n.CgroupVersion == 1 && (s.Knob == policy.MemoryLow || s.Knob == policy.MemoryHigh) {
				t.Fatalf("%s on cgroup v1", s.Knob)
			}
			if s.Inert != n.Features[s.Knob].Inert {
				t.Fatalf("%s: inert is %q", s.Knob, s.Inert)
			}
		}
		// The kernel refuses shares beside idle, and burst above quota.
		if got[policy.CPUIdle] == "1" && (c.State != policy.Managed || c.Asked.CPUShares != nil && got[policy.CPUWeight] != policy.Unset && n.Features[policy.CPUWeight].Support != policy.Unsupported) {
			t.Fatalf("cpu.idle beside shares: %v, %+v", got, c)
		}
		if b := got[policy.CPUMaxBurst]; b != "" {
			if burst, err := strconv.ParseInt(b, 10, 64); err != nil || burst <= 0 || burst > *c.Asked.CPUQuota || burst+*c.Asked.CPUQuota > units.MaxQuota {
				t.Fatalf("burst %s for quota %d", b, *c.Asked.CPUQuota)
			}
		}
		if m := got[policy.CPUMax]; m != "" && c.Asked.CPUPeriod != nil && *c.Asked.CPUPeriod >= units.MinPeriod {
			if _, err := units.ParseCPUMax(m); err != nil {
				t.Fatal(err)
			}
		}
		if v := got[policy.CPUSetCPUs]; v != "" {
			set, err := units.ParseCPUs(v)
			if err != nil || set.IsEmpty() || !set.IsSubsetOf(p.LSPool(n)) && !set.IsSubsetOf(p.BEPool(n)) {
				t.Fatalf("cpuset.cpus %q is not of a pool", v)
			}
			// What was decided and comes back as asked changes nothing any more.
			again := c
			again.Asked.CPUSetCPUs = v
			if x, ok := values(p.Container(n, pod, again))[policy.CPUSetCPUs]; ok {
				t.Fatalf("cpuset.cpus %q becomes %q the second time", v, x)
			}
		}
	})
}

func TestUntieredIsNeutral(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, n, pod, c := drawPolicy(t), drawNode(t), drawPod(t, ""), drawContainer(t)
		delete(pod.Labels, v1alpha1.AliasKoordinatorQoS)
		delete(pod.Annotations, v1alpha1.AliasVolcanoQoS)
		delete(pod.Annotations, v1alpha1.AliasKatalystQoS)
		pod.Namespace = "shop"
		want := policy.Decision{Source: policy.Source{Kind: policy.FromNone}}
		if diff := cmp.Diff(want, p.Container(n, pod, c)); diff != "" {
			t.Fatalf("container:\n%s", diff)
		}
		if diff := cmp.Diff(want, p.Pod(n, pod, []policy.Container{c})); diff != "" {
			t.Fatalf("pod:\n%s", diff)
		}
	})
}

// Whatever the annotations say, the pod gets at most what its tier gives without them.
func TestAnnotationsNeverRaise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, n, pod, c := drawPolicy(t), drawNode(t), drawPod(t, rapid.SampledFrom(labels[:5]).Draw(t, "tier")), drawContainer(t)
		plain := pod
		plain.Annotations = map[string]string{}
		for k, v := range pod.Annotations {
			if k != v1alpha1.AnnotationMemoryQoS && k != v1alpha1.AnnotationIOQoS && k != v1alpha1.AnnotationCPUPlacement {
				plain.Annotations[k] = v
			}
		}
		check := func(got, most policy.Decision) {
			for k, v := range values(got) {
				limit, ok := values(most)[k]
				switch k {
				case policy.MemoryLow, policy.IOWeight: // shares and protection: not above
					if !ok || number(t, v) > number(t, limit) {
						t.Fatalf("%s is %s with annotations and %q without", k, v, limit)
					}
				case policy.MemoryHigh: // a limit: not above, and none becomes one only where the tier has it
					if ok && number(t, v) > number(t, limit) {
						t.Fatalf("%s is %s with annotations and %q without", k, v, limit)
					}
				case policy.IOMax:
				default:
					if v != limit {
						t.Fatalf("%s is %s with annotations and %q without", k, v, limit)
					}
				}
			}
			// Limits do not go away.
			for _, k := range []policy.Knob{policy.MemoryHigh, policy.MemoryMax, policy.CPUMax, policy.IOMax} {
				if v, ok := values(most)[k]; ok && got.Refusal == nil && got.Tier == most.Tier && values(got)[k] == "" && !strings.HasPrefix(v, "max ") && k != policy.MemoryHigh {
					t.Fatalf("%s is not set with annotations and %s without", k, v)
				}
			}
		}
		check(p.Container(n, pod, c), p.Container(n, plain, c))
		check(p.Pod(n, pod, []policy.Container{c}), p.Pod(n, plain, []policy.Container{c}))
	})
}

func number(t *rapid.T, s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// FuzzDecide feeds texts that users and runtimes control into every place that takes one.
func FuzzDecide(f *testing.F) {
	f.Add("BE", "", "", req1Gi, batch2, `{"high":"80%"}`, `{"weight":5}`, "", "0-3", "app", int64(2), int64(100000))
	f.Add("", "LSR", "LC", `{"containers":{"app":{"memory":"1e99"}}}`, `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"9E"}}}}`, `{"low":"1000%"}`, `{"max":[{"device":"ssd"}]}`, `{"numa":"spread","smt":"use"}`, "0-99999", "\xff", int64(-1), int64(-1))
	f.Add("\xff", "", "", strings.Repeat("[", 10000), "NaN", "", "", "", "0,0,0,0", "", int64(1<<62), int64(1<<62))
	f.Add("LSE", "", "", "", "", "", "", `{"numa":"require-single"}`, "2-3", "app", int64(100000), int64(200000))
	reserved := compile(f, func(s *v1alpha1.QoSPolicySpec) {
		s.ReservedCPUs = "0-1"
		s.Rules = append(s.Rules, v1alpha1.Rule{Name: "x", Match: v1alpha1.Match{Names: []string{"*a*b*c*"}, Labels: "x notin (a),y"}, Tier: v1alpha1.LSE})
	})
	node := v2()
	f.Fuzz(func(t *testing.T, qos, koordinator, volcano, requests, batch, memory, io, wish, cpus, name string, a, b int64) {
		pod := policy.Pod{Namespace: name, Name: name, KubeQoS: v1alpha1.Guaranteed, Labels: map[string]string{"y": name}, Annotations: map[string]string{}}
		for key, v := range map[string]string{v1alpha1.LabelQoS: qos, v1alpha1.AliasKoordinatorQoS: koordinator} {
			if v != "" {
				pod.Labels[key] = v
			}
		}
		for key, v := range map[string]string{v1alpha1.AliasVolcanoQoS: volcano, v1alpha1.AnnotationRequests: requests, v1alpha1.AnnotationBatchResources: batch, v1alpha1.AnnotationMemoryQoS: memory, v1alpha1.AnnotationIOQoS: io,
			v1alpha1.AnnotationCPUPlacement: wish} {
			if v != "" {
				pod.Annotations[key] = v
			}
		}
		c := policy.Container{Name: name, State: policy.Managed, Asked: policy.Resources{
			CPUShares: &a, CPUQuota: &b, CPUPeriod: &a, MemoryLimit: &b, OOMScoreAdj: &a, CPUSetCPUs: cpus,
			Unified: map[string]string{"memory.low": cpus, "memory.high": cpus, "io.max": io},
		}}
		pod.Resources = c.Asked
		if r, exclusive, err := reserved.Placing(pod); exclusive && err != nil {
			pod.Placed = &policy.Placed{Why: err.Error()}
		} else if exclusive {
			if r.Count < 1 || r.Count > units.MaxCPU+1 || !r.Tier.Exclusive() || !v1alpha1.NUMA(r.NUMA).Valid() || r.SMT != "" && !v1alpha1.SMT(r.SMT).Valid() {
				t.Errorf("asks for %+v", r)
			}
			pod.Placed = &policy.Placed{CPUs: "4-5", Mems: "1"}
		}
		d, pd := reserved.Container(node, pod, c), reserved.Pod(node, pod, []policy.Container{c, c})
		if s := reserved.CPUSet(node, pod, c); s != nil && (len(d.Settings) == 0 || d.Settings[0] != *s) {
			t.Errorf("CPUSet is %+v of %+v", s, d.Settings)
		}
		checkForm(t, d, policy.LevelContainer)
		checkForm(t, pd, policy.LevelPod)
		if d.Refusal != nil && reserved.OnError(pod) != v1alpha1.Refuse {
			t.Errorf("refused against the failure policy: %+v", d.Refusal)
		}
		if diff := cmp.Diff(d, reserved.Container(node, pod, c)); diff != "" {
			t.Errorf("not deterministic:\n%s", diff)
		}
	})
}
