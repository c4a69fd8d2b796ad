package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

// Creation is what a door knows of a container that is about to be made.
type Creation struct {
	SandboxID string
	Pod       policy.Pod
	Name      string
	Attempt   uint32
	Asked     policy.Resources
}

// Key of the container.
func (c Creation) Key() Key { return Key{c.Pod.UID, c.Name, c.Attempt} }

// Plan is what a door does with a call about one container.
type Plan struct {
	Decision policy.Decision
	Apply    []policy.Setting // to put into the message; nil leaves it as it is
	Birth    string           // value of the annotation v1alpha1.AnnotationDecision; "" adds none
	update   *update
}

// update is an update of the kubelet's that is under way.
type update struct {
	before, next *container
	lowered      []policy.Setting // what stood in the kernel before it was put out of the runtime's way
}

// Changes says whether the message is to be changed at all.
func (p Plan) Changes() bool { return len(p.Apply) > 0 || p.Birth != "" }

// Create decides on a container that is about to be made. A decision with a Refusal changes nothing: while decisions are carried out the door refuses
// the call. Reported is to follow once the call is over, and Created or CreateFailed before it.
func (e *Engine) Create(ctx context.Context, c Creation) (Plan, error) {
	var plan Plan
	var work podWork
	var born, placed bool
	loaded := e.policy.Load()
	err := e.ask(ctx, func(s *state) func() {
		p := s.pods[c.Pod.UID]
		if p == nil { // its sandbox was made before us
			p = newPod(c.Pod)
			s.pods[c.Pod.UID] = p
		}
		p.learn(c.Pod)
		placed = e.introduce(s, p, c)
		d := loaded.policy.Container(e.node(), p.creating(), policy.Container{Name: c.Name, State: policy.Managed, Asked: c.Asked})
		ctr := &container{
			key: c.Key(), sandboxID: c.SandboxID, state: policy.Managed, asked: &c.Asked, decision: d,
			changed:    e.Enforcing() && d.Refusal == nil && (d.Tier != v1alpha1.None || len(d.Settings) > 0),
			unweighted: c.Asked.CPUShares == nil,
		}
		if ctr.changed {
			ctr.unweighted = ctr.unweighted || unsetsWeight(d)
			ctr.stored = cpusOf(d)
		}
		return func() {
			e.counts.decisions.Add(1)
			plan.Decision = d
			if d.Refusal != nil && e.Enforcing() {
				return
			}
			s.put(ctr)
			work = e.decidePod(s, p, false)
			if ctr.changed {
				plan.Apply = d.Settings
			}
			born = ctr.changed
		}
	})
	if placed { // before the runtime makes the container: who comes after us is to know its CPUs
		e.background(func() {
			ctx, cancel := lateContext()
			defer cancel()
			e.keep(ctx)
		})
	}
	if err != nil {
		return Plan{}, err
	}
	e.countBad(plan.Decision)
	if born {
		plan.Birth = birth(plan.Decision, c, loaded)
		e.counts.changed.Add(1)
	}
	if work.path != "" { // the call does not wait: a runtime takes longer to make the container
		e.spawn(func() { e.apply(work) })
	}
	return plan, nil
}

// introduce places the pod of a container that is about to be made, where it has no CPUs of its own and should, and takes
// note of CPUs that the kubelet's static CPU manager gave the container.
func (e *Engine) introduce(s *state, p *pod, c Creation) (placed bool) {
	if _, ok := policy.KubeletExclusive(p.facts, c.Asked); ok {
		s.put(&container{key: c.Key(), sandboxID: c.SandboxID, state: policy.Managed, asked: &c.Asked})
		return e.recount(s)
	}
	return e.settle(s, p)
}

// cpusOf is the cpuset.cpus of a decision, "" for none.
func cpusOf(d policy.Decision) string {
	if s := find(d.Settings, policy.CPUSetCPUs); s != nil {
		return s.Value
	}
	return ""
}

func unsetsWeight(d policy.Decision) bool {
	s := find(d.Settings, policy.CPUWeight)
	return s != nil && s.Value == policy.Unset
}

// remember writes a record. Without one the container still has its birth record, but what is asked later is lost with
// us.
func (e *Engine) remember(r Record) {
	err := e.records.write(r)
	if err != nil {
		e.cfg.Log.Warn("write record", "container", clip(r.Key.String()), "err", err)
	}
	e.outcome("records", r.Key.String(), err)
	e.tidy(r)
}

