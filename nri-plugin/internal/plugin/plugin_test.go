package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	applynri "github.com/tideline-io/tideline/internal/apply/nri"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	factsnri "github.com/tideline-io/tideline/internal/facts/nri"
	"github.com/tideline-io/tideline/internal/facts/nri/nritest"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/policy"
)

// everyLayout runs a test on both.
func everyLayout(t *testing.T, f func(t *testing.T, layout cgrouptest.Layout)) {
	t.Parallel()
	for _, l := range []cgrouptest.Layout{cgrouptest.V1, cgrouptest.V2} {
		t.Run(string(l), func(t *testing.T) {
			t.Parallel()
			f(t, l)
		})
	}
}

// The socket comes late, the runtime goes and comes back with another one, and drops the plugin once.
func TestReconnects(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2)
	p := m.plugin()
	eventually(t, "the plugin says why it is alone", func() bool { return strings.Contains(p.why(), "no such file") })
	r := m.runtime()
	be := pod("u1", "BE")
	r.wait()
	r.run(be)
	_, err := r.create(be, containerID(0), "app", besteffort())
	must(t, err)
	eventually(t, "connected", p.connected)
	if seen := p.seen(); seen.Name != "fake" || seen.NRI.RequestTimeout != "20s" {
		t.Errorf("%+v", seen)
	}

	r.stop()
	eventually(t, "the plugin notices", func() bool { return !p.connected() })
	r.start()
	r.wait()
	eventually(t, "connected again", p.connected)

	r.drop(context.DeadlineExceeded)
	r.wait()
	eventually(t, "connected after being dropped", p.connected)
	_, err = r.create(be, containerID(1), "other", besteffort())
	must(t, err)
	for n := range 2 {
		if c := p.container(containerID(n)); c == nil || c.State != policy.Managed || r.stored(containerID(n)).Unified["cpu.idle"] != "1" {
			t.Errorf("%d: %+v", n, c)
		}
	}
}

// A runtime that accepts the registration and never configures the plugin: the attempt ends, and so does what it began.
func TestNeverConfigured(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2)
	m.limits = func(l *limits) { l.register = 50 * time.Millisecond }
	r := m.newRuntime()
	silent := make(chan struct{})
	r.failWith(func(method string, _ *ttrpc.Request) error {
		if method == "Configure" {
			<-silent
		}
		return nil
	})
	r.start()
	p := m.plugin()
	eventually(t, "the attempt ends", func() bool { return strings.Contains(p.why(), "not configured within") })
	r.failWith(nil)
	close(silent)
	r.wait()
	eventually(t, "connected", p.connected)
}

// A runtime that goes between registration and configuration is noticed at once.
func TestGoneWhileRegistering(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2)
	m.limits = func(l *limits) { l.register = time.Hour }
	r := m.newRuntime()
	r.failWith(func(method string, _ *ttrpc.Request) error {
		if method == "Configure" {
			return errors.New("no") // after which the runtime closes the connection
		}
		return nil
	})
	r.start()
	p := m.plugin()
	eventually(t, "the attempt ends", func() bool { return p.why() != "" })
	r.failWith(nil)
	r.wait()
	eventually(t, "connected", p.connected)
}

// What NRI has merged is what internal/apply says of the decision.
func TestCreate(t *testing.T) {
	everyLayout(t, func(t *testing.T, layout cgrouptest.Layout) {
		m, r, p := pair(t, layout)
		n := 0
		for _, tier := range []string{"LS", "BE", "SYSTEM", "odd", ""} { // the others need CPUs: TestPlaced
			for _, name := range []string{"init", "app", "sidecar"} {
				for _, res := range []*runtimeapi.LinuxContainerResources{besteffort(), burstable(), nil} {
					n++
					id := containerID(n)
					s := pod(fmt.Sprintf("u%d", n), tier, v1alpha1.AnnotationBatchResources, batch)
					r.run(s)
					want := nritest.Create(res)
					asked := &api.Container{Linux: &api.LinuxContainer{Resources: api.FromOCILinuxResources(want.Linux.Resources, nil), OomScoreAdj: api.Int(want.Process.OOMScoreAdj)}}
					d := defaultPolicy(t).Container(m.node(), factsnri.Pod(s), policy.Container{
						Name: name, State: policy.Managed, Asked: factsnri.Resources(asked.GetLinux().GetResources(), asked.GetLinux().GetOomScoreAdj()),
					})
					adj, _, err := applynri.Adjust(d.Settings, m.version(), asked)
					must(t, err)
					must(t, nritest.Adjust(want, adj))

					got, err := r.create(s, id, name, res)
					must(t, err)
					var spec any
					r.edit(id, func(c *made) { spec = [2]any{c.spec.Linux.Resources, c.spec.Process.OOMScoreAdj} })
					if diff := cmp.Diff([2]any{want.Linux.Resources, want.Process.OOMScoreAdj}, spec); diff != "" {
						t.Errorf("%s %s: %s", tier, name, diff)
					}
					birth, marked := got.GetAnnotations()[v1alpha1.AnnotationDecision]
					var b engine.Birth
					if marked != (d.Tier != v1alpha1.None) || marked && (json.Unmarshal([]byte(birth), &b) != nil || b.Tier != tier) {
						t.Errorf("%s %s: birth record %q", tier, name, birth)
					}
					if c := p.container(id); c == nil || c.Decision.Tier != d.Tier || c.State != policy.Managed {
						t.Errorf("%s %s: %+v", tier, name, c)
					}
				}
			}
		}
		eventually(t, "records of those that have a tier", func() bool { return len(m.records()) == 3*9 })
		if c := p.counts(); c.FailedOpen+c.Refused != 0 {
			t.Errorf("%+v", c)
		}
	})
}

