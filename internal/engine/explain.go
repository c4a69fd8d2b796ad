package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/policy"
)

// Containers tells every known container, sorted by namespace, pod, name and attempt.
func (e *Engine) Containers(ctx context.Context) ([]control.Container, error) {
	var out []control.Container
	err := e.query(ctx, func(s *state) {
		for c := range s.all() {
			out = append(out, c.view(s.podOf(c)))
		}
	})
	slices.SortFunc(out, func(a, b control.Container) int {
		return strings.Compare(order(a), order(b))
	})
	return out, err
}

func order(c control.Container) string {
	return fmt.Sprintf("%s\x00%s\x00%s\x00%010d", c.Namespace, c.Pod, c.Name, c.Attempt)
}

func (c *container) view(p *pod) control.Container {
	return control.Container{
		ID: c.id, Name: c.key.Name, Attempt: c.key.Attempt, PodUID: c.key.PodUID, Namespace: p.facts.Namespace, Pod: p.facts.Name,
		State: c.state, Asked: c.asked, Decision: c.decision, Cgroup: string(c.path), Error: c.err,
	}
}

// Explain tells what the cgroups of a pod have, from what was wanted to what holds; found is false for a pod that the
// engine does not know.
func (e *Engine) Explain(ctx context.Context, namespace, name string) (out []control.Explained, found bool, err error) {
	var p pod
	var ctrs []control.Container
	if err := e.query(ctx, func(s *state) {
		for uid, q := range s.pods {
			if q.facts.Namespace != namespace || q.facts.Name != name {
				continue
			}
			found, p = true, *q
			for _, c := range s.containers[uid] {
				ctrs = append(ctrs, c.view(q))
			}
		}
	}); err != nil || !found {
		return nil, found, err
	}
	slices.SortFunc(ctrs, func(a, b control.Container) int { return strings.Compare(order(a), order(b)) })
	pd := control.Explained{Level: policy.LevelPod, Cgroup: string(p.path), Decision: p.decision}
	pd.Rows = e.rows(p.path, policy.Resources{}, p.decision, nil)
	out = append(out, pd)
	for _, c := range ctrs {
		x := control.Explained{Level: policy.LevelContainer, Name: c.Name, ID: c.ID, State: c.State, Decision: c.Decision}
		var spec map[policy.Knob]string
		var asked policy.Resources
		if c.Asked != nil {
			asked = *c.Asked
		}
		if c.ID != "" {
			if s, err := e.cfg.Runtime.Spec(ctx, c.ID); err == nil {
				spec = s.Values
				if c.Asked == nil && c.State == policy.Adopted { // nothing of ours is in it
					asked = s.Resources
				}
			}
			if at, err := e.locate(ctx, c.ID); err == nil {
				x.Cgroup = string(at)
			}
		}
		x.Rows = e.rows(cgroup.Path(x.Cgroup), asked, c.Decision, spec)
		out = append(out, x)
	}
	return out, true, nil
}

// rows compares asked, wanted, spec and kernel for every knob that any of them names.
func (e *Engine) rows(at cgroup.Path, asked policy.Resources, d policy.Decision, spec map[policy.Knob]string) []control.Row {
	var out []control.Row
	for _, k := range policy.Knobs() {
		r := control.Row{Knob: k, Asked: asked.Value(k), Spec: spec[k]}
		if s := find(d.Settings, k); s != nil {
			r.Wanted, r.Reason = s.Value, s.Reason
		}
		if at != "" && !k.OfProcess() {
			switch v, err := e.cfg.Cgroups.Read(at, k); {
			case err == nil:
				r.Kernel, r.Effective = v, e.effective(at, k, v)
			case errors.Is(err, fs.ErrNotExist): // this kernel has no such file here
			default:
				r.Kernel = "error: " + err.Error()
			}
		}
		if r.Asked+r.Wanted+r.Spec+r.Kernel != "" {
			out = append(out, r)
		}
	}
	return out
}

// effective tells what a value amounts to below its parents, up to the first kubepods.
func (e *Engine) effective(at cgroup.Path, k policy.Knob, v string) string {
	least, by := v, ""
	for dir := path.Dir(string(at)); dir != "/" && dir != "."; dir = path.Dir(dir) {
		parent, err := e.cfg.Cgroups.Read(cgroup.Path(dir), k)
		if err != nil {
			break
		}
		switch k {
		case policy.MemoryLow, policy.MemoryMax, policy.MemoryHigh:
			if number(parent) < number(least) {
				least, by = parent, dir
			}
		case policy.CPUMax:
			if rate(parent) < rate(least) {
				least, by = parent, dir
			}
		default:
			return v
		}
	}
	switch {
	case by == "":
		return v
	case k == policy.MemoryLow && least == "0":
		return fmt.Sprintf("inert: %s has 0", by)
	default:
		return fmt.Sprintf("%s (limited by %s)", least, by)
	}
}

func number(s string) float64 {
	if n, err := strconv.ParseFloat(s, 64); err == nil {
		return n
	}
	return 1 << 63 // "max"
}

// rate is the CPUs of a cpu.max value.
func rate(s string) float64 {
	quota, period, _ := strings.Cut(s, " ")
	p, err := strconv.ParseFloat(period, 64)
	if err != nil || p <= 0 {
		p = 100000
	}
	return number(quota) / p
}

// Status tells the engine's part of the state of a door.
func (e *Engine) Status(ctx context.Context) (control.Status, error) {
	l := e.policy.Load()
	st := control.Status{Mode: e.cfg.Mode, StartMode: e.cfg.Mode, Policy: l.info}
	if e.Bypassed() {
		st.Mode = control.ModeBypass
	}
	c := &st.Counts
	c.Containers, c.Tiers = map[policy.State]int{}, map[v1alpha1.Tier]int{}
	err := e.query(ctx, func(s *state) {
		for ctr := range s.all() {
			c.Containers[ctr.state]++
			c.Tiers[ctr.decision.Tier]++
		}
	})
	if err != nil {
		return st, err
	}
	n := &e.counts
	c.Decisions, c.Changed, c.Refused, c.FailedOpen = n.decisions.Load(), n.changed.Load(), n.refused.Load(), n.failedOpen.Load()
	c.BadInput, c.Writes, c.WriteFails, c.Repairs = n.badInput.Load(), n.writes.Load(), n.writeFails.Load(), n.repairs.Load()
	st.Cgroup = control.CgroupStatus{Version: e.cfg.Node.CgroupVersion, Features: e.cfg.Node.Features}
	held, err := e.journalled()
	e.outcome("journal", "", err)
	st.Cgroup.Journal = len(held)
	st.Degraded = e.degraded()
	return st, nil
}
