package policy

import (
	"errors"
	"strconv"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/units"
)

// NewPools makes pools fit for deciding; online is all CPUs, and placed says that a pod owns some.
func NewPools(p placement.Pools, online cpuset.CPUSet, placed bool) *Pools {
	return &Pools{LS: units.CPUMaskOf(p.LS), BE: units.CPUMaskOf(p.BE), System: units.CPUMaskOf(p.System), Online: units.CPUMaskOf(online), Placed: placed}
}

// LSPool is the CPUs of LS containers.
func (p *Policy) LSPool(n Node) cpuset.CPUSet {
	s, _ := p.shared(v1alpha1.LS, &n)
	return s.pool.Set()
}

// BEPool is the CPUs of BE containers.
func (p *Policy) BEPool(n Node) cpuset.CPUSet {
	s, _ := p.shared(v1alpha1.BE, &n)
	return s.pool.Set()
}

// shared is the CPUs of a tier that owns none.
type shared struct {
	pool, online units.CPUMask
	rule, reason string
}

// Reasons of the pools; "" is no tier.
const (
	reasonLS     = "CPUs that no other pod owns and that are not reserved"
	reasonBE     = "CPUs that no LSE pod owns and that are not reserved"
	reasonSystem = "CPUs that no LSE pod owns"
)

// shared gives the pool of a tier. An exclusive tier without CPUs of its own shares those of LS; SYSTEM and pods without a
// tier have none, and run everywhere, until a pod owns CPUs.
func (p *Policy) shared(t v1alpha1.Tier, n *Node) (s shared, ok bool) {
	everywhere := t == v1alpha1.SYSTEM || t == v1alpha1.None
	switch {
	case everywhere && (n.Pools == nil || !n.Pools.Placed), t == v1alpha1.None && p.spec.Untiered != v1alpha1.UntieredPool:
		return s, false
	case n.Pools == nil:
		s = shared{online: units.CPUMaskOf(n.Online), rule: "reservedCPUs", reason: "online and not reserved (" + p.reservedList + ")"}
		s.pool = s.online
		s.pool.Remove(&p.reserved)
		return s, true
	}
	s = shared{pool: n.Pools.LS, online: n.Pools.Online, rule: "pools", reason: reasonLS}
	switch t {
	case v1alpha1.BE:
		s.pool, s.reason = n.Pools.BE, reasonBE
	case v1alpha1.SYSTEM:
		s.pool, s.reason = n.Pools.System, reasonSystem
	case v1alpha1.None:
		s.rule = "untiered"
	}
	return s, true
}

// CPUSet is the cpuset.cpus that Container decides, nil for none.
func (p *Policy) CPUSet(n Node, pod Pod, c Container) *Setting {
	tier, _, _ := p.Tier(pod)
	if tier.Exclusive() { // nobody else's CPUs depend on the annotations, which cost more to read than all the rest
		w := p.identify(pod)
		if w.refusal != nil {
			return nil
		}
		tier = w.tier
	}
	d := deciding{Decision: Decision{Tier: tier}, node: n, tp: p.tiers[tier], level: LevelContainer}
	d.cpuset(p, &pod, &c)
	return d.setting(CPUSetCPUs)
}

