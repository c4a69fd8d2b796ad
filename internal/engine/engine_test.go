package engine_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/policy"
)

func TestTiers(t *testing.T) {
	t.Parallel()
	type knobs = map[policy.Knob]string
	cases := []struct {
		tier   v1alpha1.Tier
		class  string
		asks   policy.Resources
		v1, v2 knobs  // of the plan
		weight string // io weight of the pod
		low    string // memory.low of the pod on v2
		burst  string // burst of the pod, whose quota stays at 400000
	}{
		{tier: v1alpha1.LSE, asks: asks(2048, 200000, gi), v1: knobs{policy.CPUSetCPUs: "0"}, v2: knobs{policy.CPUSetCPUs: "0", policy.MemoryLow: "1073741824"}, weight: "500", low: "1073741824", burst: "0"},
		{tier: v1alpha1.LSR, asks: asks(2048, 200000, gi), v1: knobs{policy.CPUSetCPUs: "0"}, v2: knobs{policy.CPUSetCPUs: "0", policy.MemoryLow: "1073741824"}, weight: "500", low: "1073741824", burst: "0"},
		{tier: v1alpha1.LS, class: "/burstable", asks: asks(1024, 150000, gi), v1: knobs{policy.CPUMaxBurst: "150000"},
			v2: knobs{policy.CPUMaxBurst: "150000", policy.MemoryLow: "536870912"}, weight: "200", low: "536870912", burst: "150000"},
		{tier: v1alpha1.BE, class: "/besteffort", asks: asks(2, 0, 0),
			v1:     knobs{policy.CPUWeight: "unset", policy.CPUMax: "200000 100000", policy.CPUIdle: "1", policy.MemoryMax: "2147483648", policy.OOMScoreAdj: "900"},
			v2:     knobs{policy.CPUWeight: "unset", policy.CPUMax: "200000 100000", policy.CPUIdle: "1", policy.MemoryHigh: "1932734464", policy.MemoryMax: "2147483648", policy.OOMScoreAdj: "900"},
			weight: "10", low: "0", burst: "0"},
		{tier: v1alpha1.SYSTEM, class: "/burstable", asks: asks(1024, 0, gi), weight: "200", low: "0", burst: "0"},
		{tier: v1alpha1.None, class: "/burstable", asks: asks(1024, 100000, gi), weight: "100", low: "0", burst: "0"},
	}
	for _, layout := range layouts {
		for _, c := range cases {
			t.Run(string(layout)+"/"+string(c.tier), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, layout, nil)
				p := m.pod("u1", c.tier, c.class, v1alpha1.AnnotationRequests, requests("app"), v1alpha1.AnnotationBatchResources, batch("app"))
				at := cgroup.Path(p.CgroupParent)
				max := m.name("cpu.cfs_quota_us", "cpu.max")
				if err := m.k.Set(at, max, "400000"); err != nil {
					t.Fatal(err)
				}
				m.run(p)
				writes := len(m.k.Writes())
				plan, ctr := m.make(p, "app", c.asks)
				want := c.v2
				if layout == cgrouptest.V1 {
					want = c.v1
				}
				if want == nil {
					want = knobs{}
				}
				if d := cmp.Diff(want, values(plan.Apply)); d != "" {
					t.Errorf("plan, -want +got:\n%s", d)
				}
				if born := plan.Birth != ""; born != (c.tier != v1alpha1.None) {
					t.Errorf("birth record: %q", plan.Birth)
				}
				m.want(at, m.name("blkio.bfq.weight", "io.bfq.weight"), m.name("", "default ")+c.weight)
				if layout == cgrouptest.V2 {
					m.want(at, "memory.low", c.low)
				}
				m.want(at, max, m.name("400000", "400000 100000"))
				m.want(at, m.name("cpu.cfs_burst_us", "cpu.max.burst"), c.burst)
				if w := want[policy.CPUMaxBurst]; w != "" {
					m.want(ctr, m.name("cpu.cfs_burst_us", "cpu.max.burst"), w)
				}
				if want[policy.CPUIdle] != "" {
					m.want(ctr, "cpu.idle", "1")
				}
				for _, w := range m.k.Writes()[writes:] {
					if w.Err != nil {
						t.Errorf("the kernel refuses %s %q of %s: %v", w.File, w.Data, w.Path, w.Err)
					}
				}
				got := m.container("app")
				if got == nil || got.State != policy.Managed || got.ID != id("app") || got.Error != "" {
					t.Errorf("known as %+v", got)
				}
				if s := m.status(); len(s.Degraded) > 0 {
					t.Errorf("degraded: %+v", s.Degraded)
				}
				if v := m.e.View(id("app")); (v != nil) != (len(want) > 0) {
					t.Errorf("view %+v", v)
				} else if v != nil && cmp.Diff(c.asks, v.Asked) != "" {
					t.Errorf("the kubelet is shown %+v", v.Asked)
				}
			})
		}
	}
}