// tidy removes a record that was written when its container had gone already.
func (e *Engine) tidy(r Record) {
	e.post(func(s *state) func(context.Context) {
		if now := s.get(r.Key); now != nil && now.id == r.ID {
			return nil
		}
		return func(context.Context) { e.forget(r.Key, r.ID) }
	})
}

// forget removes the record of a container.
func (e *Engine) forget(k Key, id string) { e.outcome("records", k.String(), e.records.remove(k, id)) }

func birth(d policy.Decision, c Creation, l *loadedPolicy) string {
	set := make(map[string]string, len(d.Settings))
	for _, s := range d.Settings {
		set[string(s.Knob)] = s.Value
	}
	b, err := json.Marshal(Birth{Tier: string(d.Tier), Asked: c.Asked, Set: set, CgroupParent: c.Pod.CgroupParent, Policy: l.info.Name, Generation: l.info.Generation})
	if err != nil {
		return "" // strings and numbers always encode
	}
	return string(b)
}

// Reported logs what was decided on a container and has its record written. It is apart from Create so that no call waits
// for either: until the record is there, the birth record tells as much.
func (e *Engine) Reported(c Creation, p Plan) {
	e.Logged(c, p)
	e.record(c, p, e.post)
}

// Recorded writes the record of a container that Created has reported, and waits for it as long as a call may. It is for a
// door whose birth records nobody can trust: the record has to be there before the runtime makes the container.
func (e *Engine) Recorded(c Creation, p Plan) { e.record(c, p, e.tell) }

// Logged logs what was decided on a container.
func (e *Engine) Logged(c Creation, p Plan) { e.log(p.Decision, c.Pod, c.Name, "decide container") }

func (e *Engine) record(c Creation, p Plan, report func(step func(*state) (then func(context.Context)))) {
	if p.Birth == "" {
		return
	}
	report(func(s *state) func(context.Context) {
		ctr := s.get(c.Key())
		if ctr == nil || ctr.id == "" || !ctr.changed {
			return nil
		}
		r := ctr.record(s.podOf(ctr))
		return func(context.Context) {
			e.outcome("records", r.Key.String(), e.records.writeFirst(r))
			e.tidy(r)
		}
	})
}

func bad(n policy.Note) bool {
	return n.Code == policy.NoteBadLabel || n.Code == policy.NoteBadAnnotation
}

func (e *Engine) countBad(d policy.Decision) {
	for _, n := range d.Notes {
		if bad(n) {
			e.counts.badInput.Add(1)
		}
	}
}

func (e *Engine) log(d policy.Decision, pod policy.Pod, name, msg string) {
	level := slog.LevelDebug
	if len(d.Settings) > 0 || d.Refusal != nil {
		level = slog.LevelInfo
	}
	attrs := []slog.Attr{slog.String("pod", clip(pod.Namespace)+"/"+clip(pod.Name)), slog.String("podUID", clip(pod.UID)), slog.String("container", clip(name)),
		slog.String("tier", string(d.Tier)), slog.String("source", string(d.Source.Kind)), slog.Bool("enforce", e.Enforcing())}
	for _, s := range d.Settings {
		attrs = append(attrs, slog.String(string(s.Knob), s.Value))
	}
	e.cfg.Log.LogAttrs(context.Background(), level, msg, attrs...)
	for _, n := range d.Notes {
		l := slog.LevelDebug
		if bad(n) {
			l = slog.LevelWarn
		}
		e.cfg.Log.LogAttrs(context.Background(), l, "decision note", slog.String("pod", clip(pod.Namespace)+"/"+clip(pod.Name)),
			slog.String("container", clip(name)), slog.String("code", string(n.Code)), slog.String("note", n.Message))
	}
}

// clip bounds what a hostile name may put into a log line; names of Kubernetes have at most 253 bytes.
func clip(s string) string {
	if len(s) > 253 {
		return s[:253]
	}
	return s
}

