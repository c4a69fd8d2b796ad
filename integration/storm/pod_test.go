package storm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/images"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/policy"
)

// pod is what the test knows of a pod.
type pod struct {
	*node.Pod
	name   string
	tier   v1alpha1.Tier
	strict bool  // by our own label: it is refused what it can't have
	size   int   // whole CPUs that it asks for; 0 where it asks for none, or for a part of one
	sizes  []int // see podFacts
	told   bool  // see podFacts
	live   bool
	broken bool // a call about it has failed, so what there is of it is not known
	list   []*container
}

// container is one of a pod's, in the order in which they are made.
type container struct {
	*node.Container // nil where it is not made
	want            kube.Container
	running         bool
	asked           cpuset.CPUSet
	born            string
}

// milli is the CPU that a container asks for, as its quota says, else its shares.
func milli(r policy.Resources) int64 {
	if r.CPUQuota != nil && r.CPUPeriod != nil && *r.CPUQuota > 0 {
		return *r.CPUQuota * 1000 / *r.CPUPeriod
	}
	if r.CPUShares != nil {
		return (*r.CPUShares*1000 + 512) / 1024
	}
	return 0
}

// alone says how many CPUs the kubelet's static CPU manager has to give a container alone: those of Guaranteed pods that
// ask for whole ones. 0 is none.
func (p *pod) alone(c *container) int {
	m := milli(c.want.Asked)
	if strings.Contains(p.Cgroup, "burstable") || strings.Contains(p.Cgroup, "besteffort") || m%1000 != 0 {
		return 0
	}
	return int(m / 1000)
}

// exclusive says whether it has done so.
func (p *pod) exclusive(c *container) bool {
	return !c.asked.IsEmpty() && c.asked.Size() == p.alone(c)
}

// whole says whether a container of every name runs.
func (p *pod) whole() bool {
	return !slices.ContainsFunc(p.list, func(c *container) bool { return !c.running })
}

func (p *pod) running() (out []*container) {
	for _, c := range p.list {
		if c.running {
			out = append(out, c)
		}
	}
	return out
}

// shared gives the running containers without CPUs that the kubelet gave them alone.
func (p *pod) shared() []*container {
	return slices.DeleteFunc(p.running(), p.exclusive)
}

func list(cpu string, memory string) corev1.ResourceList {
	out := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	if cpu != "" {
		out[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	return out
}

func both(cpu string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: list(cpu, "16Mi"), Limits: list(cpu, "16Mi")}
}

func app(name string, r corev1.ResourceRequirements) corev1.Container {
	return corev1.Container{Name: name, Image: images.Busybox, Command: []string{"sleep", "86400"}, Resources: r}
}

// newPod makes up a pod. most is how many CPUs it may ask for.
func newPod(rnd *rand.Rand, n int, tier v1alpha1.Tier, most int) *pod {
	p := &pod{tier: tier, name: fmt.Sprintf("p%d-%s", n, strings.ToLower(string(tier))), strict: true}
	if tier == v1alpha1.None {
		p.name = fmt.Sprintf("p%d-none", n)
	}
	spec := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: "storm", UID: demo.UID(1000 + n), Labels: map[string]string{}}}
	containers := &spec.Spec.Containers
	spec.Labels[v1alpha1.LabelQoS] = string(tier)
	switch tier {
	case v1alpha1.LSE, v1alpha1.LSR:
		p.size = 1 + rnd.IntN(most)
		cpu := fmt.Sprint(p.size)
		switch rnd.IntN(10) {
		case 0, 1: // two halves of a CPU
			*containers = []corev1.Container{app("app", both(fmt.Sprintf("%dm", p.size*1000-500))), app("side", both("500m"))}
		case 2: // what only starts it counts as much
			spec.Spec.InitContainers = []corev1.Container{app("init", both(cpu))}
			*containers = []corev1.Container{app("app", both(cpu))}
		case 3: // no limit
			*containers = []corev1.Container{app("app", corev1.ResourceRequirements{Requests: list(cpu, "16Mi")})}
		case 4: // what can't be
			*containers = []corev1.Container{app("app", both(fmt.Sprintf("%dm", p.size*1000-500)))}
			p.size = 0
		case 5: // by a peer's label
			delete(spec.Labels, v1alpha1.LabelQoS)
			spec.Labels["koordinator.sh/qosClass"] = string(tier)
			p.strict = false
			fallthrough
		default:
			*containers = []corev1.Container{app("app", both(cpu))}
		}
		if p.size > 0 {
			p.sizes = []int{p.size}
		}
	case v1alpha1.LS:
		*containers = []corev1.Container{app("app", corev1.ResourceRequirements{Requests: list("50m", "16Mi"), Limits: list("500m", "32Mi")})}
		if rnd.IntN(3) == 0 {
			*containers = append(*containers, app("side", corev1.ResourceRequirements{Requests: list("50m", "16Mi"), Limits: list("", "32Mi")}))
		}
	case v1alpha1.BE:
		r := corev1.ResourceList{"kubernetes.io/batch-cpu": resource.MustParse("500"), "kubernetes.io/batch-memory": resource.MustParse("32Mi")}
		*containers = []corev1.Container{app("app", corev1.ResourceRequirements{Requests: r, Limits: r})}
	case v1alpha1.SYSTEM:
		delete(spec.Labels, v1alpha1.LabelQoS)
		spec.Namespace = "kube-system"
		*containers = []corev1.Container{app("agent", corev1.ResourceRequirements{Requests: list("20m", "16Mi")})}
	default:
		delete(spec.Labels, v1alpha1.LabelQoS)
		*containers = []corev1.Container{app("app", corev1.ResourceRequirements{})}
		if rnd.IntN(2) == 0 {
			(*containers)[0].Resources = corev1.ResourceRequirements{Requests: list("50m", "16Mi")}
		}
	}
	p.Pod = &node.Pod{Spec: spec}
	return p
}

