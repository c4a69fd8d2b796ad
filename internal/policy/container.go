package policy

import (
	"strconv"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/units"
)

// Container decides the settings of one container (LevelContainer). It is pure: the same facts give the same decision.
// A pod without a tier gets no more than CPUs that no other pod owns.
func (p *Policy) Container(n Node, pod Pod, c Container) Decision {
	w := p.identify(pod)
	d := deciding{
		Decision: Decision{Tier: w.tier, Source: w.source, Notes: w.notes, Refusal: w.refusal},
		node:     n, wishes: w.wishes, level: LevelContainer,
	}
	if w.refusal != nil {
		return d.Decision
	}
	if w.tier == v1alpha1.None {
		d.cpuset(p, &pod, &c)
		return d.Decision
	}
	d.tp = p.tiers[w.tier]
	if w.tier == v1alpha1.BE {
		d.readBatch(c)
	}
	idle := d.idle(&c)
	// In the order of Knobs.
	d.cpuset(p, &pod, &c)
	if idle {
		d.unsetWeight(&c)
	}
	d.cpuMax(&c)
	d.burst(&c)
	if idle {
		d.put(Setting{Knob: CPUIdle, Value: "1", Asked: c.Asked.Value(CPUIdle), Rule: d.tp.pathIdle,
			Reason: "batch runs only while nothing else wants the CPU"})
	}
	d.memoryLow(pod, &c)
	d.memoryHigh(&c)
	d.memoryMax(&c)
	d.oomScoreAdj(&c)
	d.ioPriority(&c)
	d.resctrl(p)
	d.ioMax(&c)
	return d.Decision
}

// deciding is a decision under way.
type deciding struct {
	Decision
	node   Node
	wishes wishes
	tp     tierPolicy
	level  Level

	batchCPU, batchMemory int64 // limits of this container, 0 for none
}

// put appends a setting unless it is what was asked or the kernel lacks the knob.
func (d *deciding) put(s Setting) {
	if s.Value == s.Asked {
		return
	}
	f, ok := d.supported(s.Knob)
	if !ok {
		return
	}
	s.Level, s.Inert = d.level, f.Inert
	if d.Settings == nil {
		d.Settings = make([]Setting, 0, 8)
	}
	d.Settings = append(d.Settings, s)
}

// supported looks a knob up and notes once that the kernel lacks it. Without a probe a knob is tried, but for those that
// cgroup v1 has never had.
func (d *deciding) supported(k Knob) (Feature, bool) {
	f := d.node.Features[k]
	if d.node.CgroupVersion == 1 && (k == MemoryLow || k == MemoryHigh) {
		f.Support = Unsupported
		if f.Need == "" {
			f.Need = "cgroup v2"
		}
	}
	if f.Support != Unsupported {
		return f, true
	}
	need := f.Need
	if need == "" {
		need = "another kernel"
	}
	for _, n := range d.Notes {
		if n.Code == NoteUnsupported && n.Knob == k {
			return f, false
		}
	}
	d.note(NoteUnsupported, k, string(k)+" is not supported on this node and not written; it needs "+need)
	return f, false
}

func (d *deciding) note(code NoteCode, k Knob, message string) {
	d.Notes = append(d.Notes, Note{Code: code, Knob: k, Message: message})
}

// readBatch takes the batch limits of the container, and says so once where there are none.
func (d *deciding) readBatch(c Container) {
	const stay = ", so cpu.max and memory.max stay the kubelet's and memory.high is not set"
	b := d.wishes.batch
	if b == nil {
		for _, x := range d.wishes.bad {
			if x.key == v1alpha1.AnnotationBatchResources || x.key == v1alpha1.AliasKoordinatorBatch {
				return // the note on the bad annotation tells it
			}
		}
		d.note(NoteUnknownInput, "", "the pod has no annotation "+v1alpha1.AnnotationBatchResources+stay)
		return
	}
	var named bool
	d.batchCPU, named = b.Limit(c.Name, v1alpha1.ResourceBatchCPU)
	d.batchMemory, _ = b.Limit(c.Name, v1alpha1.ResourceBatchMemory)
	if !named {
		d.note(NoteUnknownInput, "", "annotation "+d.wishes.batchKey+" does not name container "+units.Quote(c.Name)+stay)
	}
}

