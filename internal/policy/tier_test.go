package policy_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
)

func TestTier(t *testing.T) {
	withRules := func(s *v1alpha1.QoSPolicySpec) {
		s.Rules = []v1alpha1.Rule{
			{Name: "canary", Match: v1alpha1.Match{Namespaces: []string{"shop"}, Labels: "canary"}, Tier: v1alpha1.LS},
			{Name: "db", Match: v1alpha1.Match{Names: []string{"db-?", "pg-*-main"}}, Tier: v1alpha1.LSR},
			{Name: "batch", Match: v1alpha1.Match{Namespaces: []string{"batch-*"}, KubeQoS: []v1alpha1.KubeQoS{v1alpha1.BestEffort}}, Tier: v1alpha1.BE},
			{Name: "late", Match: v1alpha1.Match{Namespaces: []string{"*"}, Labels: "app in (a,b),!x"}, Tier: v1alpha1.SYSTEM},
		}
	}
	type m = map[string]string
	for _, tt := range []struct {
		name  string
		edit  func(*v1alpha1.QoSPolicySpec)
		pod   policy.Pod
		tier  v1alpha1.Tier
		from  policy.Source
		notes []string
	}{
		{name: "label", pod: policy.Pod{Namespace: "kube-system", Labels: m{"tideline.io/qos": "BE", "koordinator.sh/qosClass": "LSE"}}, tier: v1alpha1.BE,
			from: policy.Source{Kind: policy.FromLabel, Key: "tideline.io/qos", Value: "BE"}},
		{name: "bad label hides all else", pod: policy.Pod{Namespace: "kube-system", Labels: m{"tideline.io/qos": "be", "koordinator.sh/qosClass": "LSE"}},
			from: policy.Source{Kind: policy.FromNone}, notes: []string{`label tideline.io/qos="be" names no tier, so the pod has none; allowed: LSE, LSR, LS, BE, SYSTEM`}},
		{name: "empty label", pod: policy.Pod{Labels: m{"tideline.io/qos": ""}},
			from: policy.Source{Kind: policy.FromNone}, notes: []string{`label tideline.io/qos="" names no tier, so the pod has none; allowed: LSE, LSR, LS, BE, SYSTEM`}},
		{name: "long label of no UTF-8", pod: policy.Pod{Labels: m{"tideline.io/qos": "\xff" + strings.Repeat("x", 100<<10)}},
			from: policy.Source{Kind: policy.FromNone}, notes: []string{`label tideline.io/qos="\xff` + strings.Repeat("x", 63) + `"... (102401 bytes) names no tier, so the pod has none; allowed: LSE, LSR, LS, BE, SYSTEM`}},
		{name: "koordinator", pod: policy.Pod{Labels: m{"koordinator.sh/qosClass": "LSR"}, Annotations: m{"volcano.sh/qos-level": "BE"}}, tier: v1alpha1.LSR,
			from: policy.Source{Kind: policy.FromAlias, Key: "koordinator.sh/qosClass", Value: "LSR"}},
		{name: "koordinator off", edit: func(s *v1alpha1.QoSPolicySpec) { s.Aliases.Koordinator = new(false) }, pod: policy.Pod{Labels: m{"koordinator.sh/qosClass": "LSR"}},
			from: policy.Source{Kind: policy.FromNone}},
		{name: "aliases are on where nothing is said", edit: func(s *v1alpha1.QoSPolicySpec) { s.Aliases = v1alpha1.Aliases{} }, pod: policy.Pod{Labels: m{"koordinator.sh/qosClass": "SYSTEM"}}, tier: v1alpha1.SYSTEM,
			from: policy.Source{Kind: policy.FromAlias, Key: "koordinator.sh/qosClass", Value: "SYSTEM"}},
		{name: "volcano LC", pod: policy.Pod{Annotations: m{"volcano.sh/qos-level": "LC"}}, tier: v1alpha1.LSR,
			from: policy.Source{Kind: policy.FromAlias, Key: "volcano.sh/qos-level", Value: "LC"}},
		{name: "volcano HLS", pod: policy.Pod{Annotations: m{"volcano.sh/qos-level": "HLS"}}, tier: v1alpha1.LSR,
			from: policy.Source{Kind: policy.FromAlias, Key: "volcano.sh/qos-level", Value: "HLS"}},
		{name: "volcano BE", pod: policy.Pod{Annotations: m{"volcano.sh/qos-level": "BE"}}, tier: v1alpha1.BE,
			from: policy.Source{Kind: policy.FromAlias, Key: "volcano.sh/qos-level", Value: "BE"}},
		{name: "volcano is an annotation", pod: policy.Pod{Labels: m{"volcano.sh/qos-level": "BE"}}, from: policy.Source{Kind: policy.FromNone}},
		{name: "katalyst", pod: policy.Pod{Annotations: m{"katalyst.kubewharf.io/qos_level": "dedicated_cores"}}, tier: v1alpha1.LSE,
			from: policy.Source{Kind: policy.FromAlias, Key: "katalyst.kubewharf.io/qos_level", Value: "dedicated_cores"}},
		{name: "katalyst reclaimed", pod: policy.Pod{Annotations: m{"katalyst.kubewharf.io/qos_level": "reclaimed_cores"}}, tier: v1alpha1.BE,
			from: policy.Source{Kind: policy.FromAlias, Key: "katalyst.kubewharf.io/qos_level", Value: "reclaimed_cores"}},
		{name: "unknown alias goes on", pod: policy.Pod{Namespace: "kube-system", Labels: m{"koordinator.sh/qosClass": "XL"}, Annotations: m{"volcano.sh/qos-level": "-1"}}, tier: v1alpha1.SYSTEM,
			from: policy.Source{Kind: policy.FromRule, Rule: "system"}, notes: []string{
				`label koordinator.sh/qosClass="XL" names no tier and is passed over; allowed: LSE, LSR, LS, BE, SYSTEM`,
				`annotation volcano.sh/qos-level="-1" names no tier and is passed over; allowed: LC, HLS, LS, BE`}},
		{name: "first rule", edit: withRules, pod: policy.Pod{Namespace: "shop", Name: "db-1", Labels: m{"canary": ""}}, tier: v1alpha1.LS, from: policy.Source{Kind: policy.FromRule, Rule: "canary"}},
		{name: "all fields must match", edit: withRules, pod: policy.Pod{Namespace: "shop", Name: "db-1"}, tier: v1alpha1.LSR, from: policy.Source{Kind: policy.FromRule, Rule: "db"}},
		{name: "glob", edit: withRules, pod: policy.Pod{Namespace: "x", Name: "pg-7-7-main"}, tier: v1alpha1.LSR, from: policy.Source{Kind: policy.FromRule, Rule: "db"}},
		{name: "no glob", edit: withRules, pod: policy.Pod{Namespace: "x", Name: "db-12"}, from: policy.Source{Kind: policy.FromNone}},
		{name: "class", edit: withRules, pod: policy.Pod{Namespace: "batch-7", KubeQoS: v1alpha1.BestEffort}, tier: v1alpha1.BE, from: policy.Source{Kind: policy.FromRule, Rule: "batch"}},
		{name: "class unknown", edit: withRules, pod: policy.Pod{Namespace: "batch-7"}, from: policy.Source{Kind: policy.FromNone}},
		{name: "selector", edit: withRules, pod: policy.Pod{Namespace: "z", Labels: m{"app": "b"}}, tier: v1alpha1.SYSTEM, from: policy.Source{Kind: policy.FromRule, Rule: "late"}},
		{name: "selector not", edit: withRules, pod: policy.Pod{Namespace: "z", Labels: m{"app": "b", "x": ""}}, from: policy.Source{Kind: policy.FromNone}},
		{name: "no name is that long", edit: withRules, pod: policy.Pod{Namespace: strings.Repeat("z", 100<<10), Labels: m{"app": "b"}}, from: policy.Source{Kind: policy.FromNone}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, tt.edit)
			tier, from, notes := p.Tier(tt.pod)
			var texts []string
			for _, n := range notes {
				if n.Code != policy.NoteBadLabel {
					t.Errorf("note code %s", n.Code)
				}
				texts = append(texts, n.Message)
			}
			if tier != tt.tier || from != tt.from {
				t.Errorf("got %q from %+v, want %q from %+v", tier, from, tt.tier, tt.from)
			}
			if diff := cmp.Diff(tt.notes, texts); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if d := p.Container(v2(), tt.pod, app()); d.Tier != tier || d.Source != from {
				t.Errorf("Container says %q from %+v", d.Tier, d.Source)
			}
		})
	}
}

