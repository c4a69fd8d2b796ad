package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

// cpus is who owns which CPUs, a part of the state. The owner goroutine alone uses it.
type cpus struct {
	topology placement.Topology
	machine  *placement.Machine // nil where the topology is not known
	limits   placement.Limits
	placed   map[string]placement.Assignment // by pod UID
	pools    placement.Pools
	moving   map[Key]bool // containers whose cpuset is to be looked at
}

func (c *cpus) assignments() []placement.Assignment { return slices.Collect(maps.Values(c.placed)) }

// node is what decisions may know of the machine at the moment.
func (e *Engine) node() policy.Node { return *e.facts.Load() }

var (
	errNoTopology = errors.New("the topology of this node is not known")
	errNotAsked   = errors.New("it was made while no door saw it, so it gets them with its next container")
)

// place gives a pod of an exclusive tier CPUs of its own if it has none, and takes them from one that is of another tier
// by now. The caller is to call pools where the answer is true, and keep once the step is done.
func (e *Engine) place(s *state, p *pod) (changed bool) {
	uid := p.facts.UID
	r, exclusive, err := e.policy.Load().policy.Placing(p.facts)
	have, placed := s.cpus.placed[uid]
	if !exclusive || s.kubeletPlaced(uid) {
		p.unplaced(nil)
		e.outcome("placement", uid, nil)
		delete(s.cpus.placed, uid)
		return placed
	}
	if placed {
		s.cpus.give(p, have)
		return false
	}
	switch {
	case !p.told: // of a list, which over NRI does not tell whether the sandbox runs
		err = errNotAsked
	case err != nil:
	case s.cpus.machine == nil:
		err = errNoTopology
	default:
		r.Since = s.now.UnixNano()
		have, err = s.cpus.machine.Place(s.cpus.assignments(), r)
	}
	if err != nil {
		e.notPlaced(p, err)
		return false
	}
	s.cpus.placed[uid] = have
	s.cpus.give(p, have)
	e.outcome("placement", uid, nil)
	e.cfg.Log.Info("pod placed", "pod", p.name(), "podUID", clip(uid), "tier", have.Tier, "cpus", have.CPUs.String(), "owned", have.Owned.String(), "mems", have.Mems.String())
	return true
}

// asked says whether CPU was asked for.
func asked(r policy.Resources) bool { return r.CPUShares != nil || r.CPUQuota != nil }

// name is for people; the UID is all that is known of a pod whose first message is about one of its containers.
func (p *pod) name() string {
	if p.facts.Name == "" {
		return clip(p.facts.UID)
	}
	return clip(p.facts.Namespace) + "/" + clip(p.facts.Name)
}

// give notes a pod's own CPUs in its facts.
func (c *cpus) give(p *pod, a placement.Assignment) {
	p.why, p.facts.Placed = nil, c.placedAs(a)
}

// placedAs is what the facts of a pod say of its placement.
func (c *cpus) placedAs(a placement.Assignment) *policy.Placed {
	return &policy.Placed{CPUs: units.FormatCPUs(a.CPUs), Mems: c.mems(a)}
}

// mems is the memory nodes that a pod is restricted to; "" where that is no restriction.
func (c *cpus) mems(a placement.Assignment) string {
	return units.FormatCPUs(c.topology.Restrict(a.Mems))
}

// unplaced is for a pod without CPUs of its own; with a nil error it is not meant to have any.
func (p *pod) unplaced(why error) { p.why, p.facts.Placed = why, nil }

// notPlaced notes why a pod has no CPUs of its own. What runs of it goes on, as its tier says without them: a pod that its
// own label made exclusive is refused new containers, one of a peer's label or a rule is treated as LS.
func (e *Engine) notPlaced(p *pod, why error) {
	p.unplaced(why)
	if e.policy.Load().policy.OnError(p.facts) != v1alpha1.Refuse && !errors.Is(why, errNotAsked) {
		p.facts.Placed = &policy.Placed{Why: why.Error()}
	}
	e.outcome("placement", p.facts.UID, fmt.Errorf("pod %s has no CPUs of its own: %w", p.name(), why))
}

