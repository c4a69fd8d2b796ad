package crio

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/facts/nri"
	"github.com/tideline-io/tideline/internal/policy"
)

// pool is the shared pool under demo.Reserved on a machine with two CPUs.
const pool = "1"

// What the demo's pods have in the kernel, as with containerd (package e2e).
var (
	be  = map[policy.Knob]string{policy.CPUSetCPUs: pool, policy.CPUWeight: policy.Unset, policy.CPUMax: "50000 100000", policy.CPUIdle: "1", policy.MemoryMax: "134217728"}
	ls  = map[policy.Knob]string{policy.CPUSetCPUs: pool, policy.CPUMax: "100000 100000", policy.CPUMaxBurst: "100000", policy.CPUIdle: "0", policy.MemoryMax: "134217728"}
	lsr = map[policy.Knob]string{policy.CPUMax: "100000 100000", policy.CPUIdle: "0", policy.MemoryMax: "67108864"}
)

// TestDemo: decided, explained and read back are the same, but for the I/O priority, which the NRI of CRI-O 1.34 does not
// know.
func TestDemo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out bytes.Buffer
	bad, err := demo.Run(ctx, lab.ForTest(t, "demo"), &out, demo.Options{Manifests: manifests(t), Door: node.NRI, CRIO: true})
	if err != nil {
		t.Fatal(err)
	}
	known := `demo/be: ioprio: decided "best-effort:7", in the kernel "none"`
	for _, b := range bad {
		if b != known {
			t.Errorf("differs: %s", b)
		}
	}
	if !slices.Contains(bad, known) {
		t.Error("the I/O priority is set: docs/doors.md says that this CRI-O can't")
	}
	if t.Failed() {
		t.Logf("\n%s", out.String())
	}
}

// TestLife: pods of three tiers through resizes, and restarts of the plugin and of CRI-O, to their end.
func TestLife(t *testing.T) {
	ctx, n := start(t)
	o := observe(t, ctx, n)
	pods := map[string]*node.Pod{}
	for _, name := range []string{"be", "ls", "lsr"} {
		pods[name] = run(t, ctx, n, name)
	}
	service := pods["ls"]
	service0 := service.Containers[0]
	wantLS := maps.Clone(ls)
	check := func(when string) {
		t.Helper()
		for name, values := range map[string]map[policy.Knob]string{"be": be, "ls": wantLS, "lsr": lsr} {
			want(t, when+": "+name, cgroupOf(pods[name]), values)
		}
	}
	check("created")
	told(t, o, pods["lsr"])

	resize := func(when, cpu, quota string) {
		t.Helper()
		service.Spec.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse(cpu)
		next := kube.Containers(service.Spec, n.Kubelet.Options)[0].Asked
		if err := n.Kubelet.ResizePod(ctx, service); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if err := n.Kubelet.Update(ctx, service0, next); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		service0.Asked = next
		wantLS[policy.CPUMax], wantLS[policy.CPUMaxBurst] = quota+" 100000", quota
		check(when)
		eventually(t, when+": the pod bursts along", func() bool { return node.Kernel(service.Cgroup, policy.CPUMaxBurst) == quota })
	}
	update := func(when string) {
		t.Helper()
		for _, p := range pods {
			if err := n.Kubelet.Update(ctx, p.Containers[0], p.Containers[0].Asked); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
		}
		check(when)
	}
	resize("resized", "1500m", "150000")
	update("updated")
	if err := n.Kubelet.ResizePod(ctx, service); err != nil { // no container of it changes
		t.Fatal(err)
	}
	eventually(t, "the pod bursts again", func() bool { return node.Kernel(service.Cgroup, policy.CPUMaxBurst) == "150000" })
	if hooks := o.called(); !slices.Contains(hooks, "PostUpdateContainer") || !slices.Contains(hooks, "UpdatePodSandbox") || slices.Contains(hooks, "PostUpdatePodSandbox") {
		t.Errorf("hooks of CRI-O: %q, want UpdatePodSandbox without a Post", hooks)
	}

	for _, restart := range []struct {
		what string
		do   func() error
		// CRI-O forgets updates when it ends, and tells what the container was made with. What is asked next is right.
		burst string
	}{
		{"plugin killed", func() error { return n.RestartProxy(ctx, syscall.SIGKILL) }, "150000"},
		{"CRI-O killed", func() error { return n.CRIO.Restart(ctx, syscall.SIGKILL) }, "100000"},
		{"CRI-O ended", func() error { return n.CRIO.Restart(ctx, syscall.SIGTERM) }, "100000"},
		{"both killed", func() error {
			if err := n.CRIO.Restart(ctx, syscall.SIGKILL); err != nil {
				return err
			}
			return n.RestartProxy(ctx, syscall.SIGKILL)
		}, "100000"},
	} {
		if err := restart.do(); err != nil {
			t.Fatalf("%s: %v", restart.what, err)
		}
		eventually(t, restart.what+": the plugin is connected and knows all", func() bool {
			st, err := n.Control.Status(ctx)
			return err == nil && st.Runtime.Connected && st.Runtime.Name == "cri-o" && st.Counts.Containers[policy.Managed] == 3
		})
		time.Sleep(2 * time.Second) // what follows a Synchronize would show by now
		wantLS[policy.CPUMaxBurst] = restart.burst
		check(restart.what)
		wantLS[policy.CPUMaxBurst] = "150000"
		update("updated, " + restart.what)
	}
	resize("resized again", "2", "200000")
	// Down, below the burst that it was made with, which a CRI-O that has forgotten that has us write.
	service.Spec.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse("500m")
	service0.Asked = kube.Containers(service.Spec, n.Kubelet.Options)[0].Asked
	wantLS[policy.CPUMax], wantLS[policy.CPUMaxBurst] = "50000 100000", "50000"
	update("resized down")
	if err := n.Kubelet.ResizePod(ctx, service); err != nil {
		t.Fatal(err)
	}
	if err := n.CRIO.Restart(ctx, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the burst that was refused is told", func() bool {
		st, err := n.Control.Status(ctx)
		return err == nil && len(st.Degraded) == 1 && strings.Contains(st.Degraded[0].Why, string(policy.CPUMaxBurst))
	})
	check("resized down, CRI-O ended")
	update("updated, resized down")

	for _, p := range pods {
		if err := n.Kubelet.Remove(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "nothing is left of the pods", func() bool { return len(left(t, n, pods)) == 0 })
	if rest := left(t, n, pods); len(rest) > 0 {
		t.Errorf("left: %q", rest)
	}
	st, err := n.Control.Status(ctx)
	if err != nil || st.Counts.FailedOpen+st.Counts.BadInput > 0 || st.Counts.WriteFails != 1 || len(st.Degraded) > 0 {
		t.Errorf("status: %+v, %v", st, err)
	}
}

