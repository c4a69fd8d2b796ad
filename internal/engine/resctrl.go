package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/partition"
	"github.com/tideline-io/tideline/internal/policy"
)

// Partitions is a partition.Keeper. Its methods do I/O, and may be called by several goroutines.
type Partitions interface {
	Keep(ctx context.Context, parts []policy.Partition, write bool) (map[v1alpha1.Tier]policy.Group, policy.Feature, error)
	Join(ctx context.Context, members []partition.Member) map[string]error
	Clear(ctx context.Context) (removed int, err error)
}

// groupsEvery is how often groups and their threads are put right. Threads are made in the group of their parent, so only what
// others do, and what is started while its group is not there, is to be put right.
const groupsEvery = 5 * time.Second

// firstGroups is what the first decision waits for its groups: RMIDs of groups that were removed may be in use for seconds. What
// is not there by then is tried again by the worker.
const firstGroups = 300 * time.Millisecond

// groupWorker keeps the resctrl groups and what runs in them.
func (e *Engine) groupWorker(ctx context.Context) {
	if e.cfg.Partitions == nil {
		return
	}
	tick := time.NewTicker(groupsEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.regroup:
			e.keepGroups(ctx)
		case <-tick.C:
			e.keepGroups(ctx)
		case <-e.joins:
		case <-ctx.Done():
			return
		}
		e.outcome("resctrl threads", "", e.guarded("move threads to their resctrl groups", func() error { return e.join(ctx) }))
	}
}

func (e *Engine) wakeGroups() { wake(e.regroup) }

// setGroups has the groups made before the first decision, where there is resctrl: the birth records of containers are
// compared with what is decided.
func (e *Engine) setGroups(ctx context.Context) {
	if e.cfg.Partitions == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, firstGroups)
	defer cancel()
	groups, feature := e.partition(ctx)
	e.facts.Store(grouped(e.node(), groups, feature))
}

// keepGroups has the groups put right, and all containers looked at.
func (e *Engine) keepGroups(ctx context.Context) {
	groups, feature := e.partition(ctx)
	_ = e.query(ctx, func(s *state) { // or the engine ends
		if n := e.node(); !maps.Equal(n.Groups, groups) || (n.Groups == nil) != (groups == nil) || n.Features[policy.Resctrl] != feature {
			e.facts.Store(grouped(n, groups, feature))
			e.cfg.Log.Info("resctrl groups", "groups", groups, "needs", feature.Need)
		}
		for c := range s.all() {
			s.joining[c.key] = true
		}
	})
}

// partition has the groups of the policy kept. With a fault those stay that there were.
func (e *Engine) partition(ctx context.Context) (groups map[v1alpha1.Tier]policy.Group, feature policy.Feature) {
	parts := e.policy.Load().policy.Partitions()
	err := e.guarded("keep resctrl groups", func() (err error) {
		written := false
		e.whileEnforcing(func() {
			groups, feature, err = e.cfg.Partitions.Keep(ctx, parts, true)
			written = true
		})
		if !written {
			groups, feature, err = e.cfg.Partitions.Keep(ctx, parts, false)
		}
		return err
	})
	e.outcome("resctrl groups", "", err)
	if err != nil && groups == nil { // what there is can't be told at the moment
		return e.node().Groups, e.node().Features[policy.Resctrl]
	}
	return groups, feature
}

func grouped(n policy.Node, groups map[v1alpha1.Tier]policy.Group, feature policy.Feature) *policy.Node {
	n.Groups = groups
	n.Features = maps.Clone(n.Features)
	if n.Features == nil {
		n.Features = map[policy.Knob]policy.Feature{}
	}
	n.Features[policy.Resctrl] = feature
	return &n
}

// enter has a container's threads moved to where they belong.
func (e *Engine) enter(s *state, c *container) {
	if e.cfg.Partitions == nil {
		return
	}
	s.joining[c.key] = true
	wake(e.joins)
}

// joining is one container whose group is to be looked at.
type joining struct {
	key    Key
	id     string
	at     cgroup.Path // "" where it is to be found
	pod    cgroup.Path // "" where it is not known
	wanted *policy.Setting
	had    bool // it is to be in a group of ours as far as was decided before
}

// join has the threads of the containers that are to be looked at in their groups.
func (e *Engine) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lateTimeout) // Disable waits for it
	defer cancel()
	var joins []joining
	if e.query(ctx, func(s *state) {
		loaded, node := e.policy.Load().policy, e.node()
		for k := range s.joining {
			c := s.get(k)
			if c == nil || c.id == "" || c.decision.Tier == v1alpha1.None {
				continue
			}
			p := s.podOf(c)
			j := joining{key: k, id: c.id, at: c.path, pod: p.path, wanted: loaded.Group(node, p.facts), had: find(c.decision.Settings, policy.Resctrl) != nil}
			if j.wanted != nil || j.had {
				joins = append(joins, j)
			}
		}
		clear(s.joining)
	}) != nil || len(joins) == 0 {
		return nil // or the engine ends
	}
	slices.SortFunc(joins, func(a, b joining) int { return cmp.Compare(a.key.String(), b.key.String()) })
	members := make([]partition.Member, len(joins))
	for i := range joins {
		j := &joins[i]
		members[i] = partition.Member{ID: j.id, Threads: func() ([]int, error) { return e.threads(ctx, j) }}
		if j.wanted != nil {
			members[i].Group = j.wanted.Value
		}
	}
	var failed map[string]error
	done := false
	e.whileEnforcing(func() {
		failed = e.cfg.Partitions.Join(ctx, members)
		done = true
	})
	if !done {
		return nil
	}
	_ = e.query(ctx, func(s *state) { // or the engine ends
		for _, j := range joins {
			c, err := s.get(j.key), failed[j.id]
			if c == nil || c.id != j.id {
				e.outcome("resctrl threads", j.id, nil)
				continue
			}
			if over(err) { // it has no threads yet, or none any more
				e.outcome("resctrl threads", j.id, nil)
				continue
			}
			if err != nil {
				e.outcome("resctrl threads", j.id, fmt.Errorf("container %s: %w", clip(c.key.String()), err))
				continue
			}
			e.outcome("resctrl threads", j.id, nil)
			next := *c
			next.path = j.at
			next.decision.Settings = withSetting(c.decision.Settings, policy.Resctrl, j.wanted)
			s.put(&next)
			e.show(&next)
		}
	})
	return nil
}

// threads lists those of a container, which is found first where its cgroup is not known.
func (e *Engine) threads(ctx context.Context, j *joining) (ids []int, err error) {
	if j.at, err = e.cgroupOf(ctx, j.at, j.pod, j.id); err == nil {
		ids, err = e.cfg.Cgroups.Threads(j.at)
	}
	if errors.Is(err, cgroup.ErrGone) {
		j.at = ""
	}
	return ids, err
}