// Created reports that the runtime has made the container, with what was in its message of the plan; the zero Plan for
// nothing. c is what Create was called with, in case that its decision failed: then the container is missed.
func (e *Engine) Created(c Creation, p Plan, id string) {
	if id == "" {
		return
	}
	if len(p.Apply) > 0 {
		e.publish(id, &View{Asked: c.Asked, Settings: p.Apply})
	}
	e.post(func(s *state) func(context.Context) {
		ctr := s.get(c.Key())
		if ctr == nil || ctr.id != "" && ctr.id != id { // no decision, or one of an earlier container of that name
			if ctr != nil {
				e.hide(ctr.id)
				s.drop(ctr)
			}
			ctr = &container{key: c.Key(), asked: &c.Asked}
			e.miss(c.Pod, ctr, "its creation passed without a decision")
			if s.pods[c.Pod.UID] == nil {
				s.pods[c.Pod.UID] = newPod(c.Pod)
			}
		}
		next := *ctr
		next.id, next.sandboxID = id, c.SandboxID
		s.put(&next)
		e.show(&next)
		return nil
	})
}

// miss makes a container one that a door failed open for.
func (e *Engine) miss(pod policy.Pod, c *container, why string) {
	c.state, c.changed, c.unweighted, c.err = policy.Missed, false, c.lastAsked().CPUShares == nil, why
	c.stored = ""
	c.decision = e.policy.Load().policy.Container(e.node(), pod, policy.Container{Name: c.key.Name, State: policy.Missed, Asked: c.lastAsked()})
}

// Missed reports that a creation passed unmodified though Create had a plan for it. The call that follows is Created or
// CreateFailed.
func (e *Engine) Missed(k Key, why string) {
	e.post(func(s *state) func(context.Context) {
		if c := s.get(k); c != nil {
			next := *c
			e.miss(s.podOf(c).facts, &next, why)
			s.put(&next)
			e.hide(next.id)
		}
		return nil
	})
}

// CreateFailed reports that the runtime did not make the container.
func (e *Engine) CreateFailed(k Key) {
	e.post(func(s *state) func(context.Context) {
		c := s.get(k)
		if c == nil || c.id != "" {
			return nil
		}
		s.drop(c)
		p := s.pods[k.PodUID]
		if p == nil {
			return nil
		}
		work := e.decidePod(s, p, false)
		counted := c.lastAsked().CPUSetCPUs != "" && e.recount(s)
		return func(ctx context.Context) {
			if counted {
				e.keep(ctx)
			}
			e.apply(work)
		}
	})
}

func (c *container) record(p *pod) Record {
	return Record{Key: c.key, ID: c.id, State: c.state, Pod: RecordedPod{p.facts.CgroupParent}, Asked: c.asked, Decision: c.decision, Changed: c.changed, Unweighted: c.unweighted, Stored: c.stored}
}

// Started reports that the runtime has started the container, and writes what the protocol could not carry.
func (e *Engine) Started(id string) {
	e.tell(func(s *state) func(context.Context) {
		c := s.byID(id)
		if c == nil {
			return nil
		}
		e.look(s, c) // the pools may have changed since its message was made
		e.enter(s, c)
		settings := e.afterStart(c)
		if len(settings) == 0 {
			return nil
		}
		id := c.id
		return func(ctx context.Context) { e.writeContainer(ctx, id, settings) }
	})
}

// afterStart gives what is to be written to the files of a container that runs: of ours what the protocol can't carry,
// and of one that passed without us what no later update of the runtime would trip over.
func (e *Engine) afterStart(c *container) []policy.Setting {
	follows := e.node().Pools != nil // the pool worker writes cpusets: what was decided once may not hold any more
	switch {
	case c.changed && e.cfg.Recheck:
		return slices.DeleteFunc(slices.Clone(c.decision.Settings), func(s policy.Setting) bool {
			return s.Knob == policy.CPUWeight || s.Knob.OfProcess() || s.Knob == policy.CPUSetCPUs && follows // one is what idle leaves, processes have no file
		})
	case c.changed:
		return e.rest(c.decision.Settings)
	case c.state == policy.Missed:
		var repair []policy.Setting
		for _, s := range c.decision.Settings {
			if s.Knob == policy.CPUSetCPUs && !follows || s.Knob == policy.CPUMax {
				repair = append(repair, s)
			}
		}
		return repair
	}
	return nil
}

// rest gives the settings that the door's protocol can't carry, and a file can.
func (e *Engine) rest(settings []policy.Setting) []policy.Setting {
	var out []policy.Setting
	for _, s := range settings {
		if !e.cfg.Carries(s.Knob) && !s.Knob.OfProcess() {
			out = append(out, s)
		}
	}
	return out
}

