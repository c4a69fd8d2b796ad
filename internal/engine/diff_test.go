package engine_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/engine/enginetest"
	"github.com/tideline-io/tideline/internal/policy"
)

// What a policy is said to change is what it changes, at once and with the next update, and asking changes nothing.
func TestPolicyDiff(t *testing.T) {
	t.Parallel()
	g := &groups{threads: map[int]string{}}
	m := newMachine(t, layouts[1], func(c *engine.Config) { c.Partitions = g })
	m.adopt()
	be := m.pod("be", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("worker"))
	m.run(be)
	_, at := m.make(be, "worker", asks(2, 0, 0))
	ls := m.pod("ls", v1alpha1.LS, "/burstable", v1alpha1.AnnotationRequests, requests("web"))
	m.run(ls)
	_, web := m.make(ls, "web", asks(1024, 100000, gi))
	plain := m.pod("plain", v1alpha1.None, "/burstable")
	m.run(plain)
	m.make(plain, "app", asks(512, 0, 0))
	m.eventually("batch in its group", func() bool { return values(m.container("worker").Decision.Settings)[policy.Resctrl] == "tideline-BE" })

	diff := func(p *policy.Policy) []control.PolicyChange {
		t.Helper()
		changes, err := m.e.PolicyDiff(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return changes
	}
	if got := diff(compile(t, nil)); len(got) != 0 {
		t.Errorf("the same policy changes %+v", got)
	}
	next := compile(t, func(s *v1alpha1.QoSPolicySpec) {
		s.ReservedCPUs = "0"
		s.Rules = []v1alpha1.Rule{{Name: "shop", Match: v1alpha1.Match{Namespaces: []string{"shop"}}, Tier: v1alpha1.LS}}
		b := s.Tiers[v1alpha1.BE]
		b.CPU.Idle, b.IO.Weight, b.OOMScoreAdj, b.Resctrl = new(false), new(int64(20)), new(int64(500)), v1alpha1.ResctrlPolicy{}
		s.Tiers[v1alpha1.BE] = b
		l := s.Tiers[v1alpha1.LS]
		l.Memory.Low = new(v1alpha1.Percent(25))
		s.Tiers[v1alpha1.LS] = l
	})
	got := diff(next)
	pod := func(name, container string, tier, nextTier v1alpha1.Tier, knob policy.Knob, now, next string, when control.When) control.PolicyChange {
		return control.PolicyChange{Namespace: "shop", Pod: name, Container: container, Tier: tier, NextTier: nextTier, Knob: knob, Now: now, Next: next, When: when}
	}
	class := func(path string, knob policy.Knob, now, next string) control.PolicyChange {
		return control.PolicyChange{Class: path, Knob: knob, Now: now, Next: next, When: control.AtOnce}
	}
	const be1, ls1, none = v1alpha1.BE, v1alpha1.LS, v1alpha1.None
	want := []control.PolicyChange{
		pod("pod-be", "", be1, be1, policy.IOWeight, "10", "20", control.AtOnce),
		pod("pod-be", "worker", be1, be1, policy.CPUSetCPUs, "", "1-3", control.AtOnce),
		pod("pod-be", "worker", be1, be1, policy.CPUWeight, "unset", "", control.NextUpdate),
		pod("pod-be", "worker", be1, be1, policy.CPUIdle, "1", "", control.NextUpdate),
		pod("pod-be", "worker", be1, be1, policy.OOMScoreAdj, "900", "500", control.NextContainer),
		pod("pod-be", "worker", be1, be1, policy.Resctrl, "tideline-BE", "", control.AtOnce),
		pod("pod-ls", "", ls1, ls1, policy.MemoryLow, "536870912", "268435456", control.AtOnce),
		pod("pod-ls", "web", ls1, ls1, policy.CPUSetCPUs, "", "1-3", control.AtOnce),
		pod("pod-ls", "web", ls1, ls1, policy.MemoryLow, "536870912", "268435456", control.NextUpdate),
		pod("pod-plain", "", none, ls1, policy.IOWeight, "", "200", control.AtOnce),
		pod("pod-plain", "app", none, ls1, policy.CPUSetCPUs, "", "1-3", control.AtOnce),
		class("/kubepods", policy.MemoryLow, "536870912", "268435456"),
		class("/kubepods/besteffort", policy.IOWeight, "10", "20"),
		class("/kubepods/burstable", policy.MemoryLow, "536870912", "268435456"),
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(control.PolicyChange{}, "Rule")); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}

	m.e.SetPolicy(next, control.PolicyStatus{Name: "next", Generation: 2})
	m.eventually("what changes at once", func() bool {
		return m.file(at, "cpuset.cpus") == "1-3" && m.file(web, "cpuset.cpus") == "1-3" && m.file(cgroup.Path(be.CgroupParent), "io.bfq.weight") == "default 20" &&
			m.file(cgroup.Path(ls.CgroupParent), "memory.low") == "268435456" && m.file("/kubepods", "memory.low") == "268435456" &&
			m.file("/kubepods/besteffort", "io.bfq.weight") == "default 20" && values(m.container("worker").Decision.Settings)[policy.Resctrl] == ""
	})
	for _, c := range diff(next) {
		if c.When == control.AtOnce {
			t.Errorf("still to come: %+v", c)
		}
	}
	m.update("worker", asks(2, 0, 0))
	m.update("web", asks(1024, 100000, gi))
	for _, c := range diff(next) {
		if c.When != control.NextContainer {
			t.Errorf("still to come after an update: %+v", c)
		}
	}
}

// A container that is there is decided on as its next update would: one whose shares a door of ours took out may be idle,
// though its record is lost.
func TestPolicyDiffOfAdopted(t *testing.T) {
	t.Parallel()
	m := newMachine(t, layouts[1], nil)
	p := m.pod("be", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("late"))
	m.rt.AddPod("sbe", p)
	at := cgroup.Path(p.CgroupParent + "/" + id("late"))
	if err := errors.Join(m.k.Make(at), m.k.AddProcess(77, at)); err != nil {
		t.Fatal(err)
	}
	m.rt.Add(enginetest.Container{ID: id("late"), SandboxID: "sbe", Name: "late", PID: 77, Running: true, Resources: asks(0, 0, 0)})
	m.adopt()
	m.update("late", asks(0, 0, 0))
	if c := m.container("late"); c.State != policy.Adopted || values(c.Decision.Settings)[policy.CPUIdle] != "1" {
		t.Fatalf("%s, %+v", c.State, c.Decision.Settings)
	}
	changes, err := m.e.PolicyDiff(t.Context(), compile(t, nil))
	if err != nil || len(changes) != 0 {
		t.Errorf("the same policy changes %+v, %v", changes, err)
	}
}
