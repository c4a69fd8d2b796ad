package e2e

import (
	"bytes"
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/policy"
)

// be is what the demo's batch pod has in the kernel.
var be = map[policy.Knob]string{
	policy.CPUSetCPUs: pool, policy.CPUWeight: policy.Unset, policy.CPUMax: "50000 100000", policy.CPUIdle: "1",
	policy.MemoryHigh: "120795136", policy.MemoryMax: "134217728",
}

// ls is the same for the service.
var ls = map[policy.Knob]string{
	policy.CPUSetCPUs: pool, policy.CPUMax: "100000 100000", policy.CPUMaxBurst: "100000", policy.CPUIdle: "0",
	policy.MemoryLow: "33554432", policy.MemoryMax: "134217728",
}

// TestReconcile: what somebody else writes to a running container or its pod is put right within 5 s, and tideline status
// counts it.
func TestReconcile(t *testing.T) {
	ctx, n := start(t, node.Options{Policy: demo.Reserved})
	p := run(t, ctx, n, manifest(t, "be"))
	at := cgroupOf(p, 0)
	eventually(t, "the values of batch", func() bool {
		return node.Kernel(at, policy.CPUSetCPUs) == rest(t) && node.Kernel(at, policy.CPUIdle) == "1"
	})
	before, pod := node.Files(at), node.Files(p.Cgroup)
	names := map[policy.Knob]string{policy.CPUSetCPUs: "cpuset.cpus", policy.CPUMax: "cpu.max", policy.CPUIdle: "cpu.idle", policy.MemoryHigh: "memory.high", policy.IOWeight: "io.bfq.weight"}
	if !lab.Unified() {
		names[policy.CPUMax], names[policy.IOWeight] = "cpu.cfs_quota_us", "blkio.bfq.weight"
		delete(names, policy.MemoryHigh)
	}
	for knob, value := range map[policy.Knob]string{policy.CPUSetCPUs: online(t), policy.CPUMax: "70000", policy.CPUIdle: "0", policy.MemoryHigh: "max", policy.IOWeight: "300"} {
		name, there := names[knob]
		cgroup := at
		if knob == policy.IOWeight {
			cgroup = p.Cgroup
			_, there = pod[name]
		}
		if !there {
			continue
		}
		if err := node.Write(cgroup, name, value); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		eventually(t, string(knob)+" is put right", func() bool {
			return maps.Equal(node.Files(at), before) && maps.Equal(node.Files(p.Cgroup), pod)
		})
		t.Logf("%s: %v", knob, time.Since(begin).Round(100*time.Millisecond))
	}
	st, err := n.Control.Status(ctx)
	if err != nil || st.Counts.Repairs < 3 {
		t.Errorf("status: %+v, %v", st.Counts, err)
	}
}

func TestDemo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	var out bytes.Buffer
	bad, err := demo.Run(ctx, lab.ForTest(t, "demo"), &out, demo.Options{Manifests: manifests(t), Door: door})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bad {
		t.Errorf("differs: %s", b)
	}
	if t.Failed() {
		t.Logf("\n%s", out.String())
	}
}

