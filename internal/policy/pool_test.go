package policy_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

func mask(t testing.TB, list string) units.CPUMask {
	t.Helper()
	m, err := units.ParseCPUMask(list)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// owned is a machine of 8 CPUs of which a pod of LSE owns 0-1 and one of LSR 2.
func owned(t testing.TB) policy.Node {
	n := v2()
	n.Pools = &policy.Pools{LS: mask(t, "3-7"), BE: mask(t, "2-7"), System: mask(t, "2-7"), Online: mask(t, "0-7"), Placed: true}
	return n
}

// What each tier runs on while pods own CPUs.
func TestPoolsOfTheMoment(t *testing.T) {
	lone := owned(t)
	lone.Pools = &policy.Pools{LS: mask(t, "1-7"), BE: mask(t, "1-7"), System: mask(t, "0-7"), Online: mask(t, "0-7")} // 0 is reserved
	leave := func(s *v1alpha1.QoSPolicySpec) { s.Untiered = v1alpha1.UntieredLeave }
	pinned := &policy.Placed{CPUs: "0-1", Mems: "0"}
	for _, c := range []struct {
		name   string
		node   policy.Node
		edit   func(*v1alpha1.QoSPolicySpec)
		tier   v1alpha1.Tier
		placed *policy.Placed
		asked  string
		mems   string // asked
		want   string
		nodes  string // cpuset.mems
		note   policy.NoteCode
	}{
		{name: "LS", node: owned(t), tier: v1alpha1.LS, want: "3-7"},
		{name: "LS, and the kubelet asks", node: owned(t), tier: v1alpha1.LS, asked: "2-4", want: "3-4"},
		{name: "LS, and the kubelet asks for none of it", node: owned(t), tier: v1alpha1.LS, asked: "0-1", note: policy.NoteKept},
		{name: "BE", node: owned(t), tier: v1alpha1.BE, want: "2-7"},
		{name: "SYSTEM", node: owned(t), tier: v1alpha1.SYSTEM, want: "2-7"},
		{name: "SYSTEM while nobody owns CPUs", node: lone, tier: v1alpha1.SYSTEM},
		{name: "no tier", node: owned(t), want: "3-7"},
		{name: "no tier, and the kubelet asks", node: owned(t), asked: "0-3", want: "3"},
		{name: "no tier, and the kubelet asks for none of it", node: owned(t), asked: "0"},
		{name: "no tier while nobody owns CPUs", node: lone},
		{name: "no tier, left alone", node: owned(t), edit: leave},
		{name: "LS while nobody owns CPUs", node: lone, tier: v1alpha1.LS, want: "1-7"},
		{name: "LSE", node: owned(t), tier: v1alpha1.LSE, placed: pinned, want: "0-1", nodes: "0"},
		{name: "LSE, whatever the kubelet asks", node: owned(t), tier: v1alpha1.LSE, placed: pinned, asked: "3-7", want: "0-1", nodes: "0"},
		{name: "LSE, and the kubelet asks for memory nodes", node: owned(t), tier: v1alpha1.LSE, placed: pinned, mems: "1", want: "0-1", note: policy.NoteKept},
		{name: "LSR without NUMA", node: owned(t), tier: v1alpha1.LSR, placed: &policy.Placed{CPUs: "2"}, want: "2"},
		{name: "LSE without CPUs", node: owned(t), tier: v1alpha1.LSE, want: "3-7", note: policy.NoteUnplaced},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := policy.Pod{Namespace: "shop", Name: "web", Placed: c.placed}
			if c.tier != v1alpha1.None {
				pod.Labels = map[string]string{v1alpha1.LabelQoS: string(c.tier)}
			}
			ctr := policy.Container{Name: "app", State: policy.Managed, Asked: policy.Resources{CPUSetCPUs: c.asked, CPUSetMems: c.mems}}
			p := compile(t, c.edit)
			d := p.Container(c.node, pod, ctr)
			got := values(d)
			if got[policy.CPUSetCPUs] != c.want || got[policy.CPUSetMems] != c.nodes {
				t.Errorf("CPUs %q and memory nodes %q, want %q and %q", got[policy.CPUSetCPUs], got[policy.CPUSetMems], c.want, c.nodes)
			}
			var note policy.NoteCode
			for _, n := range d.Notes {
				if n.Knob == policy.CPUSetCPUs || n.Knob == policy.CPUSetMems {
					note = n.Code
				}
			}
			if note != c.note {
				t.Errorf("note %q, want %q: %+v", note, c.note, d.Notes)
			}
			if c.tier == v1alpha1.None && len(d.Notes)+len(d.Settings) > 1 {
				t.Errorf("without a tier: %+v", d)
			}
			checkForm(t, d, policy.LevelContainer)
		})
	}
}

