package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/policy"
)

// settleTime is what Disable waits for calls that were decided on before it.
const settleTime = 10 * time.Second

// Disable turns bypass on and takes every value of ours back: what the kubelet asked goes into the runtime's stored
// spec again, so that no later update brings a value of ours back, and files that nobody asks for get from the journal
// what stood there. It goes on after a failure, and may be called again.
func (e *Engine) Disable(ctx context.Context) (control.DisableReport, error) {
	e.bypass.Store(true)
	e.gate.Lock()   // whoever was writing has written, and whoever comes sees the bypass
	e.gate.Unlock() //nolint:staticcheck // nothing is to be done under it
	var report control.DisableReport
	var errs []error
	if err := e.readRuntime(ctx); err != nil { // containers may be known to the runtime alone
		errs = append(errs, err)
	}
	journal, err := e.journalled()
	if err != nil {
		e.outcome("journal", "", err) // UndoAll tells it too
	}
	tried := map[string]bool{}
	for deadline := time.Now().Add(settleTime); ; {
		held, pending, err := e.held(ctx)
		if err != nil {
			return report, fmt.Errorf("disable: %w", err)
		}
		for _, c := range held {
			if tried[c.id] {
				continue
			}
			tried[c.id] = true
			path, err := e.release(ctx, c)
			report.Restored += len(journal[path])
			if err != nil {
				errs = append(errs, fmt.Errorf("container %s: %w", c.key, err))
				continue
			}
			report.Updated++
		}
		if pending == 0 || ctx.Err() != nil {
			break
		}
		if time.Now().After(deadline) {
			errs = append(errs, fmt.Errorf("%d calls that were decided on before have not ended within %v: disable again", pending, settleTime))
			break
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	back, err := e.cfg.Cgroups.UndoAll(ctx)
	report.Restored += len(back.Restored)
	errs = append(errs, err)
	if e.cfg.Partitions != nil {
		removed, err := e.cfg.Partitions.Clear(ctx)
		report.Groups += removed
		errs = append(errs, err)
	}
	for _, err := range errs {
		if err != nil {
			report.Errors = append(report.Errors, err.Error())
		}
	}
	return report, nil
}

// held gives the containers that the runtime stores values of ours for, and counts those that a call under way may yet
// bring some.
func (e *Engine) held(ctx context.Context) (held []container, pending int, err error) {
	err = e.query(ctx, func(s *state) {
		for c := range s.all() {
			switch {
			case !c.changed:
			case c.id == "" || c.before != nil:
				pending++
			default:
				held = append(held, *c)
			}
		}
	})
	slices.SortFunc(held, func(a, b container) int { return cmp.Compare(a.key.String(), b.key.String()) })
	return held, pending, err
}

// release takes back what one container has, and tells its cgroup where the journal of it was used up. Its stored spec
// holds shares from here on, so it counts as adopted.
func (e *Engine) release(ctx context.Context, c container) (cgroup.Path, error) {
	var back, first []policy.Setting
	for _, s := range c.decision.Settings {
		if s.Knob == policy.CPUIdle || s.Knob == policy.CPUMaxBurst {
			first = append(first, s)
		}
		if v := policy.Neutral(e.node(), s, c.lastAsked()); v != "" {
			s.Value = v
			back = append(back, s)
		}
	}
	path, err := e.locate(ctx, c.id)
	if err == nil {
		// The kernel refuses a weight while idle is 1, and a quota below the burst; both come before the update.
		err = errors.Join(e.cfg.Cgroups.Undo(path), e.zero(path, first))
	}
	if over(err) {
		path, err = "", nil // it does not run: there are no files, but what is stored may start yet
	}
	if len(back) > 0 {
		uerr := e.cfg.Runtime.Update(ctx, c.id, back)
		if errors.Is(uerr, ErrNoUpdates) && path != "" {
			uerr = fmt.Errorf("what was asked is in the files again, and the next update of the kubelet brings values of ours back until the container is made anew: %w",
				errors.Join(e.write(path, back), e.cfg.Cgroups.Forget(path), uerr))
		}
		if uerr != nil && !errors.Is(uerr, ErrNotFound) {
			return "", errors.Join(err, uerr)
		}
	}
	if err != nil {
		return "", err
	}
	c.state, c.changed, c.unweighted, c.decision = policy.Adopted, false, false, policy.Decision{Tier: c.decision.Tier, Source: c.decision.Source}
	c.stored, c.cpus, c.filed = "", "", false
	var rec *Record
	if err := e.query(ctx, func(s *state) {
		if now := s.get(c.key); now != nil && now.id == c.id {
			s.put(&c)
			e.hide(c.id)
			r := c.record(s.podOf(&c))
			rec = &r
		}
	}); err != nil {
		return path, err
	}
	if rec != nil {
		if err := e.records.write(*rec); err != nil {
			return path, err
		}
	}
	if path == "" {
		return "", nil
	}
	return path, e.cfg.Cgroups.Forget(path) // all that is journalled since is our 0 over our own value
}
