package engine

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/policy"
)

// PodStarting decides on a pod whose sandbox is about to be made and writes its pod-level values: the kubelet has made
// the pod's cgroup, and no container of the pod runs yet. It never fails; what went wrong is in the status. The call
// that follows is PodStarted or PodFailed.
func (e *Engine) PodStarting(ctx context.Context, facts policy.Pod) {
	if facts.CgroupParent != "" {
		if _, err := cgroup.ParsePath(facts.CgroupParent); err != nil {
			e.BadInput()
			e.cfg.Log.Warn("pod-level values are left alone", "pod", clip(facts.Namespace)+"/"+clip(facts.Name), "err", err)
		}
	}
	var work podWork
	var placed bool
	err := e.ask(ctx, func(s *state) func() {
		return func() {
			p := s.pods[facts.UID]
			if p == nil {
				p = newPod(facts)
				s.pods[facts.UID] = p
			}
			p.learn(facts)
			p.path = podPath(facts)
			placed = e.settle(s, p)
			work = e.decidePod(s, p, true)
		}
	})
	if err != nil {
		e.FailedOpen("RunPodSandbox", err)
		return
	}
	e.countBad(work.decision)
	e.log(work.decision, facts, "", "decide pod")
	if work.path != "" || placed {
		e.background(func() {
			if placed {
				ctx, cancel := lateContext()
				defer cancel()
				e.keep(ctx)
			}
			e.apply(work)
		})
	}
}

// PodStarted reports the ID of the sandbox. Where the pod's cgroup is a systemd slice its values are written again: with
// the sandbox systemd has started the slice's first scope, and then sets what it knows of the slice to what it was told,
// which for io.weight and memory.low is nothing (seen with systemd 252).
func (e *Engine) PodStarted(facts policy.Pod, sandboxID string) {
	e.post(func(s *state) func(context.Context) {
		s.sandboxes[sandboxID] = facts.UID
		if s.pods[facts.UID] == nil {
			s.pods[facts.UID] = newPod(facts)
		}
		p := s.pods[facts.UID]
		if !strings.HasSuffix(string(p.path), ".slice") {
			return nil
		}
		work := e.decidePod(s, p, true)
		return func(context.Context) { e.apply(work) }
	})
}

// PodFailed reports that the runtime did not make the sandbox. The kubelet may give the pod up, so it gets its values
// back.
func (e *Engine) PodFailed(uid string) {
	e.tell(func(s *state) func(context.Context) {
		p := s.pods[uid]
		if p == nil {
			return nil
		}
		if s.hasSandbox(uid) {
			if s.live(uid) || !e.freed(s, uid) { // one is left that has ended
				return nil
			}
			return e.keep
		}
		freed := e.freed(s, uid)
		delete(s.pods, uid)
		turn, path, seq := p.turn, p.path, p.seq
		return func(ctx context.Context) {
			if freed {
				e.keep(ctx)
			}
			turn.mu.Lock()
			defer turn.mu.Unlock()
			turn.last = seq + 1
			if path != "" {
				e.outcome("pod files", string(path), e.cfg.Cgroups.Undo(path))
			}
			e.wakeClasses()
		}
	})
}

// PodFacts tells the pod of a sandbox; false for one that the engine does not know.
func (e *Engine) PodFacts(ctx context.Context, sandboxID string) (facts policy.Pod, known bool) {
	_ = e.ask(ctx, func(s *state) func() { // no answer in time is as good as not known
		return func() {
			if p := s.pods[s.sandboxes[sandboxID]]; p != nil {
				facts, known = p.facts, true
			}
		}
	})
	return facts, known
}

// PodResizing says that the kubelet is about to give a pod these resources. A pod of an exclusive tier gets as many CPUs,
// or there is a refusal and nothing changes: the kubelet then gives the resize up for now and says so in the pod's status.
//
// It takes away what of ours would make the kubelet's next write to the pod's own cgroup fail: the kernel refuses
// a quota below the burst. The kubelet writes as soon as its call is answered, so the call waits for this.
func (e *Engine) PodResizing(ctx context.Context, sandboxID string, asks policy.Resources) *policy.Refusal {
	ctx, cancel := context.WithTimeout(ctx, e.lowerBudget())
	defer cancel()
	var w podWork
	var refusal *policy.Refusal
	var placed bool
	err := e.query(ctx, func(s *state) {
		p := s.pods[s.sandboxes[sandboxID]]
		if p == nil {
			return
		}
		if refusal, placed = e.resize(s, p, asks); refusal != nil && e.Enforcing() {
			return
		}
		p.resizes++
		p.resized = s.now
		if burst, ok := p.held[policy.CPUMaxBurst]; ok && burst != "0" && p.path != "" {
			p.seq++
			w = podWork{path: p.path, seq: p.seq, turn: p.turn}
		}
	})
	switch {
	case err != nil:
		return nil
	case refusal != nil && e.Enforcing():
		return refusal
	case placed:
		e.keep(ctx)
	}
	if w.path == "" {
		return nil
	}
	w.turn.mu.Lock()
	defer w.turn.mu.Unlock()
	w.turn.last = max(w.turn.last, w.seq)
	e.whileEnforcing(func() {
		err := e.zero(w.path, []policy.Setting{{Knob: policy.CPUMaxBurst, Level: policy.LevelPod}})
		if err != nil && !over(err) {
			e.cfg.Log.Warn("make way for a resize, which may be refused", "cgroup", w.path, "err", err)
		}
	})
	return nil
}

