package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/engine/enginetest"
	"github.com/tideline-io/tideline/internal/policy"
)

// After a restart the kubelet is shown what it asked last, and the pod's own cgroup is known again.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, nil)
			p := m.pod("a", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("a"))
			m.run(p)
			_, at := m.make(p, "a", asks(2, 0, 0))
			m.e.Updated(m.update("a", asks(512, 0, 0)), true)
			before, view := m.container("a"), m.e.View(id("a"))
			m.stop()
			m.set(at, "cpu.idle", "0") // as if we had been killed before it was written
			m.start()
			m.adopt()
			m.eventually("the container's cgroup is known", func() bool {
				c := m.container("a")
				return layout == cgrouptest.V2 || c != nil && c.Cgroup != ""
			})
			after := m.container("a")
			before.Cgroup, after.Cgroup = "", ""
			if d := cmp.Diff(before, after); d != "" {
				t.Errorf("-before +after:\n%s", d)
			}
			if d := cmp.Diff(view, m.e.View(id("a"))); d != "" {
				t.Errorf("view -before +after:\n%s", d)
			}
			if layout == cgrouptest.V1 {
				m.want(at, "cpu.idle", "1")
			}
			rows, _, err := m.e.Explain(t.Context(), p.Namespace, p.Name)
			if err != nil || len(rows) != 2 || rows[0].Cgroup != p.CgroupParent {
				t.Errorf("explain: %+v, %v", rows, err)
			}
			if plan := m.update("a", policy.Resources{CPUSetCPUs: "0"}); values(plan.Apply)[policy.CPUIdle] != "1" {
				t.Errorf("%+v", plan.Apply)
			}
		})
	}
}

