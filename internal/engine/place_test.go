package engine_test

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/policy"
)

// cpus makes the resources of a pod, or a container, of that many CPUs.
func cpus(n int64) policy.Resources { return asks(n*1024, n*100000, 0) }

// exclusive makes a pod of that many CPUs and starts it.
func (m *machine) exclusive(uid string, tier v1alpha1.Tier, n int64) policy.Pod {
	m.t.Helper()
	p := m.pod(uid, tier, "")
	p.Resources = cpus(n)
	m.run(p)
	return p
}

func (m *machine) cpus() control.CPUs {
	m.t.Helper()
	c, err := m.e.CPUs(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// owns gives the CPUs of the pods that have some, by UID.
func (m *machine) owns() map[string]string {
	m.t.Helper()
	out := map[string]string{}
	for _, p := range m.cpus().Pods {
		out[p.UID] = p.CPUs
	}
	return out
}

// all is the text of a cpuset that nobody has written.
func (m *machine) all() string { return m.name("0-3", "") }

func (m *machine) settled(want map[cgroup.Path]string) {
	m.t.Helper()
	for at, set := range want {
		m.want(at, "cpuset.cpus", set)
	}
}

// What runs follows the pools as pods with CPUs of their own come and go, and untiered containers end as they began.
func TestPools(t *testing.T) {
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, nil)
			at := map[string]cgroup.Path{}
			for _, x := range []struct {
				name, class string
				tier        v1alpha1.Tier
			}{{"none", "/burstable", v1alpha1.None}, {"ls", "/burstable", v1alpha1.LS}, {"be", "/besteffort", v1alpha1.BE}, {"system", "/burstable", v1alpha1.SYSTEM}} {
				p := m.pod(x.name, x.tier, x.class)
				m.run(p)
				plan, path := m.make(p, x.name, asks(100, 0, 0))
				at[x.name] = path
				if x.tier == v1alpha1.None && plan.Changes() {
					t.Errorf("an untiered container is changed while nobody owns CPUs: %+v", plan)
				}
			}
			m.settled(map[cgroup.Path]string{at["none"]: m.all(), at["ls"]: m.all(), at["be"]: m.all(), at["system"]: m.all()})

			lse := m.exclusive("lse", v1alpha1.LSE, 1)
			_, at["lse"] = m.make(lse, "db", cpus(1))
			m.settled(map[cgroup.Path]string{at["lse"]: "0", at["none"]: "1-3", at["ls"]: "1-3", at["be"]: "1-3", at["system"]: "1-3"})

			lsr := m.exclusive("lsr", v1alpha1.LSR, 2)
			_, at["lsr"] = m.make(lsr, "cache", cpus(2))
			m.settled(map[cgroup.Path]string{at["lse"]: "0", at["lsr"]: "1-2", at["none"]: "3", at["ls"]: "3", at["be"]: "1-3", at["system"]: "1-3"})
			if got := m.cpus(); got.Pools != (control.CPUPools{LS: "3", BE: "1-3", System: "1-3"}) || len(got.Unplaced) > 0 {
				t.Errorf("told: %+v", got)
			}

			// One that comes while pods own CPUs gets its pool with its message.
			late := m.pod("late", v1alpha1.None, "/burstable")
			m.run(late)
			plan, path := m.make(late, "late", asks(100, 0, 0))
			at["late"] = path
			if got := values(plan.Apply); got[policy.CPUSetCPUs] != "3" || len(got) != 1 {
				t.Errorf("an untiered container gets %v", got)
			}

			m.e.PodStopped("slsr") // its sandbox stays
			m.settled(map[cgroup.Path]string{at["none"]: "1-3", at["ls"]: "1-3", at["be"]: "1-3", at["late"]: "1-3"})
			m.e.PodRemoved("slse")
			// On v2 that is said in so many words: a cgroup with tasks takes no empty list.
			m.settled(map[cgroup.Path]string{at["none"]: "0-3", at["ls"]: "0-3", at["be"]: "0-3", at["system"]: "0-3", at["late"]: "0-3"})
			if s := m.status(); len(s.Degraded) > 0 {
				t.Errorf("degraded: %+v", s.Degraded)
			}
			for _, w := range m.k.Writes() {
				if w.Err != nil && w.Data != "\n" { // the empty list, which is tried
					t.Errorf("the kernel refuses %s %q of %s: %v", w.File, w.Data, w.Path, w.Err)
				}
			}
		})
	}
}