// creating gives the facts for a container that is about to be made.
func (p *pod) creating() policy.Pod {
	facts := p.facts
	if p.why != nil {
		facts.Placed = &policy.Placed{Why: p.why.Error()}
	}
	return facts
}

// learn takes what a message says of a pod. Its placement stays, and what was asked for it where the message does not say.
func (p *pod) learn(facts policy.Pod) {
	facts.Placed, p.told = p.facts.Placed, true
	if !asked(facts.Resources) {
		facts.Resources = p.facts.Resources
	}
	if facts.CgroupParent == "" { // a list does not tell it
		facts.CgroupParent, facts.KubeQoS = p.facts.CgroupParent, p.facts.KubeQoS
	}
	if p.facts = facts; p.path == "" {
		p.path = podPath(facts)
	}
}

// free takes a pod's CPUs back.
func (e *Engine) free(s *state, uid string) (changed bool) {
	a, placed := s.cpus.placed[uid]
	e.outcome("placement", uid, nil)
	if p := s.pods[uid]; p != nil {
		p.unplaced(nil)
	}
	if !placed {
		return false
	}
	delete(s.cpus.placed, uid)
	e.cfg.Log.Info("pod released", "podUID", clip(uid), "cpus", a.CPUs.String())
	return true
}

// kubeletPlaced says whether the kubelet's static CPU manager gave CPUs to a container of the pod: then they are its
// business.
func (s *state) kubeletPlaced(uid string) bool {
	p := s.pods[uid]
	if p == nil {
		return false
	}
	for _, c := range s.containers[uid] {
		if _, ok := policy.KubeletExclusive(p.facts, c.lastAsked()); ok {
			return true
		}
	}
	return false
}

// foreign is the CPUs that the kubelet's static CPU manager gave to pods.
func (s *state) foreign() cpuset.CPUSet {
	var all units.CPUMask
	for uid, of := range s.containers {
		p := s.pods[uid]
		if p == nil || p.facts.KubeQoS != v1alpha1.Guaranteed || !s.live(uid) {
			continue
		}
		for _, c := range of {
			if set, ok := policy.KubeletExclusive(p.facts, c.lastAsked()); ok {
				all.Add(&set)
			}
		}
	}
	return all.Set()
}

// recount reassesses where the kubelet's static CPU manager has given or taken CPUs.
func (e *Engine) recount(s *state) (changed bool) {
	if s.foreign().Equals(s.cpus.limits.Foreign) {
		return false
	}
	e.reassess(s)
	return true
}

// reassess brings the placements in line with the machine, the policy and the pods, after any of them has changed: what
// can be kept is kept, others move, and who has none is tried again, the oldest first.
func (e *Engine) reassess(s *state) {
	loaded := e.policy.Load().policy
	s.cpus.limits = e.limits(s, loaded)
	machine, err := placement.New(s.cpus.topology, s.cpus.limits)
	if err != nil {
		if len(s.cpus.topology.CPUs) > 0 {
			e.outcome("pools", "", err)
		}
		return
	}
	s.cpus.machine = machine
	for uid, p := range s.pods {
		if _, exclusive, _ := loaded.Placing(p.facts); !exclusive || s.kubeletPlaced(uid) {
			e.free(s, uid)
		}
	}
	r := machine.Rebuild(s.cpus.assignments())
	clear(s.cpus.placed)
	for _, a := range r.Assignments() {
		s.cpus.placed[a.UID] = a
		if p := s.pods[a.UID]; p != nil {
			s.cpus.give(p, a)
		}
	}
	for _, m := range r.Moved {
		e.cfg.Log.Warn("pod moved", "podUID", clip(m.To.UID), "from", m.From.CPUs.String(), "to", m.To.CPUs.String(), "why", m.Reason)
	}
	for _, l := range r.Lost {
		e.cfg.Log.Warn("pod lost its CPUs", "podUID", clip(l.UID), "from", l.CPUs.String(), "why", l.Reason, "err", l.Err)
		if p := s.pods[l.UID]; p != nil {
			e.notPlaced(p, cmp.Or(l.Err, errors.New(l.Reason)))
		}
	}
	e.waiting(s)
	e.pools(s)
}