// spoil changes every record.
func (m *machine) spoil(f func(path, text string) error) {
	m.t.Helper()
	files, err := filepath.Glob(filepath.Join(m.state, "*.json"))
	if err != nil || len(files) == 0 {
		m.t.Fatalf("records: %v, %v", files, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err == nil {
			err = f(name, string(text))
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

// A container whose record can't be used, or may have been lost, has its birth record alone: what is asked is unknown and
// shown as it is, until the next update. Another restart does not change that.
func TestRecords(t *testing.T) {
	t.Parallel()
	write := func(change func(string) string) func(path, text string) error {
		return func(path, text string) error { return os.WriteFile(path, []byte(change(text)), 0o600) }
	}
	cases := map[string]struct {
		spoil func(path, text string) error
		bad   bool
	}{
		"all lost":  {func(path, _ string) error { return os.RemoveAll(filepath.Dir(path)) }, false},
		"empty":     {write(func(string) string { return "" }), true},
		"truncated": {write(func(s string) string { return s[:len(s)/2] }), true},
		"null":      {write(func(string) string { return "null" }), true},
		"foreign":   {write(func(s string) string { return strings.Replace(s, `"podUID":"a"`, `"podUID":"b"`, 1) }), true},
		"state":     {write(func(s string) string { return strings.Replace(s, `"state":"managed"`, `"state":"odd"`, 1) }), true},
		"knob":      {write(func(s string) string { return strings.ReplaceAll(s, `"knob":"cpu.idle"`, `"knob":"cpu.odd"`) }), true},
		"level":     {write(func(s string) string { return strings.ReplaceAll(s, `"level":"container"`, `"level":"pod"`) }), true},
		"huge":      {write(func(s string) string { return s + strings.Repeat(" ", 1<<20) }), true},
		"link": {func(path, _ string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Symlink("/dev/zero", path)
		}, true},
		"folder": {func(path, _ string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o700)
		}, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, cgrouptest.V2, nil)
			p := m.pod("a", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("a"))
			m.run(p)
			m.make(p, "a", asks(2, 0, 0))
			m.e.Updated(m.update("a", asks(512, 0, 0)), true)
			m.stop()
			m.rt.Add(enginetest.Container{ID: id("a"), SandboxID: "sa", Name: "a", Running: true, PID: m.pids, Birth: birthOf(t, m), Resources: policy.Resources{}})
			m.spoil(c.spoil)
			for range 2 {
				m.start()
				m.adopt()
				got := m.container("a")
				if got == nil || got.State != policy.Managed || got.Asked != nil || m.e.View(id("a")) != nil {
					t.Fatalf("known as %+v, view %+v", got, m.e.View(id("a")))
				}
				bad, err := filepath.Glob(filepath.Join(m.state, "*.bad"))
				if err != nil || (len(bad) == 1) != c.bad {
					t.Errorf("set aside: %v, %v", bad, err)
				}
				m.stop()
			}
			m.start()
			m.adopt()
			plan := m.update("a", policy.Resources{CPUSetCPUs: "0"})
			if v := values(plan.Apply); v[policy.CPUIdle] != "1" || v[policy.CPUWeight] != policy.Unset {
				t.Errorf("%v", v)
			}
			m.e.Updated(plan, true)
			want := asks(2, 0, 0)
			want.CPUSetCPUs = "0"
			if v := m.e.View(id("a")); v == nil || cmp.Diff(want, v.Asked) != "" {
				t.Errorf("view %+v", v)
			}
		})
	}
}

// A container that was never updated has no record: its birth record says all, after a restart too, with the reasons as
// long as they lead to the same values.
func TestBorn(t *testing.T) {
	t.Parallel()
	for name, changed := range map[string]bool{"same policy": false, "another policy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, cgrouptest.V2, nil)
			p := m.pod("a", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("a"))
			m.run(p)
			m.make(p, "a", asks(2, 0, 0))
			if left, err := os.ReadDir(m.state); err != nil || len(left) > 0 {
				t.Errorf("records: %v, %v", left, err)
			}
			before, view := m.container("a"), m.e.View(id("a"))
			m.stop()
			if changed {
				m.edit = func(c *engine.Config) {
					c.Policy = compile(t, func(s *v1alpha1.QoSPolicySpec) {
						be := s.Tiers[v1alpha1.BE]
						be.CPU.Idle = new(false)
						s.Tiers[v1alpha1.BE] = be
					})
				}
			}
			m.start()
			m.adopt()
			after, seen := m.container("a"), m.e.View(id("a"))
			if after == nil || seen == nil || after.State != policy.Managed {
				t.Fatalf("%+v, view %+v", after, seen)
			}
			if d := cmp.Diff(values(view.Settings), values(seen.Settings)) + cmp.Diff(view.Asked, seen.Asked) + cmp.Diff(before.Asked, after.Asked); d != "" {
				t.Errorf("-before +after:\n%s", d)
			}
			if d := cmp.Diff(before.Decision, after.Decision); (d != "") != changed {
				t.Errorf("decision -before +after:\n%s", d)
			}
			if rows, _, err := m.e.Explain(t.Context(), p.Namespace, p.Name); err != nil || len(rows) != 2 || rows[0].Cgroup != p.CgroupParent {
				t.Errorf("explain: %+v, %v", rows, err)
			}
		})
	}
}

// birthOf is the birth record of container "a".
func birthOf(t *testing.T, m *machine) string {
	t.Helper()
	l, err := m.rt.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range l.Containers {
		if c.ID == id("a") {
			return c.Birth
		}
	}
	t.Fatal("container a is gone")
	return ""
}

