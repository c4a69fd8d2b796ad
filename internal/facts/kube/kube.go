// Package kube translates a pod of the Kubernetes API to the facts of package policy, as a kubelet 1.37 with its
// default settings would ask for them over CRI. It is pure: no I/O, no state, and only Admit changes the pod it gets.
//
//	pod := kube.Pod(p, opts)
//	for _, c := range kube.Containers(p, opts) {
//		d := compiled.Container(node, pod, c.Container)
//	}
//
// What a cluster or a node adds beyond the manifest is left out, since a manifest does not tell it: LimitRange defaults,
// device allocations, the CPU manager's cpusets, memoryThrottlingFactor and memoryReservationPolicy.
package kube

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

// CgroupDriver is how the kubelet names cgroups.
type CgroupDriver string

// The drivers of the kubelet.
const (
	Cgroupfs CgroupDriver = "cgroupfs"
	Systemd  CgroupDriver = "systemd"
)

// Options is what the kubelet knows of its node. The zero value is a cgroup v1 node with the cgroupfs driver.
type Options struct {
	MemTotalBytes int64        // 0 is unknown: the oom_score_adj of Burstable containers is then not told
	CgroupDriver  CgroupDriver // "" is Cgroupfs
	CgroupVersion int          // 2 adds the v2 files that the kubelet names in every request
}

// Kind says which list of the pod a container comes from.
type Kind string

// Kinds of containers, in the order in which they start.
const (
	Init    Kind = "init"
	Sidecar Kind = "sidecar" // an init container with restartPolicy Always
	App     Kind = "app"
)

// Container is a container of a pod with what the kubelet asks for it.
type Container struct {
	Kind Kind
	policy.Container
}

// UnknownUID stands in cgroup paths for the UID that the API server has yet to give.
const UnknownUID = "<uid>"

// Pod tells the facts of a pod. The maps are copies.
func Pod(p *corev1.Pod, opts Options) policy.Pod {
	p = defaulted(p)
	class := kubeQoS(p)
	return policy.Pod{
		UID: string(p.UID), Namespace: p.Namespace, Name: p.Name,
		Labels: maps.Clone(p.Labels), Annotations: maps.Clone(p.Annotations),
		CgroupParent: cgroupParent(string(p.UID), class, opts.CgroupDriver), KubeQoS: class, Resources: sandboxResources(p),
	}
}

// sandboxResources follows calculateSandboxResources of pkg/kubelet/kuberuntime: the sum over the containers without the
// pod's overhead.
func sandboxResources(p *corev1.Pod) policy.Resources {
	total := func(s side, name corev1.ResourceName) int64 {
		if podLevelSet(p) {
			if q, ok := s.of(p.Spec.Resources)[name]; ok {
				return amount(name, q)
			}
		}
		return aggregate(p, s, name)
	}
	out := policy.Resources{CPUShares: new(milliCPUToShares(total(requests, corev1.ResourceCPU))), CPUPeriod: new(int64(units.DefaultPeriod))}
	if quota := milliCPUToQuota(total(limits, corev1.ResourceCPU)); quota != 0 {
		out.CPUQuota = &quota
	}
	if limit := total(limits, corev1.ResourceMemory); limit != 0 {
		out.MemoryLimit = &limit
	}
	return out
}

// Containers tells the containers of a pod in the order in which they start: init containers and sidecars as listed,
// then the others. Ephemeral containers have no resources and are left out.
func Containers(p *corev1.Pod, opts Options) []Container {
	p = defaulted(p)
	var out []Container
	add := func(kind Kind, c *corev1.Container) {
		out = append(out, Container{Kind: kind, Container: policy.Container{Name: c.Name, State: policy.Managed, Asked: asked(p, c, opts)}})
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if isSidecar(c) {
			add(Sidecar, c)
		} else {
			add(Init, c)
		}
	}
	for i := range p.Spec.Containers {
		add(App, &p.Spec.Containers[i])
	}
	return out
}

// PodResources tells what the kubelet itself writes to the pod's cgroup (pkg/kubelet/cm, ResourceConfigForPod): it does
// not pass through CRI.
func PodResources(p *corev1.Pod, opts Options) policy.Resources {
	p = defaulted(p)
	class := kubeQoS(p)
	if class == v1alpha1.BestEffort {
		return policy.Resources{CPUShares: new(int64(units.MinShares))}
	}
	out := policy.Resources{CPUShares: new(milliCPUToShares(podTotal(p, requests, corev1.ResourceCPU)))}
	if class == v1alpha1.Guaranteed || limitDeclared(p, corev1.ResourceCPU) {
		if quota := milliCPUToQuota(podTotal(p, limits, corev1.ResourceCPU)); quota != 0 {
			out.CPUQuota, out.CPUPeriod = &quota, new(int64(units.DefaultPeriod))
		}
	}
	if class == v1alpha1.Guaranteed || limitDeclared(p, corev1.ResourceMemory) {
		if limit := podTotal(p, limits, corev1.ResourceMemory); limit != 0 {
			out.MemoryLimit = &limit
		}
	}
	return out
}