// A pod of our own label that can't be placed is refused with the reason, until there is room; a peer's falls to LS.
func TestNoRoom(t *testing.T) {
	m := newMachine(t, cgrouptest.V2, nil)
	m.exclusive("a", v1alpha1.LSE, 3)
	b := m.exclusive("b", v1alpha1.LSR, 1)
	create := func(p policy.Pod) engine.Plan {
		t.Helper()
		plan, err := m.e.Create(t.Context(), engine.Creation{SandboxID: "s" + p.UID, Pod: p, Name: "app", Asked: cpus(1)})
		if err != nil {
			t.Fatal(err)
		}
		return plan
	}
	r := create(b).Decision.Refusal
	if r == nil || r.Key != v1alpha1.LabelQoS || !strings.Contains(r.Message, "takes 1 of the 1 CPUs that the LS pool has") {
		t.Fatalf("refusal %+v", r)
	}
	if got := m.cpus(); len(got.Unplaced) != 1 || got.Unplaced[0].UID != "b" || !strings.Contains(got.Unplaced[0].Why, "LS pool") {
		t.Errorf("unplaced: %+v", got.Unplaced)
	}
	if !m.degraded("placement") {
		t.Error("the status does not tell of a pod without CPUs")
	}
	peer := m.pod("peer", v1alpha1.None, "")
	peer.Annotations = map[string]string{v1alpha1.AliasKatalystQoS: "dedicated_cores"}
	peer.Resources = asks(1536, 150000, 0)
	m.run(peer)
	plan, _ := m.make(peer, "peer", asks(1536, 150000, 0))
	if d := plan.Decision; d.Tier != v1alpha1.LS || d.Refusal != nil || !slices.ContainsFunc(d.Notes, func(n policy.Note) bool { return n.Code == policy.NoteUnplaced }) {
		t.Errorf("a peer's pod gets %+v", d)
	}
	m.e.PodStopped("sa")
	m.eventually("b to be placed", func() bool { return m.owns()["b"] == "0" })
	if plan := create(b); plan.Decision.Refusal != nil || values(plan.Apply)[policy.CPUSetCPUs] != "0" {
		t.Errorf("with room it gets %+v", plan)
	}
}

func TestCounts(t *testing.T) {
	m := newMachine(t, cgrouptest.V2, nil)
	for name, c := range map[string]struct {
		asks policy.Resources
		want string
	}{
		"fraction": {asks(1536, 150000, 0), "cpu: 1500m; allowed: whole CPUs, the nearest are 1 and 2"},
		"none":     {asks(2, 0, 0), "the pod asks for none"},
	} {
		p := m.pod(name, v1alpha1.LSE, "")
		p.Resources = c.asks
		m.run(p)
		plan, err := m.e.Create(t.Context(), engine.Creation{SandboxID: "s" + name, Pod: p, Name: "app", Asked: c.asks})
		if err != nil {
			t.Fatal(err)
		}
		if r := plan.Decision.Refusal; r == nil || !strings.Contains(r.Message, c.want) {
			t.Errorf("%s: refusal %+v", name, r)
		}
	}
}

// Every placement is there again after a restart, before the runtime was read, and no CPU of theirs is given away.
func TestPlacementsAfterARestart(t *testing.T) {
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, nil)
			none := m.pod("none", v1alpha1.None, "/burstable")
			m.run(none)
			_, at := m.make(none, "none", asks(100, 0, 0))
			a := m.exclusive("a", v1alpha1.LSE, 1)
			m.make(a, "a", cpus(1))
			b := m.exclusive("b", v1alpha1.LSR, 1) // without a container
			gone := m.exclusive("gone", v1alpha1.LSR, 1)
			m.want(at, "cpuset.cpus", "3")
			m.rt.RemovePod("sgone")
			m.stop()
			if err := m.k.Set(at, "cpuset.cpus", "0-3"); err != nil { // somebody wrote while nobody looked
				t.Fatal(err)
			}
			m.start()
			if got := m.owns(); got["a"] != "0" || got["b"] != "1" || got[gone.UID] != "2" {
				t.Errorf("before the runtime was read: %v", got)
			}
			m.adopt()
			m.eventually("the gone pod's CPU to be free", func() bool { _, ok := m.owns()["gone"]; return !ok })
			m.want(at, "cpuset.cpus", "2-3")
			_, path := m.make(b, "b", cpus(1))
			m.want(path, "cpuset.cpus", "1")
			m.e.PodRemoved("sa")
			m.e.PodRemoved("sb")
			m.want(at, "cpuset.cpus", "0-3")
			m.rt.RemovePod("sa")
			m.rt.RemovePod("sb")
			m.stop()
			m.start()
			m.adopt()
			if got := m.owns(); len(got) > 0 {
				t.Errorf("kept: %v", got)
			}
		})
	}
}

