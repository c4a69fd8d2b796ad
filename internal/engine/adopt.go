package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/policy"
)

// Adopt asks for the runtime's containers to be read: at the start, when bypass ends, and when a call names a container
// that the engine does not know. It returns at once.
func (e *Engine) Adopt() { wake(e.adopt) }

// adoptWorker reads the runtime's containers whenever it is asked to, and tries again while the runtime is away.
func (e *Engine) adoptWorker(ctx context.Context) {
	for {
		select {
		case <-e.adopt:
		case <-ctx.Done():
			return
		}
		for wait := 100 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
			err := e.guarded("read the runtime's containers", func() error { return e.readRuntime(ctx) })
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

// readRuntime makes the state agree with what the runtime lists.
func (e *Engine) readRuntime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	done, err := e.read(ctx)
	if err != nil {
		return err
	}
	defer done()
	// What comes while the runtime makes its lists is known to us in another way, and not missing there.
	before, err := e.known(ctx)
	if err != nil {
		return err
	}
	list, err := e.cfg.Runtime.List(ctx)
	if err != nil {
		return fmt.Errorf("list the runtime's containers: %w", err)
	}
	follow, err := e.agree(ctx, before, list)
	if follow != nil {
		follow(ctx)
	}
	return err
}

// read waits for the turn to make the state agree with the runtime.
func (e *Engine) read(ctx context.Context) (done func(), err error) {
	select {
	case e.reading <- struct{}{}:
		return func() { <-e.reading }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: the runtime's containers are being read", ErrNoDecision)
	}
}

// known gives the IDs of the sandboxes and containers in the state.
func (e *Engine) known(ctx context.Context) (map[string]bool, error) {
	ids := map[string]bool{}
	err := e.query(ctx, func(s *state) {
		for id := range s.ids {
			ids[id] = true
		}
		for id := range s.sandboxes {
			ids[id] = true
		}
	})
	return ids, err
}

// Offer is an update that the runtime should make.
type Offer struct {
	ID   string
	Plan Plan // Apply holds what differs from the stored spec, or from nothing where the protocol does not carry it
}

// Synchronize makes the state agree with list, which is all that the runtime has, and decides anew on every container in
// it. It gives those whose stored spec has other values than decided, or whose files lack some; for each Updated is to
// follow. Files are written in the background.
func (e *Engine) Synchronize(ctx context.Context, list Listing) ([]Offer, error) {
	done, err := e.read(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	before, err := e.known(ctx)
	if err != nil {
		return nil, err
	}
	follow, err := e.agree(ctx, before, list)
	e.outcome("adoption", "", err)
	if err != nil {
		return nil, err
	}
	var offers []Offer
	var records []Record
	ways := map[string][]policy.Setting{}
	missing := map[string][]policy.Setting{}
	loaded := e.policy.Load()
	err = e.query(ctx, func(s *state) {
		for _, l := range list.Containers {
			c := s.byID(l.ID)
			if c == nil || c.id != l.ID || c.before != nil || l.Spec == nil {
				continue
			}
			if rest := e.afterStart(c); l.Running && len(rest) > 0 { // its start may have passed without us
				missing[c.id] = rest
			}
			p := s.podOf(c)
			asks, asked := unseen(c, l.Spec.Resources)
			if l.Spec.Resources.CPUShares != nil && c.unweighted {
				weighted := *c
				weighted.unweighted = false
				c = &weighted
			}
			// The runtime did not wait for our answer to the creation, or does not know the field.
			prio := find(c.decision.Settings, policy.IOPriority)
			lost := prio != nil && prio.Value != l.Spec.Values[policy.IOPriority]
			if lost {
				without := *c
				without.decision.Settings = slices.DeleteFunc(slices.Clone(c.decision.Settings), func(s policy.Setting) bool { return s.Knob == policy.IOPriority })
				c = &without
			}
			next, apply := e.decideUpdate(loaded.policy, p.facts, c, asks)
			differs := slices.DeleteFunc(slices.Clone(apply), func(st policy.Setting) bool {
				stored := l.Spec.Values[st.Knob]
				if st.Knob == policy.CPUSetCPUs && !asked {
					return true // it follows by the file
				}
				if !e.cfg.Carries(st.Knob) {
					return c.changed && !asked // its files are written whatever is stored
				}
				return st.Knob.OfProcess() || stored == st.Value || stored == "" && st.Value == policy.Unset
			})
			if len(differs) == 0 && !asked && !lost {
				continue
			}
			if !asked {
				next.stored = c.stored
			}
			e.counts.decisions.Add(1)
			s.put(next)
			e.show(next)
			if next.changed {
				records = append(records, next.record(p))
			}
			if way := inTheWay(c, next); len(way) > 0 {
				ways[c.id] = way
			}
			if asked {
				delete(missing, c.id) // Updated writes them
			}
			offers = append(offers, Offer{l.ID, Plan{Decision: next.decision, Apply: differs, update: &update{before: c, next: next}}})
		}
	})
	for id, way := range ways { // rare: what was asked while nobody looked forbids what stands there
		if err := e.lower(ctx, id, way); err != nil {
			e.cfg.Log.Warn("make way for an update, which may be refused", "container", clip(id), "err", err)
		}
	}
	e.spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, r := range records {
			e.remember(r)
		}
		follow(ctx)
		if e.Enforcing() {
			for _, id := range slices.Sorted(maps.Keys(missing)) {
				e.writeContainer(ctx, id, missing[id])
			}
		}
	})
	return offers, err
}