// A pod of an exclusive tier gets CPUs of its own, and who finds none is refused.
func TestPlaced(t *testing.T) {
	everyLayout(t, func(t *testing.T, layout cgrouptest.Layout) {
		_, r, p := pair(t, layout, func(m *machine) {
			m.engine = func(c *engine.Config) {
				must(t, m.k.SetSize(4, 2))
				c.Node.Online = cpuset.New(0, 1, 2, 3)
				for i := range 4 {
					c.Topology.CPUs = append(c.Topology.CPUs, placement.CPU{ID: i, NUMANode: i / 2, L3: i / 2, L2: i, Core: i})
				}
				c.Topology.Nodes = []placement.Node{{ID: 0, Memory: true}, {ID: 1, Memory: true}}
				c.PlacementDir = t.TempDir()
			}
		})
		asks := &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(200000), Period: api.UInt64(100000), Shares: api.UInt64(2048)}}
		start := func(uid, tier string) *api.PodSandbox {
			s := pod(uid, tier)
			s.Linux.PodResources = asks
			r.run(s)
			return s
		}
		s := start("a", "LSE")
		for i, name := range []string{"init", "app"} {
			_, err := r.create(s, containerID(i), name, burstable())
			must(t, err)
			if c := r.stored(containerID(i)).CPU; c.Cpus != "0-1" || c.Mems != "0" {
				t.Errorf("%s has CPUs %q and memory nodes %q", name, c.Cpus, c.Mems)
			}
		}
		b := start("b", "LSR")
		if _, err := r.create(b, containerID(2), "app", burstable()); err == nil || !strings.Contains(err.Error(), "LS pool") {
			t.Errorf("without room: %v", err)
		}
		more := &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(400000), Period: api.UInt64(100000)}}
		if _, err := r.a.UpdatePodSandbox(r.ctx(), &api.UpdatePodSandboxRequest{Pod: s, LinuxResources: more}); err == nil || !strings.Contains(err.Error(), v1alpha1.LabelQoS) {
			t.Errorf("a resize without room: %v", err)
		}
		more.Cpu.Quota = api.Int64(300000)
		_, err := r.a.UpdatePodSandbox(r.ctx(), &api.UpdatePodSandboxRequest{Pod: s, LinuxResources: more})
		must(t, err)
		c, err := p.e.CPUs(t.Context())
		must(t, err)
		if len(c.Pods) != 1 || c.Pods[0].CPUs != "0-2" || c.Pools.LS != "3" {
			t.Errorf("after the resize: %+v", c)
		}
		must(t, r.a.StopPodSandbox(r.ctx(), &api.StopPodSandboxRequest{Pod: s}))
		eventually(t, "the other to be placed", func() bool {
			c, err := p.e.CPUs(t.Context())
			return err == nil && len(c.Pods) == 1 && c.Pods[0].UID == "b"
		})
		_, err = r.create(b, containerID(2), "app", burstable())
		must(t, err)
	})
}

func TestRefused(t *testing.T) {
	t.Parallel()
	m, r, p := pair(t, cgrouptest.V2)
	for i, tier := range []string{"LSE", "LSR"} {
		s := pod("u"+tier, tier, v1alpha1.AnnotationRequests, "{")
		r.run(s)
		_, err := r.create(s, containerID(i), "app", burstable())
		if err == nil || !strings.Contains(err.Error(), v1alpha1.AnnotationRequests) {
			t.Fatalf("%s: %v", tier, err)
		}
		if !p.p.store.over(containerID(i)) {
			t.Error("it is stored")
		}
	}
	if c := p.counts(); c.Refused != 2 || c.BadInput < 2 || len(p.containers()) != 0 || len(m.records()) != 0 || p.e.HasViews() {
		t.Errorf("%+v, %+v, records %v", c, p.containers(), m.records())
	}
	s := pod("uBE", "BE", v1alpha1.AnnotationRequests, "{")
	r.run(s)
	_, err := r.create(s, containerID(2), "app", besteffort())
	must(t, err)
}

