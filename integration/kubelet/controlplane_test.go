package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/internal/policy"
)

// cluster is a control plane with one node.
type cluster struct {
	t          *testing.T
	ctx        context.Context
	lab        *lab.Lab
	containerd *lab.Containerd
	cp         *lab.ControlPlane
	k          *lab.Kubelet
	node       *node.Node // nil without us
	logAt      int64
}

func makeNamespaces(ctx context.Context, cp *lab.ControlPlane) error {
	for _, name := range []string{"demo", "kube-system"} {
		_, err := cp.Do(ctx, http.MethodPost, "/api/v1/namespaces", "", []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+name+`"}}`))
		var status *lab.StatusError
		if err != nil && (!errors.As(err, &status) || status.Code != http.StatusConflict) {
			return err
		}
	}
	return nil
}

// without, as the text of a policy, is a kubelet that talks to containerd itself.
const without = "none"

// startCluster starts a node in a lab of its own.
func startCluster(t *testing.T, ctx context.Context, name, policyText string, config map[string]any) *cluster {
	t.Helper()
	l := lab.ForTest(t, name)
	c := &cluster{t: t, ctx: ctx, lab: l}
	begin := time.Now()
	progress := func(what string) { t.Logf("%s after %v", what, time.Since(begin).Round(100*time.Millisecond)) }
	var err error
	if c.containerd, err = l.StartContainerd(ctx, lab.ContainerdOptions{}); err != nil {
		t.Fatal(err)
	}
	progress("containerd ran")
	socket := c.containerd.Socket()
	if policyText != without {
		if c.node, err = node.Behind(ctx, l, c.containerd, node.Options{Policy: policyText}); err != nil {
			t.Fatal(err)
		}
		socket = c.node.Socket()
	}
	if server := os.Getenv(serverEnv); server != "" {
		c.cp, err = l.JoinControlPlane(ctx, server)
	} else if c.cp, err = l.StartControlPlane(ctx, lab.ControlPlaneOptions{}); err == nil {
		err = makeNamespaces(ctx, c.cp)
	}
	if err != nil {
		t.Fatal(err)
	}
	progress("the API server answered")
	all := map[string]any{"syncFrequency": "1s"} // the kubelet looks at everything often
	maps.Copy(all, config)
	if c.k, err = l.StartKubelet(ctx, lab.KubeletOptions{Runtime: socket, Kubeconfig: c.cp.NodeKubeconfig(), Config: all}); err != nil {
		t.Fatal(err)
	}
	progress("the kubelet ran")
	if err := c.cp.WaitNodeReady(ctx); err != nil {
		t.Fatal(err)
	}
	progress("the node was ready")
	return c
}

func podPath(p *corev1.Pod) string { return "/api/v1/namespaces/" + p.Namespace + "/pods/" + p.Name }

func (c *cluster) create(p *corev1.Pod) {
	c.t.Helper()
	b, err := json.Marshal(p)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.cp.Do(c.ctx, http.MethodPost, "/api/v1/namespaces/"+p.Namespace+"/pods", "", b); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) get(p *corev1.Pod) (*corev1.Pod, error) {
	b, err := c.cp.Do(c.ctx, http.MethodGet, podPath(p), "", nil)
	if err != nil {
		return nil, err
	}
	var now corev1.Pod
	return &now, json.Unmarshal(b, &now)
}

// await waits until a pod is ready, and as f wants it.
func (c *cluster) await(what string, p *corev1.Pod, f func(*corev1.Pod) error) (now *corev1.Pod) {
	c.t.Helper()
	eventually(c.t, c.ctx, what, func() (err error) {
		if now, err = c.get(p); err != nil {
			return err
		}
		if err := ready(now); err != nil {
			return err
		}
		if f == nil {
			return nil
		}
		return f(now)
	})
	return now
}

// remove deletes a pod and waits until it is gone.
func (c *cluster) remove(p *corev1.Pod) {
	c.t.Helper()
	if _, err := c.cp.Do(c.ctx, http.MethodDelete, podPath(p), "", []byte(`{"gracePeriodSeconds":1}`)); err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, c.ctx, "pod "+p.Name+" is gone", func() error {
		_, err := c.get(p)
		var status *lab.StatusError
		if errors.As(err, &status) && status.Code == http.StatusNotFound {
			return nil
		}
		return fmt.Errorf("it is there: %v", err)
	})
}