func TestResize(t *testing.T) {
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, nil)
			ls := m.pod("ls", v1alpha1.LS, "/burstable")
			m.run(ls)
			_, shared := m.make(ls, "ls", asks(100, 0, 0))
			p := m.exclusive("p", v1alpha1.LSE, 1)
			_, at := m.make(p, "app", cpus(1))
			resize := func(n int64, own, rest string) {
				t.Helper()
				if r := m.e.PodResizing(t.Context(), "sp", cpus(n)); r != nil {
					t.Fatalf("%d CPUs are refused: %s", n, r.Message)
				}
				m.settled(map[cgroup.Path]string{at: own, shared: rest})
			}
			resize(3, "0-2", "3")
			if r := m.e.PodResizing(t.Context(), "sp", cpus(4)); r == nil || !strings.Contains(r.Message, "LS pool") || m.owns()["p"] != "0-2" {
				t.Errorf("4 CPUs: %+v, %v", r, m.owns())
			}
			if r := m.e.PodResizing(t.Context(), "sp", asks(1536, 150000, 0)); r == nil || !strings.Contains(r.Message, "1500m") {
				t.Errorf("a fraction: %+v", r)
			}
			// A resize of memory brings shares that the kubelet has read back from a weight, and a smaller limit comes before
			// the smaller request.
			for _, r := range []policy.Resources{asks(3100, 0, gi), asks(3100, 300000, gi), asks(3000, 200000, gi)} {
				if refusal := m.e.PodResizing(t.Context(), "sp", r); refusal != nil || m.owns()["p"] != "0-2" {
					t.Errorf("%+v: %+v, %v", r, refusal, m.owns())
				}
			}
			resize(1, "0", "1-3")
			m.stop()
			m.start()
			m.adopt()
			if m.owns()["p"] != "0" {
				t.Errorf("after a restart: %v", m.owns())
			}
		})
	}
}

// A CPU that goes out, and CPUs that the policy reserves by now, move who is there.
func TestMachineChanges(t *testing.T) {
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.exclusive("p", v1alpha1.LSR, 2)
	_, at := m.make(p, "app", cpus(2))
	m.want(at, "cpuset.cpus", "0-1")
	less := flat(4)
	less.CPUs = slices.Delete(slices.Clone(less.CPUs), 1, 2)
	less.Offline = cpuset.New(1)
	m.e.SetTopology(less, cpuset.New(0, 2, 3))
	m.want(at, "cpuset.cpus", "0,2")
	m.e.SetPolicy(compile(t, func(s *v1alpha1.QoSPolicySpec) { s.ReservedCPUs = "0" }), control.PolicyStatus{Name: "other", Generation: 2})
	// Two CPUs that are neither reserved nor out are left, and one is for LS.
	m.want(at, "cpuset.cpus", "2-3")
	if !m.degraded("placement") {
		t.Error("the status does not tell of a pod that lost its CPUs")
	}
	m.e.SetTopology(flat(4), cpuset.New(0, 1, 2, 3))
	m.eventually("the pod to have CPUs again", func() bool { return m.owns()["p"] == "1-2" })
	m.want(at, "cpuset.cpus", "1-2")
	if m.degraded("placement") {
		t.Error("the status tells of what is over")
	}
}