// newStatic makes up a pod without a tier to which the kubelet's static CPU manager gives CPUs.
func newStatic(n, cpus int) *pod {
	name := fmt.Sprintf("p%d-static", n)
	return &pod{name: name, Pod: &node.Pod{Spec: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "storm", UID: demo.UID(1000 + n)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{app("app", both(fmt.Sprint(cpus)))}},
	}}}
}

// admit is what happens to a pod before a kubelet sees it.
func (s *storm) admit(p *pod) {
	kube.Admit(p.Spec)
	p.list = nil
	for _, c := range kube.Containers(p.Spec, s.n.Kubelet.Options) {
		p.list = append(p.list, &container{want: c})
	}
}

// sandbox makes a pod's sandbox.
func (s *storm) sandbox(p *pod) error {
	made, err := s.n.Kubelet.RunSandbox(s.ctx, p.Spec)
	if made != nil {
		p.Pod = made
	}
	if err != nil {
		return err
	}
	p.live, p.told = true, !s.bypassed()
	return nil
}

// again makes another sandbox in place of the last one, first or after what is left of that.
func (s *storm) again(p *pod, first bool) error {
	old := p.SandboxID
	drop := func() error {
		for len(p.Containers) > 0 {
			if err := s.n.Kubelet.RemoveContainer(s.ctx, p.Pod, p.Containers[0]); err != nil {
				return err
			}
		}
		_, err := s.n.Kubelet.CRI.Runtime.RemovePodSandbox(s.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: old})
		return err
	}
	run := func() error { return s.n.Kubelet.RunSandboxAgain(s.ctx, p.Pod) }
	order := []func() error{drop, run}
	if first {
		slices.Reverse(order)
	}
	for _, do := range order {
		if err := do(); err != nil {
			return err
		}
	}
	for _, c := range p.list {
		c.Container, c.running, c.asked = nil, false, cpuset.New()
	}
	p.live, p.told = true, !s.bypassed()
	return nil
}

// make makes a container.
func (s *storm) make(p *pod, c *container) error {
	cpus, err := s.assign(p, c)
	if err != nil {
		return err
	}
	want := c.want
	want.Asked.CPUSetCPUs = ""
	if !cpus.IsEmpty() {
		want.Asked.CPUSetCPUs = cpus.String()
	}
	made, err := s.n.Kubelet.Create(s.ctx, p.Pod, want)
	if err != nil {
		c.asked = cpuset.New()
		if refused(err) {
			p.told = !s.bypassed()
		}
		return err
	}
	c.Container = made
	p.told = p.told || !s.bypassed()
	return nil
}

// assign is what the kubelet's CPU manager does for a container that is about to be made. A pod for which there are not
// enough CPUs it does not admit.
func (s *storm) assign(p *pod, c *container) (cpuset.CPUSet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.asked = cpuset.New()
	if !s.static {
		return c.asked, nil
	}
	left := s.online.Difference(s.given())
	n := p.alone(c)
	switch {
	case n == 0:
		c.asked = left
	case n >= left.Size():
		return c.asked, errNotAdmitted
	default:
		all := left.List()
		c.asked = cpuset.New(all[len(all)-n:]...)
	}
	return c.asked, nil
}

var errNotAdmitted = errors.New("the kubelet does not admit it: too few CPUs for its CPU manager")

