package policy

import (
	"strconv"
	"strings"

	"github.com/tideline-io/tideline/api/v1alpha1"
)

// Partition is the share of caches and memory bandwidth that all containers of a tier have together, in percent; 100 is no
// limit.
type Partition struct {
	Tier       v1alpha1.Tier
	L3, L2, MB int
}

// Partitions gives the tiers that the policy limits, in the order of v1alpha1.Tiers. The others run in the root group.
func (p *Policy) Partitions() []Partition {
	var out []Partition
	for _, t := range v1alpha1.Tiers() {
		if part := p.partition(t); part.limits() {
			out = append(out, part)
		}
	}
	return out
}

func (p *Policy) partition(t v1alpha1.Tier) Partition {
	share := func(s *v1alpha1.Percent) int {
		if s == nil {
			return 100
		}
		return int(*s)
	}
	r := p.tiers[t].Resctrl
	return Partition{Tier: t, L3: share(r.L3), L2: share(r.L2), MB: share(r.MB)}
}

func (p Partition) limits() bool { return p.L3 < 100 || p.L2 < 100 || p.MB < 100 }

// String is what a partition limits, for people: "L3 30%, MB 50%".
func (p Partition) String() string {
	var parts []string
	for _, x := range []struct {
		name  string
		share int
	}{{"L3", p.L3}, {"L2", p.L2}, {"MB", p.MB}} {
		if x.share < 100 {
			parts = append(parts, x.name+" "+strconv.Itoa(x.share)+"%")
		}
	}
	return strings.Join(parts, ", ")
}

// classExcess says what the partition of class has beyond that of tier; "" for nothing.
func (p *Policy) classExcess(class, tier v1alpha1.Tier) string {
	if class == tier {
		return ""
	}
	want, has := p.partition(class), p.partition(tier)
	if want.L3 <= has.L3 && want.L2 <= has.L2 && want.MB <= has.MB {
		return ""
	}
	var allowed []string
	for _, t := range v1alpha1.Tiers() {
		if x := p.partition(t); x.L3 <= has.L3 && x.L2 <= has.L2 && x.MB <= has.MB {
			allowed = append(allowed, string(t))
		}
	}
	return `tier: "` + string(class) + `" has more of caches or memory bandwidth than tier ` + string(tier) + "; allowed: " + strings.Join(allowed, ", ")
}

// Group is the resctrl group that Container decides, nil for the root group.
func (p *Policy) Group(n Node, pod Pod) *Setting {
	w := p.identify(pod)
	if w.refusal != nil || w.tier == v1alpha1.None {
		return nil
	}
	d := deciding{Decision: Decision{Tier: w.tier}, node: n, wishes: w.wishes, level: LevelContainer}
	d.resctrl(p)
	return d.setting(Resctrl)
}

func (d *deciding) resctrl(p *Policy) {
	tier, rule := d.Tier, p.tiers[d.Tier].pathResctrl
	if d.wishes.class != v1alpha1.None {
		tier, rule = d.wishes.class, v1alpha1.AnnotationResctrlClass
	}
	part := p.partition(tier)
	if !part.limits() {
		return
	}
	if _, ok := d.supported(Resctrl); !ok || d.node.Groups == nil {
		return
	}
	group := d.node.Groups[tier]
	if group.Name == "" {
		why := group.Why
		if why == "" {
			why = "it is not set up yet"
		}
		d.note(NoteKept, Resctrl, "the container stays in the root group, since tier "+string(tier)+" has no resctrl group: "+why)
		return
	}
	d.put(Setting{Knob: Resctrl, Value: group.Name, Rule: rule, Reason: "shares " + part.String() + " of the machine with all of its group"})
}
