package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

// Running containers follow the pools and the placements by their files alone: an update through the runtime costs a
// process each, and sends all that is stored. What the runtime stores meets the kernel again with the next update, which
// is decided anew.

// How long the worker waits before it tries again what failed.
const minPoolRetry, maxPoolRetry = time.Second, 30 * time.Second

// reapEvery is how often it is looked whether pods that own CPUs are still there.
const reapEvery = 2 * time.Second

// reap takes the CPUs of pods back whose cgroup the kubelet has removed, seen twice. A runtime may keep the end of a sandbox
// to itself: containerd 2.4 tells plugins of no sandbox that is older than its own start. It gives those that were missing.
func (e *Engine) reap(ctx context.Context, missing map[string]bool) map[string]bool {
	paths := map[string]cgroup.Path{}
	if e.query(ctx, func(s *state) {
		for uid := range s.cpus.placed {
			if p := s.pods[uid]; p != nil && p.path != "" {
				paths[uid] = p.path
			}
		}
	}) != nil {
		return nil
	}
	now := map[string]bool{}
	for uid, at := range paths {
		_, err := e.cfg.Cgroups.Read(at, policy.CPUSetCPUs)
		if !errors.Is(err, cgroup.ErrGone) {
			continue
		}
		now[uid] = true
		if missing[uid] {
			e.post(func(s *state) func(context.Context) {
				for id, of := range s.sandboxes {
					if of == uid {
						s.ended[id] = true
					}
				}
				if e.freed(s, uid) {
					return e.keep
				}
				return nil
			})
		}
	}
	return now
}

func (e *Engine) wakePools() { wake(e.moves) }

// poolWorker keeps cpuset.cpus of running containers, and compares their files with what was decided.
func (e *Engine) poolWorker(ctx context.Context) {
	retry := minPoolRetry
	again := time.NewTimer(0)
	<-again.C
	defer again.Stop()
	look := time.NewTicker(reapEvery)
	defer look.Stop()
	compare := time.NewTicker(reconcileEvery)
	defer compare.Stop()
	drifts := &reconciler{repairs: map[repairKey]*repairs{}, now: e.cfg.Clock}
	missing := map[string]bool{}
	for {
		select {
		case <-look.C:
			missing = e.reap(ctx, missing)
			continue
		case <-compare.C:
			e.reconcileFiles(ctx, drifts)
			continue
		case <-e.moves:
			retry = minPoolRetry
		case <-again.C:
		case <-ctx.Done():
			return
		}
		failed := false
		err := e.guarded("move containers to their CPUs", func() (err error) {
			failed, err = e.move(ctx)
			return err
		})
		e.outcome("container CPUs", "", err)
		if failed || err != nil {
			again.Reset(retry)
			retry = min(2*retry, maxPoolRetry)
		}
	}
}

// move is one container whose cpuset is to be looked at.
type move struct {
	key    Key
	id     string
	at     cgroup.Path // "" where it is to be found
	pod    cgroup.Path // "" where it is not known
	wanted *policy.Setting
	mems   *policy.Setting // nil: its memory nodes stay
	now    string
	err    error
}

// wants gives what the cpuset of a container is to be by a file; nil for what stood there before us. more is false where
// that is known to be so.
func (e *Engine) wants(s *state, c *container) (m move, more bool) {
	p := s.podOf(c)
	switch {
	case c.id == "" || c.before != nil: // not made yet, or an update is under way and looks itself
		return m, false
	case c.decision.Tier == v1alpha1.None && c.asked == nil && !c.changed: // the kubelet may have asked for a part
		return m, false
	}
	loaded, node := e.policy.Load().policy, e.node()
	m = move{key: c.key, id: c.id, at: c.path, pod: p.path}
	m.wanted = loaded.CPUSet(node, p.facts, policy.Container{Name: c.key.Name, State: c.state, Asked: c.lastAsked()})
	// What a message or the kubelet has set since is not in the journal, which knows what stood there before our first file.
	if m.wanted == nil && (c.stored != "" || c.filed && c.lastAsked().CPUSetCPUs != "") {
		m.wanted = &policy.Setting{Knob: policy.CPUSetCPUs, Level: policy.LevelContainer, Rule: "asked", Reason: "no longer decided: back to what was asked"}
		m.wanted.Value = policy.Neutral(node, *m.wanted, c.lastAsked())
	}
	if a, ok := s.cpus.placed[c.key.PodUID]; ok && loaded.MigratesMemory(a.Tier) && find(c.decision.Settings, policy.CPUSetMems) != nil && s.cpus.mems(a) != "" {
		m.mems = &policy.Setting{Knob: policy.CPUSetMems, Level: policy.LevelContainer, Value: s.cpus.mems(a), Rule: "tiers." + string(a.Tier) + ".cpu.memoryMigration", Reason: "follows the pod's CPUs"}
	}
	switch {
	case m.wanted == nil:
		return m, c.filed
	case m.mems != nil && find(c.decision.Settings, policy.CPUSetMems).Value != m.mems.Value:
		return m, true
	}
	return m, m.wanted.Value != c.cpus
}

