package engine_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/partition"
	"github.com/tideline-io/tideline/internal/policy"
)

// groups is a machine's resctrl: one group a tier, and who is in it.
type groups struct {
	mu      sync.Mutex
	absent  bool
	fail    error
	made    map[string]bool
	threads map[int]string // thread -> group
}

func (g *groups) Keep(_ context.Context, parts []policy.Partition, write bool) (map[v1alpha1.Tier]policy.Group, policy.Feature, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.absent {
		return nil, policy.Feature{Support: policy.Unsupported, Need: "resctrl"}, nil
	}
	out := map[v1alpha1.Tier]policy.Group{}
	want := map[string]bool{}
	for _, p := range parts {
		name := "tideline-" + string(p.Tier)
		out[p.Tier], want[name] = policy.Group{Name: name}, true
	}
	if g.fail != nil {
		return nil, policy.Feature{}, g.fail
	}
	if write {
		g.made = want
	}
	return out, policy.Feature{Support: policy.Supported}, nil
}

func (g *groups) Join(_ context.Context, members []partition.Member) map[string]error {
	failed := map[string]error{}
	for _, m := range members {
		ids, err := m.Threads()
		if err != nil {
			failed[m.ID] = err
			continue
		}
		g.mu.Lock()
		for _, id := range ids {
			g.threads[id] = m.Group
		}
		g.mu.Unlock()
	}
	return failed
}

func (g *groups) Clear(context.Context) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.made)
	g.made = nil
	clear(g.threads)
	return n, nil
}

func (g *groups) names() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.made))
}

func (g *groups) in(id int) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.threads[id]
}

// threaded makes a container with threads.
func (m *machine) threaded(p policy.Pod, name string, ids ...int) cgroup.Path {
	m.t.Helper()
	m.run(p)
	_, at := m.make(p, name, asks(512, 0, 0))
	if err := m.k.SetThreads(at, ids...); err != nil {
		m.t.Fatal(err)
	}
	m.e.Started(id(name))
	return at
}

func TestResctrlGroups(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			g := &groups{threads: map[int]string{}}
			m := newMachine(t, layout, func(c *engine.Config) { c.Partitions = g })
			m.adopt()
			m.threaded(m.pod("be", v1alpha1.BE, "/besteffort"), "batch", 11, 12)
			m.threaded(m.pod("ls", v1alpha1.LS, "/burstable"), "service", 21)
			m.eventually("batch in its group", func() bool { return g.in(11) == "tideline-BE" && g.in(12) == "tideline-BE" })
			if g.in(21) != "" {
				t.Errorf("LS is in %q", g.in(21))
			}
			if got := values(m.container("batch").Decision.Settings)[policy.Resctrl]; got != "tideline-BE" {
				t.Errorf("decided %q", got)
			}

			// A policy that does not limit batch has it in the root group, and one that does has it back.
			free := compile(t, func(s *v1alpha1.QoSPolicySpec) {
				b := s.Tiers[v1alpha1.BE]
				b.Resctrl = v1alpha1.ResctrlPolicy{}
				s.Tiers[v1alpha1.BE] = b
			})
			m.e.SetPolicy(free, control.PolicyStatus{Name: "free", Generation: 2})
			m.eventually("batch in the root group", func() bool { return g.in(11) == "" && len(g.names()) == 0 })
			m.e.SetPolicy(compile(t, nil), control.PolicyStatus{Name: "default", Generation: 3})
			m.eventually("batch in its group again", func() bool { return g.in(11) == "tideline-BE" })

			report, err := m.e.Disable(t.Context())
			if err != nil || report.Groups != 1 || len(report.Errors) > 0 || len(g.names()) != 0 || g.in(11) != "" {
				t.Errorf("disable: %+v, %v, groups %q, batch in %q", report, err, g.names(), g.in(11))
			}
			m.e.SetBypass(false)
			m.eventually("batch in its group after bypass", func() bool { return g.in(11) == "tideline-BE" })
		})
	}
}

// A node gets resctrl while batch runs: mounted late, say. What runs is moved, and a restarted door knows why.
func TestResctrlComesLate(t *testing.T) {
	t.Parallel()
	g := &groups{threads: map[int]string{}, absent: true}
	m := newMachine(t, layouts[1], func(c *engine.Config) { c.Partitions = g })
	m.adopt()
	m.threaded(m.pod("be", v1alpha1.BE, "/besteffort"), "batch", 11)
	said := func() string {
		var b strings.Builder
		for _, n := range m.container("batch").Decision.Notes {
			b.WriteString(n.Message)
		}
		return b.String()
	}
	if !strings.Contains(said(), "resctrl is not supported on this node and not written; it needs resctrl") {
		t.Errorf("notes: %s", said())
	}
	g.mu.Lock()
	g.absent = false
	g.mu.Unlock()
	m.stop()
	m.start()
	m.adopt()
	m.e.Started(id("batch"))
	m.eventually("batch in its group", func() bool { return g.in(11) == "tideline-BE" })
	m.stop()
	m.start()
	m.adopt()
	for _, s := range m.container("batch").Decision.Settings {
		if s.Rule == v1alpha1.AnnotationDecision {
			t.Errorf("%s lost its reason: %q", s.Knob, s.Reason)
		}
	}

	g.mu.Lock()
	g.fail = errors.New("write schemata: odd")
	g.mu.Unlock()
	m.e.SetBypass(true)
	m.e.SetBypass(false)
	m.eventually("the failure told", func() bool { return m.degraded("resctrl groups") })
	if g.in(11) != "tideline-BE" { // a fault moves nothing
		t.Errorf("batch is in %q", g.in(11))
	}
	g.mu.Lock()
	g.fail = nil
	g.mu.Unlock()
	m.e.SetBypass(true)
	m.e.SetBypass(false)
	m.eventually("and that it is over", func() bool { return !m.degraded("resctrl groups") })
}
