package plugin

import (
	"context"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/facts/nri/nritest"
)

// hostile are messages that no runtime should send.
func hostile() map[string]*api.CreateContainerRequest {
	good := func(edit func(*api.CreateContainerRequest)) *api.CreateContainerRequest {
		c := nritest.Container(containerID(0), nritest.Create(burstable()), map[string]string{"io.kubernetes.container.restartCount": "0"})
		c.Name, c.PodSandboxId = "app", "sandbox-u1"
		r := &api.CreateContainerRequest{Pod: pod("u1", "BE", v1alpha1.AnnotationBatchResources, batch), Container: c}
		edit(r)
		return r
	}
	long := strings.Repeat("x", 100<<10)
	return map[string]*api.CreateContainerRequest{
		"good":         good(func(*api.CreateContainerRequest) {}),
		"nothing":      {},
		"no pod":       good(func(r *api.CreateContainerRequest) { r.Pod = nil }),
		"no container": good(func(r *api.CreateContainerRequest) { r.Container = nil }),
		"no linux":     good(func(r *api.CreateContainerRequest) { r.Pod.Linux, r.Container.Linux = nil, nil }),
		"no resources": good(func(r *api.CreateContainerRequest) { r.Container.Linux.Resources = nil }),
		"no numbers": good(func(r *api.CreateContainerRequest) {
			r.Container.Linux.Resources = &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: &api.OptionalUInt64{}}}
		}),
		"empty ids": good(func(r *api.CreateContainerRequest) {
			r.Pod.Id, r.Pod.Uid, r.Container.Id, r.Container.PodSandboxId = "", "", "", ""
		}),
		"empty ids of LSE": good(func(r *api.CreateContainerRequest) { r.Pod.Uid, r.Pod.Labels[v1alpha1.LabelQoS] = "", "LSE" }),
		"no name":          good(func(r *api.CreateContainerRequest) { r.Container.Name = "" }),
		"long names": good(func(r *api.CreateContainerRequest) {
			r.Pod.Id, r.Pod.Name, r.Pod.Namespace, r.Pod.Uid, r.Container.Id, r.Container.Name = long, long, long, long, long, long
		}),
		"path names": good(func(r *api.CreateContainerRequest) {
			r.Pod.Uid, r.Container.Name, r.Container.Id = "../../x", "../y", "../../z"
		}),
		"long values": good(func(r *api.CreateContainerRequest) {
			r.Pod.Linux.CgroupParent, r.Container.Linux.Resources.Cpu.Cpus, r.Container.Linux.Resources.Unified = "/"+long, long, map[string]string{long: long}
			r.Pod.Annotations[v1alpha1.AnnotationRequests], r.Pod.Labels[v1alpha1.LabelQoS] = strings.Repeat("[", 100<<10), long
		}),
		"odd numbers": good(func(r *api.CreateContainerRequest) {
			r.Container.Linux.OomScoreAdj = api.Int(math.MinInt)
			r.Container.Linux.Resources.Cpu = &api.LinuxCPU{Shares: api.UInt64(uint64(math.MaxUint64)), Quota: api.Int64(int64(math.MinInt64)), Period: api.UInt64(uint64(math.MaxUint64)), Cpus: "-1"}
			r.Container.Linux.Resources.Memory = &api.LinuxMemory{Limit: api.Int64(int64(math.MinInt64))}
		}),
		"a weight that stays": good(func(r *api.CreateContainerRequest) {
			r.Container.Linux.Resources.Unified = map[string]string{"cpu.weight": "5"}
		}),
	}
}

// everyHook sends the parts of a message to each hook, as nobody but a broken runtime would.
func everyHook(t testing.TB, r *running, m *api.CreateContainerRequest) {
	h, ctx := (*hooks)(r.p), context.Background()
	p, c, res := m.GetPod(), m.GetContainer(), m.GetContainer().GetLinux().GetResources()
	ok := func(op string, err error) {
		if err != nil {
			t.Errorf("%s: %v", op, err)
		}
	}
	ok("RunPodSandbox", h.RunPodSandbox(ctx, p))
	adj, _, err := h.CreateContainer(ctx, p, c)
	if err != nil && (adj != nil || !strings.HasPrefix(err.Error(), "tideline: ") || len(err.Error()) > 8<<10) {
		t.Errorf("CreateContainer: %v and %.1000v", adj, err)
	}
	ok("PostCreateContainer", h.PostCreateContainer(ctx, p, c))
	ok("StartContainer", h.StartContainer(ctx, p, c))
	for range 2 {
		_, err = h.UpdateContainer(ctx, p, c, res)
		ok("UpdateContainer", err)
	}
	ok("PostUpdateContainer", h.PostUpdateContainer(ctx, p, c))
	ok("UpdatePodSandbox", h.UpdatePodSandbox(ctx, p, nil, res))
	_, err = h.Synchronize(ctx, []*api.PodSandbox{p, nil}, []*api.Container{c, nil})
	ok("Synchronize", err)
	_, err = h.StopContainer(ctx, p, c)
	ok("StopContainer", err)
	ok("RemoveContainer", h.RemoveContainer(ctx, p, c))
	ok("RemovePodSandbox", h.RemovePodSandbox(ctx, p))
	_, err = h.Synchronize(ctx, nil, nil)
	ok("Synchronize", err)
}

