package engine

import (
	"context"
	"slices"
	"strings"

	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/policy"
)

// PolicyDiff tells what would change of what runs if another policy were put in force; nothing is. The CPUs that pods own are
// kept where the other policy lets them; whether one that has none would get some is not tried.
func (e *Engine) PolicyDiff(ctx context.Context, next *policy.Policy) ([]control.PolicyChange, error) {
	node := e.node()
	if e.cfg.Partitions != nil {
		groups, feature, err := e.cfg.Partitions.Keep(ctx, next.Partitions(), false)
		if err != nil {
			return nil, err
		}
		node = *grouped(node, groups, feature)
	}
	changes := []control.PolicyChange{}
	err := e.query(ctx, func(s *state) {
		now := e.policy.Load().policy
		placed, pools := e.placedUnder(s, next)
		if pools != nil {
			node.Pools = policy.NewPools(*pools, node.Online, len(placed) > 0)
		}
		was, would := map[string]policy.Decision{}, map[string]policy.Decision{}
		for uid, p := range s.pods {
			facts := p.facts
			if facts.Placed != nil && facts.Placed.CPUs != "" {
				facts.Placed = nil
			}
			if a, ok := placed[uid]; ok {
				facts.Placed = s.cpus.placedAs(a)
			}
			before := now.Pod(e.node(), p.facts, s.facts(uid))
			after := next.Pod(node, facts, s.facts(uid))
			row := control.PolicyChange{Namespace: facts.Namespace, Pod: facts.Name, Tier: before.Tier, NextTier: after.Tier, When: control.AtOnce}
			if p.path != "" {
				changes = append(changes, differences(row, before.Settings, after.Settings)...)
				was[string(p.path)], would[string(p.path)] = before, after
			}
			for _, c := range s.containers[uid] {
				if c.id == "" {
					continue
				}
				of := row
				of.Container, of.Tier = c.key.Name, c.decision.Tier
				changes = append(changes, differences(of, c.decision.Settings, c.settingsUnder(next, node, facts))...)
			}
			if row.Tier != row.NextTier && !slices.ContainsFunc(changes, func(x control.PolicyChange) bool { return x.Namespace == row.Namespace && x.Pod == row.Pod }) {
				changes = append(changes, row) // another tier, and no other value
			}
		}
		classes, other := now.Classes(e.node(), was), next.Classes(node, would)
		for _, class := range union(classes, other) {
			changes = append(changes, differences(control.PolicyChange{Class: class, When: control.AtOnce}, classes[class], other[class])...)
		}
	})
	slices.SortStableFunc(changes, func(a, b control.PolicyChange) int {
		key := func(c control.PolicyChange) string {
			return strings.Join([]string{c.Class, c.Namespace, c.Pod, c.Container}, "\x00")
		}
		return strings.Compare(key(a), key(b))
	})
	return changes, err
}

// placedUnder gives the CPUs that pods would own under another policy, and what that leaves to others; nil where the machine is not
// known.
func (e *Engine) placedUnder(s *state, next *policy.Policy) (map[string]placement.Assignment, *placement.Pools) {
	machine, err := placement.New(s.cpus.topology, e.limits(s, next))
	if err != nil {
		return nil, nil
	}
	var keep []placement.Assignment
	for uid, a := range s.cpus.placed {
		if p := s.pods[uid]; p != nil {
			if _, exclusive, err := next.Placing(p.facts); exclusive && err == nil {
				keep = append(keep, a)
			}
		}
	}
	rebuilt := machine.Rebuild(keep)
	all := rebuilt.Assignments()
	placed := map[string]placement.Assignment{}
	for _, a := range all {
		placed[a.UID] = a
	}
	pools := machine.Pools(all)
	return placed, &pools
}

// settingsUnder gives what a running container would have after its next update under another policy.
func (c *container) settingsUnder(next *policy.Policy, node policy.Node, pod policy.Pod) []policy.Setting {
	if c.asked == nil && c.born == nil { // what it was asked is not known
		return c.decision.Settings
	}
	d := c.decide(next, node, pod, c.lastAsked())
	if d.Refusal != nil {
		return c.decision.Settings // it goes on as it is
	}
	c.keepMems(next, &d)
	return d.Settings
}

// differences gives the values of two decisions on one cgroup that are not the same.
func differences(row control.PolicyChange, before, after []policy.Setting) []control.PolicyChange {
	var out []control.PolicyChange
	for _, k := range policy.Knobs() {
		was, would := find(before, k), find(after, k)
		c := row
		c.Knob = k
		if was != nil {
			c.Now = was.Value
		}
		if would != nil {
			c.Next, c.Rule = would.Value, would.Rule
		}
		if c.Now == c.Next {
			continue
		}
		if row.Container != "" {
			switch k {
			case policy.CPUSetCPUs, policy.Resctrl:
				c.When = control.AtOnce
			case policy.OOMScoreAdj, policy.IOPriority:
				c.When = control.NextContainer
			default:
				c.When = control.NextUpdate
			}
		}
		out = append(out, c)
	}
	return out
}

func union(a, b map[string][]policy.Setting) []string {
	var keys []string
	for k := range a {
		keys = append(keys, k)
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}
