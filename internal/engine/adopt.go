package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/policy"
)

// Adopt asks for the runtime's containers to be read: at the start, when bypass ends, and when a call names a container
// that the engine does not know. It returns at once.
func (e *Engine) Adopt() {
	select {
	case e.adopt <- struct{}{}:
	default:
	}
}

// adoptWorker reads the runtime's containers whenever it is asked to, and tries again while the runtime is away.
func (e *Engine) adoptWorker(ctx context.Context) {
	for {
		select {
		case <-e.adopt:
		case <-ctx.Done():
			return
		}
		for wait := 100 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
			err := e.tryAdopt(ctx)
			e.outcome("adoption", "", err)
			if err == nil {
				break
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
		}
	}
}

// tryAdopt keeps a fault in what a runtime tells from ending the process.
func (e *Engine) tryAdopt(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("read the runtime's containers: panic: %v", r)
			e.cfg.Log.Error("adoption panicked", "panic", r)
		}
	}()
	return e.readRuntime(ctx)
}

// readRuntime makes the state agree with the runtime: by its lists, the records, and, for containers that no record
// tells of, what its stored spec holds. What the lists do not name any more is dropped.
func (e *Engine) readRuntime(ctx context.Context) error {
	e.reading.Lock()
	defer e.reading.Unlock()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// What comes while the runtime makes its lists is known to us in another way, and not missing there.
	before := map[string]bool{}
	if err := e.query(ctx, func(s *state) {
		for id := range s.ids {
			before[id] = true
		}
		for id := range s.sandboxes {
			before[id] = true
		}
	}); err != nil {
		return err
	}
	list, err := e.cfg.Runtime.List(ctx)
	if err != nil {
		return fmt.Errorf("list the runtime's containers: %w", err)
	}
	recs, err := e.records.read()
	if recs == nil {
		return err
	}
	if err != nil {
		e.cfg.Log.Warn("records were set aside", "err", err)
	}
	e.outcome("records", "", err)
	journal, err := e.journalled()
	e.outcome("journal", "", err)

	listed := map[string]bool{}
	parents := map[string]string{} // of pods, by UID
	var found, doubted []*container
	for id := range list.Pods {
		listed[id] = true
	}
	for _, l := range list.Containers {
		listed[l.ID] = true
		facts, ok := list.Pods[l.SandboxID]
		if !ok || before[l.ID] {
			continue // known, or its sandbox is gone and the kubelet removes the container
		}
		rec, ok := recs[Key{facts.UID, l.Name, l.Attempt}]
		birth, born := parseBirth(l.Birth)
		switch ok = ok && rec.ID == l.ID; {
		case ok:
			parents[facts.UID] = rec.Pod.CgroupParent
			found = append(found, asRecorded(rec, l, birth))
		case born:
			parents[facts.UID] = birth.CgroupParent
			c := e.asBorn(facts, l, birth)
			if e.records.suspect(c.key) {
				e.doubt(ctx, c)
				doubted = append(doubted, c)
			}
			found = append(found, c)
		case !l.Exited:
			found = append(found, e.asFound(ctx, facts, l))
		}
	}
	running := map[string]bool{}
	for _, l := range list.Containers {
		running[l.ID] = l.Running
	}

	var then []func(context.Context)
	var stale []Key
	var unknown []Record
	var work []podWork
	restart := map[string][]policy.Setting{}
	if err := e.query(ctx, func(s *state) {
		for id := range before {
			if listed[id] {
				continue
			}
			if p := s.dropSandbox(id); p != nil {
				then = append(then, func(context.Context) { e.podGone(p.path) })
			}
		}
		for id, facts := range list.Pods {
			s.sandboxes[id] = facts.UID
			p := s.pods[facts.UID]
			if p == nil {
				p = newPod(facts)
				s.pods[facts.UID] = p
			}
			if parent := parents[facts.UID]; parent != "" && p.path == "" {
				p.facts.CgroupParent, p.facts.KubeQoS = parent, cri.KubeQoS(parent)
				p.path = podPath(p.facts)
			}
			for k, v := range journal[p.path] {
				if _, ok := p.held[k]; !ok {
					p.held[k] = v
				}
			}
		}
		for id := range before {
			if c := s.byID(id); c != nil && !listed[id] {
				then = append(then, e.gone(s, c))
			}
		}
		for _, c := range found {
			have := s.get(c.key)
			switch {
			case have != nil && have.id == "": // its creation is under way, or we were not told of its end
				next := *have
				next.id, next.sandboxID = c.id, c.sandboxID
				c = &next
			case have != nil && (have.id == c.id || listed[have.id] || !before[have.id]):
				continue
			}
			s.put(c)
			e.show(c)
			if slices.Contains(doubted, c) {
				unknown = append(unknown, c.record(s.podOf(c)))
			}
			if rest := e.afterStart(c); running[c.id] && len(rest) > 0 {
				restart[c.id] = rest
			}
		}
		for k, rec := range recs {
			if c := s.get(k); c == nil || c.id != "" && c.id != rec.ID {
				stale = append(stale, k)
			}
		}
		for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
			work = append(work, e.decidePod(s, s.pods[uid], true))
		}
	}); err != nil {
		return err
	}
	for _, k := range stale {
		e.forget(k)
	}
	for _, r := range unknown { // or the next restart would take their birth records for the last word
		e.remember(r)
	}
	e.records.lost = false
	for _, f := range then {
		f(ctx)
	}
	for _, w := range work {
		e.apply(w)
	}
	// One that was started just before we were killed may lack what its message could not carry.
	if e.Enforcing() {
		for _, id := range slices.Sorted(maps.Keys(restart)) {
			e.writeContainer(ctx, id, restart[id])
		}
	}
	for path := range journal {
		e.sweep(path)
	}
	e.wakeClasses()
	return nil
}