// left gives what the journal and the records have of pods.
func left(t *testing.T, n *node.Node, pods map[string]*node.Pod) []string {
	t.Helper()
	var out []string
	for _, dir := range []string{"journal", "records"} {
		files, err := filepath.Glob(filepath.Join(n.RunDir(), dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			for _, p := range pods {
				if err == nil && strings.Contains(string(b)+f, string(p.Spec.UID)) {
					out = append(out, f)
				}
			}
		}
	}
	return out
}

// told checks what docs/doors.md says of CRI-O's messages about the pod that was made last, and which are of use to us.
func told(t *testing.T, o *observer, p *node.Pod) {
	t.Helper()
	for hook, state := range map[string]api.ContainerState{
		"CreateContainer": api.ContainerState_CONTAINER_UNKNOWN, "PostCreateContainer": api.ContainerState_CONTAINER_CREATED, "StartContainer": api.ContainerState_CONTAINER_CREATED,
	} {
		pod, c := o.pod(hook), o.container(hook)
		at := p.Cgroup + "/crio-" + p.Containers[0].ID
		if pod.GetUid() != string(p.Spec.UID) || pod.GetLinux().GetCgroupParent() != p.Cgroup || c.GetName() != "app" || c.GetPid() != 0 || c.GetState() != state || c.GetLinux().GetCgroupsPath() != at {
			t.Errorf("%s: pod %v, container %v; want those of %s, without a process, in %s", hook, pod, c, p.Spec.Name, at)
		}
		if got := pod.GetLabels()["io.kubernetes.container.name"]; got != "POD" {
			t.Errorf("%s: the pod's label is %q, want POD", hook, got)
		}
		for _, key := range []string{"io.kubernetes.cri-o.SandboxID", v1alpha1.AnnotationRequests, "io.kubernetes.container.name"} { // CRI-O's own, the pod's, a label
			if c.GetAnnotations()[key] == "" {
				t.Errorf("%s: the container has no annotation %s", hook, key)
			}
		}
	}
}

// TestDisable: afterwards the kernel has what it would have had without us.
func TestDisable(t *testing.T) {
	ctx, n := start(t)
	before := map[string]map[string]string{}
	bypass := func(on bool) {
		t.Helper()
		if _, err := n.Control.Bypass(ctx, on); err != nil {
			t.Fatal(err)
		}
	}
	bypass(true)
	for _, name := range demo.Names {
		p := run(t, ctx, n, name)
		before[name], before[name+" pod"] = node.Files(cgroupOf(p)), node.Files(p.Cgroup)
		if err := n.Kubelet.Remove(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	bypass(false)
	pods := map[string]*node.Pod{}
	for _, name := range demo.Names {
		pods[name] = run(t, ctx, n, name)
	}
	want(t, "before", cgroupOf(pods["be"]), be)
	report, err := n.Control.Disable(ctx)
	if err != nil || report.Updated == 0 {
		t.Errorf("disable: %+v, %v", report, err)
	}
	for _, e := range report.Errors { // no unsolicited updates
		if !strings.Contains(e, "what was asked is in the files again") {
			t.Errorf("disable: %s", e)
		}
	}
	for _, name := range demo.Names {
		differ(t, "disabled: "+name, before[name], node.Files(cgroupOf(pods[name])))
		differ(t, "disabled: pod "+name, before[name+" pod"], node.Files(pods[name].Cgroup))
	}
	st, err := n.Control.Status(ctx)
	if err != nil || st.Mode != control.ModeBypass || st.Cgroup.Journal != 0 || st.Runtime.NRI.Updates {
		t.Errorf("status after disable: %+v, %v; want bypass, no journal, and no unsolicited updates", st, err)
	}
	// runc has stored what the batch container was made with, and CRI-O asks it for no other quota and limit.
	before["be"]["cpu.cfs_quota_us"], before["be"]["memory.limit_in_bytes"] = "50000", be[policy.MemoryMax]
	for _, name := range demo.Names {
		c := pods[name].Containers[0]
		if err := n.Kubelet.Update(ctx, c, c.Asked); err != nil {
			t.Errorf("update of %s after disable: %v", name, err)
		}
		differ(t, "updated after disable: "+name, before[name], node.Files(cgroupOf(pods[name])))
	}
}

// TestSynchronize: what was made while no plugin was there is decided on when one comes.
func TestSynchronize(t *testing.T) {
	ctx, n := start(t)
	if err := n.StopProxy(ctx, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	batch, service := run(t, ctx, n, "be"), run(t, ctx, n, "ls")
	if err := n.StartProxy(ctx); err != nil {
		t.Fatal(err)
	}
	adopted := map[policy.Knob]string{policy.CPUSetCPUs: pool, policy.CPUWeight: "2", policy.CPUIdle: "0", policy.CPUMax: "50000 100000"}
	eventually(t, "the batch pod has its quota, the service its burst", func() bool {
		return node.Kernel(cgroupOf(batch), policy.CPUMax) == "50000 100000" && node.Kernel(cgroupOf(service), policy.CPUMaxBurst) == "100000"
	})
	want(t, "synchronized", cgroupOf(batch), adopted)
	want(t, "synchronized", cgroupOf(service), ls)
}

// TestContainer: the birth record is in the OCI spec, which the verbose status alone shows; the attempt is the kubelet's
// annotation.
func TestContainer(t *testing.T) {
	ctx, n := start(t)
	p := run(t, ctx, n, "be")
	c := p.Containers[0]
	for range 2 {
		res, err := n.Kubelet.CRI.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		_, listed := res.GetStatus().GetAnnotations()[v1alpha1.AnnotationDecision]
		if verbose := strings.Contains(fmt.Sprint(res.GetInfo()), v1alpha1.AnnotationDecision); listed || !verbose {
			t.Errorf("the annotation is in the status: %t, in the verbose one: %t; want the latter alone", listed, verbose)
		}
		if err := n.CRIO.Restart(ctx, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the plugin is connected", func() bool {
		st, err := n.Control.Status(ctx)
		return err == nil && st.Runtime.Connected
	})
	cri := n.Kubelet.CRI.Runtime
	if _, err := cri.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.ID}); err != nil {
		t.Fatal(err)
	}
	c.Config.Metadata.Attempt = 3
	c.Config.Annotations = map[string]string{nri.AnnotationRestartCount: "3"}
	res, err := cri.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: p.SandboxID, Config: c.Config, SandboxConfig: p.Config})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cri.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: res.GetContainerId()}); err != nil {
		t.Fatal(err)
	}
	want(t, "restarted", p.Cgroup+"/"+res.GetContainerId(), be)
	all, err := n.Control.Containers(ctx)
	if err != nil || !slices.ContainsFunc(all, func(x control.Container) bool { return x.ID == res.GetContainerId() && x.Attempt == 3 }) {
		t.Errorf("containers %+v, %v; want one of attempt 3", all, err)
	}
}

