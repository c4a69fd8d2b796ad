package policy_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
)

func TestPartitions(t *testing.T) {
	t.Parallel()
	def, err := policy.Compile(v1alpha1.Default().Spec)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]policy.Partition{{Tier: v1alpha1.BE, L3: 30, L2: 100, MB: 50}}, def.Partitions()); diff != "" {
		t.Errorf("the default, -want +got:\n%s", diff)
	}
	file, err := v1alpha1.ParsePolicy([]byte(`
apiVersion: tideline.io/v1alpha1
kind: QoSPolicy
spec:
  tiers:
    LS: {resctrl: {l3: 80%, l2: 100%}}
    BE: {resctrl: {l2: 25%, mb: 100%}}
`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Compile(file.Spec)
	if err != nil {
		t.Fatal(err)
	}
	want := []policy.Partition{{Tier: v1alpha1.LS, L3: 80, L2: 100, MB: 100}, {Tier: v1alpha1.BE, L3: 30, L2: 25, MB: 100}}
	if diff := cmp.Diff(want, p.Partitions()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := want[1].String(); got != "L3 30%, L2 25%" {
		t.Errorf("%q", got)
	}
}

func TestResctrlGroup(t *testing.T) {
	t.Parallel()
	p, err := policy.Compile(v1alpha1.Default().Spec)
	if err != nil {
		t.Fatal(err)
	}
	set := map[v1alpha1.Tier]policy.Group{v1alpha1.BE: {Name: "tideline-BE"}}
	for _, c := range []struct {
		name   string
		pod    policy.Pod
		groups map[v1alpha1.Tier]policy.Group
		lacks  bool
		want   string // the group; "" for the root group
		note   string // a part of the note, which is about the knob or the annotation
	}{
		{name: "batch", pod: labelled(v1alpha1.BE), groups: set, want: "tideline-BE"},
		{name: "a tier that is not limited", pod: labelled(v1alpha1.LS), groups: set},
		{name: "no tier", pod: policy.Pod{UID: "u"}, groups: set},
		{name: "nothing is set up", pod: labelled(v1alpha1.BE)},
		{name: "the planner found no CLOSID", pod: labelled(v1alpha1.BE), groups: map[v1alpha1.Tier]policy.Group{v1alpha1.BE: {Why: "no CLOSID is free"}}, note: "no CLOSID is free"},
		{name: "set up for others", pod: labelled(v1alpha1.BE), groups: map[v1alpha1.Tier]policy.Group{}, note: "not set up yet"},
		{name: "no resctrl here", pod: labelled(v1alpha1.BE), lacks: true, note: "resctrl is not supported on this node and not written; it needs a CPU"},
		{name: "as the pod wishes", pod: labelled(v1alpha1.LS, v1alpha1.AnnotationResctrlClass, `{"tier":"BE"}`), groups: set, want: "tideline-BE"},
		{name: "more than its tier has", pod: labelled(v1alpha1.BE, v1alpha1.AnnotationResctrlClass, `{"tier":"LS"}`), groups: set, want: "tideline-BE",
			note: `tier: "LS" has more of caches or memory bandwidth than tier BE; allowed: BE`},
		{name: "a bad wish", pod: labelled(v1alpha1.LS, v1alpha1.AnnotationResctrlClass, `BE`), groups: set, note: "not JSON"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := v2()
			n.Groups = c.groups
			if c.lacks {
				n.Features = map[policy.Knob]policy.Feature{policy.Resctrl: {Support: policy.Unsupported, Need: "a CPU"}}
			}
			d := p.Container(n, c.pod, app())
			got := ""
			for _, s := range d.Settings {
				if s.Knob == policy.Resctrl {
					got = s.Value
				}
			}
			if got != c.want {
				t.Errorf("group %q, want %q", got, c.want)
			}
			alone := ""
			if s := p.Group(n, c.pod); s != nil {
				alone = s.Value
			}
			if alone != c.want {
				t.Errorf("Group gives %q, Container %q", alone, got)
			}
			var notes []string
			for _, note := range d.Notes {
				if note.Knob == policy.Resctrl || note.Code == policy.NoteBadAnnotation {
					notes = append(notes, note.Message)
				}
			}
			if said := strings.Join(notes, "\n"); (said == "") != (c.note == "") || !strings.Contains(said, c.note) {
				t.Errorf("notes %q, want %q", said, c.note)
			}
		})
	}
}