// PodResized reports that the kubelet is about to write the pod's own cgroup. What PodResizing took away is written
// again after that, unless another resize begins.
func (e *Engine) PodResized(sandboxID string) {
	e.spawn(func() {
		var resizes *uint64
		for _, after := range []time.Duration{0, 200 * time.Millisecond, time.Second, 4 * time.Second} {
			select {
			case <-time.After(after):
			case <-e.closing:
				return
			}
			ctx, cancel := lateContext()
			var work podWork
			err := e.query(ctx, func(s *state) {
				p := s.pods[s.sandboxes[sandboxID]]
				switch {
				case p == nil:
				case resizes == nil:
					resizes = new(p.resizes)
				case p.resizes == *resizes:
					work = e.decidePod(s, p, true)
				}
			})
			if err == nil {
				e.apply(work)
			}
			cancel()
		}
	})
}

// PodRemoved reports that the sandbox is gone. Nobody waits for what is left to clear up.
func (e *Engine) PodRemoved(sandboxID string) {
	e.post(func(s *state) func(context.Context) {
		p := s.dropSandbox(sandboxID)
		if p == nil {
			return nil // unknown, or there is a newer sandbox of the same pod
		}
		freed := e.freed(s, p.facts.UID)
		return func(ctx context.Context) {
			if freed {
				e.keep(ctx)
			}
			e.podGone(p.path)
		}
	})
}

// podGone clears up after a pod, whose cgroup the kubelet has removed or is about to.
func (e *Engine) podGone(path cgroup.Path) {
	if path != "" {
		e.outcome("pod files", string(path), nil)
		e.outcome("journal", string(path), e.cfg.Cgroups.Forget(path))
	}
	e.wakeClasses()
}

// podPath gives the pod's own cgroup, or "" when the parent that the request names is not one that the kubelet made for
// this pod: any other cgroup may be somebody else's.
func podPath(p policy.Pod) cgroup.Path {
	if p.UID == "" || p.CgroupParent == "" {
		return ""
	}
	full, err := cgroup.ParsePath(p.CgroupParent)
	if err != nil {
		return ""
	}
	base := strings.TrimSuffix(path.Base(string(full)), ".slice")
	if base != "pod"+p.UID && !strings.HasSuffix(base, "-pod"+strings.ReplaceAll(p.UID, "-", "_")) {
		return ""
	}
	return full
}

// podWork is what is to be done to a pod's cgroup.
type podWork struct {
	decision policy.Decision
	path     cgroup.Path            // "" for nothing
	held     map[policy.Knob]string // what earlier decisions had written; what the new one does not name is put back
	seq      uint64
	turn     *turn
}

// decidePod decides on the pod's own cgroup anew; the owner goroutine alone calls it. There is work where the decision
// differs from what was written last, or where again says that somebody may have written over it.
func (e *Engine) decidePod(s *state, p *pod, again bool) podWork {
	facts := p.facts
	if len(s.containers[facts.UID]) == 0 {
		facts = p.creating()
	}
	p.decision = e.policy.Load().policy.Pod(e.node(), facts, s.facts(facts.UID))
	if p.path == "" || !e.Enforcing() || len(p.decision.Settings)+len(p.held) == 0 {
		return podWork{decision: p.decision}
	}
	same := len(p.held) == len(p.decision.Settings)
	for _, s := range p.decision.Settings {
		same = same && p.held[s.Knob] == s.Value
	}
	if same && !again && !p.turn.failed.Load() {
		return podWork{decision: p.decision}
	}
	p.seq++
	w := podWork{decision: p.decision, path: p.path, held: maps.Clone(p.held), seq: p.seq, turn: p.turn}
	for _, s := range p.decision.Settings {
		p.held[s.Knob] = s.Value
	}
	return w
}

func find(settings []policy.Setting, k policy.Knob) *policy.Setting {
	for i := range settings {
		if settings[i].Knob == k {
			return &settings[i]
		}
	}
	return nil
}

// apply writes what was decided for a pod, unless a later decision has been written.
func (e *Engine) apply(w podWork) {
	if w.path == "" {
		return
	}
	w.turn.mu.Lock()
	defer w.turn.mu.Unlock()
	if w.seq < w.turn.last {
		return
	}
	w.turn.last = w.seq
	e.whileEnforcing(func() {
		var errs []error
		for _, k := range slices.Sorted(maps.Keys(w.held)) {
			if find(w.decision.Settings, k) == nil {
				errs = append(errs, e.cfg.Cgroups.UndoKnob(w.path, k))
			}
		}
		err := errors.Join(append(errs, e.write(w.path, e.withinQuota(w.path, w.decision.Settings)))...)
		if over(err) {
			err = nil // the pod is being removed
		}
		if err != nil {
			e.cfg.Log.Warn("write pod", "cgroup", w.path, "err", err)
		}
		w.turn.failed.Store(err != nil)
		e.outcome("pod files", string(w.path), err)
	})
	e.wakeClasses()
}

