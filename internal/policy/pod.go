package policy

import (
	"math"
	"strconv"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/units"
)

// Pod decides the settings of a pod's own cgroup (LevelPod). containers are all that are known of the pod, each name
// once; the decision is to be made again when one is added or changes. CPU weight, shares and idle of a pod are never
// set: the kubelet publishes a pod's weight as its request.
func (p *Policy) Pod(n Node, pod Pod, containers []Container) Decision {
	w := p.identify(pod)
	d := deciding{
		Decision: Decision{Tier: w.tier, Source: w.source, Notes: w.notes, Refusal: w.refusal},
		node:     n, wishes: w.wishes, level: LevelPod,
	}
	if w.tier == v1alpha1.None || w.refusal != nil {
		return d.Decision
	}
	d.tp = p.tiers[w.tier]
	// In the order of Knobs.
	d.podBurst(containers)
	d.podMemoryLow(pod, containers)
	d.ioWeight()
	return d.Decision
}

// podBurst lets the pod's quota burst along with its containers: a container's burst has no effect below a quota that
// does not. To lift the pod's quota would do too, but the kubelet reads it back: it would publish it as the pod's limit,
// and take every resize for an increase, which it starts at the pod; cgroup v1 refuses a pod quota below a container's.
func (d *deciding) podBurst(containers []Container) {
	if !d.bursts() || d.node.Features[CPUMaxBurst].Support == Unsupported { // then no container bursts either, and says so
		return
	}
	if len(containers) == 0 {
		d.note(NoteKept, CPUMaxBurst, "the pod's own quota does not burst: no container of the pod is known yet")
		return
	}
	var sum int64
	for i := range containers {
		quota, _ := containers[i].Asked.quota()
		if quota == 0 {
			d.note(NoteKept, CPUMaxBurst, "the pod's own quota, if it has one, does not burst: container "+units.Quote(containers[i].Name)+
				" has no quota of its own, so the pod's is its only limit")
			return
		}
		sum = min(sum+quota, units.MaxQuota) // neither is above
	}
	burst := min(sum, units.MaxQuota-sum)
	if burst <= 0 {
		return
	}
	d.put(Setting{Knob: CPUMaxBurst, Value: strconv.FormatInt(burst, 10), Rule: d.tp.pathBurst,
		Reason: "a burst of a container has no effect below a pod quota that does not burst; the sum over the containers"})
}

// podMemoryLow is the sum over the containers: the kernel shares out no more protection below a cgroup than it has itself.
func (d *deciding) podMemoryLow(pod Pod, containers []Container) {
	percent, rule := d.lowPercent()
	if percent == 0 {
		return
	}
	if _, ok := d.supported(MemoryLow); !ok {
		return
	}
	var sum int64
	ours, counted, unknown := false, 0, ""
	for i := range containers {
		l := d.low(pod, &containers[i], percent)
		if l.unknown && unknown == "" {
			unknown = units.Quote(containers[i].Name)
		}
		if l.bytes > math.MaxInt64-sum {
			sum = math.MaxInt64 - math.MaxInt64%units.DefaultPageSize
			ours = ours || l.ours
			counted++
			break
		}
		if l.bytes > 0 {
			sum += l.bytes
			counted++
		}
		ours = ours || l.ours
	}
	if unknown != "" {
		d.note(NoteUnknownInput, MemoryLow, "the pod's memory.low leaves out container "+unknown+" and any other whose memory request is unknown")
	}
	if !ours || sum == 0 {
		return // the kubelet's sum holds, or there is nothing to protect
	}
	d.put(Setting{Knob: MemoryLow, Value: strconv.FormatInt(sum, 10), Rule: rule,
		Reason: "the sum over the known containers that have one (" + strconv.Itoa(counted) + "); without it theirs would have no effect"})
}