// limits is what a policy, the kubelet's configuration and its CPU manager keep from pods of the exclusive tiers.
func (e *Engine) limits(s *state, p *policy.Policy) placement.Limits {
	l := p.Limits()
	l.Reserved = l.Reserved.Union(e.cfg.KubeletReserved)
	l.Foreign = s.foreign()
	return l
}

// waiting tries again to place who has no CPUs, the one that has waited longest first.
func (e *Engine) waiting(s *state) {
	var all []*pod
	for uid, p := range s.pods {
		if _, placed := s.cpus.placed[uid]; !placed && s.live(uid) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *pod) int {
		return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.facts.UID, b.facts.UID))
	})
	for _, p := range all {
		e.place(s, p)
	}
}

// pools computes what the placements leave to others, and has what runs follow.
func (e *Engine) pools(s *state) {
	if s.cpus.machine == nil {
		return
	}
	pools := s.cpus.machine.Pools(s.cpus.assignments())
	s.cpus.pools = pools
	var short error
	if pools.Short != "" {
		short = errors.New(pools.Short)
	}
	e.outcome("pools", "", short)
	next := e.node()
	next.Pools = policy.NewPools(pools, next.Online, len(s.cpus.placed) > 0)
	if before := e.node().Pools; before != nil && *before == *next.Pools {
		next.Pools = before
	}
	e.facts.Store(&next)
	for c := range s.all() {
		s.cpus.moving[c.key] = true
	}
	e.wakePools()
}

// place and pools in one, for a step that has learned something of a pod.
func (e *Engine) settle(s *state, p *pod) (changed bool) {
	if p.since == 0 {
		p.since = s.now.UnixNano()
	}
	if changed = e.place(s, p); changed {
		e.pools(s)
	}
	return changed
}

// freed is for a step after which a pod has no CPUs any more.
func (e *Engine) freed(s *state, uid string) (changed bool) {
	if changed = e.free(s, uid); changed {
		e.waiting(s)
		e.pools(s)
	}
	return changed
}

// resize gives a pod the number of CPUs that the kubelet is about to give it. A refusal changes nothing.
func (e *Engine) resize(s *state, p *pod, asks policy.Resources) (refusal *policy.Refusal, changed bool) {
	uid := p.facts.UID
	facts := p.facts
	have, placed := s.cpus.placed[uid]
	if !asked(asks) {
		return nil, false
	}
	if !placed {
		p.facts.Resources = asks
		return nil, e.settle(s, p)
	}
	// The kubelet comes with the limit first and then with the request, and what it does not change it reads back from the
	// pod's cgroup: shares that cgroup v2 makes of a weight are off by up to 3 %.
	limit, request := asks.CPU()
	held := int64(have.Count) * 1000
	readBack := request%1000 != 0 && max(request-held, held-request)*100 <= 3*held
	if limit <= held && (request == held || readBack) {
		p.facts.Resources = asks
		return nil, false
	}
	facts.Resources = asks
	if limit > 0 && request%1000 != 0 {
		facts.Resources.CPUShares = nil
	}
	r, exclusive, err := e.policy.Load().policy.Placing(facts)
	if !exclusive {
		return nil, false
	}
	if err == nil && r.Count == have.Count {
		p.facts.Resources = asks
		return nil, false
	}
	next := have
	if err == nil {
		next, err = s.cpus.machine.Resize(s.cpus.assignments(), uid, r.Count)
	}
	if err != nil {
		e.cfg.Log.Warn("resize does not fit", "pod", p.name(), "podUID", clip(uid), "err", err)
		if e.policy.Load().policy.OnError(facts) != v1alpha1.Refuse {
			return nil, false // it keeps what it has
		}
		return &policy.Refusal{Key: v1alpha1.LabelQoS, Message: err.Error() + "; the pod keeps the CPUs that it has"}, false
	}
	p.facts.Resources = asks
	s.cpus.placed[uid] = next
	s.cpus.give(p, next)
	e.cfg.Log.Info("pod resized", "pod", p.name(), "podUID", clip(uid), "from", have.CPUs.String(), "to", next.CPUs.String())
	e.waiting(s)
	e.pools(s)
	return nil, true
}