// CPUs that the kubelet's static manager gave to a pod are nobody else's, and a pod of ours makes way.
func TestStaticManager(t *testing.T) {
	m := newMachine(t, cgrouptest.V2, nil)
	ls := m.pod("ls", v1alpha1.LS, "/burstable")
	m.run(ls)
	lsAsks := asks(100, 0, 0)
	lsAsks.CPUSetCPUs = "0-3"
	_, shared := m.make(ls, "ls", lsAsks)
	ours := m.exclusive("ours", v1alpha1.LSE, 1)
	_, own := m.make(ours, "ours", cpus(1))
	m.settled(map[cgroup.Path]string{own: "0", shared: "1-3"})

	theirs := m.pod("theirs", v1alpha1.None, "")
	theirs.KubeQoS = v1alpha1.Guaranteed
	m.run(theirs)
	theirAsks := cpus(2)
	theirAsks.CPUSetCPUs = "0-1"
	plan, at := m.make(theirs, "theirs", theirAsks)
	if len(plan.Apply) > 0 {
		t.Errorf("the kubelet's CPUs are changed: %+v", plan.Apply)
	}
	if err := m.k.Set(at, "cpuset.cpus", "0-1"); err != nil { // as the runtime does
		t.Fatal(err)
	}
	m.settled(map[cgroup.Path]string{at: "0-1", own: "2", shared: "3"})
	if got := m.cpus(); got.Foreign != "0-1" {
		t.Errorf("foreign CPUs %q", got.Foreign)
	}
	m.e.Removed(id("theirs"))
	m.eventually("the kubelet's CPUs to be free", func() bool { return m.cpus().Foreign == "" })
	m.settled(map[cgroup.Path]string{own: "2", shared: "0-1,3"})

	// The kubelet gives CPUs to a pod of LSE: they are its own.
	both := m.exclusive("both", v1alpha1.LSE, 1)
	both.KubeQoS = v1alpha1.Guaranteed
	bothAsks := cpus(1)
	bothAsks.CPUSetCPUs = "3"
	plan, _ = m.make(both, "both", bothAsks)
	if find := values(plan.Apply); find[policy.CPUSetCPUs] != "" || plan.Decision.Refusal != nil {
		t.Errorf("a pod of both gets %+v", plan)
	}
	if got := m.cpus(); got.Foreign != "3" || m.owns()["both"] != "" {
		t.Errorf("told: %+v", got)
	}
}

// A write that fails is reported and tried again, and holds up nobody else.
func TestMoveFails(t *testing.T) {
	m := newMachine(t, cgrouptest.V1, nil)
	var bad, good cgroup.Path
	for _, name := range []string{"bad", "good"} {
		p := m.pod(name, v1alpha1.LS, "/burstable")
		m.run(p)
		_, at := m.make(p, name, asks(100, 0, 0))
		if name == "bad" {
			bad = at
		} else {
			good = at
		}
	}
	nested := bad + "/nested"
	if err := m.k.Make(nested); err != nil { // with a cpuset of its own: no CPU of it can be taken
		t.Fatal(err)
	}
	m.exclusive("p", v1alpha1.LSR, 1)
	m.want(good, "cpuset.cpus", "1-3")
	m.eventually("the failure to be reported", func() bool { return m.degraded("container CPUs") })
	if got := m.file(bad, "cpuset.cpus"); got != "0-3" {
		t.Errorf("it has %q", got)
	}
	for _, d := range m.status().Degraded {
		if d.What == "container CPUs" && (!strings.Contains(d.Why, "bad/bad/0 keeps CPUs 0-3") || !strings.Contains(d.Why, syscall.EBUSY.Error())) {
			t.Errorf("reported as %q", d.Why)
		}
	}
	if err := m.k.Set(nested, "cpuset.cpus", "2"); err != nil {
		t.Fatal(err)
	}
	m.want(bad, "cpuset.cpus", "1-3")
	m.eventually("the report to end", func() bool { return !m.degraded("container CPUs") })
}