// TestResize: what the kubelet asks later is input, and is decided anew.
func TestResize(t *testing.T) {
	ctx, n := start(t, node.Options{Policy: demo.Reserved})
	p := run(t, ctx, n, manifest(t, "ls"))
	c := p.Containers[0]
	at := cgroupOf(p, 0)
	want(t, "created", at, ls)
	asked(t, "created", shown(t, ctx, n, c.ID), c.Asked)

	resize := func(when string, cpu string, quota string) {
		t.Helper()
		r := p.Spec.Spec.Containers[0].Resources
		r.Limits[corev1.ResourceCPU] = resource.MustParse(cpu)
		next := kubeContainers(p.Spec, n)[0].Asked
		pod := func() error { return n.Kubelet.ResizePod(ctx, p) }
		container := func() error { return n.Kubelet.Update(ctx, c, next) }
		steps := []func() error{pod, container}
		if *next.CPUQuota < *c.Asked.CPUQuota {
			slices.Reverse(steps) // a parent goes below its children after them, as the kubelet does it
		}
		for _, step := range steps {
			if err := step(); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
		}
		c.Asked = next
		values := maps.Clone(ls)
		values[policy.CPUMax], values[policy.CPUMaxBurst] = quota+" 100000", quota
		want(t, when, at, values)
		asked(t, when, shown(t, ctx, n, c.ID), next)
		eventually(t, when+": the pod's quota is the kubelet's, and bursts along", func() bool {
			return node.Kernel(p.Cgroup, policy.CPUMax) == quota+" 100000" && node.Kernel(p.Cgroup, policy.CPUMaxBurst) == quota
		})
	}
	resize("up", "1500m", "150000")
	resize("down, below the burst", "500m", "50000")
	if err := n.RestartProxy(ctx, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	asked(t, "after SIGKILL of the proxy", shown(t, ctx, n, c.ID), c.Asked)
	resize("up after SIGKILL of the proxy", "2", "200000")

	// The kubelet's CPU manager sends cpusets alone after its restart.
	if err := n.Kubelet.Update(ctx, c, policy.Resources{CPUSetCPUs: online(t)}); err != nil {
		t.Fatal(err)
	}
	values := maps.Clone(ls)
	values[policy.CPUMax], values[policy.CPUMaxBurst] = "200000 100000", "200000"
	want(t, "cpuset-only update", at, values) // all CPUs cut by the pool are still the pool
	if got := shown(t, ctx, n, c.ID); door == node.CRI && (got.GetCpusetCpus() != online(t) || got.GetCpuQuota() != 200000) {
		t.Errorf("cpuset-only update: status shows cpuset %q and quota %d, want all CPUs and 200000", got.GetCpusetCpus(), got.GetCpuQuota())
	}
}

// TestIOPriority: the plugin gives the processes of a batch container the I/O priority of the policy, and they keep it
// until the container ends. The proxy has no way to, says so, and has no trouble with it.
func TestIOPriority(t *testing.T) {
	ctx, n := start(t, node.Options{Policy: demo.Reserved + "    BE: {io: {priority: idle}}\n"})
	batch, service := run(t, ctx, n, manifest(t, "be")), run(t, ctx, n, manifest(t, "ls"))
	untouched := node.Kernel(cgroupOf(service, 0), policy.IOPriority)
	want := untouched
	if door == node.NRI {
		want = string(v1alpha1.IOPriorityIdle)
	}
	if untouched == "" || untouched == string(v1alpha1.IOPriorityIdle) {
		t.Fatalf("the service has I/O priority %q", untouched)
	}
	check := func(when string) {
		t.Helper()
		if got := node.Kernel(cgroupOf(batch, 0), policy.IOPriority); got != want {
			t.Errorf("%s: the first process of the batch container has I/O priority %q, want %q", when, got, want)
		}
	}
	check("created")
	rows, err := n.Control.ExplainPod(ctx, batch.Spec.Namespace, batch.Spec.Name)
	if err != nil {
		t.Fatal(err)
	}
	told, noted := "", false
	for _, x := range rows {
		for _, r := range x.Rows {
			if r.Knob == policy.IOPriority {
				told = r.Wanted + ", stored " + r.Spec
			}
		}
		noted = noted || slices.ContainsFunc(x.Decision.Notes, func(n policy.Note) bool { return n.Code == policy.NoteUnsupported && n.Knob == policy.IOPriority })
	}
	if wantTold := map[string]string{node.NRI: "idle, stored idle"}[door]; told != wantTold || noted == (door == node.NRI) {
		t.Errorf("explain tells %q, want %q; notes that the door can't: %t", told, wantTold, noted)
	}
	c := batch.Containers[0]
	if err := n.Kubelet.Update(ctx, c, c.Asked); err != nil {
		t.Fatal(err)
	}
	check("updated")
	if err := n.RestartProxy(ctx, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	known(t, ctx, n, 2)
	if report, err := n.Control.Disable(ctx); err != nil || len(report.Errors) > 0 {
		t.Errorf("disable: %+v, %v", report, err)
	}
	check("disabled")
	st, err := n.Control.Status(ctx)
	if err != nil || len(st.Degraded) > 0 || st.Counts.WriteFails > 0 {
		t.Errorf("status: %+v, %v", st, err)
	}
}

// TestBatchUpdates: a batch container has no weight for as long as it is idle; every update must leave that alone.
func TestBatchUpdates(t *testing.T) {
	ctx, n := start(t, node.Options{Policy: demo.Reserved})
	p := run(t, ctx, n, manifest(t, "be"))
	c := p.Containers[0]
	check := func(when string) {
		t.Helper()
		want(t, when, cgroupOf(p, 0), be)
		asked(t, when, shown(t, ctx, n, c.ID), c.Asked)
	}
	check("created")
	if got, want := node.Kernel(filepath.Dir(p.Cgroup), policy.IOWeight), "10"; got != want {
		eventually(t, "the BestEffort class has the weight of batch", func() bool { return node.Kernel(filepath.Dir(p.Cgroup), policy.IOWeight) == want })
	}
	for _, step := range []struct {
		when string
		do   func() error
	}{
		{"full update", func() error { return n.Kubelet.Update(ctx, c, c.Asked) }},
		{"shares-only update", func() error { return n.Kubelet.Update(ctx, c, policy.Resources{CPUShares: c.Asked.CPUShares}) }},
		{"SIGKILL of the proxy", func() error { return n.RestartProxy(ctx, syscall.SIGKILL) }},
		{"full update after it", func() error { return n.Kubelet.Update(ctx, c, c.Asked) }},
		{"restart of containerd", func() error { return n.Containerd.Restart(ctx, syscall.SIGKILL) }},
		{"full update after that", func() error { return eventuallyNil(ctx, func() error { return n.Kubelet.Update(ctx, c, c.Asked) }) }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.when, err)
		}
		check(step.when)
	}
}

// TestAdopted: a container that was there before the proxy gets a cpuset and a quota with the next update, and never
// cpu.idle, since the runtime's stored spec has shares.
func TestAdopted(t *testing.T) {
	if door == node.NRI {
		t.Skip("the plugin's is TestSynchronize")
	}
	ctx, n := start(t, node.Options{Policy: demo.Reserved})
	var p *node.Pod
	without(t, ctx, n, func() { p = run(t, ctx, n, manifest(t, "be")) })
	c := p.Containers[0]
	if err := n.RestartProxy(ctx, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the proxy knows the container", func() bool {
		cs, err := n.Control.Containers(ctx)
		return err == nil && len(cs) == 1 && cs[0].State == policy.Adopted
	})
	want(t, "adopted", cgroupOf(p, 0), map[policy.Knob]string{policy.CPUWeight: weight(2), policy.CPUIdle: "0", policy.CPUMax: "max 100000"})
	if err := n.Kubelet.Update(ctx, c, c.Asked); err != nil {
		t.Fatal(err)
	}
	want(t, "updated", cgroupOf(p, 0), map[policy.Knob]string{policy.CPUSetCPUs: pool, policy.CPUWeight: weight(2), policy.CPUIdle: "0", policy.CPUMax: "50000 100000"})
	asked(t, "updated", shown(t, ctx, n, c.ID), c.Asked)
}

