package engine_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/apply/nri"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/engine/enginetest"
	"github.com/tideline-io/tideline/internal/policy"
)

var errTest = errors.New("test")

func container(name, sandbox string) enginetest.Container {
	return enginetest.Container{ID: id(name), SandboxID: sandbox, Name: name, Running: true}
}

func (m *machine) update(name string, asks policy.Resources) engine.Plan {
	m.t.Helper()
	plan, err := m.e.Update(m.t.Context(), id(name), asks)
	if err != nil {
		m.t.Fatal(err)
	}
	return plan
}

func idleOff(spec *v1alpha1.QoSPolicySpec) {
	tp := spec.Tiers[v1alpha1.BE]
	tp.CPU.Idle = new(false)
	spec.Tiers[v1alpha1.BE] = tp
}

// The CPU manager sends nothing but a cpuset: the rest is as it was asked before, and shares are never sent to a
// container that is idle.
func TestUpdateOfIdleContainer(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, nil)
			p := m.pod("a", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("a"))
			m.run(p)
			created, at := m.make(p, "a", asks(2, 0, 0))
			for _, r := range []policy.Resources{{CPUSetCPUs: "0-1"}, asks(512, 0, 0)} {
				plan := m.update("a", r)
				if d := cmp.Diff(values(created.Apply), values(plan.Apply)); d != "" {
					t.Errorf("-created +updated:\n%s", d)
				}
				m.carry(at, plan.Apply)
				m.e.Updated(plan, true)
			}
			m.want(at, "cpu.idle", "1")
			want := asks(512, 0, 0)
			want.CPUSetCPUs = "0-1"
			if d := cmp.Diff(want, m.e.View(id("a")).Asked); d != "" {
				t.Errorf("shown, -want +got:\n%s", d)
			}
		})
	}
}

// runc writes a quota before the burst, and the kernel refuses a quota below the burst.
func TestUpdateLowersBurst(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, nil)
			p := m.pod("a", v1alpha1.LS, "/burstable")
			m.run(p)
			_, at := m.make(p, "a", asks(1024, 200000, 0))
			burst, quota := m.name("cpu.cfs_burst_us", "cpu.max.burst"), m.name("cpu.cfs_quota_us", "cpu.max")
			if err := m.k.Set(at, quota, "200000"); err != nil {
				t.Fatal(err)
			}
			m.want(at, burst, "200000")
			m.want(cgroup.Path(p.CgroupParent), burst, "200000")

			writes := len(m.k.Writes())
			plan := m.update("a", policy.Resources{CPUSetCPUs: "0-3"})
			m.carry(at, plan.Apply)
			m.e.Updated(plan, true)
			plan = m.update("a", asks(0, 300000, 0))
			if got := m.k.Writes()[writes:]; len(got) > 0 {
				t.Errorf("an update that the burst is not in the way of wrote %v", got)
			}
			m.set(at, quota, "300000")
			m.carry(at, plan.Apply)
			m.e.Updated(plan, true)
			m.want(at, burst, "300000")

			plan = m.update("a", asks(0, 50000, 0))
			if got := m.file(at, burst); got != "0" {
				t.Errorf("burst = %s when the update is forwarded", got)
			}
			m.e.Updated(plan, false) // the runtime refuses: all is as before
			m.want(at, burst, "300000")
			if v := m.e.View(id("a")); *v.Asked.CPUQuota != 300000 {
				t.Errorf("asked %d after a failed update", *v.Asked.CPUQuota)
			}

			plan = m.update("a", asks(0, 50000, 0))
			m.set(at, quota, "50000")
			m.carry(at, plan.Apply)
			m.e.Updated(plan, true)
			m.want(at, burst, "50000")

			// What was put aside is not what an undo brings back.
			report, err := m.e.Disable(t.Context())
			if err != nil || len(report.Errors) > 0 {
				t.Fatalf("%+v, %v", report, err)
			}
			m.want(at, burst, "0")
		})
	}
}