// Records of containers that are gone go, and what a crash cut short; a container whose sandbox is gone is no pod's.
func TestStaleRecords(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort")
	m.run(p)
	m.make(p, "a", asks(2, 0, 0))
	m.make(p, "b", asks(2, 0, 0))
	m.e.Updated(m.update("a", asks(3, 0, 0)), true)
	m.stop()
	m.rt.Remove(id("a"))
	m.rt.RemovePod("sa")
	if err := os.WriteFile(filepath.Join(m.state, "x.json.tmp"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start()
	m.adopt()
	m.eventually("no records", func() bool {
		left, err := os.ReadDir(m.state)
		return err == nil && len(left) == 0
	})
	if all, err := m.e.Containers(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

// An exited container of ours is known as long as the runtime has it.
func TestExitedContainer(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort")
	m.run(p)
	m.make(p, "a", asks(2, 0, 0))
	m.stop()
	m.rt.Add(enginetest.Container{ID: id("a"), SandboxID: "sa", Name: "a", Exited: true, Birth: birthOf(t, m)})
	m.rt.Add(enginetest.Container{ID: id("b"), SandboxID: "sa", Name: "b", Exited: true})
	m.start()
	m.adopt()
	if m.e.View(id("a")) == nil || m.container("b") != nil {
		t.Errorf("view %+v, b %+v", m.e.View(id("a")), m.container("b"))
	}
	report, err := m.e.Disable(t.Context())
	if err != nil || len(report.Errors) > 0 || report.Updated != 1 || len(m.rt.Updates()) != 1 {
		t.Errorf("%+v, %v, %v", report, err, m.rt.Updates())
	}
}

// What the runtime had before us gets no idle.
func TestAdopted(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("a"))
	m.rt.AddPod("sa", p)
	c := container("a", "sa")
	c.Resources = asks(2, 0, 0)
	m.rt.Add(c)
	m.adopt()
	got := m.container("a")
	if got == nil || got.State != policy.Adopted || got.Asked == nil || *got.Asked.CPUShares != 2 {
		t.Fatalf("%+v", got)
	}
	if v := values(m.update("a", policy.Resources{CPUSetCPUs: "0"}).Apply); v[policy.CPUMax] != "200000 100000" || v[policy.CPUIdle] == "1" || v[policy.CPUWeight] == policy.Unset {
		t.Errorf("%v", v)
	}
}

// The runtime's word counts after calls that we did not see: while bypass was on, say.
func TestAdoptDropsWhatIsGone(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort")
	m.run(p)
	m.make(p, "a", asks(2, 0, 0))
	m.e.SetBypass(true)
	m.rt.Remove(id("a"))
	m.rt.RemovePod("sa")
	b := m.pod("b", v1alpha1.BE, "/besteffort")
	m.rt.AddPod("sb", b)
	m.rt.Add(container("b", "sb"))
	m.e.SetBypass(false)
	m.eventually("the lists are taken", func() bool {
		b := m.container("b")
		return m.container("a") == nil && b != nil && b.State == policy.Adopted && m.e.View(id("a")) == nil
	})
	m.want("/kubepods/besteffort", "io.weight", "default 100") // b's parent is not known before its next container
}

// A creation that passed without us is missed, and gets later what no update of the runtime's would trip over.
func TestMissed(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V1, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("a"))
	m.run(p)
	c := engine.Creation{SandboxID: "sa", Pod: p, Name: "a", Asked: asks(2, 0, 0)}
	if _, err := m.e.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	m.e.Missed(c.Key(), "why")
	at := m.made(c, engine.Plan{})
	m.want(at, "cpu.cfs_quota_us", "200000")
	if m.file(at, "cpu.idle") != "0" {
		t.Error("idle over stored shares")
	}
	if got := m.container("a"); got.State != policy.Missed || got.Error != "why" || m.e.View(id("a")) != nil {
		t.Errorf("%+v", got)
	}
	if left, _ := os.ReadDir(m.state); len(left) > 0 {
		t.Errorf("records: %v", left)
	}
	if v := values(m.update("a", policy.Resources{CPUSetCPUs: "0"}).Apply); v[policy.CPUIdle] != "" || v[policy.CPUMax] == "" {
		t.Errorf("%v", v)
	}
}

func TestCreateFailed(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.LS, "/burstable", v1alpha1.AnnotationRequests, requests("a"))
	m.run(p)
	c := engine.Creation{SandboxID: "sa", Pod: p, Name: "a", Asked: asks(1024, 100000, 0)}
	if _, err := m.e.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	m.want("/kubepods/burstable", "memory.low", "536870912")
	m.e.CreateFailed(c.Key())
	m.want("/kubepods/burstable", "memory.low", "0")
	m.eventually("no record", func() bool {
		left, err := os.ReadDir(m.state)
		return err == nil && len(left) == 0
	})
	if m.container("a") != nil {
		t.Error("it is known still")
	}
}

// kernel is all files, to compare.
func kernel(t *testing.T, m *machine) map[string]string {
	t.Helper()
	files := map[string]string{}
	root := filepath.Join(m.k.Root(), "sys")
	err := filepath.WalkDir(root, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		files[strings.TrimPrefix(name, root)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestDisable(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/restart=%t", layout, restart), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, layout, nil)
				ls := m.pod("ls", v1alpha1.LS, "/burstable", v1alpha1.AnnotationRequests, requests("ls"))
				be := m.pod("be", v1alpha1.BE, "/besteffort", v1alpha1.AnnotationBatchResources, batch("be"))
				lsr := m.pod("lsr", v1alpha1.LSR, "", v1alpha1.AnnotationRequests, requests("lsr"))
				pods := kernel(t, m)
				for _, p := range []policy.Pod{ls, be, lsr} {
					m.run(p)
					m.make(p, p.UID, asks(1024, map[string]int64{"ls": 100000}[p.UID], gi))
				}
				m.want("/kubepods/besteffort", m.name("blkio.bfq.weight", "io.bfq.weight"), m.name("10", "default 10"))
				if restart {
					m.stop()
					m.start()
				}
				m.rt.Fail(func(op, at string) error {
					if op == "Update" && at == id("be") {
						return errTest
					}
					return nil
				})
				report, err := m.e.Disable(t.Context())
				if err != nil || report.Updated != 2 || len(report.Errors) != 1 || !strings.Contains(report.Errors[0], "be/be/0: test") {
					t.Fatalf("%+v, %v", report, err)
				}
				if got := m.file(cgroup.Path(be.CgroupParent+"/"+id("be")), "cpu.idle"); got != "0" {
					t.Errorf("cpu.idle = %s while the runtime can't be told", got)
				}
				m.rt.Fail(nil)
				report, err = m.e.Disable(t.Context())
				if err != nil || report.Updated != 1 || len(report.Errors) > 0 {
					t.Fatalf("%+v, %v", report, err)
				}
				for _, u := range m.rt.Updates() {
					m.carry(cgroup.Path(map[string]policy.Pod{id("ls"): ls, id("be"): be, id("lsr"): lsr}[u.ID].CgroupParent+"/"+u.ID), u.Settings)
				}
				report, err = m.e.Disable(t.Context())
				if err != nil || report.Updated+report.Restored+len(report.Errors) > 0 {
					t.Errorf("once more: %+v, %v", report, err)
				}
				if !m.e.Bypassed() || m.e.HasViews() || m.status().Cgroup.Journal != 0 {
					t.Errorf("bypass %t, views %t, journal %d", m.e.Bypassed(), m.e.HasViews(), m.status().Cgroup.Journal)
				}
				after := kernel(t, m)
				for name, text := range pods {
					if after[name] != text {
						t.Errorf("%s: %q, was %q", name, after[name], text)
					}
				}
				for _, p := range []policy.Pod{ls, be, lsr} {
					at := cgroup.Path(p.CgroupParent + "/" + id(p.UID))
					for file, want := range map[string]string{"cpu.idle": "0", m.name("cpu.cfs_burst_us", "cpu.max.burst"): "0"} {
						if got := m.file(at, file); got != want {
							t.Errorf("%s of %s = %q", file, at, got)
						}
					}
					if layout == cgrouptest.V2 {
						if low, high := m.file(at, "memory.low"), m.file(at, "memory.high"); low != "0" || high != "max" {
							t.Errorf("%s: memory.low %s, memory.high %s", at, low, high)
						}
					}
				}

				// Nothing of ours comes back, and when bypass ends they are as containers that were there before us.
				m.e.SetBypass(false)
				m.adopt()
				if c := m.container("be"); c.State != policy.Adopted {
					t.Errorf("%+v", c)
				}
				if v := values(m.update("be", policy.Resources{CPUSetCPUs: "0"}).Apply); v[policy.CPUIdle] != "" || v[policy.CPUWeight] != "" {
					t.Errorf("%v", v)
				}
				m.stop()
				m.start()
				m.adopt()
				if v := values(m.update("be", asks(512, 0, 0)).Apply); v[policy.CPUIdle] != "" {
					t.Errorf("after a restart: %v", v)
				}
			})
		}
	}
}