func TestBypassAndObserve(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"bypass", "observe"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			m, r, p := pair(t, cgrouptest.V1, func(m *machine) {
				m.engine = func(c *engine.Config) {
					if mode == "observe" {
						c.Mode = control.ModeObserve
					} else {
						c.Bypass = true
					}
				}
			})
			for i, tier := range []string{"LSE", "LSR", "LS", "BE", "SYSTEM", ""} {
				id := containerID(i)
				s := pod(fmt.Sprintf("u%d", i), tier, v1alpha1.AnnotationRequests, "{")
				r.run(s)
				adj, err := r.create(s, id, "app", burstable())
				must(t, err)
				if diff := cmp.Diff(nritest.Create(burstable()).Linux.Resources, r.stored(id)); diff != "" || len(adj.GetAnnotations()) > 0 {
					t.Errorf("%s: %s", tier, diff)
				}
				r.startContainer(id, 100+i)
				r.updateContainer(id, &runtimeapi.LinuxContainerResources{CpuShares: 700}, nil)
				if got := r.stored(id).CPU.Shares; *got != 700 {
					t.Errorf("%s: shares %d", tier, *got)
				}
			}
			if c := p.counts(); c.Changed+c.Refused+c.FailedOpen+c.Writes != 0 || (c.Decisions > 0) != (mode == "observe") {
				t.Errorf("%+v", c)
			}
			if w := m.k.Writes(); len(w) > 0 {
				t.Errorf("written: %v", w)
			}
			if mode == "bypass" { // what came meanwhile is known when it ends
				p.e.SetBypass(false)
				eventually(t, "adoption", func() bool { c := p.container(containerID(3)); return c != nil && c.State == policy.Adopted })
				if p.container(containerID(3)).Decision.Tier != v1alpha1.BE {
					t.Errorf("%+v", p.container(containerID(3)))
				}
			}
		})
	}
}

// The pod's own values are there before its container, and what NRI can't carry after its start.
func TestStart(t *testing.T) {
	t.Parallel()
	m, r, p := pair(t, cgrouptest.V1)
	s := pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch)
	r.run(s)
	if got := m.get("/kubepods/besteffort/podu1", "blkio.bfq.weight"); got != "10" {
		t.Errorf("the pod's blkio.bfq.weight is %s", got)
	}
	_, err := r.create(s, containerID(0), "app", besteffort())
	must(t, err)
	r.startContainer(containerID(0), 7)
	at := cgroupOf(s, containerID(0))
	eventually(t, "cpu.idle", func() bool { return m.get(at, "cpu.idle") == "1" })
	for _, w := range m.k.Writes() {
		if w.Err != nil {
			t.Errorf("%+v", w)
		}
	}
	if c := p.container(containerID(0)); c == nil || c.Error != "" {
		t.Errorf("%+v", c)
	}
}

// CRI-O 1.34 tells no process of a container, but the name of its cgroup.
func TestNoPIDs(t *testing.T) {
	t.Parallel()
	m, r, p := pair(t, cgrouptest.V1)
	s := pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch)
	r.run(s)
	id := containerID(0)
	_, err := r.create(s, id, "app", besteffort())
	must(t, err)
	at := cgroup.Path(s.GetLinux().GetCgroupParent() + "/crio-" + id)
	must(t, m.k.Make(at))
	r.edit(id, func(c *made) { c.spec.Linux.CgroupsPath = string(at) })
	sandbox, c := r.about(id)
	must(t, r.a.StartContainer(r.ctx(), &api.StartContainerRequest{Pod: sandbox, Container: c}))
	eventually(t, "cpu.idle", func() bool { return m.get(at, "cpu.idle") == "1" })
	r.edit(id, func(c *made) { c.state = api.ContainerState_CONTAINER_RUNNING })
	p.stop()
	must(t, m.k.Set(at, "cpu.idle", "0"))
	p = m.plugin()
	r.wait()
	eventually(t, "cpu.idle after a restart", func() bool { return m.get(at, "cpu.idle") == "1" })
	r.edit(id, func(c *made) { c.spec.Linux.CgroupsPath = "/kubepods/besteffort/podu2" }) // not its own
	must(t, m.k.Make("/kubepods/besteffort/podu2"))
	sandbox, c = r.about(id)
	must(t, r.a.StartContainer(r.ctx(), &api.StartContainerRequest{Pod: sandbox, Container: c}))
	eventually(t, "the error", func() bool { c := p.container(id); return c != nil && c.Error != "" })
	for _, w := range m.k.Writes() {
		if strings.HasPrefix(string(w.Path), "/kubepods/besteffort/podu2") {
			t.Errorf("a write to a cgroup that is not the container's: %+v", w)
		}
	}
	r.stopContainer(id)
	if _, err := p.p.PID(t.Context(), id); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("PID: %v", err)
	}
}

