package policy

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/units"
)

// Policy is a compiled QoSPolicySpec. It never changes, so any number of goroutines may use it.
type Policy struct {
	spec         v1alpha1.QoSPolicySpec // as it was compiled
	tiers        map[v1alpha1.Tier]tierPolicy
	rules        []rule
	aliases      []alias
	batch        bool // whether v1alpha1.AliasKoordinatorBatch is read
	reserved     units.CPUMask
	reservedList string // for messages
}

// tierPolicy is a TierPolicy with the paths by which its settings are explained.
type tierPolicy struct {
	v1alpha1.TierPolicy
	pathIdle, pathBurst, pathLow, pathHigh, pathOOM, pathIOPriority, pathResctrl, pathIOWeight, pathIOMax string
}

type rule struct {
	v1alpha1.Rule
	selector labels.Selector // nil for none
}

// alias is how a peer names tiers.
type alias struct {
	key        string
	annotation bool // else a label
	names      []aliasName
	allowed    string
}

type aliasName struct {
	value string
	tier  v1alpha1.Tier
}

// Compile checks spec as v1alpha1.QoSPolicySpec.Validate does and makes it fit for deciding. A tier or a field that spec
// leaves out does nothing; defaults are the business of v1alpha1. Compile keeps no part of spec that a caller could change.
func Compile(spec v1alpha1.QoSPolicySpec) (*Policy, error) {
	if err := spec.Validate(); err != nil {
		return nil, fmt.Errorf("compile policy: %w", err)
	}
	reserved, err := units.ParseCPUMask(spec.ReservedCPUs)
	if err != nil {
		return nil, fmt.Errorf("compile policy: reservedCPUs: %w", err)
	}
	p := &Policy{
		spec:         spec,
		tiers:        make(map[v1alpha1.Tier]tierPolicy, len(spec.Tiers)),
		aliases:      aliases(spec.Aliases),
		batch:        on(spec.Aliases.Koordinator),
		reserved:     reserved,
		reservedList: cutList(&reserved),
	}
	p.spec.MinSharedCPUs = clonePointer(spec.MinSharedCPUs)
	p.spec.Tiers = make(map[v1alpha1.Tier]v1alpha1.TierPolicy, len(spec.Tiers))
	for t, tp := range spec.Tiers {
		tp = clone(tp)
		p.spec.Tiers[t] = tp
		at := "tiers." + string(t)
		p.tiers[t] = tierPolicy{
			TierPolicy:     tp,
			pathIdle:       at + ".cpu.idle",
			pathBurst:      at + ".cpu.burst",
			pathLow:        at + ".memory.low",
			pathHigh:       at + ".memory.high",
			pathOOM:        at + ".oomScoreAdj",
			pathIOPriority: at + ".io.priority",
			pathResctrl:    at + ".resctrl",
			pathIOWeight:   at + ".io.weight",
			pathIOMax:      at + ".io.max",
		}
	}
	p.spec.Rules = make([]v1alpha1.Rule, len(spec.Rules))
	for i, r := range spec.Rules {
		c := rule{Rule: r}
		c.Match.Namespaces = append([]string(nil), r.Match.Namespaces...)
		c.Match.Names = append([]string(nil), r.Match.Names...)
		c.Match.KubeQoS = append([]v1alpha1.KubeQoS(nil), r.Match.KubeQoS...)
		if r.Match.Labels != "" {
			if c.selector, err = labels.Parse(r.Match.Labels); err != nil {
				return nil, fmt.Errorf("compile policy: rule %s: labels: %w", units.Quote(r.Name), err)
			}
		}
		p.rules = append(p.rules, c)
		p.spec.Rules[i] = c.Rule
	}
	p.spec.Aliases = v1alpha1.Aliases{
		Koordinator: clonePointer(spec.Aliases.Koordinator),
		Volcano:     clonePointer(spec.Aliases.Volcano),
		Katalyst:    clonePointer(spec.Aliases.Katalyst),
	}
	return p, nil
}

func on(b *bool) bool { return b == nil || *b }

func aliases(a v1alpha1.Aliases) []alias {
	var out []alias
	if on(a.Koordinator) {
		out = append(out, alias{key: v1alpha1.AliasKoordinatorQoS, names: []aliasName{
			{"LSE", v1alpha1.LSE}, {"LSR", v1alpha1.LSR}, {"LS", v1alpha1.LS}, {"BE", v1alpha1.BE}, {"SYSTEM", v1alpha1.SYSTEM},
		}})
	}
	if on(a.Volcano) {
		out = append(out, alias{key: v1alpha1.AliasVolcanoQoS, annotation: true, names: []aliasName{
			{"LC", v1alpha1.LSR}, {"HLS", v1alpha1.LSR}, {"LS", v1alpha1.LS}, {"BE", v1alpha1.BE},
		}})
	}
	if on(a.Katalyst) {
		out = append(out, alias{key: v1alpha1.AliasKatalystQoS, annotation: true, names: []aliasName{
			{"dedicated_cores", v1alpha1.LSE}, {"shared_cores", v1alpha1.LS}, {"reclaimed_cores", v1alpha1.BE}, {"system_cores", v1alpha1.SYSTEM},
		}})
	}
	for i := range out {
		for j, n := range out[i].names {
			if j > 0 {
				out[i].allowed += ", "
			}
			out[i].allowed += n.value
		}
	}
	return out
}

func clone(t v1alpha1.TierPolicy) v1alpha1.TierPolicy {
	t.CPU.Idle = clonePointer(t.CPU.Idle)
	t.CPU.MemoryMigration = clonePointer(t.CPU.MemoryMigration)
	t.Memory.Low = clonePointer(t.Memory.Low)
	t.Memory.High = clonePointer(t.Memory.High)
	t.OOMScoreAdj = clonePointer(t.OOMScoreAdj)
	t.IO.Weight = clonePointer(t.IO.Weight)
	t.Resctrl = v1alpha1.ResctrlPolicy{L3: clonePointer(t.Resctrl.L3), L2: clonePointer(t.Resctrl.L2), MB: clonePointer(t.Resctrl.MB)}
	t.IO.Max = append([]v1alpha1.DeviceMax(nil), t.IO.Max...)
	return t
}

func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