// idle says whether the container gets cpu.idle, and notes why where the policy wants it and it can't be had.
func (d *deciding) idle(c *Container) bool {
	if d.Tier != v1alpha1.BE || d.tp.CPU.Idle == nil || !*d.tp.CPU.Idle {
		return false
	}
	if _, ok := d.supported(CPUIdle); !ok {
		return false
	}
	if c.State != Managed {
		d.note(NoteKept, CPUIdle, "cpu.idle stays off and cpu.weight the kubelet's: this container was created without us, so the runtime's stored spec "+
			"carries CPU shares and sends them with every update, which the kernel refuses while cpu.idle is 1; a new container of the pod gets it")
		return false
	}
	return true
}

// cutList is a CPU list for a message, which may be long on a machine with many holes.
func cutList(m *units.CPUMask) string {
	s := m.String()
	if len(s) > units.QuoteLimit {
		return s[:units.QuoteLimit] + "..."
	}
	return s
}

func (d *deciding) unsetWeight(c *Container) {
	if c.Asked.CPUShares == nil {
		return
	}
	d.put(Setting{Knob: CPUWeight, Value: Unset, Asked: c.Asked.Value(CPUWeight), Rule: d.tp.pathIdle,
		Reason: "the kernel refuses a weight while cpu.idle is 1, and an idle cgroup has none"})
}

// quota is the quota that the kubelet asks for, and its period; the quota is 0 where it asks for none.
func (r *Resources) quota() (quota, period int64) {
	period = units.DefaultPeriod
	if r.CPUPeriod != nil && *r.CPUPeriod > 0 {
		period = *r.CPUPeriod
	}
	if r.CPUQuota != nil && *r.CPUQuota > 0 {
		quota = *r.CPUQuota
	}
	return quota, period
}

func (d *deciding) cpuMax(c *Container) {
	if d.batchCPU == 0 {
		return
	}
	asked, period := c.Asked.quota()
	quota, err := units.QuotaFromMilli(d.batchCPU, period)
	if err != nil {
		d.note(NoteBadAnnotation, CPUMax, "annotation "+d.wishes.batchKey+": container "+units.Quote(c.Name)+": limit "+v1alpha1.ResourceBatchCPU+": "+
			err.Error()+"; cpu.max stays the kubelet's")
		return
	}
	if asked > 0 && asked <= quota {
		if asked < quota {
			d.note(NoteKept, CPUMax, "the kubelet's quota of "+strconv.FormatInt(asked, 10)+" µs is below the batch-cpu limit of "+
				strconv.FormatInt(d.batchCPU, 10)+" milli-cores, so it stays")
		}
		return
	}
	d.put(Setting{Knob: CPUMax, Value: units.CPUMax{Quota: quota, Period: period}.String(), Asked: c.Asked.Value(CPUMax), Rule: d.wishes.batchKey,
		Reason: "batch-cpu limit of " + strconv.FormatInt(d.batchCPU, 10) + " milli-cores"})
}

func (d *deciding) bursts() bool {
	return d.Tier == v1alpha1.LS && d.tp.CPU.Burst == v1alpha1.BurstLimit
}

func (d *deciding) burst(c *Container) {
	if !d.bursts() {
		return
	}
	quota, _ := c.Asked.quota()
	if quota == 0 {
		return
	}
	// The kernel wants burst <= quota and burst + quota <= its maximum.
	burst := min(quota, units.MaxQuota-quota)
	if burst <= 0 {
		return
	}
	d.put(Setting{Knob: CPUMaxBurst, Value: strconv.FormatInt(burst, 10), Asked: c.Asked.Value(CPUMaxBurst), Rule: d.tp.pathBurst,
		Reason: "may save up as much unused CPU time as its quota, so that a short peak is not throttled"})
}

func (d *deciding) oomScoreAdj(c *Container) {
	floor := d.tp.OOMScoreAdj
	if floor == nil {
		return
	}
	if a := c.Asked.OOMScoreAdj; a != nil && *a >= *floor {
		return
	}
	if c.State != Managed {
		d.note(NoteKept, OOMScoreAdj, "oom_score_adj stays the kubelet's: it is set when a container is created, and this one was created without us")
		return
	}
	d.put(Setting{Knob: OOMScoreAdj, Value: strconv.FormatInt(*floor, 10), Asked: c.Asked.Value(OOMScoreAdj), Rule: d.tp.pathOOM,
		Reason: "tier " + string(d.Tier) + " has at least this score, so that it goes first when memory runs out"})
}