func TestUpdate(t *testing.T) {
	everyLayout(t, func(t *testing.T, layout cgrouptest.Layout) {
		m, r, p := pair(t, layout)
		s := pod("u1", "LS")
		r.run(s)
		id, at := containerID(0), cgroupOf(s, containerID(0))
		_, err := r.create(s, id, "app", burstable())
		must(t, err)
		if layout == cgrouptest.V1 { // the quota is the runtime's, written before the start
			must(t, m.k.Make(at))
			must(t, m.k.Set(at, "cpu.cfs_quota_us", "100000"))
		}
		r.startContainer(id, 7)
		burst := func() string {
			if layout == cgrouptest.V1 {
				return m.get(at, "cpu.cfs_burst_us")
			}
			return r.stored(id).Unified["cpu.max.burst"]
		}
		eventually(t, "a burst", func() bool { return burst() == "100000" })
		for _, quota := range []int64{200000, 50000} {
			before := func() {
				if layout == cgrouptest.V1 { // which the kernel refuses while the burst is above it
					must(t, m.k.Set(at, "cpu.cfs_quota_us", fmt.Sprint(quota)))
				}
			}
			r.updateContainer(id, &runtimeapi.LinuxContainerResources{CpuQuota: quota, CpuPeriod: 100000}, before)
			if got := *r.stored(id).CPU.Quota; got != quota {
				t.Errorf("quota %d, want %d", got, quota)
			}
			eventually(t, "the burst follows", func() bool { return burst() == fmt.Sprint(quota) })
		}
		r.updateContainer(id, &runtimeapi.LinuxContainerResources{CpusetCpus: "1-2"}, nil)
		if got := r.stored(id).CPU; got.Cpus != "1-2" || *got.Quota != 50000 || *got.Shares != 512 {
			t.Errorf("%+v", got)
		}
		if c := p.container(id); c == nil || c.State != policy.Managed || c.Asked.CPUSetCPUs != "1-2" || *c.Asked.CPUQuota != 50000 {
			t.Errorf("%+v", c)
		}
		if c := p.counts(); c.FailedOpen+c.WriteFails != 0 {
			t.Errorf("%+v", c)
		}
	})
}

// Of an update that fails the runtime says nothing: it is rolled back after the limit, or when the next one comes.
func TestUpdateThatFails(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"limit", "next"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			_, r, p := pair(t, cgrouptest.V2, func(m *machine) {
				m.limits = func(l *limits) {
					if l.update = time.Hour; how == "limit" {
						l.update = 50 * time.Millisecond
					}
				}
			})
			s := pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch)
			r.run(s)
			id := containerID(0)
			_, err := r.create(s, id, "app", besteffort())
			must(t, err)
			shares := func() int64 { return *p.e.View(id).Asked.CPUShares }
			r.updateThatFails(id, &runtimeapi.LinuxContainerResources{CpuShares: 512})
			if how == "limit" {
				eventually(t, "it is rolled back", func() bool { return shares() == 2 })
			}
			r.updateContainer(id, &runtimeapi.LinuxContainerResources{CpusetCpus: "1"}, nil)
			if got := shares(); got != 2 {
				t.Errorf("shares %d", got)
			}
			report, err := p.e.Disable(t.Context()) // which waits for what is under way
			if err != nil || len(report.Errors) > 0 {
				t.Errorf("%+v, %v", report, err)
			}
		})
	}
}