// withinQuota cuts a burst to the quota that stands in the kernel, which is the kubelet's and may be less than the sum over the
// containers: a pod can have a limit of its own.
func (e *Engine) withinQuota(at cgroup.Path, settings []policy.Setting) []policy.Setting {
	i := slices.IndexFunc(settings, func(s policy.Setting) bool { return s.Knob == policy.CPUMaxBurst })
	if i < 0 {
		return settings
	}
	now, err := e.cfg.Cgroups.Read(at, policy.CPUMax)
	if err != nil || !below(now, settings[i].Value) {
		return settings // the write that follows says what is wrong
	}
	quota, _, _ := strings.Cut(now, " ")
	settings = slices.Clone(settings)
	settings[i].Value = quota
	return settings
}

func (e *Engine) wakeClasses() { wake(e.classes) }

// standing is what an earlier decision has written, by cgroup and knob.
type standing map[cgroup.Path]map[policy.Knob]string

// journalled tells what stands in the kernel because of us, an earlier process included.
func (e *Engine) journalled() (standing, error) {
	entries, err := e.cfg.Cgroups.Journal()
	out := standing{}
	for _, entry := range entries {
		if out[entry.Path] == nil {
			out[entry.Path] = map[policy.Knob]string{}
		}
		out[entry.Path][entry.Knob] = entry.New
	}
	return out, err
}

const classPause = 10 * time.Millisecond

// classWorker keeps the cgroups above the pods: a child's memory.low does nothing unless every parent carries at least
// the sum of its children, and batch pods compete with all others through their class.
func (e *Engine) classWorker(ctx context.Context) {
	var written standing // nil until the journal was read
	for {
		select {
		case <-e.classes:
		case <-ctx.Done():
			return
		}
		// Pods come in bursts, and all of them are looked at each time. A runtime takes longer to start a container.
		select {
		case <-time.After(classPause):
		case <-ctx.Done():
			return
		}
		select {
		case <-e.classes:
		default:
		}
		pods := map[string]policy.Decision{}
		if err := e.query(ctx, func(s *state) {
			for _, p := range s.pods {
				if p.path != "" && p.decision.Tier != v1alpha1.None {
					pods[string(p.path)] = p.decision
				}
			}
		}); err != nil {
			continue
		}
		want := e.policy.Load().policy.Classes(e.node(), pods)
		e.whileEnforcing(func() {
			if written == nil {
				all, err := e.journalled()
				e.outcome("journal", "", err)
				maps.DeleteFunc(all, func(p cgroup.Path, _ map[policy.Knob]string) bool { return p.Level() != policy.LevelClass })
				written = all
			}
			for _, p := range slices.Sorted(maps.Keys(want)) {
				if written[cgroup.Path(p)] == nil {
					written[cgroup.Path(p)] = map[policy.Knob]string{}
				}
			}
			for _, p := range slices.Sorted(maps.Keys(written)) {
				err := e.writeClass(p, want[string(p)], written[p])
				if over(err) {
					err = nil // the kubelet has taken the class away
				}
				if err != nil {
					e.cfg.Log.Warn("write class", "cgroup", p, "err", err)
				}
				e.outcome("class files", string(p), err)
				if len(written[p]) == 0 {
					delete(written, p)
				}
			}
		})
	}
}

// writeClass makes one class cgroup have what is wanted, and takes back what no longer is. A memory.low there that is
// neither 0 nor ours is the kubelet's (memoryReservationPolicy TieredReservation): we stay within its sums.
func (e *Engine) writeClass(p cgroup.Path, want []policy.Setting, stands map[policy.Knob]string) error {
	var errs []error
	for _, k := range slices.Sorted(maps.Keys(stands)) {
		if find(want, k) == nil {
			if err := e.cfg.Cgroups.UndoKnob(p, k); err != nil {
				errs = append(errs, err)
				continue // and is tried again
			}
			delete(stands, k)
		}
	}
	var mine []policy.Setting
	for _, s := range want {
		if s.Knob == policy.MemoryLow {
			now, err := e.cfg.Cgroups.Read(p, s.Knob)
			if err == nil && now != "0" && now != stands[s.Knob] {
				delete(stands, s.Knob)
				errs = append(errs, e.cfg.Cgroups.Rebase(p, s.Knob, now), e.cfg.Cgroups.UndoKnob(p, s.Knob))
				continue
			}
		}
		mine = append(mine, s)
		stands[s.Knob] = cgroup.Expect(e.cfg.Cgroups.Version(), s.Knob, s.Value)
	}
	return errors.Join(append(errs, e.write(p, mine))...)
}