// writeContainer writes settings to a running container's files, and notes how it went.
func (e *Engine) writeContainer(ctx context.Context, id string, settings []policy.Setting) {
	path, err := e.locate(ctx, id)
	if err == nil {
		e.whileEnforcing(func() { err = e.write(path, settings) })
	}
	if over(err) {
		err = nil // it has ended, and its files with it
	}
	if err != nil {
		e.cfg.Log.Warn("write container", "container", clip(id), "err", err)
	}
	e.outcome("container files", id, err)
	_ = e.query(ctx, func(s *state) { // it is for people alone
		c := s.byID(id)
		switch {
		case c == nil:
			e.outcome("container files", id, nil)
			return
		case path != "":
			c.path = path
		}
		switch {
		case err != nil:
			c.err = err.Error()
		case c.state != policy.Missed:
			c.err = ""
		}
	})
}

// over says that there is nothing to be written any more, which is no fault.
func over(err error) bool {
	return errors.Is(err, ErrNotRunning) || errors.Is(err, ErrNotFound) || errors.Is(err, cgroup.ErrGone)
}

// locate finds the cgroup of a running container by its first process. The number may come to mean another process
// meanwhile, so the path must name the container.
func (e *Engine) locate(ctx context.Context, id string) (cgroup.Path, error) {
	pid, err := e.cfg.Runtime.PID(ctx, id)
	if named := (*NoPIDError)(nil); errors.As(err, &named) {
		return e.cfg.Cgroups.Named(named.Cgroup, id)
	}
	if err != nil {
		return "", fmt.Errorf("find first process of container %.64s: %w", id, err)
	}
	return e.cfg.Cgroups.Container(pid, id)
}

func (e *Engine) write(path cgroup.Path, settings []policy.Setting) error {
	changes, err := e.cfg.Cgroups.WriteAll(path, settings)
	for _, c := range changes {
		if c.Wrote {
			e.counts.writes.Add(1)
		}
	}
	if err != nil && !over(err) {
		e.counts.writeFails.Add(1)
	}
	return err
}

// Update decides on an update of the kubelet's. The plan says what to put into the message. The call that follows is
// Updated, with the outcome.
func (e *Engine) Update(ctx context.Context, id string, asks policy.Resources) (Plan, error) {
	var plan Plan
	var rec *Record
	var pod policy.Pod
	loaded := e.policy.Load()
	err := e.ask(ctx, func(s *state) func() {
		c := s.byID(id)
		if c == nil {
			return nil
		}
		p := s.podOf(c)
		next, apply := e.decideUpdate(loaded.policy, p.facts, c, asks)
		return func() {
			e.counts.decisions.Add(1)
			pod = p.facts
			plan = Plan{Decision: next.decision, Apply: apply, update: &update{before: c, next: next, lowered: inTheWay(c, next)}}
			if next.changed {
				r := next.record(p)
				rec = &r
			}
			s.put(next)
			e.show(next)
			if next.lastAsked().CPUSetCPUs != "" && e.recount(s) {
				e.spawn(func() {
					ctx, cancel := lateContext()
					defer cancel()
					e.keep(ctx)
				})
			}
		}
	})
	if err != nil {
		return Plan{}, err
	}
	if plan.update == nil {
		e.Adopt()
		return Plan{}, nil
	}
	if rec != nil {
		e.countBad(plan.Decision)
		e.log(plan.Decision, pod, rec.Key.Name, "decide update")
		e.remember(*rec)
	}
	if len(plan.Apply) > 0 {
		e.counts.changed.Add(1)
		if err := e.lower(ctx, plan.update.next.id, plan.update.lowered); err != nil {
			e.cfg.Log.Warn("make way for an update, which may be refused", "container", clip(id), "err", err)
		}
	}
	return plan, nil
}

// decide decides on a container that there is, with what was asked of it.
func (c *container) decide(p *policy.Policy, n policy.Node, pod policy.Pod, asked policy.Resources) policy.Decision {
	as := func(st policy.State) policy.Decision {
		if st == policy.Adopted && c.unweighted {
			// A kubelet always asks shares, so a door of ours took them out, and its record is lost. Such a container may be
			// idle, and shares that pass to it would fail its updates.
			st = policy.Managed
		}
		return p.Container(n, pod, policy.Container{Name: c.key.Name, State: st, Asked: asked})
	}
	d := as(c.state)
	if !c.unweighted && find(d.Settings, policy.CPUIdle) != nil {
		d = as(policy.Adopted) // the policy has changed since: its shares are stored, as those of an adopted one
	}
	return d
}