func TestStopRemoveAndFailedCreation(t *testing.T) {
	t.Parallel()
	m, r, p := pair(t, cgrouptest.V1)
	s := pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch)
	r.run(s)
	id := containerID(0)
	_, err := r.create(s, id, "app", besteffort())
	must(t, err)
	r.startContainer(id, 7)
	if _, err := r.create(s, containerID(1), "other", besteffort(), errMade); !errors.Is(err, errMade) {
		t.Fatal(err)
	}
	if c := p.container(containerID(1)); c != nil || p.p.store.over(id) || !p.p.store.over(containerID(1)) {
		t.Errorf("%+v", c)
	}
	eventually(t, "one record", func() bool { return len(m.records()) == 1 })
	r.stopContainer(id)
	if _, err := p.p.PID(t.Context(), id); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("PID: %v", err)
	}
	if err := p.p.Update(t.Context(), id, nil); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("Update: %v", err)
	}
	must(t, m.k.Rmdir(cgroupOf(s, id)))
	r.remove(id)
	if _, err := p.p.PID(t.Context(), id); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("PID: %v", err)
	}
	must(t, m.k.Rmdir("/kubepods/besteffort/podu1"))
	r.removePod(s)
	eventually(t, "nothing is left", func() bool {
		p.p.store.mu.Lock()
		defer p.p.store.mu.Unlock()
		return len(m.records()) == 0 && len(p.containers()) == 0 && len(p.p.store.pods)+len(p.p.store.containers)+len(p.p.updates.of) == 0
	})
	if c := p.counts(); c.WriteFails != 0 {
		t.Errorf("%+v", c)
	}
}

// A resize of the pod: the burst of ours goes before the kubelet writes a lower quota, and comes back.
func TestPodResize(t *testing.T) {
	t.Parallel()
	m, r, p := pair(t, cgrouptest.V2)
	const at = "/kubepods/besteffort/podu1"
	s := pod("u1", "LS")
	must(t, m.k.Make(at))
	must(t, m.k.Set(at, "cpu.max", "100000 100000"))
	r.run(s)
	_, err := r.create(s, containerID(0), "app", burstable())
	must(t, err)
	burst := func(want string) func() bool { return func() bool { return m.get(at, "cpu.max.burst") == want } }
	eventually(t, "the burst", burst("100000"))
	for _, quota := range []string{"100000", "50000"} {
		_, err = r.a.UpdatePodSandbox(t.Context(), &api.UpdatePodSandboxRequest{Pod: s, LinuxResources: &api.LinuxResources{}})
		must(t, err)
		if !burst("0")() {
			t.Errorf("the burst is %s while the kubelet writes", m.get(at, "cpu.max.burst"))
		}
		must(t, m.k.Set(at, "cpu.max", quota+" 100000"))
		eventually(t, "the burst is back, within the quota", burst(quota))
	}
	if c := p.counts(); c.FailedOpen != 0 {
		t.Errorf("%+v", c)
	}
}

// Containers that were there before, more than one message holds: they are adopted, updates are returned where values
// differ, and none the second time.
func TestSynchronize(t *testing.T) {
	t.Parallel()
	count := 5000
	if testing.Short() {
		count = 500
	}
	m := newMachine(t, cgrouptest.V2)
	r := m.newRuntime()
	r.start()
	for i := range count {
		s := pod(fmt.Sprintf("u%d", i), []string{"BE", "LS", ""}[i%3], v1alpha1.AnnotationBatchResources, batch, "filler", strings.Repeat("x", 3000))
		r.pods[s.Id] = s
		r.made[containerID(i)] = &made{
			pod: s.Id, name: "app", spec: nritest.Create(besteffort()), state: api.ContainerState_CONTAINER_RUNNING, pid: uint32(1000 + i),
			annotations: map[string]string{v1alpha1.AnnotationDecision: `{"tier":"LSE"}`}, // anybody may have written it
		}
	}
	p := m.plugin()
	r.wait()
	if n := r.count("Synchronize"); count == 5000 && n < 2 {
		t.Errorf("%d messages", n)
	}
	first := r.answers
	for _, u := range first {
		if !u.IgnoreFailure || u.Linux == nil {
			t.Fatalf("%v", u)
		}
	}
	if len(first) != (count+2)/3 { // each BE container gets its quota
		t.Errorf("%d updates", len(first))
	}
	if got := r.stored(containerID(0)); *got.CPU.Quota != 50000 || *got.CPU.Shares != 2 || got.Unified["cpu.idle"] != "" {
		t.Errorf("%+v", got)
	}
	all := map[v1alpha1.Tier]int{}
	for _, c := range p.containers() {
		if c.State != policy.Adopted {
			t.Fatalf("%+v", c)
		}
		all[c.Decision.Tier]++
	}
	if all[v1alpha1.BE] != (count+2)/3 || all[v1alpha1.LSE] != 0 {
		t.Errorf("%v", all)
	}
	eventually(t, "records", func() bool { return len(m.records()) == len(first) })
	for _, again := range []string{"the same plugin", "another process"} {
		if again == "another process" {
			p.stop()
			p = m.plugin()
		} else {
			r.drop(context.DeadlineExceeded)
		}
		r.forget(containerID(count - 1)) // gone meanwhile
		r.wait()
		if len(r.answers) != 0 {
			t.Errorf("%s: %d updates, %v", again, len(r.answers), r.answers[0])
		}
		eventually(t, "the one that is gone is dropped", func() bool { return len(p.containers()) == count-1 })
	}
	if c := p.counts(); c.FailedOpen != 0 {
		t.Errorf("%+v", c)
	}
}