// set writes a file as the kubelet or the runtime does.
func (m *machine) set(at cgroup.Path, file, value string) {
	m.t.Helper()
	if err := m.k.Set(at, file, value); err != nil {
		m.t.Fatal(err)
	}
}

// A policy that changes reaches a container with its next update: knobs that are gone go back to what was asked.
func TestPolicyReload(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, nil)
			p := m.pod("a", v1alpha1.BE, "/besteffort")
			m.run(p)
			_, at := m.make(p, "a", asks(2, 0, 0))
			m.want(at, "cpu.idle", "1")
			m.e.SetPolicy(compile(t, idleOff), control.PolicyStatus{Generation: 2})
			plan := m.update("a", policy.Resources{CPUSetCPUs: "0"})
			want := map[policy.Knob]string{policy.CPUIdle: "0", policy.CPUWeight: "2", policy.OOMScoreAdj: "900"}
			if d := cmp.Diff(want, values(plan.Apply)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if got := m.file(at, "cpu.idle"); got != "0" {
				t.Errorf("cpu.idle = %s while the weight is written", got)
			}
			m.carry(at, plan.Apply)
			m.e.Updated(plan, true)
			m.want(at, "cpu.idle", "0")

			// Shares are stored from here on, so idle does not come back.
			m.e.SetPolicy(compile(t, nil), control.PolicyStatus{Generation: 3})
			plan = m.update("a", policy.Resources{CPUSetCPUs: "0-1"})
			if v := values(plan.Apply); v[policy.CPUIdle] != "" || v[policy.CPUWeight] != "" || v[policy.OOMScoreAdj] != "900" {
				t.Errorf("idle over stored shares: %v", v)
			}
			m.e.Updated(plan, true)
			if v := m.e.View(id("a")); v == nil {
				t.Error("the kubelet is shown our oom_score_adj")
			}
		})
	}
}

// A rule that makes a tier of what was created without one meets stored shares too.
func TestPolicyReloadOfUntiered(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.None, "/besteffort")
	m.run(p)
	m.make(p, "a", asks(2, 0, 0))
	m.e.SetPolicy(compile(t, func(spec *v1alpha1.QoSPolicySpec) {
		spec.Rules = append(spec.Rules, v1alpha1.Rule{Name: "all", Match: v1alpha1.Match{Namespaces: []string{"shop"}}, Tier: v1alpha1.BE})
	}), control.PolicyStatus{})
	plan := m.update("a", policy.Resources{CPUSetCPUs: "0"})
	if v := values(plan.Apply); v[policy.CPUIdle] != "" {
		t.Errorf("idle over stored shares: %v", v)
	}
}

// Two updates at once: the end of the first does not disturb the second.
func TestUpdatesAtOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.LS, "/burstable")
	m.run(p)
	m.make(p, "a", asks(1024, 100000, 0))
	first := m.update("a", asks(0, 200000, 0))
	second := m.update("a", policy.Resources{CPUSetCPUs: "0"})
	m.e.Updated(first, true)
	m.e.Updated(second, false)
	if a := m.e.View(id("a")).Asked; *a.CPUQuota != 200000 || a.CPUSetCPUs != "" {
		t.Errorf("asked %+v", a)
	}
	first = m.update("a", asks(0, 300000, 0))
	second = m.update("a", policy.Resources{CPUSetCPUs: "0"})
	m.e.Updated(first, false)
	m.e.Updated(second, false)
	if a := m.e.View(id("a")).Asked; *a.CPUQuota != 200000 || a.CPUSetCPUs != "" {
		t.Errorf("asked %+v", a)
	}
	if report, err := m.e.Disable(t.Context()); err != nil || len(report.Errors) > 0 || report.Updated != 1 {
		t.Errorf("an update seems to be under way still: %+v, %v", report, err)
	}
}