// TestDisable: afterwards the kernel has what it would have had without us, and a later update brings nothing back.
func TestDisable(t *testing.T) {
	ctx, n := start(t, node.Options{Policy: demo.Reserved})
	compare, classes := map[string]map[string]string{}, map[string]map[string]string{}
	without(t, ctx, n, func() {
		for _, name := range demo.Names {
			p := run(t, ctx, n, manifest(t, name))
			compare[name], compare[name+" pod"] = node.Files(cgroupOf(p, 0)), node.Files(p.Cgroup)
			if err := n.Kubelet.Remove(ctx, p); err != nil {
				t.Fatal(err)
			}
		}
		for _, class := range node.Classes {
			classes[class] = node.Files(n.Kubelet.Class(class))
		}
	})
	pods := map[string]*node.Pod{}
	for _, name := range demo.Names {
		pods[name] = run(t, ctx, n, manifest(t, name))
	}
	want(t, "before", cgroupOf(pods["be"], 0), be)
	for round := range 2 { // the second has nothing to do
		report, err := n.Control.Disable(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Errors) > 0 || (round == 0) != (report.Updated > 0) {
			t.Errorf("disable, round %d: %+v", round, report)
		}
	}
	same := func(when string) {
		t.Helper()
		for _, name := range demo.Names {
			container := maps.Clone(compare[name])
			if name == "be" && door == node.NRI { // docs/ownership.md, "What disable can't take back"
				container["ioprio"] = "best-effort:7"
			}
			differ(t, when+": "+name, container, node.Files(cgroupOf(pods[name], 0)))
			differ(t, when+": pod "+name, compare[name+" pod"], node.Files(pods[name].Cgroup))
		}
		for class, files := range classes {
			differ(t, when+": class "+class, files, node.Files(n.Kubelet.Class(class)))
		}
	}
	same("disabled")
	for _, name := range demo.Names {
		c := pods[name].Containers[0]
		// As `crictl update` does, past the proxy.
		if _, err := n.Direct.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: c.ID, Linux: node.Resources(c.Asked)}); err != nil {
			t.Errorf("update of %s after disable: %v", name, err)
		}
	}
	same("updated after disable")
	st, err := n.Control.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode != control.ModeBypass || st.Cgroup.Journal != 0 {
		t.Errorf("status after disable: mode %s, %d journalled cgroups, want bypass and none", st.Mode, st.Cgroup.Journal)
	}
	// Bypass outlives a restart; a pod that is made in it is untouched.
	if err := n.RestartProxy(ctx, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := n.Kubelet.Remove(ctx, pods["be"]); err != nil {
		t.Fatal(err)
	}
	p := run(t, ctx, n, manifest(t, "be"))
	differ(t, "made in bypass", compare["be"], node.Files(cgroupOf(p, 0)))
	if _, err := n.Control.Bypass(ctx, false); err != nil {
		t.Fatal(err)
	}
	if err := n.Kubelet.Remove(ctx, p); err != nil {
		t.Fatal(err)
	}
	p = run(t, ctx, n, manifest(t, "be"))
	want(t, "made after bypass", cgroupOf(p, 0), be)
}

