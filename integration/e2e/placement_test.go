package e2e

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/internal/facts/kube"
)

// on is where a container may run.
func on(t *testing.T, p *node.Pod, i int) cpuset.CPUSet {
	t.Helper()
	files := node.Files(cgroupOf(p, i))
	list := files["cpuset.cpus"]
	if list == "" {
		list = online(t)
	}
	set, err := cpuset.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// TestPlacement: a pod of LSR has a CPU for itself, which batch may use, and all others leave it while they run; a pod that
// finds none is refused with the reason until there is one; a restart of the door keeps it all; and in the end each has
// what it had.
func TestPlacement(t *testing.T) {
	ctx, n := start(t, node.Options{Policy: demo.Policy})
	pods := map[string]*node.Pod{}
	first := map[string]cpuset.CPUSet{}
	for _, name := range []string{"ls", "be", "system", "plain"} {
		pods[name] = run(t, ctx, n, manifest(t, name))
		first[name] = on(t, pods[name], 0)
	}
	all, err := cpuset.Parse(online(t))
	if err != nil {
		t.Fatal(err)
	}
	moved := func(when string, own, owned cpuset.CPUSet, lse bool) {
		t.Helper()
		for name, p := range pods {
			want := all.Difference(owned)
			if name == "lsr" || name == "lse" {
				want = own
			} else if !lse && (name == "be" || name == "system") {
				want = all
			}
			eventually(t, when+": "+name+" runs on "+want.String(), func() bool { return on(t, p, 0).Equals(want) })
		}
	}
	pods["lsr"] = run(t, ctx, n, manifest(t, "lsr"))
	own := on(t, pods["lsr"], 0)
	if own.Size() != 1 {
		t.Fatalf("LSR with one CPU runs on %s", own)
	}
	moved("placed", own, own, false)
	for _, s := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		if err := n.RestartProxy(ctx, s); err != nil {
			t.Fatal(err)
		}
		moved("after a restart", own, own, false)
	}

	second := manifest(t, "lsr")
	second.Name, second.UID = "second", demo.UID(50)
	big := resource.NewQuantity(int64(all.Size()-1), resource.DecimalSI) // one is left to LS, and the first has one
	second.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU], second.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *big, *big
	p, err := n.Kubelet.RunSandbox(ctx, second)
	if err != nil {
		t.Fatal(err)
	}
	app := kube.Containers(second, n.Kubelet.Options)[0]
	if _, err := n.Kubelet.Create(ctx, p, app); err == nil || !strings.Contains(err.Error(), v1alpha1.LabelQoS) {
		t.Errorf("without room: %v", err)
	}
	if _, err := n.Kubelet.CRI.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pods["lsr"].SandboxID}); err != nil {
		t.Fatal(err)
	}
	delete(pods, "lsr")
	eventually(t, "the second has room", func() bool {
		c, err := n.Control.CPUs(ctx)
		return err == nil && len(c.Pods) == 1 && c.Pods[0].UID == string(second.UID)
	})
	ctr, err := n.Kubelet.Create(ctx, p, app)
	if err == nil {
		err = n.Kubelet.StartContainer(ctx, ctr)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := on(t, p, 0); got.Size() != all.Size()-1 {
		t.Errorf("the second runs on %s", got)
	}
	if err := n.Kubelet.Remove(ctx, p); err != nil {
		t.Fatal(err)
	}
	for name, p := range pods {
		eventually(t, name+" has what it had", func() bool { return on(t, p, 0).Equals(first[name]) })
	}
}

// TestPlacementByTopology needs more CPUs and memory nodes than most machines that build software have: it runs in the VM.
func TestPlacementByTopology(t *testing.T) {
	if !lab.Unified() {
		t.Skip("vm: it wants four CPUs on four NUMA nodes")
	}
	ctx, n := start(t, node.Options{Policy: demo.Policy})
	plain := run(t, ctx, n, manifest(t, "plain"))
	spec := manifest(t, "lsr")
	spec.Labels[v1alpha1.LabelQoS] = "LSE"
	one := *resource.NewQuantity(1, resource.DecimalSI)
	side := spec.Spec.Containers[0]
	side.Name, side.RestartPolicy, side.Resources = "side", new(corev1.ContainerRestartPolicyAlways), *side.Resources.DeepCopy()
	spec.Spec.InitContainers = []corev1.Container{side}
	for _, list := range []corev1.ResourceList{spec.Spec.Containers[0].Resources.Limits, spec.Spec.Containers[0].Resources.Requests} {
		list[corev1.ResourceCPU] = one
	}
	p := run(t, ctx, n, spec)
	both := on(t, p, 0)
	if both.Size() != 2 || !both.Equals(on(t, p, 1)) {
		t.Fatalf("sidecar and container of a pod of two CPUs run on %s and %s", both, on(t, p, 1))
	}
	nodes := func(i int) string { return node.Files(cgroupOf(p, i))["cpuset.mems"] }
	// A core a node: two cores are two nodes.
	if mems, err := cpuset.Parse(nodes(0)); err != nil || mems.Size() != 2 || nodes(1) != nodes(0) {
		t.Errorf("memory nodes %q and %q, want those of CPUs %s", nodes(0), nodes(1), both)
	}
	all, err := cpuset.Parse(online(t))
	if err != nil {
		t.Fatal(err)
	}
	others := func(when string, owned cpuset.CPUSet) {
		t.Helper()
		eventually(t, when, func() bool { return on(t, plain, 0).Equals(all.Difference(owned)) })
	}
	others("an untiered container leaves its cores", both)
	resize := func(cpus int64) error {
		i := slices.IndexFunc(spec.Spec.Containers, func(c corev1.Container) bool { return c.Name == "app" })
		r := spec.Spec.Containers[i].Resources
		before := r.Limits[corev1.ResourceCPU]
		r.Limits[corev1.ResourceCPU] = *resource.NewQuantity(cpus-1, resource.DecimalSI)
		r.Requests[corev1.ResourceCPU] = r.Limits[corev1.ResourceCPU]
		err := n.Kubelet.ResizePod(ctx, p)
		if err != nil {
			r.Limits[corev1.ResourceCPU], r.Requests[corev1.ResourceCPU] = before, before
		}
		return err
	}
	if err := resize(3); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it grows next to what it has", func() bool { return on(t, p, 0).Size() == 3 && both.IsSubsetOf(on(t, p, 0)) })
	others("others make way", on(t, p, 0))
	if err := resize(4); err == nil || !strings.Contains(err.Error(), v1alpha1.LabelQoS) {
		t.Errorf("a resize that leaves nothing to others: %v", err)
	}
	grown := on(t, p, 0)
	if err := resize(2); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it keeps a part when it shrinks", func() bool { return on(t, p, 0).Size() == 2 && on(t, p, 0).IsSubsetOf(grown) })
	others("others follow", on(t, p, 0))
}