// asked follows generateLinuxContainerResources of pkg/kubelet/kuberuntime.
func asked(p *corev1.Pod, c *corev1.Container, opts Options) policy.Resources {
	cpuLimit, memoryLimit := c.Resources.Limits.Cpu(), c.Resources.Limits.Memory()
	if podLevelSet(p) {
		if cpuLimit.IsZero() {
			cpuLimit = p.Spec.Resources.Limits.Cpu()
		}
		if memoryLimit.IsZero() {
			memoryLimit = p.Spec.Resources.Limits.Memory()
		}
	}
	cpuRequest := cpuLimit
	if r, ok := c.Resources.Requests[corev1.ResourceCPU]; ok {
		cpuRequest = &r
	}
	out := policy.Resources{
		CPUShares: new(milliCPUToShares(cpuRequest.MilliValue())),
		CPUPeriod: new(int64(units.DefaultPeriod)),
	}
	if quota := milliCPUToQuota(cpuLimit.MilliValue()); quota != 0 {
		out.CPUQuota = &quota
	}
	if limit := memoryLimit.Value(); limit != 0 {
		out.MemoryLimit = &limit
	}
	if adj, ok := oomScoreAdj(p, c, opts.MemTotalBytes); ok {
		out.OOMScoreAdj = &adj
	}
	if opts.CgroupVersion == 2 {
		// With feature MemoryQoS (on since 1.37) and memoryReservationPolicy None the kubelet names the first two in each
		// request, with swapBehavior NoSwap the third.
		out.Unified = map[string]string{"memory.min": "0", "memory.low": "0", "memory.swap.max": "0"}
	}
	return out
}

// milliCPUToShares and milliCPUToQuota follow pkg/kubelet/cm/helpers_linux.go.
func milliCPUToShares(m int64) int64 {
	return min(max(m*1024/1000, units.MinShares), units.MaxShares)
}

// milliCPUToQuota gives 0 for no limit.
func milliCPUToQuota(m int64) int64 {
	if m == 0 {
		return 0
	}
	return max(m*units.DefaultPeriod/1000, units.MinQuota)
}

// Scores of pkg/kubelet/qos/policy.go.
const (
	guaranteedOOMScoreAdj = -997
	bestEffortOOMScoreAdj = 1000
)

// oomScoreAdj follows GetContainerOOMScoreAdjust of pkg/kubelet/qos; false when the node's memory would be needed.
func oomScoreAdj(p *corev1.Pod, c *corev1.Container, memTotal int64) (int64, bool) {
	class := kubeQoS(p)
	switch {
	case nodeCritical(p) || class == v1alpha1.Guaranteed:
		return guaranteedOOMScoreAdj, true
	case class == v1alpha1.BestEffort:
		return bestEffortOOMScoreAdj, true
	case memTotal <= 0:
		return 0, false
	}
	var spare int64 // what the pod requests beyond its containers is shared out equally
	if podRequestsSet(p) {
		if r := p.Spec.Resources.Requests.Memory(); !r.IsZero() {
			sum := aggregate(p, requests, corev1.ResourceMemory)
			spare = max(r.Value()-sum, 0) / int64(len(p.Spec.Containers)+len(p.Spec.InitContainers))
		}
	}
	score := func(request int64) int64 { return 1000 - 1000*(request+spare)/memTotal }
	adj := score(c.Resources.Requests.Memory().Value())
	if isSidecar(c) {
		// A sidecar must not be killed before the containers that need it.
		adj = min(adj, score(smallestRequest(p.Spec.Containers)))
	}
	return min(max(adj, 1000+guaranteedOOMScoreAdj), bestEffortOOMScoreAdj-1), true
}

func smallestRequest(containers []corev1.Container) int64 {
	var smallest int64
	for i := range containers {
		if r := containers[i].Resources.Requests.Memory().Value(); i == 0 || r < smallest {
			smallest = r
		}
	}
	return smallest
}

// nodeCritical follows IsNodeCriticalPod of pkg/kubelet/types. A manifest has no number yet where the priority admission
// plugin sets it from the class, and the class system-node-critical has one that is critical.
func nodeCritical(p *corev1.Pod) bool {
	const systemCriticalPriority = 2_000_000_000
	if p.Spec.PriorityClassName != "system-node-critical" {
		return false
	}
	if source, ok := p.Annotations["kubernetes.io/config.source"]; ok && source != "api" {
		return true
	}
	if _, mirror := p.Annotations["kubernetes.io/config.mirror"]; mirror {
		return true
	}
	return p.Spec.Priority == nil || *p.Spec.Priority >= systemCriticalPriority
}

// cgroupParent names the pod's cgroup as the kubelet does, with cgroupRoot "/" and cgroupsPerQOS on.
func cgroupParent(uid string, class v1alpha1.KubeQoS, driver CgroupDriver) string {
	if uid == "" {
		uid = UnknownUID
	}
	parts := []string{"kubepods"}
	switch class {
	case v1alpha1.Burstable:
		parts = append(parts, "burstable")
	case v1alpha1.BestEffort:
		parts = append(parts, "besteffort")
	}
	parts = append(parts, "pod"+uid)
	if driver != Systemd {
		return "/" + strings.Join(parts, "/")
	}
	var path, name strings.Builder
	for i, part := range parts {
		if i > 0 {
			name.WriteByte('-')
		}
		name.WriteString(strings.ReplaceAll(part, "-", "_")) // "-" separates slices
		path.WriteString("/" + name.String() + ".slice")
	}
	return path.String()
}