// On v2 the message carries all, so no file of a container is written by us, and none of an untiered pod on either.
func TestOwnWrites(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, nil)
			for _, tier := range append(v1alpha1.Tiers(), v1alpha1.None) {
				p := m.pod("u"+string(tier), tier, "", v1alpha1.AnnotationBatchResources, batch("c"+string(tier)))
				m.run(p)
				m.make(p, "c"+string(tier), asks(1024, 100000, gi))
			}
			m.never("", func() bool { return false })
			fs, err := cgroup.Open(m.k.Config(m.journal))
			if err != nil {
				t.Fatal(err)
			}
			entries, err := fs.Journal()
			if err != nil {
				t.Fatal(err)
			}
			containers := map[policy.Knob]bool{}
			for _, e := range entries {
				switch {
				case e.Path == "/kubepods/podu":
					t.Errorf("the untiered pod has %s", e.Knob)
				case e.Path.Level() == policy.LevelContainer:
					containers[e.Knob] = true
				}
			}
			want := map[policy.Knob]bool{}
			if layout == cgrouptest.V1 {
				want = map[policy.Knob]bool{policy.CPUIdle: true, policy.CPUWeight: true, policy.CPUMaxBurst: true}
			}
			if d := cmp.Diff(want, containers); d != "" {
				t.Errorf("knobs of containers in the journal, -want +got:\n%s", d)
			}
		})
	}
}

func TestClassSums(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	a := m.pod("a", v1alpha1.LS, "/burstable", v1alpha1.AnnotationRequests, requests("a"))
	b := m.pod("b", v1alpha1.LSR, "", v1alpha1.AnnotationRequests, requests("b"))
	be := m.pod("c", v1alpha1.BE, "/besteffort")
	for _, p := range []policy.Pod{a, b, be} {
		m.run(p)
		m.make(p, p.UID, asks(1024, 100000, gi))
	}
	m.want("/kubepods/burstable", "memory.low", "536870912")
	m.want("/kubepods", "memory.low", "1610612736")
	m.want("/kubepods/besteffort", "io.weight", "default 10")

	removed := func(name string) {
		m.rt.Remove(id(name))
		m.e.Removed(id(name))
		m.rt.RemovePod("s" + name)
		m.e.PodRemoved("s" + name)
	}
	removed("a")
	m.want("/kubepods/burstable", "memory.low", "0")
	m.want("/kubepods", "memory.low", "1073741824")
	removed("c")
	m.want("/kubepods/besteffort", "io.weight", "default 100")

	// A process that starts when the last pod is gone withdraws what an earlier one has written.
	m.stop()
	m.rt.Remove(id("b"))
	m.rt.RemovePod("sb")
	if err := m.k.Rmdir("/kubepods/podb"); err != nil {
		t.Fatal(err)
	}
	m.start()
	m.adopt()
	m.want("/kubepods", "memory.low", "0")
	m.eventually("the journal to be empty", func() bool { return m.status().Cgroup.Journal == 0 })
}