// A call that was decided on before Disable brings values after it; they are taken back as well.
func TestDisableWaitsForCalls(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort")
	m.run(p)
	c := engine.Creation{SandboxID: "sa", Pod: p, Name: "a", Asked: asks(2, 0, 0)}
	plan, err := m.e.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(200 * time.Millisecond)
		m.rt.Add(enginetest.Container{ID: id("a"), SandboxID: "sa", Name: "a", Birth: plan.Birth})
		m.e.Created(c, plan, id("a"))
	}()
	report, err := m.e.Disable(t.Context())
	if err != nil || report.Updated != 1 || len(report.Errors) > 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	u := m.rt.Updates()
	if len(u) != 1 || values(u[0].Settings)[policy.CPUWeight] != "2" || values(u[0].Settings)[policy.CPUIdle] != "0" {
		t.Errorf("%+v", u)
	}
}

// A fault of ours costs a decision and no more than the budget; what does not work is told until it works again.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"panic", "stall"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			var faulty atomic.Bool
			release := make(chan struct{})
			m := newMachine(t, cgrouptest.V2, func(c *engine.Config) {
				c.Clock = func() time.Time {
					if faulty.Load() {
						if fault == "panic" {
							panic("test")
						}
						<-release
					}
					return time.Now()
				}
			})
			p := m.pod("a", v1alpha1.BE, "/besteffort")
			m.run(p)
			m.make(p, "a", asks(2, 0, 0))
			faulty.Store(true)
			timed := func(what string, f func()) {
				began := time.Now()
				f()
				if d := time.Since(began); d > 5*time.Second {
					t.Errorf("%s took %v", what, d)
				}
			}
			c := engine.Creation{SandboxID: "sa", Pod: p, Name: "b", Asked: asks(2, 0, 0)}
			timed("Create", func() {
				if _, err := m.e.Create(t.Context(), c); !errors.Is(err, engine.ErrNoDecision) {
					t.Errorf("Create: %v", err)
				}
			})
			timed("Update", func() {
				if _, err := m.e.Update(t.Context(), id("a"), asks(512, 0, 0)); !errors.Is(err, engine.ErrNoDecision) {
					t.Errorf("Update: %v", err)
				}
				if v := values(m.e.Fallback(t.Context(), id("a"), asks(512, 0, 0))); v[policy.CPUWeight] != policy.Unset {
					t.Errorf("shares would be sent to an idle container: %v", v)
				}
			})
			timed("reports", func() {
				m.e.Created(c, engine.Plan{}, id("b"))
				m.e.Started(id("b"))
				m.e.PodStarting(t.Context(), p)
				m.e.PodStarted(p, "sa")
			})
			if m.e.View(id("a")) == nil {
				t.Error("the kubelet is shown our values")
			}
			m.rt.Add(container("b", "sa"))
			faulty.Store(false)
			close(release)
			m.eventually("container b is known", func() bool {
				b := m.container("b")
				return b != nil && b.ID == id("b")
			})
			if b := m.container("b"); b.State == policy.Managed {
				t.Errorf("%+v", b)
			}
			if !m.degraded("decisions") && fault == "panic" {
				t.Errorf("nothing is told: %+v", m.status().Degraded)
			}
			if n := m.status().Counts.FailedOpen; n != 1 {
				t.Errorf("%d failed open", n)
			}
			m.make(p, "c", asks(2, 0, 0))
			if d := m.status().Degraded; len(d) > 0 {
				t.Errorf("told though it works: %+v", d)
			}
		})
	}
}