func (c *cluster) nodeStatus() corev1.NodeStatus {
	c.t.Helper()
	b, err := c.cp.Do(c.ctx, http.MethodGet, "/api/v1/nodes/"+lab.NodeName, "", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	var n corev1.Node
	if err := json.Unmarshal(b, &n); err != nil {
		c.t.Fatal(err)
	}
	return n.Status
}

// noteNode keeps what the scheduler believes of the node.
func (c *cluster) noteNode(r *record, when string) {
	st := c.nodeStatus()
	conditions := map[string]string{}
	for _, x := range st.Conditions {
		conditions[string(x.Type)] = string(x.Status)
	}
	r.note(when+": status of the node", map[string]any{"capacity": st.Capacity, "allocatable": st.Allocatable, "conditions": conditions})
}

// resize asks for other resources of a pod's container, and waits until the pod says that it has them.
func (c *cluster) resize(r *record, when string, p *corev1.Pod, cpuRequest, cpuLimit string) *corev1.Pod {
	c.t.Helper()
	want := *p.Spec.Containers[0].Resources.DeepCopy()
	want.Requests[corev1.ResourceCPU], want.Limits[corev1.ResourceCPU] = resource.MustParse(cpuRequest), resource.MustParse(cpuLimit)
	b, err := json.Marshal(map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": p.Spec.Containers[0].Name, "resources": want}}}})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.cp.Do(c.ctx, http.MethodPatch, podPath(p)+"/resize", "application/strategic-merge-patch+json", b); err != nil {
		c.t.Fatal(err)
	}
	resized := func(now *corev1.Pod) error {
		for _, x := range now.Status.Conditions {
			if x.Type == corev1.PodResizePending || x.Type == corev1.PodResizeInProgress {
				return fmt.Errorf("condition %s", brief(x))
			}
		}
		got := now.Status.ContainerStatuses[0].Resources
		if got == nil || !equal(got.Requests, want.Requests) || !equal(got.Limits, want.Limits) {
			return fmt.Errorf("status shows %s, want %s", brief(got), brief(want))
		}
		return nil
	}
	c.await(when, p, resized)
	settle()
	now := c.await(when, p, resized)
	r.note(when+": status of pod "+p.Name, now.Status)
	return now
}

func equal(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}

// untiered is a pod without a tier that has requests and limits.
func untiered(name, cpu string) *corev1.Pod {
	r := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("16Mi")}
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "demo"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "docker.io/library/busybox:latest", ImagePullPolicy: corev1.PullIfNotPresent,
			Command: []string{"sleep", "86400"}, Resources: corev1.ResourceRequirements{Requests: r, Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi")}}}}},
	}
}

// TestControlPlane is the standing test of the design's section 4: no knob of ours changes what kubelet and scheduler
// believe. The same scenario runs without us and through the proxy.
func TestControlPlane(t *testing.T) {
	records := map[string]*record{}
	for _, run := range []struct{ name, policy string }{{"direct", without}, {"through", demo.Reserved}} {
		ok := t.Run(run.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience(5*time.Minute))
			defer cancel()
			records[run.name] = newRecord()
			startCluster(t, ctx, run.name, run.policy, nil).scenario(records[run.name])
		})
		if !ok {
			t.FailNow()
		}
	}
	same(t, records["direct"], records["through"])
}