// decideUpdate gives what becomes of a container by an update, and what to put into the message.
func (e *Engine) decideUpdate(p *policy.Policy, pod policy.Pod, c *container, asks policy.Resources) (next *container, apply []policy.Setting) {
	n := *c
	asked := cri.Updated(c.lastAsked(), asks)
	n.asked, n.born, n.before = &asked, nil, c
	d := c.decide(p, e.node(), pod, asked)
	enforce := e.Enforcing() && d.Refusal == nil
	if !enforce { // the message passes as it is, so the runtime keeps what it has of ours
		if c.changed {
			d = c.decision
		}
		n.decision = d
		n.unweighted = c.unweighted && asks.CPUShares == nil
		return &n, nil
	}
	c.keepMems(p, &d)
	// Only the creation sets an I/O priority, so what it set is what there is.
	d.Settings = slices.DeleteFunc(d.Settings, func(s policy.Setting) bool { return s.Knob == policy.IOPriority })
	if c.changed {
		apply = dropped(c.decision, d, asked, e.node())
		for _, k := range []policy.Knob{policy.OOMScoreAdj, policy.IOPriority} {
			if s := find(c.decision.Settings, k); s != nil && find(d.Settings, k) == nil {
				d.Settings = append(slices.Clip(d.Settings), *s) // no update takes it out of the stored spec
			}
		}
	}
	apply = slices.Concat(d.Settings, apply)
	n.decision = d
	n.changed = c.changed || len(apply) > 0
	if s := find(apply, policy.CPUSetCPUs); s != nil {
		n.stored = s.Value // one that is no longer decided stays there too: no message takes it out
	}
	weight := find(apply, policy.CPUWeight)
	switch {
	case weight == nil:
		n.unweighted = c.unweighted && asks.CPUShares == nil
	case weight.Value != policy.Unset:
		n.unweighted = false
	}
	return &n, apply
}

// keepMems makes a decision leave the memory nodes of a running container where its creation put them, unless the policy
// says otherwise: a write of cpuset.mems moves its pages.
func (c *container) keepMems(p *policy.Policy, d *policy.Decision) {
	if p.MigratesMemory(d.Tier) {
		return
	}
	var has *policy.Setting
	if c.changed {
		has = find(c.decision.Settings, policy.CPUSetMems)
	}
	if now := find(d.Settings, policy.CPUSetMems); now != nil || has != nil {
		d.Settings = withSetting(d.Settings, policy.CPUSetMems, has)
	}
}

// inTheWay gives what of ours the kernel would refuse the update for, as it stands there before: runtimes write a quota
// before the burst, which may not be larger, and a weight before the idle that forbids it.
func inTheWay(c, next *container) []policy.Setting {
	if !c.changed {
		return nil
	}
	var out []policy.Setting
	if s := find(c.decision.Settings, policy.CPUIdle); s != nil && s.Value == "1" {
		if t := find(next.decision.Settings, policy.CPUIdle); t == nil || t.Value != "1" {
			out = append(out, *s)
		}
	}
	if s := find(c.decision.Settings, policy.CPUMaxBurst); s != nil && s.Value != "0" {
		quota := next.asked.Value(policy.CPUMax)
		if t := find(next.decision.Settings, policy.CPUMax); t != nil {
			quota = t.Value
		}
		if below(quota, s.Value) {
			out = append(out, *s)
		}
	}
	return out
}

// below says whether the quota of a cpu.max value is below a burst.
func below(cpuMax, burst string) bool {
	m, err := units.ParseCPUMax(cpuMax)
	b, berr := strconv.ParseInt(burst, 10, 64)
	return err == nil && berr == nil && m.Quota != units.NoQuota && m.Quota < b
}

// lower puts 0 into the kernel for settings that stand in the way of a call, which waits for it: too late would undo
// what the call brings. An undo from now on brings the 0 back and not our value.
func (e *Engine) lower(ctx context.Context, id string, settings []policy.Setting) error {
	if len(settings) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.lowerBudget())
	defer cancel()
	path, err := e.locate(ctx, id)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		e.whileEnforcing(func() { err = e.zero(path, settings) })
	}
	if over(err) {
		return nil
	}
	return err
}