// A record of a run of the CRI door, and the spec that it leaves: nothing changes.
func TestTakesOverFromTheOtherDoor(t *testing.T) {
	everyLayout(t, func(t *testing.T, layout cgrouptest.Layout) {
		m := newMachine(t, layout)
		r := m.runtime()
		p := m.plugin()
		r.wait()
		s := pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch)
		r.run(s)
		id := containerID(0)
		_, err := r.create(s, id, "app", besteffort())
		must(t, err)
		r.startContainer(id, 7)
		eventually(t, "a record", func() bool { return len(m.records()) == 1 })
		p.stop()
		// The CRI door leaves no shares in the spec, and its own annotation.
		r.edit(id, func(c *made) { c.spec.Linux.Resources.CPU.Shares = nil })
		eventually(t, "it is gone", func() bool { r.drop(ttrpc.ErrClosed); return true })
		writes := len(m.k.Writes())
		p = m.plugin()
		r.wait()
		if c := p.container(id); c == nil || c.State != policy.Managed || len(r.answers) != 0 {
			t.Errorf("%+v, %v", c, r.answers)
		}
		if got := p.e.View(id); got == nil || *got.Asked.CPUShares != 2 {
			t.Errorf("asked %+v", got)
		}
		p.stop() // and what it writes in the background is written
		for _, w := range m.k.Writes()[writes:] {
			t.Errorf("written: %+v", w)
		}
	})
}

// The record is there when the runtime makes the container: a plugin that ends right then still knows at its next start that
// shares must not pass to it. Nor may they where records are lost.
func TestSharesAfterARestart(t *testing.T) {
	everyLayout(t, func(t *testing.T, layout cgrouptest.Layout) {
		for _, lost := range []bool{false, true} {
			m, r, p := pair(t, layout)
			s := pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch)
			r.run(s)
			id, at := containerID(0), cgroupOf(s, containerID(0))
			_, err := r.create(s, id, "app", besteffort())
			must(t, err)
			if n := len(m.records()); n != 1 {
				t.Fatalf("%d records when the container is made", n)
			}
			p.stop()
			if lost {
				must(t, os.RemoveAll(m.state))
			}
			r.drop(ttrpc.ErrClosed)
			r.startContainer(id, 7)
			must(t, m.k.Make(at))
			p = m.plugin()
			r.wait()
			r.updateContainer(id, besteffort(), nil)
			if got := r.stored(id); got.CPU.Shares != nil && *got.CPU.Shares != 0 {
				t.Errorf("records lost: %t: shares %d are stored", lost, *got.CPU.Shares)
			}
			if layout == cgrouptest.V2 && r.stored(id).Unified["cpu.idle"] != "1" {
				t.Errorf("records lost: %t: %v", lost, r.stored(id).Unified)
			}
			eventually(t, "it is idle", func() bool { return layout == cgrouptest.V2 || m.get(at, "cpu.idle") == "1" })
			p.stop()
			r.stop()
		}
	})
}

// Nobody drops the records before the runtime has told what there is.
func TestPolicyReloadBeforeTheRuntimeIsThere(t *testing.T) {
	t.Parallel()
	m, r, p := pair(t, cgrouptest.V2)
	s := pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch)
	r.run(s)
	_, err := r.create(s, containerID(0), "app", besteffort())
	must(t, err)
	eventually(t, "a record", func() bool { return len(m.records()) == 1 })
	p.stop()
	r.stop()
	p = m.plugin()
	eventually(t, "alone", func() bool { return p.why() != "" })
	p.e.SetPolicy(defaultPolicy(t), control.PolicyStatus{})
	eventually(t, "adoption is tried", func() bool {
		st, err := p.e.Status(t.Context())
		return err == nil && strings.Contains(fmt.Sprint(st.Degraded), "no NRI connection")
	})
	r.start()
	r.wait()
	if c := p.container(containerID(0)); c == nil || c.State != policy.Managed {
		t.Errorf("%+v, %v", c, m.records())
	}
}

// A connection that is lost between a creation and its report: the container has its record all the same.
func TestDroppedWhileCreating(t *testing.T) {
	t.Parallel()
	m, r, _ := pair(t, cgrouptest.V2)
	s := pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch)
	r.run(s)
	r.failWith(func(method string, _ *ttrpc.Request) error {
		if method == "PostCreateContainer" {
			return ttrpc.ErrClosed
		}
		return nil
	})
	_, err := r.create(s, containerID(0), "app", besteffort())
	must(t, err)
	r.failWith(nil)
	r.wait()
	eventually(t, "a record", func() bool { return len(m.records()) == 1 })
}