func start(t *testing.T) (context.Context, *node.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	n, err := node.Start(ctx, lab.ForTest(t, strings.ToLower(t.Name())), node.Options{Policy: demo.Reserved, Door: node.NRI, CRIO: true})
	if err != nil {
		t.Fatal(err)
	}
	return ctx, n
}

func manifests(t *testing.T) string {
	t.Helper()
	root, err := own.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "deploy", "examples", "demo")
}

// run makes one of the demo's pods.
func run(t *testing.T, ctx context.Context, n *node.Node, name string) *node.Pod {
	t.Helper()
	spec, err := demo.Manifest(filepath.Join(manifests(t), name+".yaml"), slices.Index(demo.Names, name))
	if err != nil {
		t.Fatal(err)
	}
	p, err := n.Kubelet.RunPod(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// cgroupOf names the only container of a pod.
func cgroupOf(p *node.Pod) string { return p.Cgroup + "/" + p.Containers[0].ID }

func want(t *testing.T, when, cgroup string, values map[policy.Knob]string) {
	t.Helper()
	files := node.Files(cgroup)
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if got, _ := node.InKernel(k, files); !node.Holds(k, values[k], got) {
			t.Errorf("%s: %s: got %q, want %q", when, k, got, values[k])
		}
	}
}

func differ(t *testing.T, when string, before, after map[string]string) {
	t.Helper()
	for _, f := range slices.Sorted(maps.Keys(before)) {
		if before[f] != after[f] {
			t.Errorf("%s: %s: got %q, want %q", when, f, after[f], before[f])
		}
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Errorf("not within 20 s: %s", what)
}