// cpuset decides on cpuset.cpus and cpuset.mems. What the kubelet asks is narrowed, but for a pod's own CPUs: the kubelet
// knows nothing of them.
func (d *deciding) cpuset(p *Policy, pod *Pod, c *Container) {
	tiered := d.Tier != v1alpha1.None
	asked := c.Asked.CPUSetCPUs
	if asked != "" {
		if _, ok := KubeletExclusive(*pod, c.Asked); ok {
			if tiered {
				d.note(NoteKept, CPUSetCPUs, "the kubelet's CPU manager gave this container CPUs of its own ("+units.Quote(asked)+"), so they stay; no other pod of ours gets them")
			}
			return
		}
	}
	if d.Tier.Exclusive() {
		if d.own(pod, c) {
			return
		}
		why := "it was made before this node placed pods, or has lost them"
		if !places(d.tp) {
			why = "the policy does not place its tier (tiers." + string(d.Tier) + ".cpu.placement)"
		}
		d.note(NoteUnplaced, CPUSetCPUs, "the pod has no CPUs of its own, since "+why+"; it runs on those of LS")
	}
	if asked == "" && d.node.Pools == nil && p.reserved.IsEmpty() {
		return // the pool is every online CPU
	}
	s, ok := p.shared(d.Tier, &d.node)
	if !ok {
		return
	}
	note := func(code NoteCode, message string) {
		if tiered {
			d.note(code, CPUSetCPUs, message)
		}
	}
	switch {
	case s.online.IsEmpty():
		note(NoteUnknownInput, "the online CPUs of this node are unknown, so cpuset.cpus stays the kubelet's")
		return
	case s.pool.IsEmpty():
		note(NoteKept, "every online CPU is reserved, so the pool of tier "+string(d.Tier)+" is empty and cpuset.cpus stays the kubelet's")
		return
	}
	if asked == "" {
		if s.pool != s.online {
			d.put(Setting{Knob: CPUSetCPUs, Value: s.pool.String(), Rule: s.rule, Reason: s.reason})
		}
		return
	}
	set, err := units.ParseCPUMask(asked)
	if err != nil {
		note(NoteUnknownInput, "the kubelet's cpuset "+units.Quote(asked)+" is no CPU list that we know, so it stays")
		return
	}
	both := set
	both.Intersect(&s.pool)
	if both.IsEmpty() {
		note(NoteKept, "the kubelet's cpuset "+units.Quote(asked)+" has no CPU of the pool of tier "+string(d.Tier)+" ("+cutList(&s.pool)+"), so it stays")
		return
	}
	if both != set {
		d.put(Setting{Knob: CPUSetCPUs, Value: both.String(), Asked: asked, Rule: s.rule, Reason: "of the kubelet's CPUs: " + s.reason})
	}
}

// own gives the containers of a pod its own CPUs; false where it has none.
func (d *deciding) own(pod *Pod, c *Container) bool {
	if pod.Placed == nil || pod.Placed.CPUs == "" {
		return false
	}
	reason := "the pod's own CPUs; batch may use them while they idle"
	if d.Tier == v1alpha1.LSE {
		reason = "the pod's own cores"
	}
	rule := "tiers." + string(d.Tier) + ".cpu.placement"
	d.put(Setting{Knob: CPUSetCPUs, Value: pod.Placed.CPUs, Asked: c.Asked.CPUSetCPUs, Rule: rule, Reason: reason})
	switch mems := c.Asked.CPUSetMems; {
	case pod.Placed.Mems == "":
	case mems != "":
		d.note(NoteKept, CPUSetMems, "the kubelet's memory nodes "+units.Quote(mems)+" stay, and not those of the pod's CPUs ("+units.Quote(pod.Placed.Mems)+")")
	default:
		d.put(Setting{Knob: CPUSetMems, Value: pod.Placed.Mems, Rule: rule, Reason: "the memory nodes of the pod's CPUs; set when the container is created"})
	}
	return true
}

// KubeletExclusive says whether the kubelet's static CPU manager gave a container CPUs of its own, and which: it does so for
// Guaranteed pods, as many as the container asks for in whole CPUs. All others it gives the rest (pkg/kubelet/cm/cpumanager).
func KubeletExclusive(pod Pod, asked Resources) (units.CPUMask, bool) {
	if pod.KubeQoS != v1alpha1.Guaranteed || asked.CPUSetCPUs == "" {
		return units.CPUMask{}, false
	}
	set, err := units.ParseCPUMask(asked.CPUSetCPUs)
	milli := asked.MilliCPU()
	if err != nil || milli == 0 || milli%1000 != 0 || int64(set.Size()) != milli/1000 {
		return units.CPUMask{}, false
	}
	return set, true
}