// People name containers by the beginning of an ID.
func TestShortIDs(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort")
	m.run(p)
	m.make(p, "abcdefgh", asks(2, 0, 0))
	m.make(p, "abcdefgi", asks(2, 0, 0))
	for short, found := range map[string]bool{"abcdefgh": true, "abcdefgh00": true, "abcdefg": false, "": false, "zzzzzzzz": false} {
		plan, err := m.e.Update(t.Context(), short, asks(512, 0, 0))
		if err != nil || plan.Changes() != found {
			t.Errorf("%q: %+v, %v", short, plan, err)
		}
		m.e.Updated(plan, true)
	}
	m.rt.Remove(id("abcdefgh"))
	m.e.Removed("abcdefgh")
	m.eventually("removal", func() bool { return m.container("abcdefgh") == nil && m.e.View(id("abcdefgh")) == nil })
}

// An I/O priority is the creation's: no update decides another one, and a door that can't carry one decides none and has
// no trouble with what another door has set.
func TestIOPriority(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			nriDoor := true
			m := newMachine(t, layout, func(cfg *engine.Config) {
				if nriDoor {
					cfg.Carries = func(k policy.Knob) bool { return nri.Carries(cfg.Node.CgroupVersion, k) }
				}
			})
			p := m.pod("a", v1alpha1.BE, "/besteffort")
			m.run(p)
			const lowest = "best-effort:7"
			plan, _ := m.make(p, "a", asks(2, 0, 0))
			if v := values(plan.Apply)[policy.IOPriority]; v != lowest {
				t.Errorf("created with %q", v)
			}
			m.e.SetPolicy(compile(t, func(s *v1alpha1.QoSPolicySpec) {
				be := s.Tiers[v1alpha1.BE]
				be.IO.Priority = v1alpha1.IOPriorityIdle
				s.Tiers[v1alpha1.BE] = be
			}), control.PolicyStatus{Generation: 2})
			plan = m.update("a", asks(512, 0, 0))
			m.e.Updated(plan, true)
			if v := values(plan.Decision.Settings)[policy.IOPriority]; v != lowest {
				t.Errorf("updated: %q, which no update can set", v)
			}

			nriDoor = false
			m.stop()
			m.start()
			m.adopt()
			m.e.Updated(m.update("a", asks(1024, 0, 0)), true)
			if v := values(m.container("a").Decision.Settings)[policy.IOPriority]; v != lowest {
				t.Errorf("behind the other door: %q", v)
			}
			plan, _ = m.make(p, "b", asks(2, 0, 0))
			if v := values(plan.Apply)[policy.IOPriority]; v != "" {
				t.Errorf("created with %q by a door that can't carry it", v)
			}
			if !slices.ContainsFunc(plan.Decision.Notes, func(n policy.Note) bool { return n.Code == policy.NoteUnsupported && n.Knob == policy.IOPriority }) {
				t.Errorf("no note: %+v", plan.Decision.Notes)
			}
			// What only a door that can't carry it has made gets none from an update through the other one either.
			nriDoor = true
			m.stop()
			m.start()
			m.adopt()
			plan = m.update("b", asks(512, 0, 0))
			m.e.Updated(plan, true)
			if v := values(plan.Decision.Settings)[policy.IOPriority]; v != "" {
				t.Errorf("updated: %q", v)
			}
			rows, _, err := m.e.Explain(t.Context(), p.Namespace, p.Name)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range rows {
				for _, r := range x.Rows {
					if r.Knob.OfProcess() && r.Kernel != "" {
						t.Errorf("explain reads %s from a cgroup: %+v", r.Knob, r)
					}
				}
			}
			if report, err := m.e.Disable(t.Context()); err != nil || len(report.Errors) > 0 {
				t.Errorf("disable: %+v, %v", report, err)
			}
			if st := m.status(); len(st.Degraded) > 0 || st.Counts.WriteFails > 0 {
				t.Errorf("%+v, %d writes failed", st.Degraded, st.Counts.WriteFails)
			}
		})
	}
}