// A memory.low of a class that the kubelet has written (TieredReservation) stays.
func TestClassOfTheKubelet(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.LS, "/burstable", v1alpha1.AnnotationRequests, requests("a"))
	if err := m.k.Set("/kubepods", "memory.low", "4096"); err != nil {
		t.Fatal(err)
	}
	m.run(p)
	m.make(p, "a", asks(1024, 0, gi))
	m.want("/kubepods/burstable", "memory.low", "536870912")
	if got := m.file("/kubepods", "memory.low"); got != "4096" {
		t.Errorf("memory.low of kubepods = %s", got)
	}
}

// One knob of a class goes while another stays: a policy that gives BE no weight.
func TestClassKnobWithdrawn(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	ls := m.pod("a", v1alpha1.LS, "/besteffort", v1alpha1.AnnotationRequests, requests("a"))
	be := m.pod("b", v1alpha1.BE, "/besteffort")
	for _, p := range []policy.Pod{ls, be} {
		m.run(p)
		m.make(p, p.UID, asks(2, 0, 0))
	}
	m.want("/kubepods/besteffort", "io.weight", "default 10")
	m.want("/kubepods/besteffort", "memory.low", "536870912")
	m.e.SetPolicy(compile(t, func(spec *v1alpha1.QoSPolicySpec) {
		tp := spec.Tiers[v1alpha1.BE]
		tp.IO.Weight = nil
		spec.Tiers[v1alpha1.BE] = tp
	}), control.PolicyStatus{})
	m.want("/kubepods/besteffort", "io.weight", "default 100")
	m.want("/kubepods/besteffort/podb", "io.weight", "default 100")
	m.want("/kubepods/besteffort", "memory.low", "536870912")
}

// The pod's quota is the kubelet's, who reads it back; it bursts along with the containers.
func TestPodBurst(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, nil)
			p := m.pod("a", v1alpha1.LS, "/burstable")
			at, quota, burst := cgroup.Path(p.CgroupParent), m.name("cpu.cfs_quota_us", "cpu.max"), m.name("cpu.cfs_burst_us", "cpu.max.burst")
			write := func(v string) {
				t.Helper()
				if err := m.k.Set(at, quota, v); err != nil {
					t.Fatal(err)
				}
			}
			write("300000")
			m.run(p)
			m.make(p, "a", asks(1024, 100000, 0))
			m.want(at, burst, "100000")

			// The kubelet resizes the pod to a quota that the kernel would refuse because of the burst.
			m.e.PodResizing(t.Context(), "sa", policy.Resources{})
			if got := m.file(at, burst); got != "0" {
				t.Errorf("%s is %s when the kubelet writes", burst, got)
			}
			write("50000")
			m.e.PodResized("sa")
			m.want(at, burst, "50000") // the containers' sum is still above the quota

			// The second of two announcements wins: nothing comes back between it and the kubelet's write.
			m.e.PodResizing(t.Context(), "sa", policy.Resources{})
			m.e.PodResized("sa")
			time.Sleep(50 * time.Millisecond)
			m.e.PodResizing(t.Context(), "sa", policy.Resources{})
			time.Sleep(400 * time.Millisecond)
			if got := m.file(at, burst); got != "0" {
				t.Errorf("%s is %s when the kubelet writes again", burst, got)
			}
			write("500000")
			m.e.PodResized("sa")
			m.want(at, burst, "100000")

			m.make(p, "b", asks(1024, 0, 0)) // the pod's quota is its only limit
			m.want(at, burst, "0")
			m.e.Removed(id("b"))
			m.want(at, burst, "100000")
			m.want(at, quota, m.name("500000", "500000 100000"))
		})
	}
}