func calm(t testing.TB, r *running) {
	if s := r.p.store; len(s.pods)+len(s.containers) > 0 {
		t.Errorf("left: %v, %v", s.pods, s.containers)
	}
	if got := r.p.cfg.Log; strings.Contains(r.m.log.String(), "panick") {
		t.Errorf("%v: %.4000s", got, r.m.log)
	}
}

// Hostile messages never panic, nor fail anything but a creation that wants certainty, nor leave anything.
func TestHostile(t *testing.T) {
	everyLayout(t, func(t *testing.T, layout cgrouptest.Layout) {
		m, rt, p := pair(t, layout)
		for name, msg := range hostile() {
			everyHook(t, p, msg)
			calm(t, p)
			if left := p.containers(); len(left) > 0 {
				t.Errorf("%s: left %d containers", name, len(left))
			}
		}
		eventually(t, "no record", func() bool { return len(m.records()) == 0 })
		// And over the wire.
		for name, msg := range hostile() {
			if msg.Container == nil {
				continue // NRI itself needs one
			}
			if _, err := rt.a.CreateContainer(t.Context(), proto.CloneOf(msg)); (err != nil) != (name == "empty ids of LSE") {
				t.Errorf("%s: %.1000v", name, err)
			}
		}
		if n := rt.count("Configure"); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

// A fault in a hook itself costs that hook.
func TestHookThatPanics(t *testing.T) {
	t.Parallel()
	_, _, p := pair(t, cgrouptest.V2)
	h := (*hooks)(p.p)
	p.p.store.containers = nil // the next write to it panics
	for tier, refused := range map[string]bool{"BE": false, "LSE": true} {
		m := hostile()["good"]
		m.Pod.Labels = map[string]string{v1alpha1.LabelQoS: tier}
		if adj, _, err := h.CreateContainer(t.Context(), m.Pod, m.Container); adj != nil || (err != nil) != refused {
			t.Errorf("%s: %v, %v", tier, adj, err)
		}
		if u, err := h.UpdateContainer(t.Context(), m.Pod, m.Container, nil); u != nil || err != nil {
			t.Errorf("%v, %v", u, err)
		}
		if err := h.StartContainer(t.Context(), m.Pod, m.Container); err != nil {
			t.Error(err)
		}
	}
	if c := p.counts(); c.FailedOpen < 4 || c.Refused != 1 {
		t.Errorf("%+v", c)
	}
}

func FuzzHooks(f *testing.F) {
	for _, m := range hostile() {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, byte(2))
	}
	machines := map[cgrouptest.Layout]*running{}
	for _, l := range []cgrouptest.Layout{cgrouptest.V1, cgrouptest.V2} {
		_, _, machines[l] = pair(f, l)
	}
	f.Fuzz(func(t *testing.T, b []byte, version byte) {
		var m api.CreateContainerRequest
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		r := machines[cgrouptest.V2]
		if version == 1 {
			r = machines[cgrouptest.V1]
		}
		everyHook(t, r, &m)
		calm(t, r)
	})
}

// Two hooks that come at once do not trip over each other's stores; the race detector looks on.
func TestConcurrentHooks(t *testing.T) {
	t.Parallel()
	_, _, p := pair(t, cgrouptest.V2)
	done := make(chan struct{})
	for i := range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 20 {
				m := hostile()["good"]
				m.Pod.Uid, m.Pod.Id, m.Container.Id = string(rune('a'+i)), string(rune('a'+i)), containerID(i)
				m.Pod.Labels = maps.Clone(m.Pod.Labels)
				everyHookBut(t, p, m)
			}
		}()
	}
	for range 4 {
		<-done
	}
}

func everyHookBut(t *testing.T, r *running, m *api.CreateContainerRequest) {
	h, ctx := (*hooks)(r.p), t.Context()
	if _, _, err := h.CreateContainer(ctx, m.Pod, m.Container); err != nil {
		t.Error(err)
	}
	_ = h.PostCreateContainer(ctx, m.Pod, m.Container)
	_, _ = h.UpdateContainer(ctx, m.Pod, m.Container, m.Container.Linux.Resources)
	_, _ = r.p.List(ctx)
	_ = h.RemoveContainer(ctx, m.Pod, m.Container)
}