// The kubelet's updates carry the CPUs of the moment, and nothing of ours is left after disable.
func TestUpdateAndDisable(t *testing.T) {
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, nil)
			ls := m.pod("ls", v1alpha1.LS, "/burstable")
			m.run(ls)
			_, at := m.make(ls, "ls", asks(100, 0, 0))
			none := m.pod("none", v1alpha1.None, "/burstable")
			m.run(none)
			_, other := m.make(none, "none", asks(100, 0, 0))
			p := m.exclusive("p", v1alpha1.LSE, 2)
			_, own := m.make(p, "app", cpus(2))
			m.settled(map[cgroup.Path]string{at: "2-3", other: "2-3", own: "0-1"})
			for name, want := range map[string]string{"ls": "2-3", "none": "2-3", "app": "0-1"} {
				plan, err := m.e.Update(t.Context(), id(name), policy.Resources{CPUSetCPUs: "0-3"})
				if err != nil || values(plan.Apply)[policy.CPUSetCPUs] != want {
					t.Errorf("%s: %+v, %v", name, plan.Apply, err)
				}
				m.e.Updated(plan, true)
			}
			report, err := m.e.Disable(t.Context())
			if err != nil || len(report.Errors) > 0 {
				t.Fatalf("disable: %+v, %v", report, err)
			}
			for _, u := range m.rt.Updates() {
				if v := values(u.Settings)[policy.CPUSetCPUs]; v != "0-3" {
					t.Errorf("the runtime keeps cpuset.cpus %q of %.4s", v, u.ID)
				}
			}
			m.exclusive("later", v1alpha1.LSR, 1)
			m.never("a value is written after disable", func() bool { return m.file(at, "cpuset.cpus") == "3" })
		})
	}
}

// A container that was made while a pod owned CPUs has them all in the end, whatever is updated in between: what its file
// replaced is no value to go back to.
func TestMadeMeanwhile(t *testing.T) {
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, nil)
			m.exclusive("p", v1alpha1.LSR, 1)
			none := m.pod("none", v1alpha1.None, "/burstable")
			m.run(none)
			_, at := m.make(none, "none", asks(100, 0, 0))
			m.want(at, "cpuset.cpus", "1-3")
			m.e.PodStopped("sp")
			m.want(at, "cpuset.cpus", "0-3")
			for range 2 {
				plan, err := m.e.Update(t.Context(), id("none"), asks(200, 0, 0))
				if err != nil {
					t.Fatal(err)
				}
				m.carry(at, plan.Apply)
				m.e.Updated(plan, true)
				m.never("it goes back to the CPUs of its birth", func() bool { return m.file(at, "cpuset.cpus") != "0-3" })
			}
			m.stop()
			m.start()
			m.adopt()
			m.never("it goes back to the CPUs of its birth after a restart", func() bool { return m.file(at, "cpuset.cpus") != "0-3" })
			if report, err := m.e.Disable(t.Context()); err != nil || len(report.Errors) > 0 {
				t.Fatalf("disable: %+v, %v", report, err)
			}
			if u := m.rt.Updates(); len(u) != 1 || values(u[0].Settings)[policy.CPUSetCPUs] != "0-3" {
				t.Errorf("disable sends %+v", u)
			}
		})
	}
}

// One that was made while a pod owned CPUs is known for what it is by its birth record, if we end before the record is written.
func TestUntieredBirth(t *testing.T) {
	m := newMachine(t, cgrouptest.V2, nil)
	m.exclusive("p", v1alpha1.LSR, 1)
	none := m.pod("none", v1alpha1.None, "/burstable")
	m.run(none)
	_, at := m.make(none, "none", asks(100, 0, 0)) // Reported does not follow
	m.stop()
	m.start()
	m.adopt()
	if c := m.container("none"); c == nil || c.State != policy.Managed || c.Asked == nil || c.Asked.CPUSetCPUs != "" {
		t.Errorf("known as %+v", c)
	}
	m.e.PodStopped("sp")
	m.want(at, "cpuset.cpus", "0-3")
}

// What the kubelet has asked meanwhile is what a container goes back to, and not what stood there before our first file.
func TestAskedMeanwhile(t *testing.T) {
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, nil)
			p := m.pod("ls", v1alpha1.LS, "/burstable")
			m.run(p)
			_, at := m.make(p, "ls", asks(100, 0, 0))
			m.exclusive("p", v1alpha1.LSR, 1)
			m.want(at, "cpuset.cpus", "1-3")
			plan, err := m.e.Update(t.Context(), id("ls"), policy.Resources{CPUSetCPUs: "2"}) // within the pool
			if err != nil {
				t.Fatal(err)
			}
			m.carry(at, append(plan.Apply, policy.Setting{Knob: policy.CPUSetCPUs, Value: "2"}))
			m.e.Updated(plan, true)
			m.want(at, "cpuset.cpus", "2")
			m.never("it leaves what the kubelet asked", func() bool { return m.file(at, "cpuset.cpus") != "2" })
			m.e.PodStopped("sp")
			m.never("it leaves what the kubelet asked", func() bool { return m.file(at, "cpuset.cpus") != "2" })
		})
	}
}