// A stall must not keep the process from ending once it is over, nor sleepers of a resize.
func TestStop(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V1, nil)
	p := m.pod("a", v1alpha1.LS, "/burstable")
	m.run(p)
	m.make(p, "a", asks(1024, 100000, 0))
	m.e.PodResized("sa")
	began := time.Now()
	m.stop()
	if d := time.Since(began); d > 4*time.Second {
		t.Errorf("Run ended after %v", d)
	}
	// Whoever comes late is turned away at once.
	m.e.Started(id("a"))
	m.e.PodResized("sa")
	if _, err := m.e.Status(context.Background()); !errors.Is(err, engine.ErrNoDecision) {
		t.Errorf("Status: %v", err)
	}
	if _, err := m.e.Create(t.Context(), engine.Creation{Pod: p, Name: "b"}); !errors.Is(err, engine.ErrNoDecision) {
		t.Errorf("Create: %v", err)
	}
}

// Trouble with one container is told until that container is fine or gone.
func TestDegradedIsCleared(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V1, nil)
	var broken atomic.Bool
	m.k.Hook = func(_ cgroup.Path, file, _ string) error {
		if broken.Load() && (file == "cpu.idle" || file == "blkio.bfq.weight") {
			return errTest
		}
		return nil
	}
	broken.Store(true)
	p := m.pod("a", v1alpha1.BE, "/besteffort")
	m.run(p)
	m.make(p, "a", asks(2, 0, 0))
	for _, what := range []string{"container files", "pod files", "class files"} {
		m.eventually(what, func() bool { return m.degraded(what) })
	}
	broken.Store(false)
	m.make(p, "b", asks(2, 0, 0))
	m.eventually("pods work again", func() bool { return !m.degraded("pod files") && !m.degraded("class files") })
	if !m.degraded("container files") || m.container("a").Error == "" {
		t.Error("the trouble with a is forgotten")
	}
	m.e.Started(id("a"))
	m.eventually("a works", func() bool { return len(m.status().Degraded) == 0 && m.container("a").Error == "" })
}