// A shared container stays in its pool, whatever is asked and said, and CPUSet says what Container does.
func TestSharedStayInTheirPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec, n, pod, c := drawSpec(t), drawNode(t), drawPod(t, rapid.SampledFrom(labels).Draw(t, "tier")), drawContainer(t)
		p, err := policy.Compile(spec)
		if err != nil {
			t.Fatal(err)
		}
		n.Online = online(8)
		var pools policy.Pools
		for i := range 8 {
			one := mask0(i)
			pools.Online.Add(&one)
			switch rapid.SampledFrom([]string{"LS", "LSR", "LSE"}).Draw(t, "owner") {
			case "LS":
				pools.LS.Add(&one)
				fallthrough
			case "LSR":
				pools.BE.Add(&one)
				pools.System.Add(&one)
			}
		}
		if pools.LS.IsEmpty() {
			pools.LS, pools.BE, pools.System = mask0(7), mask0(7), mask0(7)
		}
		pools.Placed = rapid.Bool().Draw(t, "placed")
		n.Pools = &pools
		if pod.Placed = nil; rapid.Bool().Draw(t, "failed") {
			pod.Placed = &policy.Placed{Why: "no room"}
		}
		d := p.Container(n, pod, c)
		alone := p.CPUSet(n, pod, c)
		var whole *policy.Setting
		for i := range d.Settings {
			if d.Settings[i].Knob == policy.CPUSetCPUs {
				whole = &d.Settings[i]
			}
		}
		if diff := cmp.Diff(whole, alone); diff != "" {
			t.Fatalf("CPUSet differs from Container:\n%s", diff)
		}
		pool := map[v1alpha1.Tier]*units.CPUMask{v1alpha1.BE: &pools.BE, v1alpha1.SYSTEM: &pools.System}[d.Tier]
		if pool == nil {
			pool = &pools.LS
		}
		if whole == nil {
			if everywhere := d.Tier == v1alpha1.None || d.Tier == v1alpha1.SYSTEM; d.Refusal != nil || everywhere && !pools.Placed ||
				d.Tier == v1alpha1.None && spec.Untiered == v1alpha1.UntieredLeave || n.Features[policy.CPUSetCPUs].Support == policy.Unsupported {
				return
			}
			runs, err := units.ParseCPUMask(c.Asked.CPUSetCPUs)
			if c.Asked.CPUSetCPUs == "" {
				runs = pools.Online
			}
			both := runs
			both.Intersect(pool)
			_, given := policy.KubeletExclusive(pod, c.Asked)
			if err == nil && !given && both != runs && !both.IsEmpty() {
				t.Fatalf("tier %s stays on CPUs %s, and its pool is %s", d.Tier, &runs, pool)
			}
			return
		}
		set, err := units.ParseCPUs(whole.Value)
		if err != nil || set.IsEmpty() || !set.IsSubsetOf(pool.Set()) {
			t.Fatalf("tier %s gets CPUs %q of the pool %s", d.Tier, whole.Value, pool)
		}
	})
}

