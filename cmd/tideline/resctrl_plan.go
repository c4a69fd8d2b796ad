package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/partition"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/resctrl"
)

// ResctrlPlan is the JSON of `tideline resctrl plan`. Fields are only ever added.
type ResctrlPlan struct {
	APIVersion string                 `json:"apiVersion"` // "tideline.io/v1alpha1"
	Kind       string                 `json:"kind"`       // "ResctrlPlan"
	Node       NodeSource             `json:"node"`
	Policy     PolicySource           `json:"policy"`
	Mount      resctrl.MountPoint     `json:"mount"`
	Tiers      []PlannedTier          `json:"tiers"`   // all of them
	Groups     []PlannedResctrlGroup  `json:"groups"`  // ours, as they would be
	Steps      []PlannedStep          `json:"steps"`   // that lead there from what is there
	CLOSIDs    *ReportedIDs           `json:"closids"` // as they would be used, null where nothing can be allocated
	RMIDs      *ReportedIDs           `json:"rmids"`
	Resources  []resctrl.ResourceInfo `json:"resources"`

	then ResctrlReport // all groups, as they would be
}

// PlannedTier is what becomes of a tier.
type PlannedTier struct {
	Tier    v1alpha1.Tier    `json:"tier"`
	L3      int              `json:"l3"` // percent that the policy says; 100 does not limit
	L2      int              `json:"l2"`
	MB      int              `json:"mb"`
	Group   string           `json:"group"` // "" is the root group
	Outcome resctrl.Outcome  `json:"outcome"`
	Reasons []resctrl.Reason `json:"reasons"`
	asks    string
}

// PlannedResctrlGroup is a group that would be there.
type PlannedResctrlGroup struct {
	Name     string            `json:"name"`
	Tiers    []string          `json:"tiers"`
	Settings []ReportedSetting `json:"settings"`
}

// PlannedStep is one change.
type PlannedStep struct {
	Op       resctrl.StepOp    `json:"op"`
	Group    string            `json:"group"`
	Settings []ReportedSetting `json:"settings,omitempty"`
	Why      string            `json:"why"`
}