// A door that checks the files of what it finds does not write the CPUs of a record, which the pools have left behind.
func TestRecheckAfterPools(t *testing.T) {
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, layout, func(c *engine.Config) { c.Recheck = true })
			m.exclusive("p", v1alpha1.LSR, 1)
			none := m.pod("none", v1alpha1.None, "/burstable")
			m.run(none)
			c := engine.Creation{SandboxID: "s" + none.UID, Pod: none, Name: "none", Asked: asks(100, 0, 0)}
			plan, err := m.e.Create(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			at := m.made(c, plan)
			m.e.Recorded(c, plan)
			m.want(at, "cpuset.cpus", "1-3")
			m.e.PodStopped("sp")
			m.rt.StopPod("sp")
			m.want(at, "cpuset.cpus", "0-3")
			m.stop()
			m.start()
			m.adopt()
			m.never("it goes back to the CPUs of its record", func() bool { return m.file(at, "cpuset.cpus") != "0-3" })
		})
	}
}

// containerd 2.4 tells a plugin of no end of a sandbox that is older than its own start.
func TestEndThatNobodyTells(t *testing.T) {
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.exclusive("p", v1alpha1.LSE, 1)
	m.never("it loses its CPUs while it is there", func() bool { return m.owns()["p"] == "" })
	if err := m.k.Rmdir(cgroup.Path(p.CgroupParent)); err != nil {
		t.Fatal(err)
	}
	m.eventually("its CPUs to be free", func() bool { _, owns := m.owns()["p"]; return !owns })
}

// A runtime that does not tell instances apart has the old one removed after the new one was made.
func TestSameKey(t *testing.T) {
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("ls", v1alpha1.LS, "/burstable")
	m.run(p)
	c := engine.Creation{SandboxID: "s" + p.UID, Pod: p, Name: "app", Asked: asks(100, 0, 0)}
	for _, name := range []string{"old", "new"} {
		plan, err := m.e.Create(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		m.e.Created(c, plan, id(name))
	}
	m.e.Removed(id("old"))
	if got := m.container("app"); got == nil || got.ID != id("new") {
		t.Errorf("known is %+v", got)
	}
}

// The records of placements are input like any other.
func TestBadPlacements(t *testing.T) {
	m := newMachine(t, cgrouptest.V2, nil)
	m.exclusive("p", v1alpha1.LSR, 1)
	m.stop()
	for name, text := range map[string]string{
		"a": "{", "b": `{"uid":"other","tier":"LSE","count":1,"cpus":"0"}`, "c": `{"uid":"c","tier":"LSE","count":1,"cpus":"0-99999999"}`,
		"d": `{"uid":"d","tier":"BE","count":-1,"since":-5,"cpus":"0-3"}`, "e": `{"uid":"e","tier":"LSE","count":3,"cpus":"0,2-8000"}`,
	} {
		if err := os.WriteFile(m.placements+"/"+name+".json", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.start()
	got := m.owns()
	if got["p"] != "0" || len(got) > 2 {
		t.Errorf("owned: %v", got)
	}
	if !m.degraded("placements") {
		t.Error("not reported")
	}
}

// The pools of the moment are what a container gets that was decided on while they changed.
func TestPoolChangesMeanwhile(t *testing.T) {
	m := newMachine(t, cgrouptest.V2, nil)
	p := m.pod("ls", v1alpha1.LS, "/burstable")
	m.run(p)
	c := engine.Creation{SandboxID: "s" + p.UID, Pod: p, Name: "app", Asked: asks(100, 0, 0)}
	plan, err := m.e.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	m.exclusive("p", v1alpha1.LSE, 1)
	at := m.made(c, plan)
	m.want(at, "cpuset.cpus", "1-3")
	// The same with an update that takes its time.
	update, err := m.e.Update(t.Context(), id("app"), asks(200, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	m.exclusive("q", v1alpha1.LSE, 1)
	m.carry(at, update.Apply)
	m.e.Updated(update, true)
	m.want(at, "cpuset.cpus", "2-3")
}