// MilliCPU is what is asked of CPU, in milli-cores: the limit, or the request where it is more. A pod has both, and where one
// of its containers has no limit the limits of the others are less than the requests of all.
func (r *Resources) MilliCPU() int64 {
	limit, request := r.CPU()
	return max(limit, request)
}

// CPU is what quota and shares say in milli-cores, 0 for nothing.
func (r *Resources) CPU() (limit, request int64) {
	value := func(p *int64) int64 {
		if p == nil {
			return 0
		}
		return *p
	}
	return placement.MilliCPU(value(r.CPUQuota), value(r.CPUPeriod), 0), placement.MilliCPU(0, 0, value(r.CPUShares))
}

func places(tp tierPolicy) bool {
	return tp.CPU.Placement != "" && tp.CPU.Placement != v1alpha1.PlacementNone
}

var errLeave = errors.New("the policy leaves pods without a tier where they are (untiered: leave), so no core can be a pod's alone; allowed: untiered: pool")

// Placing is what a pod asks for where it is to have CPUs of its own; ok is false for any other pod. With an error it can't
// have them. Pod.Placed is not read.
func (p *Policy) Placing(pod Pod) (r placement.Request, ok bool, err error) {
	pod.Placed = nil
	if t, _, _ := p.Tier(pod); !t.Exclusive() {
		return r, false, nil
	}
	w := p.identify(pod)
	tp := p.tiers[w.tier]
	if !w.tier.Exclusive() || w.refusal != nil || !places(tp) {
		return r, false, nil
	}
	r = placement.Request{UID: pod.UID, Tier: w.tier, NUMA: placement.NUMA(tp.CPU.NUMA), SMT: placement.SMT(tp.CPU.SMT)}
	if n := w.wishes.placement.NUMA; n != "" {
		r.NUMA = placement.NUMA(n)
	}
	if s := w.wishes.placement.SMT; s != "" {
		r.SMT = placement.SMT(s)
	}
	if w.tier == v1alpha1.LSE && p.spec.Untiered == v1alpha1.UntieredLeave {
		return r, true, errLeave
	}
	r.Count, err = placement.Count(w.tier, pod.Resources.MilliCPU())
	return r, true, err
}

// Limits is what the policy keeps from pods of the exclusive tiers.
func (p *Policy) Limits() placement.Limits {
	l := placement.Limits{Reserved: p.reserved.Set(), MinShared: 1}
	if m := p.spec.MinSharedCPUs; m != nil {
		l.MinShared = int(*m)
	}
	return l
}

// Reconcile says whether values of running containers are put right.
func (p *Policy) Reconcile() v1alpha1.LoopMode { return p.spec.Loops.Reconcile }

// MigratesMemory says whether the memory nodes of running containers of a tier follow their CPUs.
func (p *Policy) MigratesMemory(t v1alpha1.Tier) bool {
	m := p.tiers[t].CPU.MemoryMigration
	return m != nil && *m
}

// placementExcess says what a wish asks beyond what the tier gives; "" for nothing.
func (p *Policy) placementExcess(c v1alpha1.CPUPlacement, tier v1alpha1.Tier) string {
	switch of := p.tiers[tier].CPU.SMT; {
	case !tier.Exclusive():
		return "tier " + string(tier) + " has no CPUs of its own; allowed: tiers LSE and LSR"
	case c.SMT == "":
	case tier == v1alpha1.LSR:
		return "smt: " + strconv.Quote(string(c.SMT)) + " can't be set, tier LSR owns CPUs and not cores; allowed: no smt"
	case c.SMT == v1alpha1.SMTIdle && of == v1alpha1.SMTUse:
		return `smt: "idle" is more than tier ` + string(tier) + ` gives; allowed: "use"`
	}
	return ""
}