// live says whether a sandbox of the pod runs, or is about to.
func (s *state) live(uid string) bool {
	known := false
	for id, of := range s.sandboxes {
		if of == uid {
			if !s.ended[id] {
				return true
			}
			known = true
		}
	}
	return !known
}

// PodStopped reports that the processes of a sandbox were stopped. Where it was the pod's last one its CPUs are free: a
// pod that has run to its end keeps its sandbox until it is deleted.
func (e *Engine) PodStopped(sandboxID string) {
	e.post(func(s *state) func(context.Context) {
		uid, ok := s.sandboxes[sandboxID]
		if !ok {
			return nil
		}
		s.ended[sandboxID] = true
		if s.live(uid) {
			return nil
		}
		if freed := e.freed(s, uid); !e.recount(s) && !freed {
			return nil
		}
		return e.keep
	})
}

// restore takes up the placements of an earlier process of ours.
func (e *Engine) restore(s *state) {
	s.cpus.topology = e.cfg.Topology
	kept, err := e.placements.read()
	if err != nil {
		e.cfg.Log.Warn("placements were set aside", "err", err)
	}
	e.outcome("placements", "", err)
	for _, a := range kept {
		s.cpus.placed[a.UID] = a
	}
	e.reassess(s)
}

// SetTopology tells that CPUs have come or gone.
func (e *Engine) SetTopology(t placement.Topology, online cpuset.CPUSet) {
	e.post(func(s *state) func(context.Context) {
		next := e.node()
		next.Online, next.Pools = online, nil
		e.facts.Store(&next)
		s.cpus.topology = t
		for c := range s.all() {
			c.cpus = "" // cgroup v1 takes a CPU that goes out of every cpuset, and does not put it back
		}
		e.reassess(s)
		return e.keep
	})
}

// CPUs tells who has which CPUs.
func (e *Engine) CPUs(ctx context.Context) (control.CPUs, error) {
	out := control.CPUs{Pods: []control.PodCPUs{}, Unplaced: []control.UnplacedPod{}}
	err := e.query(ctx, func(s *state) {
		c := &s.cpus
		out.Reserved, out.Foreign = units.FormatCPUs(c.limits.Reserved), units.FormatCPUs(c.limits.Foreign)
		out.Pools = control.CPUPools{LS: units.FormatCPUs(c.pools.LS), BE: units.FormatCPUs(c.pools.BE), System: units.FormatCPUs(c.pools.System), Short: c.pools.Short}
		for uid, a := range c.placed {
			pod := control.PodCPUs{UID: uid, Tier: a.Tier, CPUs: units.FormatCPUs(a.CPUs), Owned: units.FormatCPUs(a.Owned), Mems: units.FormatCPUs(a.Mems)}
			if p := s.pods[uid]; p != nil {
				pod.Namespace, pod.Name = p.facts.Namespace, p.facts.Name
			}
			out.Pods = append(out.Pods, pod)
		}
		for uid, p := range s.pods {
			if p.why != nil {
				tier, _, _ := e.policy.Load().policy.Tier(p.facts)
				out.Unplaced = append(out.Unplaced, control.UnplacedPod{UID: uid, Namespace: p.facts.Namespace, Name: p.facts.Name, Tier: tier, Why: p.why.Error()})
			}
		}
	})
	slices.SortFunc(out.Pods, func(a, b control.PodCPUs) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID))
	})
	slices.SortFunc(out.Unplaced, func(a, b control.UnplacedPod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID))
	})
	return out, err
}