// unseen gives what was asked for a container while nobody looked: what is stored and neither ours nor asked before.
func unseen(c *container, stored policy.Resources) (asks policy.Resources, any bool) {
	asked := c.lastAsked()
	news := func(k policy.Knob) bool {
		want := asked.Value(k)
		if s := find(c.decision.Settings, k); s != nil && c.changed {
			if want = s.Value; want == policy.Unset {
				want = ""
			}
		}
		got := stored.Value(k)
		is := got != "" && got != want && (k != policy.CPUSetCPUs || got != c.stored)
		any = any || is
		return is
	}
	if news(policy.CPUWeight) {
		asks.CPUShares = stored.CPUShares
	}
	if news(policy.CPUMax) {
		asks.CPUQuota, asks.CPUPeriod = stored.CPUQuota, stored.CPUPeriod
	}
	if news(policy.CPUSetCPUs) {
		asks.CPUSetCPUs = stored.CPUSetCPUs
	}
	if news(policy.MemoryMax) {
		asks.MemoryLimit = stored.MemoryLimit
	}
	return asks, any
}

// within says whether the list names nothing but what is known.
func (l Listing) within(known map[string]bool) bool {
	for id := range l.Pods {
		if !known[id] {
			return false
		}
	}
	return !slices.ContainsFunc(l.Containers, func(c Listed) bool { return !known[c.ID] })
}

// agree makes the state agree with the runtime: by its list, the records, and, for containers that no record tells of,
// what its stored spec holds. What the list does not name any more, of what was known before it was made, is dropped.
// What is to be written to files because of it is left to follow.
func (e *Engine) agree(ctx context.Context, before map[string]bool, list Listing) (follow func(context.Context), err error) {
	recs, journal := map[Key]Record{}, standing{}
	if !e.Adopted() || !list.within(before) { // else files tell nothing that the state does not know better
		if recs, err = e.records.read(); recs == nil {
			return nil, err
		}
		if err != nil {
			e.cfg.Log.Warn("records were set aside", "err", err)
		}
		e.outcome("records", "", err)
		journal, err = e.journalled()
		e.outcome("journal", "", err)
	}

	listed := map[string]bool{}
	parents := map[string]string{} // of pods, by UID
	var found, doubted []*container
	var untold []string // IDs of containers of which nothing was asked yet
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
			c, parent := e.asFound(ctx, facts, l)
			if parent != "" {
				parents[facts.UID] = parent
			}
			found = append(found, c)
			if c.asked == nil && c.err == "" {
				untold = append(untold, l.ID)
			}
		}
	}
	filed := filedCPUs(journal)
	running := map[string]bool{}
	for _, l := range list.Containers {
		running[l.ID] = l.Running
	}

	var then []func(context.Context)
	var stale []Record
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
			if list.Stopped[id] {
				s.ended[id] = true
			}
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
			c.filed = filed[c.id]
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
				stale = append(stale, rec)
			}
		}
		for c := range s.all() {
			c.cpus = "" // whoever wrote while nobody looked
		}
		for uid := range s.cpus.placed {
			if p := s.pods[uid]; p == nil || !s.live(uid) {
				e.free(s, uid)
			}
		}
		e.reassess(s)
		for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
			work = append(work, e.decidePod(s, s.pods[uid], true))
		}
	}); err != nil {
		return nil, err
	}
	e.records.lost = false
	if !e.Adopted() {
		close(e.adopted)
	}
	return func(ctx context.Context) {
		e.keep(ctx)
		for _, r := range stale {
			e.forget(r.Key, r.ID)
		}
		for _, r := range unknown { // or the next restart would take their birth records for the last word
			e.remember(r)
		}
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
		e.inform(ctx, untold)
	}, nil
}