// TestObserve: everything is decided and nothing is changed.
func TestObserve(t *testing.T) {
	ctx, n := start(t, node.Options{Policy: demo.Reserved, Mode: "observe"})
	for _, name := range []string{"be", "ls"} {
		var files, pod map[string]string
		without(t, ctx, n, func() {
			p := run(t, ctx, n, manifest(t, name))
			files, pod = node.Files(cgroupOf(p, 0)), node.Files(p.Cgroup)
			if err := n.Kubelet.Remove(ctx, p); err != nil {
				t.Fatal(err)
			}
		})
		p := run(t, ctx, n, manifest(t, name))
		differ(t, name, files, node.Files(cgroupOf(p, 0)))
		differ(t, name+" pod", pod, node.Files(p.Cgroup))
		view, err := n.Control.ExplainPod(ctx, p.Spec.Namespace, p.Spec.Name)
		if err != nil || len(view) != 2 || len(view[1].Decision.Settings) == 0 {
			t.Errorf("%s: explain shows no decision: %+v, %v", name, view, err)
		}
	}
}

// TestBadInput: a bad value is named, changes nothing and kills nothing.
func TestBadInput(t *testing.T) {
	ctx, n := start(t, node.Options{Policy: demo.Reserved})
	for _, tc := range []struct {
		name, pod string
		edit      func(*corev1.Pod)
		refused   string // part of the message of a refusal
		values    map[policy.Knob]string
	}{
		{"tier that is none", "ls", func(p *corev1.Pod) { p.Labels[v1alpha1.LabelQoS] = "GOLD" }, "", map[policy.Knob]string{policy.CPUMaxBurst: "0", policy.CPUSetCPUs: all(t)}},
		{"label of 3 KB", "ls", func(p *corev1.Pod) { p.Labels[v1alpha1.LabelQoS] = strings.Repeat("B", 3000) } /* containerd takes no more than 4096 bytes */, "", map[policy.Knob]string{policy.CPUMaxBurst: "0"}},
		{"batch annotation that is no JSON", "be", func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationBatchResources] = "{" }, "", map[policy.Knob]string{policy.CPUMax: "max 100000", policy.CPUIdle: "1"}},
		{"negative batch-cpu", "be", func(p *corev1.Pod) {
			p.Annotations[v1alpha1.AnnotationBatchResources] = `{"containers":{"app":{"limits":{"kubernetes.io/batch-cpu":"-5"}}}}`
		}, "", map[policy.Knob]string{policy.CPUMax: "max 100000"}},
		{"overflowing batch-memory", "be", func(p *corev1.Pod) {
			p.Annotations[v1alpha1.AnnotationBatchResources] = `{"containers":{"app":{"limits":{"kubernetes.io/batch-memory":"99E"}}}}`
		}, "", map[policy.Knob]string{policy.CPUIdle: "1"}},
		{"io weight above the tier", "lsr", func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationIOQoS] = `{"weight":1000}` }, v1alpha1.AnnotationIOQoS, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := manifest(t, tc.pod)
			if spec.Annotations == nil {
				spec.Annotations = map[string]string{}
			}
			tc.edit(spec)
			p, err := n.Kubelet.RunPod(ctx, spec)
			defer func() {
				if err := n.Kubelet.Remove(ctx, p); err != nil {
					t.Error(err)
				}
			}()
			if tc.refused != "" {
				if door == node.CRI && status.Code(unwrap(err)) != codes.FailedPrecondition || err == nil || !strings.Contains(err.Error(), tc.refused) {
					t.Errorf("got %v, want FailedPrecondition that names %s", err, tc.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want(t, tc.name, cgroupOf(p, 0), tc.values)
		})
	}
	st, err := n.Control.Status(ctx)
	if err != nil || st.Counts.BadInput == 0 || st.Counts.Refused == 0 {
		t.Errorf("counts after bad input: %+v, %v", st.Counts, err)
	}
}

