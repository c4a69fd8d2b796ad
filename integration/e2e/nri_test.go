package e2e

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/internal/policy"
)

func needsNRI(t *testing.T) {
	t.Helper()
	if door != node.NRI {
		t.Skip("it is about the plugin")
	}
}

// TestSynchronize: what was made while no plugin was there is decided on when one comes, but never gets cpu.idle, since
// the runtime's stored spec has shares. What is right is left alone.
func TestSynchronize(t *testing.T) {
	needsNRI(t)
	ctx, n := start(t, node.Options{Policy: demo.Reserved})
	if err := n.StopProxy(ctx, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	batch, service := run(t, ctx, n, manifest(t, "be")), run(t, ctx, n, manifest(t, "ls"))
	if err := n.StartProxy(ctx); err != nil {
		t.Fatal(err)
	}
	adopted := map[policy.Knob]string{policy.CPUSetCPUs: "1", policy.CPUWeight: weight(2), policy.CPUIdle: "0", policy.CPUMax: "50000 100000"}
	eventually(t, "the batch pod has its quota, the service its burst, and both run on the pool", func() bool {
		return node.Kernel(cgroupOf(batch, 0), policy.CPUMax) == "50000 100000" && node.Kernel(cgroupOf(service, 0), policy.CPUMaxBurst) == "100000" &&
			node.Kernel(cgroupOf(batch, 0), policy.CPUSetCPUs) == rest(t) && node.Kernel(cgroupOf(service, 0), policy.CPUSetCPUs) == rest(t)
	})
	want(t, "synchronized", cgroupOf(batch, 0), adopted)
	want(t, "synchronized", cgroupOf(service, 0), ls)
	for range 2 {
		if err := n.RestartProxy(ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		st, err := n.Control.Status(ctx)
		if err != nil || st.Counts.Decisions != 0 || st.Counts.Containers[policy.Adopted] != 2 {
			t.Errorf("after a restart: %+v, %v; want 2 adopted containers and no decision", st.Counts, err)
		}
		want(t, "after a restart", cgroupOf(batch, 0), adopted)
		want(t, "after a restart", cgroupOf(service, 0), ls)
	}
	if err := n.Kubelet.Update(ctx, batch.Containers[0], batch.Containers[0].Asked); err != nil {
		t.Fatal(err)
	}
	want(t, "updated", cgroupOf(batch, 0), adopted)
}

// right checks that every container has what the door says it wants, and that this is what its tier can have.
func right(t *testing.T, ctx context.Context, n *node.Node, when string, pods []*node.Pod) {
	t.Helper()
	for _, p := range pods {
		name := p.Spec.Namespace + "/" + p.Spec.Name
		end := time.Now().Add(5 * time.Second)
		for {
			bad := wrong(ctx, n, p)
			if bad == "" {
				break
			}
			if time.Now().After(end) {
				t.Errorf("%s: %s is wrong after 5 s: %s", when, name, bad)
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func wrong(ctx context.Context, n *node.Node, p *node.Pod) string {
	shown, err := n.Control.ExplainPod(ctx, p.Spec.Namespace, p.Spec.Name)
	if err != nil {
		return err.Error()
	}
	if len(shown) != 1+len(p.Containers) {
		return fmt.Sprintf("the door knows %d containers", len(shown)-1)
	}
	for _, x := range shown {
		at := p.Cgroup
		if x.Level == policy.LevelContainer {
			at += "/" + x.ID
		}
		files := node.Files(at)
		for _, r := range x.Rows {
			if got, _ := node.InKernel(r.Knob, files); r.Wanted != "" && !node.Holds(r.Knob, r.Wanted, got) {
				return fmt.Sprintf("%s of %s: wanted %q, in the kernel %q", r.Knob, x.Name, r.Wanted, got)
			}
		}
	}
	if p.Spec.Name == "be" {
		if got := node.Kernel(cgroupOf(p, 0), policy.CPUMax); got != be[policy.CPUMax] {
			return fmt.Sprintf("its quota is %q", got)
		}
	}
	return ""
}

// TestPluginFaults: whatever happens to the plugin or the runtime, in the middle of whatever hook, no creation fails
// because of it, and every container is right 5 s after things are back. An update may fail: the runtime goes on without a
// plugin that hangs, and the kernel refuses the shares that the kubelet asks for a container that is idle. The kubelet
// repeats it.
func TestPluginFaults(t *testing.T) {
	needsNRI(t)
	ctx, n := start(t, node.Options{Policy: demo.Reserved})
	var pods []*node.Pod
	faults := []struct {
		name string
		// during is called while the plugin hangs in a hook of a call.
		during func() error
	}{
		{"killed", func() error {
			if err := n.StopProxy(ctx, syscall.SIGKILL); err != nil {
				return err
			}
			return n.StartProxy(ctx)
		}},
		{"stalled for 3 s", func() error {
			time.Sleep(3 * time.Second)
			return n.Proxy().Signal(syscall.SIGCONT)
		}},
	}
	for _, f := range faults {
		for at := range 3 { // RunPodSandbox, CreateContainer, StartContainer
			when := fmt.Sprintf("%s in call %d", f.name, at+1)
			calls := 0
			done := make(chan error, 1)
			n.Kubelet.BeforeCalls(func(string) {
				if calls++; calls-1 != at {
					return
				}
				if err := n.Proxy().Signal(syscall.SIGSTOP); err != nil {
					t.Error(err)
				}
				go func() {
					time.Sleep(200 * time.Millisecond)
					done <- f.during()
				}()
			})
			spec := manifest(t, "be")
			spec.UID = ""
			spec.Name = fmt.Sprintf("be-%d", len(pods))
			p := runAs(t, ctx, n, spec, len(pods))
			n.Kubelet.BeforeCalls(func(string) {})
			if err := <-done; err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			pods = append(pods, p)
			connected(t, ctx, n)
			right(t, ctx, n, when, pods)
		}
		// The same during an update.
		p := pods[len(pods)-1]
		if err := n.Proxy().Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			time.Sleep(200 * time.Millisecond)
			done <- f.during()
		}()
		if err := n.Kubelet.Update(ctx, p.Containers[0], p.Containers[0].Asked); err != nil {
			t.Logf("%s in an update: %v", f.name, err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		connected(t, ctx, n)
		right(t, ctx, n, f.name+" in an update", pods)
		// The plugin may yet have to learn that it was dropped, and its status with it: the kubelet repeats an update.
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			err := n.Kubelet.Update(ctx, p.Containers[0], p.Containers[0].Asked)
			if err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("5 s after %s in an update: %v", f.name, err)
			}
		}
		right(t, ctx, n, "updated after "+f.name, pods)
	}
	for range 3 { // the runtime goes while it synchronizes the plugin
		if err := n.RestartProxy(ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := n.Containerd.Restart(ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		connected(t, ctx, n)
		right(t, ctx, n, "containerd killed in Synchronize", pods)
	}
}

// runAs makes a pod of the n-th UID.
func runAs(t *testing.T, ctx context.Context, n *node.Node, spec *corev1.Pod, i int) *node.Pod {
	t.Helper()
	spec.UID = demo.UID(100 + i)
	return run(t, ctx, n, spec)
}

func connected(t *testing.T, ctx context.Context, n *node.Node) {
	t.Helper()
	eventually(t, "the plugin is connected", func() bool {
		st, err := n.Control.Status(ctx)
		return err == nil && st.Runtime.Connected
	})
}

// TestSwitch: a node goes from the proxy to the plugin and back, and no value in the kernel changes.
func TestSwitch(t *testing.T) {
	if door == node.NRI {
		t.Skip("it begins with the proxy")
	}
	ctx, n := start(t, node.Options{Policy: demo.Policy})
	var pods []*node.Pod
	for _, name := range demo.Names {
		pods = append(pods, run(t, ctx, n, manifest(t, name)))
	}
	service := pods[slices.Index(demo.Names, "ls")]
	resize := func(cpu, quota string) {
		t.Helper()
		service.Spec.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse(cpu)
		next := kubeContainers(service.Spec, n)[0].Asked
		if err := n.Kubelet.ResizePod(ctx, service); err != nil {
			t.Fatal(err)
		}
		if err := n.Kubelet.Update(ctx, service.Containers[0], next); err != nil {
			t.Fatal(err)
		}
		service.Containers[0].Asked = next
		eventually(t, "the burst follows the quota "+quota, func() bool {
			return node.Kernel(cgroupOf(service, 0), policy.CPUMaxBurst) == quota && node.Kernel(service.Cgroup, policy.CPUMaxBurst) == quota
		})
	}
	resize("1500m", "150000")
	for i, to := range []string{node.NRI, node.CRI, node.NRI, node.CRI} {
		before := map[string]map[string]string{}
		for _, p := range pods {
			before[p.Cgroup], before[cgroupOf(p, 0)] = node.Files(p.Cgroup), node.Files(cgroupOf(p, 0))
		}
		if err := n.Switch(ctx, to); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the door "+to+" knows all containers", func() bool {
			st, err := n.Control.Status(ctx)
			return err == nil && st.Door == to && st.Runtime.Connected && st.Counts.Containers[policy.Managed] == len(pods)
		})
		time.Sleep(2 * time.Second) // what follows a Synchronize would show by now
		for at, files := range before {
			differ(t, fmt.Sprintf("switch %d, to %s: %s", i, to, at), files, node.Files(at))
		}
		if to == node.CRI {
			asked(t, "behind the proxy again", shown(t, ctx, n, service.Containers[0].ID), service.Containers[0].Asked)
		}
		resize(fmt.Sprint(2+i), fmt.Sprintf("%d00000", 2+i))
	}
	if err := n.Switch(ctx, node.NRI); err != nil {
		t.Fatal(err)
	}
	if report, err := n.Control.Disable(ctx); err != nil || len(report.Errors) > 0 || report.Updated == 0 {
		t.Errorf("disable by the plugin: %+v, %v", report, err)
	}
	want(t, "disabled", cgroupOf(service, 0), map[policy.Knob]string{policy.CPUMaxBurst: "0"})
}