// A pod that was given CPUs runs on those and no others, whatever its annotations say; what it asks for depends on none of
// that.
func TestOwnCPUs(t *testing.T) {
	const cpus = "2-3"
	rapid.Check(t, func(t *rapid.T) {
		p, n, c := drawPolicy(t), drawNode(t), drawContainer(t)
		pod := drawPod(t, rapid.SampledFrom([]string{"LSE", "LSR"}).Draw(t, "tier"))
		wish := rapid.SampledFrom([]string{"-", "", "null", "[]", "{}", `{"numa":"spread"}`, `{"numa":"require-single","smt":"use"}`, `{"smt":"idle"}`, `{"smt":"use","smt":"use"}`,
			`{"SMT":"use"}`, `{"numa":"\u0000"}`, `{"numa":7}`, `{"cpus":"0-7"}`, strings.Repeat("[", 1<<10), strings.Repeat(" ", v1alpha1.MaxAnnotationSize) + "{}"}).Draw(t, "wish")
		if delete(pod.Annotations, v1alpha1.AnnotationCPUPlacement); wish != "-" {
			pod.Annotations[v1alpha1.AnnotationCPUPlacement] = wish
		}
		pod.Resources = policy.Resources{CPUQuota: new(int64(200000)), CPUPeriod: new(int64(100000))}
		if rapid.Bool().Draw(t, "shares") {
			pod.Resources = policy.Resources{CPUShares: new(int64(2048))}
		}
		before, ok, err := p.Placing(pod)
		if err != nil && before.Tier == v1alpha1.LSE && strings.Contains(err.Error(), "untiered: leave") {
			return
		}
		if err != nil || ok && (before.Count != 2 || string(before.Tier) != pod.Labels[v1alpha1.LabelQoS]) {
			t.Fatalf("asks for %+v, %v", before, err)
		}
		if m, err := placement.New(placement.Topology{CPUs: []placement.CPU{{ID: 0, Core: 0}, {ID: 1, Core: 1}, {ID: 2, Core: 2}, {ID: 3, Core: 3}}}, placement.Limits{}); err != nil {
			t.Fatal(err)
		} else if _, err := m.Place(nil, before); ok && err != nil {
			t.Fatalf("no machine can do this: %v", err)
		}
		pod.Placed = &policy.Placed{CPUs: cpus, Mems: rapid.SampledFrom([]string{"", "0"}).Draw(t, "mems")}
		if after, still, err := p.Placing(pod); after != before || still != ok || err != nil {
			t.Fatalf("asks for %+v before it has CPUs and for %+v then", before, after)
		}
		d := p.Container(n, pod, c)
		checkForm(t, d, policy.LevelContainer)
		if (d.Refusal == nil) != ok {
			t.Fatalf("it asks for CPUs: %v, and %+v", ok, d.Refusal)
		}
		var whole *policy.Setting
		for i, s := range d.Settings {
			switch s.Knob {
			case policy.CPUSetCPUs:
				whole = &d.Settings[i]
			case policy.CPUSetMems:
				if s.Value != pod.Placed.Mems || c.Asked.CPUSetMems != "" {
					t.Fatalf("memory nodes %q of %+v", s.Value, pod.Placed)
				}
			}
		}
		if diff := cmp.Diff(whole, p.CPUSet(n, pod, c)); diff != "" {
			t.Fatalf("CPUSet differs from Container:\n%s", diff)
		}
		if d.Refusal != nil || n.Features[policy.CPUSetCPUs].Support == policy.Unsupported {
			return
		}
		_, given := policy.KubeletExclusive(pod, c.Asked)
		if (whole == nil) != given || whole != nil && whole.Value != cpus {
			t.Fatalf("runs on %+v, given by the kubelet: %v", whole, given)
		}
	})
}

func mask0(cpu int) units.CPUMask {
	var m units.CPUMask
	m[0] = 1 << cpu
	return m
}

func TestPlacing(t *testing.T) {
	whole := policy.Resources{CPUQuota: new(int64(400000)), CPUPeriod: new(int64(100000)), CPUShares: new(int64(1024))}
	for _, c := range []struct {
		name string
		edit func(*v1alpha1.QoSPolicySpec)
		pod  policy.Pod
		asks policy.Resources
		want placement.Request
		none bool
		err  string
	}{
		{name: "by the quota", pod: labelled(v1alpha1.LSE), asks: whole, want: placement.Request{Tier: v1alpha1.LSE, Count: 4, NUMA: placement.PreferSingle, SMT: placement.SMTIdle}},
		{name: "by the shares", pod: labelled(v1alpha1.LSR), asks: policy.Resources{CPUShares: new(int64(3072))}, want: placement.Request{Tier: v1alpha1.LSR, Count: 3, NUMA: placement.PreferSingle}},
		{name: "by the shares, where a container has no limit", pod: labelled(v1alpha1.LSR), asks: policy.Resources{CPUQuota: new(int64(100000)), CPUPeriod: new(int64(100000)), CPUShares: new(int64(3072))},
			want: placement.Request{Tier: v1alpha1.LSR, Count: 3, NUMA: placement.PreferSingle}},
		{name: "as the pod wishes", pod: labelled(v1alpha1.LSE, v1alpha1.AnnotationCPUPlacement, `{"numa":"require-single","smt":"use"}`), asks: whole,
			want: placement.Request{Tier: v1alpha1.LSE, Count: 4, NUMA: placement.RequireSingle, SMT: placement.SMTUse}},
		{name: "by an alias", pod: policy.Pod{Annotations: map[string]string{v1alpha1.AliasKatalystQoS: "dedicated_cores"}}, asks: whole,
			want: placement.Request{Tier: v1alpha1.LSE, Count: 4, NUMA: placement.PreferSingle, SMT: placement.SMTIdle}},
		{name: "a fraction", pod: labelled(v1alpha1.LSE), asks: policy.Resources{CPUShares: new(int64(1536))}, err: "cpu: 1500m; allowed: whole CPUs"},
		{name: "nothing", pod: labelled(v1alpha1.LSE), err: "asks for none"},
		{name: "untiered pods stay", edit: func(s *v1alpha1.QoSPolicySpec) { s.Untiered = v1alpha1.UntieredLeave }, pod: labelled(v1alpha1.LSE), asks: whole, err: "untiered: leave"},
		{name: "untiered pods stay, and batch may come", edit: func(s *v1alpha1.QoSPolicySpec) { s.Untiered = v1alpha1.UntieredLeave }, pod: labelled(v1alpha1.LSR), asks: whole,
			want: placement.Request{Tier: v1alpha1.LSR, Count: 4, NUMA: placement.PreferSingle}},
		{name: "the policy does not place", edit: func(s *v1alpha1.QoSPolicySpec) {
			tierOf(s, v1alpha1.LSE, func(tp *v1alpha1.TierPolicy) { tp.CPU.Placement = v1alpha1.PlacementNone })
		}, pod: labelled(v1alpha1.LSE), asks: whole, none: true},
		{name: "a bad wish", pod: labelled(v1alpha1.LSR, v1alpha1.AnnotationCPUPlacement, `{"smt":"use"}`), asks: whole, none: true}, // it is refused
		{name: "LS", pod: labelled(v1alpha1.LS), asks: whole, none: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.pod.Resources = c.asks
			got, ok, err := compile(t, c.edit).Placing(c.pod)
			if ok == c.none {
				t.Fatalf("placed: %v", ok)
			}
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("%+v, %v, want %+v", got, err, c.want)
			}
		})
	}
	var count *placement.CountError
	if _, _, err := compile(t, nil).Placing(labelled(v1alpha1.LSE)); !errors.As(err, &count) {
		t.Errorf("%v is no CountError", err)
	}
}

