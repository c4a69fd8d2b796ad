package resctrl_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tideline-io/tideline/resctrl"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

var update = flag.Bool("update", false, "write the goldens")

var ours = resctrl.PlanOptions{Prefix: "tideline-"}

func percent(l3, mb int) (resctrl.CacheShare, resctrl.BandwidthShare) {
	return resctrl.CacheShare{Percent: l3}, resctrl.BandwidthShare{Percent: mb}
}

func class(name string, l3, mb int) resctrl.Class {
	c := resctrl.Class{Name: name}
	c.L3, c.MB = percent(l3, mb)
	return c
}

func batch(name string, l3, mb int) resctrl.Class {
	c := class(name, l3, mb)
	c.Batch = true
	return c
}

// render is a plan for people.
func render(p resctrl.Planned) string {
	var b strings.Builder
	for _, c := range p.Classes {
		group := c.Group
		if group == "" {
			group = "(root)"
		}
		fmt.Fprintf(&b, "class %s -> %s, %s\n", c.Name, group, c.Outcome)
		for _, r := range c.Reasons {
			fmt.Fprintf(&b, "  %s\n", r)
		}
	}
	for _, g := range p.Groups {
		fmt.Fprintf(&b, "group %s for %s\n", g.Name, strings.Join(g.Classes, ", "))
		for _, l := range g.Schemata {
			fmt.Fprintf(&b, "  %s\n", l)
		}
	}
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "step %s\n", s)
	}
	fmt.Fprintf(&b, "CLOSIDs %d: root 1, foreign %d, ours %d\n", p.CLOSIDs.Total, p.CLOSIDs.Foreign, p.CLOSIDs.Ours)
	return b.String()
}

func plan(t *testing.T, f *resctrl.FS, classes []resctrl.Class) resctrl.Planned {
	t.Helper()
	info, err := f.Info()
	if err != nil {
		t.Fatal(err)
	}
	states, err := f.States()
	if err != nil {
		t.Fatal(err)
	}
	p, err := resctrl.Plan(info, states, classes, ours)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The plans of all machines for the default policy and for a finer one, as text.
func TestPlanGolden(t *testing.T) {
	t.Parallel()
	policies := []struct {
		name    string
		classes []resctrl.Class
	}{
		{"the default policy", []resctrl.Class{class("LSE", 0, 0), class("LSR", 100, 100), class("LS", 100, 100), batch("BE", 30, 50)}},
		{"five classes", []resctrl.Class{
			class("LSR", 90, 0), class("LS", 60, 95), class("web", 60, 95), batch("mid", 40, 33), batch("BE", 15, 5),
			{Name: "low", L2: resctrl.CacheShare{Mask: 3}, Batch: true},
		}},
		{"masks and MB/s", []resctrl.Class{
			{Name: "a", L3: resctrl.CacheShare{Mask: 0xf}, MB: resctrl.BandwidthShare{MBps: 4000}},
			{Name: "b", L3: resctrl.CacheShare{Mask: 0x101}},
			{Name: "c", L3: resctrl.CacheShare{Mask: 0xffffffff}},
		}},
	}
	var b strings.Builder
	for _, l := range resctrltest.Layouts() {
		for _, p := range policies {
			_, f := open(l)
			fmt.Fprintf(&b, "== %s, %s\n%s\n", l.Name, p.name, render(plan(t, f, p.classes)))
		}
	}
	const golden = "testdata/plan.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("-want +got (-update writes it):\n%s", diff)
	}
}

func TestPlanRefusesInput(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		classes []resctrl.Class
		prefix  string
	}{
		{"no prefix", nil, ""},
		{"a prefix that is a path", nil, "a/"},
		{"a prefix of the kernel's", nil, "info"},
		{"no name", []resctrl.Class{{}}, "t-"},
		{"a path", []resctrl.Class{{Name: "../x"}}, "t-"},
		{"a name twice", []resctrl.Class{{Name: "BE"}, {Name: "be"}}, "t-"},
		{"101 %", []resctrl.Class{class("a", 101, 0)}, "t-"},
		{"-1 %", []resctrl.Class{class("a", 0, -1)}, "t-"},
		{"both", []resctrl.Class{{Name: "a", L3: resctrl.CacheShare{Percent: 1, Mask: 1}}}, "t-"},
		{"a long name", []resctrl.Class{{Name: strings.Repeat("x", 300)}}, "t-"},
	} {
		if p, err := resctrl.Plan(resctrl.Info{}, nil, tt.classes, resctrl.PlanOptions{Prefix: tt.prefix}); err == nil {
			t.Errorf("%s: %+v", tt.name, p)
		}
	}
}