func (c *cluster) scenario(r *record) {
	t := c.t
	pods := tiers(t)
	pods["web"] = untiered("web", "100m")
	c.noteNode(r, "at the start")
	names := slices.Sorted(maps.Keys(pods))
	for _, name := range names {
		c.create(pods[name])
	}
	for _, name := range names {
		pods[name] = c.await("pod "+name+" is ready", pods[name], nil)
	}
	settle()
	for _, name := range names {
		r.note("made: status of pod "+name, c.await("pod "+name+" is ready", pods[name], nil).Status)
	}
	c.noteNode(r, "with pods")
	if c.node != nil {
		c.check("made", pods)
	}

	// What the scheduler believes to be free is free to the last milli-CPU, and no more.
	free := c.nodeStatus().Allocatable[corev1.ResourceCPU]
	for _, p := range pods {
		free.Sub(p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU])
	}
	exact, over := untiered("exact", free.String()), untiered("over", "1m")
	c.create(exact)
	r.note("exact fit: status", c.await("a pod of "+free.String()+" that fits exactly is ready", exact, nil).Status)
	c.create(over)
	eventually(t, c.ctx, "the pod that is too much is not scheduled", func() error {
		now, err := c.get(over)
		if err != nil {
			return err
		}
		for _, x := range now.Status.Conditions {
			if x.Type == corev1.PodScheduled && x.Status == corev1.ConditionFalse && x.Reason == corev1.PodReasonUnschedulable {
				r.note("too much: condition", x.Message)
				return nil
			}
		}
		return fmt.Errorf("status %s", brief(now.Status))
	})
	c.remove(over)
	c.remove(exact)

	if free.Cmp(resource.MustParse("300m")) < 0 {
		t.Fatalf("the node has %s CPUs free: too little for the resizes", free.String())
	}
	for _, step := range []struct{ name, when, request, limit string }{
		{"ls", "LS up", "600m", "1200m"}, {"ls", "LS down, below the burst", "300m", "500m"}, {"ls", "LS limit up alone", "300m", "600m"},
		{"lsr", "LSR up", "1200m", "1200m"}, {"lsr", "LSR down", "700m", "700m"},
	} {
		if lab.Unified() && step.when != "LS down, below the burst" && step.when != "LSR up" {
			continue // to spare emulation
		}
		now := c.resize(r, step.when, pods[step.name], step.request, step.limit)
		pods[step.name] = now
		if containerID(now) == "" || now.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s: the container was made anew", step.when)
		}
		limit := resource.MustParse(step.limit)
		quota := strconv.FormatInt(limit.MilliValue()*100, 10)
		at := cgroupOf(c.lab, now)
		want(t, step.when, at+"/"+containerID(now), map[policy.Knob]string{policy.CPUMax: quota + " 100000"})
		if c.node == nil {
			want(t, step.when, at, map[policy.Knob]string{policy.CPUMax: quota + " 100000"})
			continue
		}
		if step.name == "ls" {
			want(t, step.when, at+"/"+containerID(now), map[policy.Knob]string{policy.CPUMaxBurst: quota})
		}
		eventually(t, c.ctx, step.when+": the kernel has what was decided", func() error { return decided(c.ctx, c.node.Control, c.lab, now) })
	}
	settle()
	c.noteNode(r, "at the end")
	for _, name := range names {
		r.note("at the end: status of pod "+name, c.await("pod "+name+" is ready", pods[name], nil).Status)
	}
	c.logAt = r.errorLog(t, c.lab, c.k.LogPath(), c.logAt)
	for _, name := range names {
		c.remove(pods[name])
	}
	c.leave()
}

// leave ends the kubelet and removes its node: in the VM the next run has the same control plane, and no controller that
// would remove what is the node's.
func (c *cluster) leave() {
	if err := c.k.Stop(c.ctx); err != nil {
		c.t.Error(err)
	}
	for _, path := range []string{"/api/v1/nodes/", "/apis/storage.k8s.io/v1/csinodes/", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"} {
		var status *lab.StatusError
		if _, err := c.cp.Do(c.ctx, http.MethodDelete, path+lab.NodeName, "", nil); err != nil && (!errors.As(err, &status) || status.Code != http.StatusNotFound) {
			c.t.Error(err)
		}
	}
}