func (l Listed) container(podUID string, st policy.State) *container {
	return &container{key: Key{podUID, l.Name, l.Attempt}, id: l.ID, sandboxID: l.SandboxID, state: st}
}

// asRecorded is a container that was updated since it was made.
func asRecorded(rec Record, l Listed, birth Birth) *container {
	c := l.container(rec.Key.PodUID, rec.State)
	c.asked, c.decision, c.changed, c.unweighted = rec.Asked, rec.Decision, rec.Changed, rec.Unweighted
	if c.asked == nil {
		c.born = &birth.Asked
	}
	return c
}

// asBorn is a container of ours that was not updated since it was made.
func (e *Engine) asBorn(facts policy.Pod, l Listed, birth Birth) *container {
	c := l.container(facts.UID, policy.Managed)
	c.asked, c.decision, c.changed = &birth.Asked, birth.decision(), true
	c.unweighted = birth.Asked.CPUShares == nil || unsetsWeight(c.decision)
	// Decided again it has its reasons too, unless policy or pod have changed.
	d := e.policy.Load().policy.Container(e.cfg.Node, birth.parent(facts), policy.Container{Name: l.Name, State: policy.Managed, Asked: birth.Asked})
	if d.Refusal == nil && birth.agrees(d) {
		c.decision = d
	}
	return c
}

// doubt is for a container of ours whose record is lost, if it had one. What was asked since its birth is not known, so its
// status passes through until the next update. Stored shares tell that it was released since, or was not made by us.
func (e *Engine) doubt(ctx context.Context, c *container) {
	c.asked, c.born = nil, c.asked
	spec, err := e.cfg.Runtime.Spec(ctx, c.id)
	c.unweighted = err == nil && spec.Resources.CPUShares == nil
	if err != nil {
		c.err = fmt.Sprintf("what the runtime stores is unknown: %v", err)
	}
}

// asFound is a container that was made without us.
func (e *Engine) asFound(ctx context.Context, facts policy.Pod, l Listed) *container {
	c := l.container(facts.UID, policy.Adopted)
	tier, source, _ := e.policy.Load().policy.Tier(facts)
	c.decision = policy.Decision{Tier: tier, Source: source}
	if tier == v1alpha1.None {
		return c
	}
	spec, err := e.cfg.Runtime.Spec(ctx, l.ID)
	if err != nil {
		c.err = fmt.Sprintf("asked values unknown: %v", err)
		return c
	}
	c.asked = &spec.Resources
	return c
}

// sweep forgets the journal of a cgroup that went while nobody looked.
func (e *Engine) sweep(p cgroup.Path) {
	for _, k := range policy.Knobs() {
		_, err := e.cfg.Cgroups.Read(p, k)
		if err == nil {
			return
		}
		if errors.Is(err, cgroup.ErrGone) {
			e.outcome("journal", string(p), e.cfg.Cgroups.Forget(p))
			return
		}
	}
}
