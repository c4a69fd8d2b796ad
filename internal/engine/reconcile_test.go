package engine_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/engine/enginetest"
	"github.com/tideline-io/tideline/internal/policy"
)

// spoil writes a value as somebody else does.
func (m *machine) overwrite(at cgroup.Path, file, value string) {
	m.t.Helper()
	if err := m.k.Set(at, file, value); err != nil {
		m.t.Fatalf("write %s of %s: %v", file, at, err)
	}
}

func loops(mode v1alpha1.LoopMode) func(*v1alpha1.QoSPolicySpec) {
	return func(s *v1alpha1.QoSPolicySpec) {
		s.Loops.Reconcile, s.ReservedCPUs = mode, "0"
	}
}

// What somebody else writes to a container or a pod is put right, and nothing that is not decided is touched.
func TestReconcile(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, func(c *engine.Config) { c.Policy = compile(t, loops(v1alpha1.LoopOn)) })
			m.adopt()
			p := m.pod("be", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("app"))
			m.run(p)
			_, at := m.make(p, "app", asks(2, 0, 0))
			pod := cgroup.Path(p.CgroupParent)
			limit := m.name("memory.limit_in_bytes", "memory.max")
			m.eventually("the CPUs of the pool", func() bool { return m.file(at, "cpuset.cpus") == "1-3" })
			quota, period := m.file(at, m.name("cpu.cfs_quota_us", "cpu.max")), m.name("-1", "max 100000")
			memory, weight := m.file(at, limit), m.file(pod, m.name("blkio.bfq.weight", "io.bfq.weight"))

			m.overwrite(at, "cpuset.cpus", "0-3")
			m.overwrite(at, m.name("cpu.cfs_quota_us", "cpu.max"), period)
			m.overwrite(at, "cpu.idle", "0")
			m.overwrite(pod, m.name("blkio.bfq.weight", "io.bfq.weight"), "77")
			m.eventually("container and pod have what was decided", func() bool {
				return m.file(at, "cpuset.cpus") == "1-3" && m.file(at, m.name("cpu.cfs_quota_us", "cpu.max")) == quota && m.file(at, "cpu.idle") == "1" &&
					m.file(pod, m.name("blkio.bfq.weight", "io.bfq.weight")) == weight
			})
			if n := m.status().Counts.Repairs; n < 2 || n > 3 { // its start may have had its CPUs looked at
				t.Errorf("%d repairs told", n)
			}

			// A limit that was raised is not lowered again: it could end processes. It is told.
			m.overwrite(at, limit, "8589934592")
			m.eventually("the raised limit told", func() bool { return m.degraded("drift") })
			if m.file(at, limit) != "8589934592" {
				t.Errorf("the limit is %s", m.file(at, limit))
			}
			m.overwrite(at, limit, memory)
			m.eventually("and that it is over", func() bool { return !m.degraded("drift") })
			m.overwrite(at, limit, "1073741824")
			m.eventually("a limit that was lowered is raised", func() bool { return m.file(at, limit) == memory })
		})
	}
}

// A container that was there before us has its CPUs and its quota without waiting for an update, and nothing else.
func TestReconcileAdopted(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, func(c *engine.Config) { c.Policy = compile(t, loops(v1alpha1.LoopOn)) })
			p := m.pod("be", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("app"))
			m.rt.AddPod("sbe", p)
			at := cgroup.Path(p.CgroupParent + "/" + id("app"))
			if err := errors.Join(m.k.Make(at), m.k.AddProcess(77, at)); err != nil {
				t.Fatal(err)
			}
			m.rt.Add(enginetest.Container{ID: id("app"), SandboxID: "sbe", Name: "app", PID: 77, Running: true, Resources: asks(2, 0, 0)})
			before := m.file(at, m.name("memory.limit_in_bytes", "memory.max"))
			m.adopt()
			m.eventually("its CPUs and its quota", func() bool {
				return m.file(at, "cpuset.cpus") == "1-3" && strings.HasPrefix(m.file(at, m.name("cpu.cfs_quota_us", "cpu.max")), "200000")
			})
			if idle, memory := m.file(at, "cpu.idle"), m.file(at, m.name("memory.limit_in_bytes", "memory.max")); idle != "0" || memory != before {
				t.Errorf("idle %s, memory %s", idle, memory)
			}
			report, err := m.e.Disable(t.Context())
			if err != nil || len(report.Errors) > 0 || m.file(at, m.name("cpu.cfs_quota_us", "cpu.max")) != m.name("-1", "max 100000") {
				t.Errorf("disable: %+v, %v, quota %s", report, err, m.file(at, m.name("cpu.cfs_quota_us", "cpu.max")))
			}
		})
	}
}

// Off and dry-run write nothing; on, live, does.
func TestReconcileModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []v1alpha1.LoopMode{v1alpha1.LoopOff, v1alpha1.LoopDryRun} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layouts[1], func(c *engine.Config) { c.Policy = compile(t, loops(mode)) })
			m.adopt()
			p := m.pod("be", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("app"))
			m.run(p)
			_, at := m.make(p, "app", asks(2, 0, 0))
			m.eventually("idle", func() bool { return m.file(at, "cpu.idle") == "1" })
			m.overwrite(at, "cpu.idle", "0")
			time.Sleep(5 * time.Second)
			if m.file(at, "cpu.idle") != "0" || m.status().Counts.Repairs != 0 {
				t.Errorf("idle is %s again, %d repairs told", m.file(at, "cpu.idle"), m.status().Counts.Repairs)
			}
			m.e.SetPolicy(compile(t, loops(v1alpha1.LoopOn)), control.PolicyStatus{Name: "on", Generation: 2})
			m.eventually("idle again", func() bool { return m.file(at, "cpu.idle") == "1" })
		})
	}
}

// A kubelet that resizes a pod is not disturbed: the burst of the pod would make its write of the quota fail.
func TestReconcileDuringResize(t *testing.T) {
	t.Parallel()
	m := newMachine(t, layouts[1], nil)
	m.adopt()
	p := m.pod("ls", v1alpha1.LS, "/burstable")
	pod := cgroup.Path(p.CgroupParent)
	m.overwrite(pod, "cpu.max", "200000 100000")
	m.run(p)
	m.make(p, "app", asks(1024, 200000, 0))
	m.eventually("the pod's burst", func() bool { return m.file(pod, string(policy.CPUMaxBurst)) == "200000" })
	m.e.PodResizing(t.Context(), "sls", asks(1024, 100000, 0))
	for end := time.Now().Add(4500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if m.file(pod, string(policy.CPUMaxBurst)) != "0" {
			t.Fatal("the burst came back before the kubelet has written")
		}
	}
	m.eventually("the burst is back when the kubelet never writes", func() bool { return m.file(pod, string(policy.CPUMaxBurst)) == "200000" })
}