// check checks the kernel's values of every tier, of what is not ours, and of the cgroups above.
func (c *cluster) check(when string, pods map[string]*corev1.Pod) {
	c.t.Helper()
	low := int64(0)
	for name, p := range pods {
		at := cgroupOf(c.lab, p)
		want(c.t, when+": "+name, at+"/"+containerID(p), managed[name])
		if managed[name][policy.MemoryLow] != "" {
			want(c.t, when+": pod "+name, at, map[policy.Knob]string{policy.MemoryLow: managed[name][policy.MemoryLow]})
			v, err := strconv.ParseInt(managed[name][policy.MemoryLow], 10, 64)
			if err != nil {
				c.t.Fatal(err)
			}
			low += v
		}
		eventually(c.t, c.ctx, when+": the kernel has what was decided", func() error { return decided(c.ctx, c.node.Control, c.lab, p) })
		// The demo's policy keeps CPU 0 from the pools of LS and BE.
		if name == "ls" || name == "be" {
			want(c.t, when+": "+name, at+"/"+containerID(p), map[policy.Knob]string{policy.CPUSetCPUs: "1"})
		}
	}
	if !lab.Unified() {
		return
	}
	top := c.lab.CgroupParent() + "/kubepods"
	ls := managed["ls"][policy.MemoryLow]
	eventually(c.t, c.ctx, "every parent carries the sum of memory.low below it", func() error {
		if got := node.Kernel(top, policy.MemoryLow); got != strconv.FormatInt(low, 10) {
			return fmt.Errorf("kubepods has %s, want %d", got, low)
		}
		if got := node.Kernel(top+"/burstable", policy.MemoryLow); got != ls {
			return fmt.Errorf("burstable has %s, want %s", got, ls)
		}
		return nil
	})
}

// TestStaticCPUManager: with exclusive CPUs of the kubelet's own, its cpusets survive, and neither side makes the other
// write again and again.
func TestStaticCPUManager(t *testing.T) {
	if lab.Unified() {
		t.Skip("not in the VM: to spare emulation, and it does not depend on the cgroup version")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := startCluster(t, ctx, "static", demo.Reserved, map[string]any{
		"cpuManagerPolicy": "static", "cpuManagerReconcilePeriod": "1s", "reservedSystemCPUs": "0",
	})
	all := tiers(t)
	lsr, ls := all["lsr"], all["ls"]
	ls.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("0") // one CPU can be had, and LSR has it
	for _, p := range []*corev1.Pod{lsr, ls} {
		c.create(p)
	}
	lsr, ls = c.await("pod lsr is ready", lsr, nil), c.await("pod ls is ready", ls, nil)
	// As the kubelet has them: LSR alone on CPU 1, all others on what is left. The policy keeps CPU 0 from the pool
	// of LS too, but a pool is never empty.
	sets := func(when string) {
		t.Helper()
		want(t, when, cgroupOf(c.lab, lsr)+"/"+containerID(lsr), map[policy.Knob]string{policy.CPUSetCPUs: "1"})
		want(t, when, cgroupOf(c.lab, ls)+"/"+containerID(ls), map[policy.Knob]string{policy.CPUSetCPUs: "0"})
	}
	settle() // the CPU manager tells the runtime with its next reconciliation
	sets("made")
	if told, err := c.node.Control.CPUs(ctx); err != nil || told.Foreign != "1" || told.Pools.LS != "0" || len(told.Pods) > 0 {
		t.Errorf("the door sees CPUs %+v, %v; want CPU 1 as the kubelet's, and in no pool", told, err)
	}
	before := c.updates()
	time.Sleep(5 * time.Second)
	if n := c.updates() - before; n > 2 {
		t.Errorf("%d updates of containers in 5 s in which nothing has changed", n)
	}
	sets("5 s later")
	r := newRecord()
	ls = c.resize(r, "LS up", ls, "0", "1200m")
	ls = c.resize(r, "LS down", ls, "0", "500m")
	want(t, "resized", cgroupOf(c.lab, ls)+"/"+containerID(ls), map[policy.Knob]string{policy.CPUMax: "50000 100000", policy.CPUMaxBurst: "50000"})
	sets("resized")
	for _, p := range []*corev1.Pod{lsr, ls} {
		eventually(t, ctx, "the kernel has what was decided", func() error { return decided(ctx, c.node.Control, c.lab, p) })
	}
}

// updates counts the kubelet's updates of containers by the proxy's metrics:
//
//	tideline_cri_hooked_calls_total{code="0",method="UpdateContainerResources"} 3
func (c *cluster) updates() int {
	c.t.Helper()
	_, text, err := c.node.Get(c.ctx, "/metrics")
	if err != nil {
		c.t.Fatal(err)
	}
	n := 0
	for _, line := range strings.Split(text, "\n") {
		if f := strings.Fields(line); len(f) == 2 && strings.HasPrefix(f[0], "tideline_cri_hooked_calls_total{") && strings.Contains(f[0], "UpdateContainerResources") {
			v, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				c.t.Fatal(err)
			}
			n += int(v)
		}
	}
	return n
}