// filedCPUs gives the IDs of containers whose cpuset.cpus a file of ours replaced.
func filedCPUs(journal standing) map[string]bool {
	out := map[string]bool{}
	for at, knobs := range journal {
		if _, ok := knobs[policy.CPUSetCPUs]; !ok || at.Level() != policy.LevelContainer {
			continue
		}
		if base := strings.TrimSuffix(path.Base(string(at)), ".scope"); len(base) >= fullID {
			out[base[len(base)-fullID:]] = true
		}
	}
	return out
}

// inform asks the runtime for what a list does not tell of containers without a tier: the CPUs that the kubelet asked, some
// of which nobody else may use, and their pods' cgroups.
func (e *Engine) inform(ctx context.Context, ids []string) {
	for _, id := range ids {
		spec, err := e.cfg.Runtime.Spec(ctx, id)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			continue // it is gone, or is left alone until its next update
		}
		_ = e.query(ctx, func(s *state) { // or the engine ends
			c := s.byID(id)
			if c == nil || c.asked != nil || c.before != nil {
				return
			}
			next := *c
			next.asked = &spec.Resources
			s.put(&next)
			if p := s.pods[c.key.PodUID]; p != nil && p.path == "" && spec.CgroupParent != "" {
				p.facts.CgroupParent, p.facts.KubeQoS = spec.CgroupParent, cri.KubeQoS(spec.CgroupParent)
				p.path = podPath(p.facts)
			}
			e.look(s, &next)
			e.recount(s)
		})
	}
	e.keep(ctx)
}

func (l Listed) container(podUID string, st policy.State) *container {
	return &container{key: Key{podUID, l.Name, l.Attempt}, id: l.ID, sandboxID: l.SandboxID, state: st}
}

// asRecorded is a container that was updated since it was made.
func asRecorded(rec Record, l Listed, birth Birth) *container {
	c := l.container(rec.Key.PodUID, rec.State)
	c.asked, c.decision, c.changed, c.unweighted, c.stored = rec.Asked, rec.Decision, rec.Changed, rec.Unweighted, rec.Stored
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
	c.stored = cpusOf(c.decision)
	// Decided again each value that is still the same has its reason too.
	d := e.policy.Load().policy.Container(e.node(), birth.parent(facts), policy.Container{Name: l.Name, State: policy.Managed, Asked: birth.Asked})
	if d.Refusal == nil && d.Tier == c.decision.Tier {
		c.decision.Source, c.decision.Notes = d.Source, d.Notes
		for i, s := range c.decision.Settings {
			if same := find(d.Settings, s.Knob); same != nil && same.Value == s.Value {
				c.decision.Settings[i] = *same
			}
		}
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

// asFound is a container that was made without us. parent is its pod's cgroup where the runtime tells.
func (e *Engine) asFound(ctx context.Context, facts policy.Pod, l Listed) (c *container, parent string) {
	c = l.container(facts.UID, policy.Adopted)
	tier, source, _ := e.policy.Load().policy.Tier(facts)
	c.decision = policy.Decision{Tier: tier, Source: source}
	if tier == v1alpha1.None && l.Spec == nil {
		return c, "" // inform asks
	}
	spec, err := e.spec(ctx, l)
	if err != nil {
		c.err = fmt.Sprintf("asked values unknown: %v", err)
		return c, ""
	}
	c.asked = &spec.Resources
	c.unweighted = spec.Resources.CPUShares == nil
	return c, spec.CgroupParent
}

// spec is what the runtime stores of a listed container.
func (e *Engine) spec(ctx context.Context, l Listed) (Spec, error) {
	if l.Spec != nil {
		return *l.Spec, nil
	}
	return e.cfg.Runtime.Spec(ctx, l.ID)
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