// TestRuntimeAway: calls end as Unavailable while the runtime is away, and work when it is back.
func TestRuntimeAway(t *testing.T) {
	if door == node.NRI {
		t.Skip("no call passes through the plugin; TestPluginFaults kills the runtime")
	}
	ctx, n := start(t, node.Options{})
	version := func() error {
		_, err := n.Kubelet.CRI.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
		return err
	}
	if err := version(); err != nil {
		t.Fatal(err)
	}
	if err := n.Containerd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Unavailable while the runtime is away", func() bool { return status.Code(version()) == codes.Unavailable })
	if code, body, err := n.Get(ctx, control.PathHealth); err != nil || code != 200 {
		t.Errorf("healthz while the runtime is away: %d %q %v", code, body, err)
	}
	eventually(t, "not ready while the runtime is away", func() bool { code, _, err := n.Get(ctx, control.PathReady); return err == nil && code == 503 })
	if err := n.Containerd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "works when the runtime is back", func() bool { return version() == nil })
	eventually(t, "ready when the runtime is back", func() bool { code, _, err := n.Get(ctx, control.PathReady); return err == nil && code == 200 })
}

func differ(t *testing.T, when string, before, after map[string]string) {
	t.Helper()
	for _, f := range slices.Sorted(maps.Keys(before)) {
		if f == "cpuset.cpus" && before[f] == "" && after[f] == online(t) {
			continue // CRI can't say "none" again; every CPU that is there is the same
		}
		if before[f] != after[f] {
			t.Errorf("%s: %s: got %q, want %q", when, f, after[f], before[f])
		}
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	limit := 20 * time.Second
	if lab.Unified() {
		limit *= 6
	}
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Errorf("not within %v: %s", limit, what)
}

func eventuallyNil(ctx context.Context, f func() error) error {
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}