func TestPlanWithForeignGroups(t *testing.T) {
	t.Parallel()
	_, f := open(resctrltest.Intel())
	// Somebody else has the four lowest ways for itself.
	vip := create(t, f, "vip")
	set(t, vip, "L3:0=f;1=f\n")
	if _, err := vip.SetExclusive(); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		create(t, f, fmt.Sprintf("other%d", i))
	}
	got := render(plan(t, f, []resctrl.Class{class("LS", 100, 100), class("LSR", 80, 100), batch("BE", 30, 50)}))
	const want = `class LS -> (root), granted
  L3: the root group is narrowed: L3:0=7f0;1=7f0
class LSR -> (root), degraded
  L3: 80 % of 11 ways is 8.8, rounded up to 9
  L3: exclusive groups leave only 7 of 9 ways
  stays in the root group, without a limit: there are 8 CLOSIDs, less the root group's and 6 of foreign groups
  L3: the root group is narrowed: L3:0=7f0;1=7f0
class BE -> tideline-be, granted
  L3: 30 % of 11 ways is 3.3, rounded up to 4
group tideline-be for BE
  L3:0=f0;1=f0
  MB:0=50;1=50
step create tideline-be: for BE
CLOSIDs 8: root 1, foreign 6, ours 1
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	create(t, f, "other5")
	got = render(plan(t, f, []resctrl.Class{batch("BE", 30, 50)}))
	if !strings.Contains(got, "class BE -> (root), refused") || strings.Contains(got, "step") {
		t.Errorf("without a CLOSID:\n%s", got)
	}
}

func TestPlanRepairs(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	classes := []resctrl.Class{class("LSR", 90, 100), batch("BE", 30, 50)}
	if err := resctrl.Apply(t.Context(), f, plan(t, f, classes)); err != nil {
		t.Fatal(err)
	}
	// Drift, a group of an older policy, one that somebody removed, and foreign ones that stay.
	create(t, f, "tideline-old")
	foreign := create(t, f, "tidelines")
	set(t, foreign, "L3:0=600;1=600\n")
	be, err := f.Group("tideline-be")
	if err != nil {
		t.Fatal(err)
	}
	set(t, be, "MB:1=100\n")
	if err := k.Rmdir("tideline-lsr"); err != nil {
		t.Fatal(err)
	}
	p := plan(t, f, classes)
	var steps []string
	for _, s := range p.Steps {
		steps = append(steps, s.String())
	}
	want := []string{"set tideline-be: MB:1=100, wanted 50", "create tideline-lsr: for LSR", "remove tideline-old: no class needs it"}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := resctrl.Apply(t.Context(), f, p); err != nil {
		t.Fatal(err)
	}
	if p := plan(t, f, classes); len(p.Steps) != 0 {
		t.Errorf("after all is done: %v", p.Steps)
	}
	if s, err := foreign.Schemata(); err != nil || s.String() != "MB:0=100;1=100\nL3:0=600;1=600\n" {
		t.Errorf("foreign %q, %v", s, err)
	}
}

func TestApplyRefusesForeign(t *testing.T) {
	t.Parallel()
	_, f := open(resctrltest.Intel())
	create(t, f, "vip")
	for _, p := range []resctrl.Planned{
		{Prefix: "tideline-", Steps: []resctrl.Step{{Op: resctrl.StepRemove, Group: "vip"}}},
		{Steps: []resctrl.Step{{Op: resctrl.StepRemove, Group: "vip"}}},
		{Prefix: "tideline-", Steps: []resctrl.Step{{Op: resctrl.StepSet, Group: ""}}},
	} {
		if err := resctrl.Apply(t.Context(), f, p); !errors.Is(err, resctrl.ErrRefused) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if _, err := f.Group("vip"); err != nil {
		t.Error(err)
	}
}

// A group that can't be set is not left behind.
func TestApplyUndoesCreate(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	p := plan(t, f, []resctrl.Class{batch("BE", 30, 50), class("LSR", 90, 0)})
	k.Before(func(op, name string) error {
		if op == "write" && strings.HasPrefix(name, "tideline-be/") {
			return errors.New("no")
		}
		return nil
	})
	err := resctrl.Apply(t.Context(), f, p)
	if err == nil || !strings.Contains(err.Error(), "create tideline-be: write") {
		t.Errorf("%v", err)
	}
	groups, err := f.Groups()
	if err != nil || len(groups) != 1 || groups[0].Name() != "tideline-lsr" {
		t.Errorf("%v, %v", groups, err)
	}
}

func drawClasses(t *rapid.T) []resctrl.Class {
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"LSE", "LSR", "LS", "BE", "mid", "web", "db", "x1", "x2", "x3"}), 0, 10, rapid.ID).Draw(t, "names")
	var classes []resctrl.Class
	for _, name := range names {
		c := resctrl.Class{Name: name, Batch: rapid.Bool().Draw(t, name+" batch")}
		cache := func(what string) resctrl.CacheShare {
			switch rapid.IntRange(0, 4).Draw(t, what) {
			case 0:
				return resctrl.CacheShare{}
			case 1:
				return resctrl.CacheShare{Mask: resctrl.Mask(rapid.Uint64Range(1, 0x1fffff).Draw(t, what+" mask"))}
			}
			return resctrl.CacheShare{Percent: rapid.IntRange(1, 100).Draw(t, what+" percent")}
		}
		c.L3, c.L2 = cache(name+" L3"), cache(name+" L2")
		switch rapid.IntRange(0, 2).Draw(t, name+" MB") {
		case 0:
			c.MB.Percent = rapid.IntRange(1, 100).Draw(t, name+" MB percent")
		case 1:
			c.MB.MBps = rapid.Uint64Range(1, 300_000).Draw(t, name+" MB/s")
		}
		classes = append(classes, c)
	}
	return classes
}

// Whatever is asked on whatever machine beside whomever: the kernel takes each value as planned, the second plan has
// nothing to do, what is foreign stays as it is, and each value that is not as asked has a reason.
func TestPlanProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := rapid.SampledFrom(resctrltest.Layouts()).Draw(t, "layout")
		_, f := open(l)
		foreign := rapid.IntRange(0, 4).Draw(t, "foreign groups")
		for i := range foreign {
			g, err := f.Create(t.Context(), fmt.Sprintf("foreign%d", i))
			if err != nil {
				break
			}
			var s resctrl.Schemata
			info, err := f.Info()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range info.Resources {
				for _, id := range r.Domains {
					if r.Cache != nil {
						s.Set(r.Name, id, uint64(resctrl.Ways(rapid.IntRange(0, r.Cache.Mask.Bits()-2).Draw(t, "first"), max(2, r.Cache.MinBits))&r.Cache.Mask))
					}
				}
			}
			if _, err := g.SetSchemata(s); err == nil && rapid.Bool().Draw(t, "exclusive") {
				_, _ = g.SetExclusive() // refused where others overlap, which is fine here
			}
		}
		var old []resctrl.Class
		if rapid.Bool().Draw(t, "an older policy") {
			old = drawClasses(t)
		}
		classes := drawClasses(t)
		before := foreignState(t, f)
		for _, cs := range [][]resctrl.Class{old, classes} {
			p := planOf(t, f, cs)
			checkReasons(t, p, cs)
			if err := resctrl.Apply(t.Context(), f, p); errors.Is(err, resctrl.ErrNoWays) {
				t.Skip("the kernel makes no group beside these exclusive ones")
			} else if err != nil {
				t.Fatalf("%v\n%s", err, render(p))
			}
			if again := planOf(t, f, cs); len(again.Steps) > 0 {
				t.Fatalf("again: %v\n%s", again.Steps, render(p))
			} else if diff := cmp.Diff(p.Groups, again.Groups); diff != "" {
				t.Fatalf("another plan the second time:\n%s", diff)
			}
		}
		if diff := cmp.Diff(before, foreignState(t, f)); diff != "" {
			t.Fatalf("foreign groups changed:\n%s", diff)
		}
	})
}

func planOf(t *rapid.T, f *resctrl.FS, classes []resctrl.Class) resctrl.Planned {
	info, err := f.Info()
	if err != nil {
		t.Fatal(err)
	}
	states, err := f.States()
	if err != nil {
		t.Fatal(err)
	}
	p, err := resctrl.Plan(info, states, classes, ours)
	if err != nil {
		t.Fatal(err)
	}
	if n := info.NumCLOSIDs(); n > 0 && 1+p.CLOSIDs.Foreign+p.CLOSIDs.Ours > n {
		t.Fatalf("%d groups of %d CLOSIDs", 1+p.CLOSIDs.Foreign+p.CLOSIDs.Ours, n)
	}
	return p
}

// foreignState is all that is not ours, the root group too.
func foreignState(t *rapid.T, f *resctrl.FS) []string {
	states, err := f.States()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, s := range states {
		if !strings.HasPrefix(s.Name, ours.Prefix) {
			lines = append(lines, fmt.Sprintf("%s %s %q", s.Name, s.Mode, s.Schemata))
		}
	}
	return lines
}

// checkReasons: a class that isn't simply granted says why; one that is has what it asked for, or more by rounding.
func checkReasons(t *rapid.T, p resctrl.Planned, classes []resctrl.Class) {
	for i, c := range p.Classes {
		if c.Outcome != resctrl.Granted && len(c.Reasons) == 0 {
			t.Fatalf("%s is %s without a reason", c.Name, c.Outcome)
		}
		j := slices.IndexFunc(p.Groups, func(g resctrl.PlannedGroup) bool { return g.Name == c.Group })
		if c.Outcome != resctrl.Granted || j < 0 {
			continue
		}
		for _, l := range p.Groups[j].Schemata {
			share := classes[i].L3
			if strings.HasPrefix(l.Resource, "L2") {
				share = classes[i].L2
			}
			for _, d := range l.Domains {
				if share.Mask != 0 && resctrl.KindOf(l.Resource) == resctrl.KindCache && d.Mask() != share.Mask {
					t.Fatalf("%s asked for mask %s, has %s", c.Name, share.Mask, l)
				}
			}
		}
	}
}

// The order in which wishes go where CLOSIDs are short.
func TestPlanDegrades(t *testing.T) {
	t.Parallel()
	_, f := open(resctrltest.IntelL3()) // 3 groups beside the root
	for _, tt := range []struct {
		name    string
		classes []resctrl.Class
		want    []string
	}{
		{"all fit", []resctrl.Class{class("a", 80, 0), class("b", 60, 0), batch("c", 30, 0)}, []string{"a granted tideline-a", "b granted tideline-b", "c granted tideline-c"}},
		{"equal classes share", []resctrl.Class{class("a", 80, 0), class("b", 60, 0), class("c", 80, 0), class("d", 79, 0), batch("e", 30, 0)},
			[]string{"a granted tideline-a", "b granted tideline-b", "c granted tideline-a", "d granted tideline-a", "e granted tideline-e"}},
		{"batch first", []resctrl.Class{class("a", 80, 0), class("b", 60, 0), batch("c", 30, 0), batch("d", 20, 0)},
			[]string{"a granted tideline-a", "b granted tideline-b", "c degraded tideline-c", "d granted tideline-c"}},
		{"then the widest", []resctrl.Class{class("a", 60, 0), class("b", 80, 0), class("c", 40, 0), batch("d", 30, 0)},
			[]string{"a granted tideline-a", "b degraded ", "c granted tideline-c", "d granted tideline-d"}},
		{"batch stays limited to the last", []resctrl.Class{class("a", 60, 0), class("b", 80, 0), class("c", 40, 0), class("d", 20, 0), batch("e", 30, 0), batch("f", 10, 0)},
			[]string{"a degraded ", "b degraded ", "c granted tideline-c", "d granted tideline-d", "e degraded tideline-e", "f granted tideline-e"}},
	} {
		var got []string
		for _, c := range plan(t, f, tt.classes).Classes {
			got = append(got, fmt.Sprintf("%s %s %s", c.Name, c.Outcome, c.Group))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