// A fault in the engine costs decisions and no hook more than its budget; tiers that want certainty are refused.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"panic", "stall"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			faulty, release := make(chan struct{}), make(chan struct{})
			_, r, p := pair(t, cgrouptest.V2, func(m *machine) {
				m.budget = 50 * time.Millisecond
				m.engine = func(c *engine.Config) {
					c.Clock = func() time.Time {
						select {
						case <-faulty:
						default:
							return time.Now()
						}
						if fault == "stall" {
							<-release
							return time.Now()
						}
						select {
						case <-release:
							return time.Now()
						default:
							panic("test")
						}
					}
				}
			})
			be := pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch)
			r.run(be)
			id := containerID(0)
			_, err := r.create(be, id, "app", besteffort())
			must(t, err)
			r.startContainer(id, 7)
			close(faulty)
			r.limit = 4 * time.Second // what is not answered by then fails
			for i, tier := range []string{"LS", "BE", "SYSTEM", "", "LSE", "LSR"} {
				s := pod("u"+tier, tier)
				r.run(s)
				_, err := r.create(s, containerID(i+1), "app", burstable())
				if tier == "LSE" || tier == "LSR" {
					if err == nil || !strings.Contains(err.Error(), v1alpha1.LabelQoS) || !strings.Contains(err.Error(), "no decision") {
						t.Errorf("%s: %v", tier, err)
					}
					continue
				}
				must(t, err)
				if diff := cmp.Diff(nritest.Create(burstable()).Linux.Resources, r.stored(containerID(i+1))); diff != "" {
					t.Errorf("%s: %s", tier, diff)
				}
				r.startContainer(containerID(i+1), 100+i)
			}
			// The runtime would refuse shares for the container that is idle.
			r.updateContainer(id, &runtimeapi.LinuxContainerResources{CpuShares: 512}, nil)
			if got := r.stored(id).CPU.Shares; got != nil && *got != 0 {
				t.Errorf("shares %d", *got)
			}
			_, err = r.a.UpdatePodSandbox(r.ctx(), &api.UpdatePodSandboxRequest{Pod: be})
			must(t, err)
			r.stopContainer(containerID(1))
			r.remove(containerID(1))
			if n := r.count("Configure"); n != 1 {
				t.Errorf("%d connections", n)
			}
			// The runtime drops a plugin that does not answer this.
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			r.mu.Lock()
			var pods []*api.PodSandbox
			var containers []*api.Container
			for id, c := range r.made {
				pods, containers = append(pods, r.pods[c.pod]), append(containers, r.message(id))
			}
			r.mu.Unlock()
			if _, err := (*hooks)(p.p).Synchronize(ctx, pods, containers); err != nil || ctx.Err() != nil {
				t.Errorf("%v, %v", err, ctx.Err())
			}
			close(release)
			eventually(t, "all is known", func() bool {
				all := p.containers()
				for _, c := range all {
					if c.ID == "" {
						return false
					}
				}
				return len(all) == 4
			})
			if c := p.counts(); c.FailedOpen < 4 || c.Refused != 2 {
				t.Errorf("%+v", c)
			}
		})
	}
}

// Disable has the runtime make updates; one whose NRI could deadlock is spared them, and says so.
func TestDisable(t *testing.T) {
	t.Parallel()
	for _, nri := range []string{"v0.12.5", "v0.11.0", "unknown", ""} {
		t.Run(nri, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, cgrouptest.V2)
			r := m.newRuntime()
			r.nri = nri
			r.start()
			p := m.plugin()
			r.wait()
			s := pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch)
			r.run(s)
			id := containerID(0)
			_, err := r.create(s, id, "app", besteffort())
			must(t, err)
			r.startContainer(id, 7)
			at := cgroupOf(s, id)
			for file, v := range map[string]string{"cpu.idle": "1", "cpu.max": "50000 100000", "memory.high": "966367641"} { // what the runtime has written
				must(t, m.k.Set(at, file, v))
			}
			report, err := p.e.Disable(t.Context())
			must(t, err)
			if nri == "v0.12.5" {
				if len(report.Errors) > 0 || report.Updated != 1 || len(r.asked) != 1 {
					t.Errorf("%+v, %v", report, r.asked)
				}
				got := r.stored(id)
				if *got.CPU.Shares != 2 || *got.CPU.Quota != -1 || got.Unified["cpu.idle"] != "0" {
					t.Errorf("%+v", got.CPU)
				}
				if v := m.get(at, "cpu.idle"); v != "0" {
					t.Errorf("cpu.idle %s", v)
				}
				return
			}
			if len(r.asked) != 0 || !strings.Contains(strings.Join(report.Errors, "\n"), "updates are safe since 0.12.1") {
				t.Errorf("%+v, %v", report, r.asked)
			}
			if idle, max := m.get(at, "cpu.idle"), m.get(at, "cpu.max"); idle != "0" || max != "max 100000" {
				t.Errorf("cpu.idle %s, cpu.max %s, %+v", idle, max, report)
			}
		})
	}
}