// move writes what differs: first what widens and then what narrows, so that a container that grows does not wait for
// those that make way, and a failure leaves nobody without CPUs. It says whether anything is to be tried again.
func (e *Engine) move(ctx context.Context) (failed bool, err error) {
	if !e.Enforcing() {
		return false, nil
	}
	var moves []move
	if err := e.query(ctx, func(s *state) {
		for k := range s.cpus.moving {
			if c := s.get(k); c != nil {
				if m, more := e.wants(s, c); more {
					moves = append(moves, m)
				}
			}
		}
		clear(s.cpus.moving)
	}); err != nil {
		return false, nil //nolint:nilerr // the engine ends
	}
	slices.SortFunc(moves, func(a, b move) int { return cmp.Compare(a.key.String(), b.key.String()) })
	var narrow []*move
	for i := range moves {
		m := &moves[i]
		e.findMove(ctx, m)
		if m.err == nil && m.wanted != nil && !widens(m.now, m.wanted.Value) {
			narrow = append(narrow, m)
			continue
		}
		e.carryOut(m)
	}
	for _, m := range narrow {
		e.carryOut(m)
	}
	return e.moved(ctx, moves), nil
}

// findMove looks where the container is and what it has. That needs no call of the runtime where the pod's cgroup is known.
func (e *Engine) findMove(ctx context.Context, m *move) {
	if m.at, m.err = e.cgroupOf(ctx, m.at, m.pod, m.id); m.err == nil {
		m.now, m.err = e.cfg.Cgroups.Read(m.at, policy.CPUSetCPUs)
	}
}

// cgroupOf finds the cgroup of a container that may run: at where it is known, below its pod's where that is, else by its first
// process, which the runtime is asked for.
func (e *Engine) cgroupOf(ctx context.Context, at, pod cgroup.Path, id string) (cgroup.Path, error) {
	switch {
	case at != "":
		return at, nil
	case pod != "":
		return e.cfg.Cgroups.Find(pod, id)
	}
	return e.locate(ctx, id)
}

// widens says whether a cpuset only gets CPUs. The empty one of cgroup v2 stands for all.
func widens(from, to string) bool {
	a, aerr := units.ParseCPUs(from)
	b, berr := units.ParseCPUs(to)
	return aerr == nil && berr == nil && !a.IsEmpty() && a.IsSubsetOf(b)
}

func (e *Engine) carryOut(m *move) {
	if m.err != nil {
		return
	}
	e.whileEnforcing(func() {
		switch {
		case m.wanted == nil:
			m.err = e.cfg.Cgroups.UndoKnob(m.at, policy.CPUSetCPUs)
		case m.now != m.wanted.Value:
			m.err = e.write(m.at, []policy.Setting{*m.wanted})
		}
		if m.mems != nil && m.err == nil {
			m.err = e.write(m.at, []policy.Setting{*m.mems})
		}
	})
}

// moved puts down how it went.
func (e *Engine) moved(ctx context.Context, moves []move) (failed bool) {
	_ = e.query(ctx, func(s *state) { // or the engine ends
		for _, m := range moves {
			c := s.byID(m.id)
			if c == nil || c.id != m.id || c.before != nil {
				continue // gone, or decided anew meanwhile
			}
			switch {
			case errors.Is(m.err, cgroup.ErrGone) && m.at == "", errors.Is(m.err, ErrNotRunning), errors.Is(m.err, ErrNotFound):
				c.cpus, c.filed = m.value(), false // it has no cgroup yet, and its start is told; or none any more
				e.outcome("container CPUs", m.id, nil)
				continue
			case errors.Is(m.err, cgroup.ErrGone):
				c.path, failed = "", true // it has ended, or its process was made anew
				s.cpus.moving[c.key] = true
				continue
			case m.err != nil:
				failed = true
				s.cpus.moving[c.key] = true
				e.cfg.Log.Warn("move container", "container", clip(c.key.String()), "err", m.err)
				e.outcome("container CPUs", m.id, fmt.Errorf("container %s keeps CPUs %s: %w", clip(c.key.String()), cmp.Or(m.now, "all"), m.err))
				continue
			}
			e.outcome("container CPUs", m.id, nil)
			next := *c
			next.path, next.cpus, next.filed = m.at, m.value(), m.wanted != nil && (c.filed || m.now != m.wanted.Value)
			next.decision.Settings = withSetting(c.decision.Settings, policy.CPUSetCPUs, m.wanted)
			if m.mems != nil {
				next.decision.Settings = withSetting(next.decision.Settings, policy.CPUSetMems, m.mems)
			}
			s.put(&next)
			e.show(&next)
			if again, more := e.wants(s, &next); more && again.value() != m.value() {
				e.look(s, &next) // the pools changed meanwhile
			}
		}
	})
	return failed
}

func (m *move) value() string {
	if m.wanted == nil {
		return ""
	}
	return m.wanted.Value
}

// withSetting gives settings with another one for a knob, or none.
func withSetting(settings []policy.Setting, k policy.Knob, s *policy.Setting) []policy.Setting {
	out := slices.DeleteFunc(slices.Clone(settings), func(s policy.Setting) bool { return s.Knob == k })
	if s != nil {
		out = append(out, *s)
		order := policy.Knobs()
		slices.SortStableFunc(out, func(a, b policy.Setting) int {
			return cmp.Compare(slices.Index(order, a.Knob), slices.Index(order, b.Knob))
		})
	}
	return out
}

// look has the cpuset of a container read again: somebody may have written it.
func (e *Engine) look(s *state, c *container) {
	c.cpus = ""
	if s.cpus.machine != nil {
		s.cpus.moving[c.key] = true
		e.wakePools()
	}
}