// A container of which nothing is known may have no quota, so the pod's own does not burst.
func TestUnknownContainerKeepsPodQuota(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.LS, "/burstable")
	at := cgroup.Path(p.CgroupParent)
	if err := m.k.Set(at, "cpu.max", "300000"); err != nil {
		t.Fatal(err)
	}
	m.run(p)
	m.rt.Add(container("old", "sa"))
	m.rt.Fail(func(op, _ string) error {
		if op == "Spec" {
			return errTest
		}
		return nil
	})
	m.adopt()
	m.make(p, "a", asks(1024, 100000, 0))
	m.never("the pod's quota bursts", func() bool { return m.file(at, "cpu.max.burst") != "0" })
}

func TestPodFailed(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort")
	m.e.PodStarting(t.Context(), p)
	m.want(cgroup.Path(p.CgroupParent), "io.weight", "default 10")
	m.want("/kubepods/besteffort", "io.weight", "default 10")
	m.e.PodFailed("a")
	m.want(cgroup.Path(p.CgroupParent), "io.weight", "default 100")
	m.want("/kubepods/besteffort", "io.weight", "default 100")
}

// systemd sets a slice's io.weight back as soon as the sandbox's scope starts in it.
func TestSliceIsWrittenAgain(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("a", v1alpha1.BE, "/besteffort")
	p.CgroupParent = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda.slice"
	at := cgroup.Path(p.CgroupParent)
	if err := m.k.Make(at); err != nil {
		t.Fatal(err)
	}
	m.e.PodStarting(t.Context(), p)
	m.want(at, "io.weight", "default 10")
	if err := m.k.Set(at, "io.weight", "default 100"); err != nil {
		t.Fatal(err)
	}
	m.e.PodStarted(p, "sa")
	m.want(at, "io.weight", "default 10")
}

// Pod-level values of another cgroup than the pod's own are left alone.
func TestCgroupParents(t *testing.T) {
	t.Parallel()
	for _, parent := range []string{"", "/kubepods/../poda", "/kubepods/burstable/podb", "/", "/a//poda", "/system.slice"} {
		m := newMachine(t, cgrouptest.V2, nil)
		p := m.pod("a", v1alpha1.LS, "/burstable")
		p.CgroupParent = parent
		before := m.status().Counts.BadInput
		m.run(p)
		if n := len(m.k.Writes()); n > 0 {
			t.Errorf("%q: %d writes", parent, n)
		}
		bad := parent != "" && parent != "/kubepods/burstable/podb" && parent != "/system.slice"
		if got := m.status().Counts.BadInput > before; got != bad {
			t.Errorf("%q counts as bad: %t", parent, got)
		}
	}
}

func TestObserveChangesNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V1, func(c *engine.Config) { c.Mode = control.ModeObserve })
	for _, tier := range v1alpha1.Tiers() {
		p := m.pod("u"+string(tier), tier, "", v1alpha1.AnnotationMemoryQoS, "{bad")
		m.run(p)
		plan, _ := m.make(p, "c"+string(tier), asks(1024, 100000, gi))
		if plan.Changes() {
			t.Errorf("%s: %+v", tier, plan)
		}
		plan, err := m.e.Update(t.Context(), id("c"+string(tier)), asks(512, 50000, 0))
		if err != nil || plan.Changes() {
			t.Errorf("%s: update: %+v, %v", tier, plan, err)
		}
		m.e.Updated(plan, true)
		if c := m.container("c" + string(tier)); c == nil || c.State != policy.Managed || *c.Asked.CPUShares != 512 {
			t.Errorf("%s is known as %+v", tier, c)
		}
	}
	m.never("files were written", func() bool { return len(m.k.Writes()) > 0 })
	st := m.status()
	if st.Counts.Decisions != 10 || st.Counts.Changed != 0 || st.Counts.Refused != 0 || st.Mode != control.ModeObserve || m.e.HasViews() {
		t.Errorf("%+v", st)
	}
}