// given is what the kubelet's CPU manager has given away. The caller holds mu.
func (s *storm) given() (all cpuset.CPUSet) {
	for _, p := range s.pods {
		for _, c := range p.list {
			if p.live && p.exclusive(c) {
				all = all.Union(c.asked)
			}
		}
	}
	return all
}

// start starts a container.
func (s *storm) start(p *pod, c *container) error {
	if err := s.n.Kubelet.StartContainer(s.ctx, c.Container); err != nil {
		return err
	}
	c.running = true
	c.born = node.Kernel(p.Cgroup+"/"+c.ID, policy.CPUSetMems)
	return nil
}

// complete makes and starts what is missing of a pod. With part it may leave a container made and not started.
func (s *storm) complete(p *pod, part bool) error {
	for i, c := range p.list {
		if c.running {
			continue
		}
		if c.Container == nil {
			if err := s.make(p, c); err != nil {
				return err
			}
		}
		if part && i == len(p.list)-1 {
			return nil
		}
		if err := s.start(p, c); err != nil {
			return err
		}
	}
	return nil
}

// end stops a pod's processes.
func (s *storm) end(p *pod) error {
	if err := s.n.Kubelet.Stop(s.ctx, p.Pod); err != nil {
		return err
	}
	p.live = false
	for _, c := range p.list {
		c.running = false
	}
	return nil
}

// destroy removes whatever there is of a pod, all of its sandboxes at once where hard is set, as a runtime has to take it.
func (s *storm) destroy(p *pod, hard bool) error {
	if !hard && !p.broken {
		if err := s.n.Kubelet.Remove(s.ctx, p.Pod); err != nil {
			return err
		}
		s.forget(p)
		return nil
	}
	filter := &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{cri.LabelPodUID: string(p.Spec.UID)}}
	res, err := s.n.Direct.Runtime.ListPodSandbox(s.ctx, &runtimeapi.ListPodSandboxRequest{Filter: filter})
	if err != nil {
		return err
	}
	for _, x := range res.GetItems() {
		if _, err := s.n.Kubelet.CRI.Runtime.StopPodSandbox(s.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: x.GetId()}); err != nil {
			return err
		}
		if _, err := s.n.Kubelet.CRI.Runtime.RemovePodSandbox(s.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: x.GetId()}); err != nil {
			return err
		}
	}
	s.forget(p)
	if p.Cgroup == "" {
		return nil
	}
	return lab.RemoveCgroup(p.Cgroup)
}

func (s *storm) forget(p *pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods = slices.DeleteFunc(s.pods, func(x *pod) bool { return x == p })
}

// resize gives a pod's first container so many CPUs more, in the kubelet's order: what holds it first where it grows, last
// where it shrinks.
func (s *storm) resize(p *pod, by int) error {
	c := p.list[len(p.list)-1]
	if len(p.Spec.Spec.Containers) > 1 {
		c = p.list[0]
	}
	r := &p.Spec.Spec.Containers[0].Resources
	before := *r.DeepCopy()
	for _, l := range []corev1.ResourceList{r.Requests, r.Limits} {
		if q, ok := l[corev1.ResourceCPU]; ok {
			q.Add(*resource.NewQuantity(int64(by), resource.DecimalSI))
			l[corev1.ResourceCPU] = q
		}
	}
	next := c.want
	for _, x := range kube.Containers(p.Spec, s.n.Kubelet.Options) {
		if x.Name == c.want.Name {
			next = x
		}
	}
	container := func() error {
		if c.running {
			if err := s.n.Kubelet.Update(s.ctx, c.Container, next.Asked); err != nil {
				return err
			}
		}
		c.want = next
		return nil
	}
	pod := func() error { return s.n.Kubelet.ResizePod(s.ctx, p.Pod) }
	order := []func() error{pod, container}
	if by < 0 {
		slices.Reverse(order)
	}
	for _, do := range order {
		if err := do(); err != nil {
			if refused(err) {
				p.Spec.Spec.Containers[0].Resources = before
				p.Config.Linux.Resources = node.Resources(kube.Pod(p.Spec, s.n.Kubelet.Options).Resources)
			}
			return err
		}
	}
	p.size += by
	p.sizes = []int{p.size}
	return nil
}

// refused says whether a call failed because of us.
func refused(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "tideline: ") || errors.Is(err, errNotAdmitted))
}

// patiently repeats a call while the runtime or the door is on its way back.
func patiently(ctx context.Context, f func() error) error {
	var err error
	for range 600 {
		if err = f(); err == nil || refused(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-tick():
		}
	}
	return errors.Join(ctx.Err(), err)
}