func TestDisableThatTheRuntimeRefuses(t *testing.T) {
	t.Parallel()
	m := newMachine(t, cgrouptest.V2)
	r := m.newRuntime()
	r.start()
	p := m.plugin()
	r.wait()
	s := pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch)
	r.run(s)
	_, err := r.create(s, containerID(0), "app", besteffort())
	must(t, err)
	r.mu.Lock()
	r.refuse = true
	r.mu.Unlock()
	report, err := p.e.Disable(t.Context())
	if err != nil || !strings.Contains(strings.Join(report.Errors, "\n"), "the runtime refused it") {
		t.Errorf("%+v, %v", report, err)
	}
	r.mu.Lock()
	r.refuse = false
	r.mu.Unlock()
	report, err = p.e.Disable(t.Context())
	if err != nil || len(report.Errors) > 0 || report.Updated != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	r.stop()
	eventually(t, "alone", func() bool { return !p.connected() })
	if err := p.p.Update(t.Context(), containerID(0), nil); !errors.Is(err, engine.ErrNoUpdates) {
		t.Errorf("%v", err)
	}
}

func TestSafeUpdates(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]bool{"v0.12.1": true, "0.12.1": true, "v0.12.5": true, "v1.0.0": true, "v0.13": true, "v0.12.0": false, "v0.11.0-37-g41b9c58": false, "v0.8.0": false, "unknown": false, "(devel)": false, "": false} {
		if safeUpdates(v) != want {
			t.Errorf("%q: %t", v, !want)
		}
	}
}

// neighbour is another plugin of the runtime's.
type neighbour struct{ adj *api.ContainerAdjustment }

func (n neighbour) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return n.adj, nil, nil
}

// Two plugins that set one field fail the creation; others do not meet.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	quota, limit, idle, mark := &api.ContainerAdjustment{}, &api.ContainerAdjustment{}, &api.ContainerAdjustment{}, &api.ContainerAdjustment{}
	quota.SetLinuxCPUQuota(70000) // below ours it would be kept
	limit.SetLinuxPidLimits(100)
	limit.AddAnnotation("example.com/other", "x")
	limit.AddLinuxUnified("memory.swap.high", "0")
	idle.AddLinuxUnified("cpu.idle", "0")
	mark.AddAnnotation(v1alpha1.AnnotationDecision, "{}")
	for name, c := range map[string]struct {
		index string
		adj   *api.ContainerAdjustment
		fails bool
	}{
		"a field of ours, before us": {"10", quota, true},
		"a field of ours, after us":  {"95", quota, true},
		"a unified key of ours":      {"95", idle, true},
		"our annotation":             {"10", mark, true},
		"fields that we do not set":  {"10", limit, false},
		"the same, after us":         {"95", limit, false},
		"nothing":                    {"10", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, r, p := pair(t, cgrouptest.V2)
			s, err := stub.New(neighbour{c.adj}, stub.WithSocketPath(m.socket), stub.WithPluginName("neighbour"), stub.WithPluginIdx(c.index), stub.WithLogger(nriLog{p.p.cfg.Log}))
			must(t, err)
			must(t, s.Start(t.Context()))
			t.Cleanup(s.Stop)
			r.wait()
			be := pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch)
			r.run(be)
			_, err = r.a.CreateContainer(t.Context(), request(be, containerID(0)))
			if (err != nil) != c.fails || err != nil && !strings.Contains(err.Error(), "90-tideline") {
				t.Errorf("%v", err)
			}
			if err != nil { // what the runtime says next leaves nothing
				must(t, r.a.RemoveContainer(t.Context(), &api.RemoveContainerRequest{Pod: be, Container: request(be, containerID(0)).Container}))
				if got := p.container(containerID(0)); got != nil {
					t.Errorf("%+v", got)
				}
			}
		})
	}
}

func request(p *api.PodSandbox, id string) *api.CreateContainerRequest {
	c := nritest.Container(id, nritest.Create(besteffort()), nil)
	c.Name, c.PodSandboxId = "app", p.GetId()
	return &api.CreateContainerRequest{Pod: p, Container: c}
}
