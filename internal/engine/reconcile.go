package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/policy"
)

// reconcileEvery is how often the files of running containers and pods are compared with what was decided.
const reconcileEvery = 4 * time.Second

// A value that somebody else keeps changing is repaired maxRepairs times within repairWindow, and then left alone for
// leaveFor: two writers that fight help nobody.
const (
	maxRepairs   = 5
	repairWindow = time.Minute
	leaveFor     = 10 * time.Minute
)

// settleAfterResize is how long the kubelet may take to write a pod's cgroup after it said that it will. A burst of ours would
// make that fail.
const settleAfterResize = 6 * time.Second

// reconciler remembers what was repaired. Its worker alone uses it.
type reconciler struct {
	repairs map[repairKey]*repairs
	now     func() time.Time
}

type repairKey struct {
	id   string // of a container
	knob policy.Knob
}

type repairs struct {
	at   []time.Time // within the window
	left time.Time   // when it was left alone; zero for not
}

// may says whether a value may be repaired once more, and counts it.
func (r *reconciler) may(k repairKey) bool {
	now := r.now()
	have := r.repairs[k]
	if have == nil {
		have = &repairs{}
		r.repairs[k] = have
	}
	if !have.left.IsZero() && now.Sub(have.left) < leaveFor {
		return false
	}
	have.left = time.Time{}
	have.at = slices.DeleteFunc(have.at, func(t time.Time) bool { return now.Sub(t) >= repairWindow })
	if len(have.at) >= maxRepairs {
		have.left, have.at = now, nil
		return false
	}
	have.at = append(have.at, now)
	return true
}

// forget drops what is told of containers that are gone.
func (r *reconciler) forget(known map[string]bool) {
	for k := range r.repairs {
		if !known[k.id] {
			delete(r.repairs, k)
		}
	}
}

// watched is one container whose files are to be compared.
type watched struct {
	key      Key
	id       string
	at       cgroup.Path // "" where it is to be found
	pod      cgroup.Path // "" where it is not known
	settings []policy.Setting
}

// reconcileFiles puts right what somebody else has changed, and what a door could not set. The goroutine that moves containers
// to their CPUs calls it, so that neither takes the other's work for somebody else's.
func (e *Engine) reconcileFiles(ctx context.Context, r *reconciler) {
	mode := e.policy.Load().policy.Reconcile()
	if mode != v1alpha1.LoopOn && mode != v1alpha1.LoopDryRun || !e.Enforcing() || !e.Adopted() {
		return
	}
	e.outcome("reconcile", "", e.guarded("compare the files of containers", func() error {
		e.reconcileAll(ctx, r, mode == v1alpha1.LoopOn)
		return nil
	}))
}

// reconcileAll compares every container, and writes what was decided for pods again.
func (e *Engine) reconcileAll(ctx context.Context, r *reconciler, write bool) {
	var all []watched
	var pods []podWork
	known := map[string]bool{}
	if e.query(ctx, func(s *state) {
		for c := range s.all() {
			if c.id == "" || c.before != nil { // not made yet, or the runtime is writing
				continue
			}
			known[c.id] = true
			p := s.podOf(c)
			if settings := e.stands(p, c); len(settings) > 0 {
				all = append(all, watched{key: c.key, id: c.id, at: c.path, pod: p.path, settings: settings})
			}
		}
		if !write {
			return
		}
		for _, p := range s.pods {
			if s.now.Sub(p.resized) > settleAfterResize {
				if w := e.decidePod(s, p, true); w.path != "" {
					pods = append(pods, w)
				}
			}
		}
	}) != nil {
		return // the engine ends
	}
	r.forget(known)
	slices.SortFunc(all, func(a, b watched) int { return cmp.Compare(a.key.String(), b.key.String()) })
	for i := range all {
		if ctx.Err() != nil {
			return
		}
		e.reconcile(ctx, r, &all[i], write)
	}
	for _, w := range pods {
		e.apply(w) // which has the classes looked at, too
	}
}