// A container that ended at once is no trouble.
func TestEndedAtOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V1, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort")
	m.run(p)
	c := engine.Creation{SandboxID: "sa", Pod: p, Name: "a", Asked: asks(2, 0, 0)}
	plan, err := m.e.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	m.rt.Add(enginetest.Container{ID: id("a"), SandboxID: "sa", Name: "a", Exited: true, Birth: plan.Birth})
	m.e.Created(c, plan, id("a"))
	m.e.Started(id("a"))
	if st := m.status(); len(st.Degraded) > 0 || st.Counts.WriteFails > 0 || m.container("a").Error != "" {
		t.Errorf("%+v", st)
	}
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.LSR, "", v1alpha1.AnnotationMemoryQoS, "{bad")
	m.run(p)
	plan, err := m.e.Create(t.Context(), engine.Creation{SandboxID: "sa", Pod: p, Name: "a", Asked: asks(2048, 0, 0)})
	if err != nil || plan.Decision.Refusal == nil || plan.Decision.Refusal.Key != v1alpha1.AnnotationMemoryQoS || plan.Changes() {
		t.Errorf("%+v, %v", plan, err)
	}
	if m.container("a") != nil || m.e.OnError(p) != v1alpha1.Refuse {
		t.Errorf("%+v", m.container("a"))
	}
}