func TestOnError(t *testing.T) {
	pass := compile(t, func(s *v1alpha1.QoSPolicySpec) {
		tierOf(s, v1alpha1.LSE, func(tp *v1alpha1.TierPolicy) { tp.OnError = v1alpha1.Pass })
	})
	byRule := compile(t, func(s *v1alpha1.QoSPolicySpec) { s.Rules[0].Tier = v1alpha1.LSE })
	p := compile(t, nil)
	for _, tt := range []struct {
		name string
		p    *policy.Policy
		pod  policy.Pod
		want v1alpha1.OnError
	}{
		{"LSE", p, labelled(v1alpha1.LSE), v1alpha1.Refuse},
		{"LSR", p, labelled(v1alpha1.LSR), v1alpha1.Refuse},
		{"LS", p, labelled(v1alpha1.LS), v1alpha1.Pass},
		{"BE", p, labelled(v1alpha1.BE), v1alpha1.Pass},
		{"SYSTEM", p, labelled(v1alpha1.SYSTEM), v1alpha1.Pass},
		{"none", p, policy.Pod{}, v1alpha1.Pass},
		{"bad label", p, labelled("LSX"), v1alpha1.Pass},
		{"alias", p, policy.Pod{Labels: map[string]string{v1alpha1.AliasKoordinatorQoS: "LSE"}}, v1alpha1.Pass},
		{"rule", byRule, policy.Pod{Namespace: "kube-system"}, v1alpha1.Pass},
		{"policy", pass, labelled(v1alpha1.LSE), v1alpha1.Pass},
	} {
		if got := tt.p.OnError(tt.pod); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestCompile(t *testing.T) {
	if _, err := policy.Compile(v1alpha1.QoSPolicySpec{ReservedCPUs: "x"}); err == nil || !strings.HasPrefix(err.Error(), "compile policy: spec.reservedCPUs: ") {
		t.Errorf("got %v", err)
	}
	empty, err := policy.Compile(v1alpha1.QoSPolicySpec{})
	if err != nil {
		t.Fatal(err)
	}
	if d := empty.Container(v2(), labelled(v1alpha1.BE), app(shares(2))); d.Tier != v1alpha1.BE || len(d.Settings) > 0 {
		t.Errorf("a policy without tiers decides %+v", d)
	}
	// The caller may change its spec afterwards.
	spec := v1alpha1.Default().Spec
	p, err := policy.Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	want := p.Container(v2(), labelled(v1alpha1.BE), app(shares(2)))
	*spec.Tiers[v1alpha1.BE].CPU.Idle = false
	*spec.Tiers[v1alpha1.LSR].CPU.MemoryMigration = true
	*spec.MinSharedCPUs = 7
	*spec.Aliases.Koordinator = false
	delete(spec.Tiers, v1alpha1.BE)
	spec.Rules[0].Match.Namespaces[0] = "shop"
	if diff := cmp.Diff(want, p.Container(v2(), labelled(v1alpha1.BE), app(shares(2)))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if tier, _, _ := p.Tier(policy.Pod{Namespace: "kube-system"}); tier != v1alpha1.SYSTEM {
		t.Errorf("kube-system is %q", tier)
	}
	if n := p.Limits().MinShared; n != 1 || p.MigratesMemory(v1alpha1.LSR) {
		t.Errorf("%d CPUs are shared, memory migrates: %v", n, p.MigratesMemory(v1alpha1.LSR))
	}
}
