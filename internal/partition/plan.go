package partition

import (
	"strings"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/resctrl"
)

// Prefix begins the name of each group of ours.
const Prefix = "tideline-"

// Options are those of each plan.
var Options = resctrl.PlanOptions{Prefix: Prefix}

// Classes gives the partitions of a policy as a plan wants them. Batch gets the ways at the low end.
func Classes(parts []policy.Partition) []resctrl.Class {
	classes := make([]resctrl.Class, len(parts))
	for i, p := range parts {
		classes[i] = resctrl.Class{Name: string(p.Tier), L3: resctrl.CacheShare{Percent: p.L3}, L2: resctrl.CacheShare{Percent: p.L2},
			MB: resctrl.BandwidthShare{Percent: p.MB}, Batch: p.Tier == v1alpha1.BE}
	}
	return classes
}

// Groups tells the group of each tier by a plan of its Classes.
func Groups(planned resctrl.Planned, parts []policy.Partition) map[v1alpha1.Tier]policy.Group {
	groups := map[v1alpha1.Tier]policy.Group{}
	for i, c := range planned.Classes {
		g := policy.Group{Name: c.Group}
		if g.Name == "" {
			g.Why = why(c)
		}
		groups[parts[i].Tier] = g
	}
	return groups
}

// why is the reasons of a class that has no group.
func why(c resctrl.PlannedClass) string {
	reasons := make([]string, len(c.Reasons))
	for i, r := range c.Reasons {
		reasons[i] = r.String()
	}
	if len(reasons) == 0 {
		return "what it asks comes to all that there is"
	}
	return strings.Join(reasons, "; ")
}

func plan(fs *resctrl.FS, parts []policy.Partition) (resctrl.Planned, error) {
	info, err := fs.Info()
	if err != nil {
		return resctrl.Planned{}, err
	}
	states, err := fs.States()
	if err != nil {
		return resctrl.Planned{}, err
	}
	return resctrl.Plan(info, states, Classes(parts), Options)
}