func (c *cli) resctrlPlan() *cobra.Command {
	var s screen
	var policyFile string
	cmd := &cobra.Command{
		Use: "plan", Short: "Say what groups a policy would give here",
		Long: `Plan says which resctrl groups a policy would give on this node: which tier goes to which group, how each share was rounded
to what the hardware has and why, what is refused, what the groups' settings would be and what the daemon would do to
get there. It changes nothing; the daemon alone writes, and only groups whose name begins with "tideline-".

The policy is that of --policy, else /etc/tideline/policy.yaml where this machine has it, else the built-in one.`,
		Example: `  tideline resctrl plan --policy policy.yaml
  tideline resctrl plan --policy policy.yaml --node-facts node7.snapshot -o json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := s.check(); err != nil {
				return err
			}
			spec, err := c.policy(policyFile, s.nodeFile == "")
			if err != nil {
				return err
			}
			compiled, err := policy.Compile(spec.Spec)
			if err != nil {
				return err
			}
			node, where, err := c.resctrlOf(s.nodeFile)
			switch {
			case errors.Is(err, resctrl.ErrNotMounted):
				return fmt.Errorf("%w\nWhat a policy would give can't be said before it is mounted: tideline resctrl --mount", err)
			case err != nil:
				return notSupported(err)
			}
			tree, err := readResctrl(*where)
			if err != nil {
				return fmt.Errorf("read resctrl at %s: %w", where.Mount.Point, err)
			}
			p, err := planResctrl(tree, compiled.Partitions())
			if err != nil {
				return err
			}
			p.Node, p.Policy, p.Mount = node, spec.source, where.Mount
			if s.output != "text" {
				return writeAs(c.stdout, s.output, p)
			}
			_, err = io.WriteString(c.stdout, p.text(c.style(s)))
			return err
		},
	}
	s.flags(cmd)
	s.factsFlag(cmd)
	cmd.Flags().StringVar(&policyFile, "policy", "", "policy file")
	return cmd
}

// planResctrl plans for a machine as it is.
func planResctrl(t resctrlTree, parts []policy.Partition) (ResctrlPlan, error) {
	states := make([]resctrl.GroupState, len(t.groups))
	for i, g := range t.groups {
		states[i] = resctrl.GroupState{Name: g.Name(), Mode: g.mode, Schemata: g.schemata, MonGroups: len(g.mon)}
	}
	planned, err := resctrl.Plan(t.info, states, partition.Classes(parts), partition.Options)
	if err != nil {
		return ResctrlPlan{}, err
	}
	p := ResctrlPlan{APIVersion: v1alpha1.APIVersion, Kind: "ResctrlPlan", Tiers: []PlannedTier{}, Groups: []PlannedResctrlGroup{}, Steps: []PlannedStep{}}
	for _, tier := range v1alpha1.Tiers() {
		out := PlannedTier{Tier: tier, L3: 100, L2: 100, MB: 100, Outcome: resctrl.Granted, Reasons: []resctrl.Reason{}, asks: noLimit}
		if i := slices.IndexFunc(parts, func(x policy.Partition) bool { return x.Tier == tier }); i >= 0 {
			c := planned.Classes[i]
			out.L3, out.L2, out.MB, out.asks = parts[i].L3, parts[i].L2, parts[i].MB, parts[i].String()
			out.Group, out.Outcome, out.Reasons = c.Group, c.Outcome, append(out.Reasons, c.Reasons...)
		}
		p.Tiers = append(p.Tiers, out)
	}
	then := resctrlTree{info: t.info}
	for _, g := range t.groups {
		if ownerOf(g.Name()) == ownerRoot {
			then.groups = append(then.groups, g)
		}
	}
	p.then.fill(then)
	for _, g := range planned.Groups {
		p.Groups = append(p.Groups, PlannedResctrlGroup{Name: g.Name, Tiers: g.Classes, Settings: settings(g.Schemata, nil)})
		p.then.Groups = append(p.then.Groups, ReportedResctrlGroup{Name: g.Name, Owner: ownerTideline, Mode: resctrl.Shareable, Settings: settings(g.Schemata, nil)})
		p.then.use(ownerTideline, 1)
		for _, old := range t.groups {
			if old.Name() == g.Name {
				p.then.useRMIDs(ownerTideline, len(old.mon))
			}
		}
	}
	var foreign ResctrlReport
	for _, g := range t.groups {
		if ownerOf(g.Name()) == ownerForeign {
			foreign.fill(resctrlTree{groups: []readGroup{g}})
			p.then.Groups = append(p.then.Groups, foreign.Groups...)
			p.then.use(ownerForeign, 1)
			p.then.useRMIDs(ownerForeign, len(g.mon))
		}
	}
	for _, step := range planned.Steps {
		out := PlannedStep{Op: step.Op, Group: step.Group, Why: step.Why}
		if len(step.Schemata) > 0 {
			out.Settings = settings(step.Schemata, nil)
		}
		p.Steps = append(p.Steps, out)
	}
	p.CLOSIDs, p.RMIDs, p.Resources = p.then.CLOSIDs, p.then.RMIDs, p.then.Resources
	return p, nil
}

// use counts a control group more.
func (r *ResctrlReport) use(owner groupOwner, n int) {
	if r.CLOSIDs != nil {
		r.CLOSIDs.add(owner, n)
	}
	r.useRMIDs(owner, n)
}

func (r *ResctrlReport) useRMIDs(owner groupOwner, n int) {
	if r.RMIDs != nil {
		r.RMIDs.add(owner, n)
	}
}

const noLimit = "no limit"

var outcomeColors = map[resctrl.Outcome]string{resctrl.Granted: "32", resctrl.Degraded: "33", resctrl.Refused: "1;31"}

// text writes a plan for people.
func (r ResctrlPlan) text(s style) string {
	p := &page{width: s.width}
	p.labelled("node", resctrlLabel, r.Node.describe())
	p.labelled("policy", resctrlLabel, fmt.Sprintf("%s (%s)", dash(r.Policy.Name), r.Policy.Source))
	r.then.Mount = &r.Mount
	r.then.headResources(p)
	p.labelled("CLOSIDs", resctrlLabel, r.CLOSIDs.describeThen())
	if r.RMIDs != nil {
		p.labelled("RMIDs", resctrlLabel, r.RMIDs.describeThen())
	}
	p.WriteString("\n")
	r.drawTiers(p, s)
	r.then.drawSettings(p, s)
	p.WriteString("\n")
	switch {
	case len(r.Steps) == 0 && len(r.Groups) == 0:
		p.line(0, 0, "The policy needs no group here, and there is none of ours. Nothing is to be done.")
	case len(r.Steps) == 0:
		p.line(0, 0, "The groups are there as planned. Nothing is to be done.")
	default:
		p.line(0, 0, "The daemon, with this policy, would:")
		for _, step := range r.Steps {
			p.line(2, 2, step.text())
		}
	}
	return p.String()
}

func (s PlannedStep) text() string {
	name := clip(s.Group, 60)
	switch s.Op {
	case resctrl.StepCreate:
		return "create " + name + " " + s.Why
	case resctrl.StepSet:
		return "set " + name + ", which has " + s.Why
	case resctrl.StepShare:
		return "make " + name + " shareable: " + s.Why
	}
	return string(s.Op) + " " + name + ": " + s.Why
}

// describeThen is describe of what would be.
func (i *ReportedIDs) describeThen() string {
	return strings.Replace(i.describe(), "in use:", "in use then:", 1)
}

// outcome is for people; a tier without a wish has none.
func (t PlannedTier) outcome() string {
	switch {
	case t.asks == noLimit:
		return "-"
	case t.Outcome == resctrl.Refused && t.Group != "":
		return "refused in part"
	}
	return string(t.Outcome)
}

// drawTiers lists the tiers, with the reasons below each.
func (r ResctrlPlan) drawTiers(p *page, s style) {
	rows := [][4]string{{"TIER", "ASKS", "GROUP", "OUTCOME"}}
	for _, t := range r.Tiers {
		rows = append(rows, [4]string{string(t.Tier), t.asks, clip(groupName(t.Group), maxGroupName), t.outcome()})
	}
	var widths [4]int
	for _, row := range rows {
		for i, c := range row {
			widths[i] = max(widths[i], len(c))
		}
	}
	for i, row := range rows {
		outcome := s.paint("1", row[3])
		var line strings.Builder
		for j, c := range row[:3] {
			text := c + strings.Repeat(" ", widths[j]-len(c)+gap)
			if i == 0 {
				text = s.paint("1", c) + text[len(c):]
			}
			line.WriteString(text)
		}
		if i > 0 {
			outcome = s.paint(outcomeColors[r.Tiers[i-1].Outcome], row[3])
		}
		p.WriteString(line.String() + outcome + "\n")
		if i == 0 {
			continue
		}
		for _, reason := range r.Tiers[i-1].Reasons {
			p.line(widths[0]+gap, 2, reason.String())
		}
	}
}