// zero writes 0 for each setting, as what stood there before us.
func (e *Engine) zero(path cgroup.Path, settings []policy.Setting) error {
	var errs []error
	for _, s := range settings {
		s.Value = "0"
		errs = append(errs, e.write(path, []policy.Setting{s}), e.cfg.Cgroups.Rebase(path, s.Knob, "0"))
	}
	return errors.Join(errs...)
}

// Fallback is for an update that got no decision: what the message must have so that the runtime does not refuse it
// because of what it stores of ours. It needs no turn of the engine.
func (e *Engine) Fallback(ctx context.Context, id string, asks policy.Resources) []policy.Setting {
	v := e.View(id)
	if v == nil || !e.Enforcing() {
		return nil
	}
	var out, way []policy.Setting
	if s := find(v.Settings, policy.CPUWeight); s != nil && s.Value == policy.Unset {
		out = append(out, *s)
	}
	if s := find(v.Settings, policy.CPUMaxBurst); s != nil && below(asks.Value(policy.CPUMax), s.Value) {
		way = append(way, *s)
		zero := *s
		zero.Value = "0"
		out = append(out, zero)
	}
	if err := e.lower(ctx, id, way); err != nil {
		e.cfg.Log.Warn("make way for an update, which may be refused", "container", clip(id), "err", err)
	}
	return out
}

// dropped gives a neutral setting for every knob that an earlier decision set and the next one does not: a stored
// spec keeps what it is not told to forget.
func dropped(before, next policy.Decision, asked policy.Resources, n policy.Node) []policy.Setting {
	var out []policy.Setting
	for _, s := range before.Settings {
		if find(next.Settings, s.Knob) == nil {
			if v := policy.Neutral(n, s, asked); v != "" {
				s.Value, s.Reason, s.Rule = v, "no longer decided: back to what was asked", "asked"
				out = append(out, s)
			}
		}
	}
	return out
}

// Updated reports how an update ended, and writes what the protocol could not carry of what the plan applied.
func (e *Engine) Updated(plan Plan, ok bool) {
	u := plan.update
	if u == nil {
		return
	}
	e.tell(func(s *state) func(context.Context) {
		c := s.get(u.next.key)
		if c == nil || c.id != u.next.id {
			return nil // it was removed meanwhile
		}
		settings := e.rest(plan.Apply)
		var rec *Record
		switch {
		case ok && c == u.next:
			c.before = nil
		case ok:
			u.next.before = nil // a later update is under way, and falls back on this one
		case c == u.next:
			old := *c.before
			old.path, old.err = c.path, c.err
			settings = u.lowered
			s.put(&old)
			e.show(&old)
			if old.changed {
				r := old.record(s.podOf(&old))
				rec = &r
			}
		default:
			settings = nil
			if c.before == u.next { // a later update falls back on what was before this one
				c.before = u.before
			}
		}
		var work podWork
		if p := s.pods[u.next.key.PodUID]; p != nil {
			work = e.decidePod(s, p, false)
		}
		if now := s.get(u.next.key); now != nil {
			e.look(s, now) // the runtime has written what was stored when it began
		}
		return func(ctx context.Context) {
			if rec != nil {
				e.remember(*rec)
			}
			if len(settings) > 0 {
				e.writeContainer(ctx, u.next.id, settings)
			}
			e.apply(work)
		}
	})
}

// Removed reports that the container is gone. Nobody waits for what is left to clear up.
func (e *Engine) Removed(id string) {
	e.post(func(s *state) func(context.Context) {
		c := s.byID(id)
		if c == nil {
			return nil
		}
		return e.gone(s, c)
	})
}

// gone drops a container from the state, and gives what is left to do outside of it.
func (e *Engine) gone(s *state, c *container) func(context.Context) {
	s.drop(c)
	e.hide(c.id)
	var work podWork
	if p := s.pods[c.key.PodUID]; p != nil {
		work = e.decidePod(s, p, false)
	}
	counted := c.lastAsked().CPUSetCPUs != "" && e.recount(s)
	key, id, path := c.key, c.id, c.path
	return func(ctx context.Context) {
		e.forget(key, id)
		if counted {
			e.keep(ctx)
		}
		for _, what := range []string{"container files", "container CPUs", "resctrl threads", "reconcile", "drift"} {
			e.outcome(what, id, nil)
		}
		if path != "" {
			e.outcome("journal", id, e.cfg.Cgroups.Forget(path))
		}
		e.apply(work)
	}
}