// stands gives the settings that the files of a container are to show. A container that is none of ours yet is repaired as far as
// its stored spec allows: its CPUs and cpu.max.
func (e *Engine) stands(p *pod, c *container) []policy.Setting {
	settings := c.decision.Settings
	if !c.changed && c.decision.Tier != v1alpha1.None {
		if c.asked == nil { // what it was asked is not known, and neither is what to set
			return nil
		}
		d := c.decide(e.policy.Load().policy, e.node(), p.facts, *c.asked)
		if d.Refusal != nil {
			return nil
		}
		settings = d.Settings
	}
	var out []policy.Setting
	if c.cpus != "" {
		out = append(out, policy.Setting{Knob: policy.CPUSetCPUs, Level: policy.LevelContainer, Value: c.cpus})
	}
	for _, s := range settings {
		switch {
		case s.Knob.OfProcess(), s.Knob == policy.CPUWeight && s.Value == policy.Unset:
		case s.Knob == policy.CPUSetCPUs, s.Knob == policy.CPUSetMems: // one is below, the other would move pages
		case c.changed, s.Knob == policy.CPUMax:
			out = append(out, s)
		}
	}
	return out
}

// reconcile compares one container, and repairs it.
func (e *Engine) reconcile(ctx context.Context, r *reconciler, w *watched, write bool) {
	if w.at == "" && w.pod == "" {
		return // the runtime is not asked for it: it is looked up once it is written to
	}
	var err error
	if w.at, err = e.cgroupOf(ctx, w.at, w.pod, w.id); err != nil {
		return // it does not run
	}
	drifts, err := e.cfg.Cgroups.Drift(w.at, w.settings)
	if errors.Is(err, cgroup.ErrGone) {
		err = nil
	}
	e.outcome("reconcile", w.id, err)
	var repair []policy.Setting
	look := false
	var left []string
	for _, d := range drifts {
		s := find(w.settings, d.Knob)
		switch {
		case !write:
			e.cfg.Log.Info("would repair", "container", clip(w.key.String()), "knob", d.Knob, "has", d.Old, "want", d.New)
			continue
		case d.Knob == policy.MemoryMax && lowers(d.Old, d.New):
			left = append(left, fmt.Sprintf("%s is %s, decided %s: a lower limit could end its processes, so it waits for the next update", d.Knob, d.Old, d.New))
			continue
		case !r.may(repairKey{w.id, d.Knob}):
			left = append(left, fmt.Sprintf("%s is %s, decided %s: somebody keeps writing it, so it is left for %v", d.Knob, d.Old, d.New, leaveFor))
			continue
		case d.Knob == policy.CPUSetCPUs:
			look = true
		default:
			repair = append(repair, *s)
		}
		e.counts.repairs.Add(1)
		e.cfg.Log.Warn("repair", "container", clip(w.key.String()), "knob", d.Knob, "has", d.Old, "want", d.New)
	}
	var drift error
	if len(left) > 0 {
		drift = fmt.Errorf("container %s: %s", clip(w.key.String()), strings.Join(left, "; "))
	}
	e.outcome("drift", w.id, drift)
	if len(repair) > 0 && e.same(ctx, w) {
		e.whileEnforcing(func() { err = e.write(w.at, repair) })
		if over(err) {
			err = nil
		}
		e.outcome("container files", w.id, err)
	}
	if look {
		_ = e.query(ctx, func(s *state) { // or the engine ends
			if c := s.byID(w.id); c != nil && c.id == w.id {
				e.look(s, c)
			}
		})
	}
}

// same says whether what was read is still what was decided: an update may have come meanwhile.
func (e *Engine) same(ctx context.Context, w *watched) (same bool) {
	_ = e.query(ctx, func(s *state) { // or the engine ends
		c := s.byID(w.id)
		if c == nil || c.id != w.id || c.before != nil {
			return
		}
		now := e.stands(s.podOf(c), c)
		same = slices.EqualFunc(now, w.settings, func(a, b policy.Setting) bool { return a.Knob == b.Knob && a.Value == b.Value })
	})
	return same
}

// lowers says whether a memory limit gets smaller.
func lowers(from, to string) bool {
	if to == "max" {
		return false
	}
	a, aerr := strconv.ParseInt(from, 10, 64)
	b, berr := strconv.ParseInt(to, 10, 64)
	return from == "max" || aerr == nil && berr == nil && b < a
}