// Wishes never get more than the tier gives, and a pod that could not be placed is refused or treated as LS.
func TestUnplaced(t *testing.T) {
	use := compile(t, func(s *v1alpha1.QoSPolicySpec) {
		tierOf(s, v1alpha1.LSE, func(tp *v1alpha1.TierPolicy) { tp.CPU.SMT = v1alpha1.SMTUse })
	})
	if d := use.Container(v2(), labelled(v1alpha1.LSE, v1alpha1.AnnotationCPUPlacement, `{"smt":"idle"}`), app()); d.Refusal == nil || !strings.Contains(d.Refusal.Message, `smt: "idle" is more than tier LSE gives`) {
		t.Errorf("a wish for more: %+v", d)
	}
	p := compile(t, nil)
	if d := p.Container(v2(), labelled(v1alpha1.LS, v1alpha1.AnnotationCPUPlacement, `{}`), app()); len(d.Notes) == 0 || d.Notes[0].Code != policy.NoteBadAnnotation {
		t.Errorf("a wish of a tier that is not placed: %+v", d)
	}
	failed := &policy.Placed{Why: "no room"}
	ours := labelled(v1alpha1.LSE)
	ours.Placed = failed
	if d := p.Container(v2(), ours, app()); d.Refusal == nil || d.Refusal.Key != v1alpha1.LabelQoS || !strings.HasPrefix(d.Refusal.Message, "no room; tier LSE refuses") {
		t.Errorf("ours: %+v", d)
	}
	theirs := policy.Pod{Annotations: map[string]string{v1alpha1.AliasVolcanoQoS: "LC"}, Placed: failed}
	if d := p.Container(v2(), theirs, app()); d.Refusal != nil || d.Tier != v1alpha1.LS || d.Notes[0].Code != policy.NoteUnplaced {
		t.Errorf("a peer's: %+v", d)
	}
	pass := compile(t, func(s *v1alpha1.QoSPolicySpec) {
		tierOf(s, v1alpha1.LSE, func(tp *v1alpha1.TierPolicy) { tp.OnError = v1alpha1.Pass })
	})
	if d := pass.Container(v2(), ours, app()); d.Refusal != nil || d.Tier != v1alpha1.LS {
		t.Errorf("ours, where the policy passes: %+v", d)
	}
}

func TestKubeletExclusive(t *testing.T) {
	asks := func(milli int64, set string) policy.Resources {
		return policy.Resources{CPUQuota: new(milli * 100), CPUPeriod: new(int64(100000)), CPUSetCPUs: set}
	}
	for _, c := range []struct {
		qos  v1alpha1.KubeQoS
		asks policy.Resources
		want bool
	}{
		{v1alpha1.Guaranteed, asks(2000, "2-3"), true},
		{v1alpha1.Guaranteed, asks(2000, "0-7"), false}, // the pool of the others
		{v1alpha1.Guaranteed, asks(1500, "2-3"), false},
		{v1alpha1.Guaranteed, asks(2000, ""), false},
		{v1alpha1.Guaranteed, asks(2000, "0-4294967295"), false},
		{v1alpha1.Burstable, asks(2000, "2-3"), false},
		{v1alpha1.Unknown, asks(2000, "2-3"), false},
	} {
		set, ok := policy.KubeletExclusive(policy.Pod{KubeQoS: c.qos}, c.asks)
		if ok != c.want || ok && set.String() != c.asks.CPUSetCPUs {
			t.Errorf("%s %+v: %v %s", c.qos, c.asks, ok, &set)
		}
	}
}
