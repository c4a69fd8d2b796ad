package kube

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tideline-io/tideline/api/v1alpha1"
)

// kubeQoS follows GetPodQOS of pkg/apis/core/v1/helper/qos: what the status says, else what the resources make of it.
func kubeQoS(p *corev1.Pod) v1alpha1.KubeQoS {
	if p.Status.QOSClass != "" {
		return v1alpha1.KubeQoS(p.Status.QOSClass)
	}
	if podLevelSet(p) {
		return requirementsQoS(p.Spec.Resources)
	}
	var class v1alpha1.KubeQoS
	for c := range containers(p) {
		switch got := requirementsQoS(&c.Resources); {
		case class == "":
			class = got
		case class != got:
			return v1alpha1.Burstable
		}
	}
	if class == "" {
		return v1alpha1.BestEffort
	}
	return class
}

func requirementsQoS(r *corev1.ResourceRequirements) v1alpha1.KubeQoS {
	cpu, memory := resourceQoS(r, corev1.ResourceCPU), resourceQoS(r, corev1.ResourceMemory)
	if cpu != memory {
		return v1alpha1.Burstable
	}
	return cpu
}

func resourceQoS(r *corev1.ResourceRequirements, name corev1.ResourceName) v1alpha1.KubeQoS {
	request, limit := r.Requests[name], r.Limits[name]
	switch {
	case !request.Equal(limit):
		return v1alpha1.Burstable
	case request.IsZero():
		return v1alpha1.BestEffort
	}
	return v1alpha1.Guaranteed
}

// defaulted copies a pod and sets what the API server sets on it: requests from limits (SetDefaults_Pod), then pod-level
// requests from the containers or from pod-level limits. It changes nothing on a pod that the API server has stored.
func defaulted(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	for c := range containers(p) {
		for name, limit := range c.Resources.Limits {
			setDefault(&c.Resources.Requests, name, limit)
		}
	}
	if p.Spec.Resources == nil || len(p.Spec.Resources.Limits) == 0 {
		return p
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if n, ok := aggregateFound(p, requests, name); ok {
			setDefault(&p.Spec.Resources.Requests, name, quantity(name, n))
		}
		if limit, ok := p.Spec.Resources.Limits[name]; ok {
			setDefault(&p.Spec.Resources.Requests, name, limit)
		}
	}
	return p
}

func setDefault(list *corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if _, ok := (*list)[name]; ok {
		return
	}
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = q.DeepCopy()
}

// containers yields init containers, then the others.
func containers(p *corev1.Pod) func(yield func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// podLevelSet follows IsPodLevelResourcesSet of k8s.io/component-helpers/resource.
func podLevelSet(p *corev1.Pod) bool {
	return podRequestsSet(p) || p.Spec.Resources != nil && supported(p.Spec.Resources.Limits)
}

func podRequestsSet(p *corev1.Pod) bool {
	return p.Spec.Resources != nil && supported(p.Spec.Resources.Requests)
}

func supported(list corev1.ResourceList) bool {
	for name := range list {
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			return true
		}
	}
	return false
}

// side is one of the two lists of resource requirements.
type side bool

const (
	requests side = false
	limits   side = true
)

func (s side) of(r *corev1.ResourceRequirements) corev1.ResourceList {
	if s == limits {
		return r.Limits
	}
	return r.Requests
}

// limitDeclared says whether every container or the pod itself has a limit.
func limitDeclared(p *corev1.Pod, name corev1.ResourceName) bool {
	if podLevelSet(p) {
		if q := p.Spec.Resources.Limits[name]; !q.IsZero() {
			return true
		}
	}
	for c := range containers(p) {
		if q := c.Resources.Limits[name]; q.IsZero() {
			return false
		}
	}
	return true
}

// podTotal is the pod's request or limit with its overhead, milli-CPU or bytes (PodRequests and PodLimits of
// k8s.io/component-helpers/resource).
func podTotal(p *corev1.Pod, s side, name corev1.ResourceName) int64 {
	total := aggregate(p, s, name)
	if podLevelSet(p) {
		if q, ok := s.of(p.Spec.Resources)[name]; ok {
			total = amount(name, q)
		}
	}
	if q := p.Spec.Overhead[name]; s == requests || total != 0 { // where there is no limit, overhead makes none
		total += amount(name, q)
	}
	return total
}

func aggregate(p *corev1.Pod, s side, name corev1.ResourceName) int64 {
	n, _ := aggregateFound(p, s, name)
	return n
}

// aggregateFound is what the containers need together at any time: sidecars run beside the containers and beside the
// init containers that follow them; init containers run alone. It says too whether any container names the resource.
func aggregateFound(p *corev1.Pod, s side, name corev1.ResourceName) (n int64, found bool) {
	var running, sidecars, starting int64
	for i := range p.Spec.Containers {
		q, ok := s.of(&p.Spec.Containers[i].Resources)[name]
		running, found = running+amount(name, q), found || ok
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		q, ok := s.of(&c.Resources)[name]
		found = found || ok
		if isSidecar(c) {
			sidecars += amount(name, q)
			starting = max(starting, sidecars)
		} else {
			starting = max(starting, sidecars+amount(name, q))
		}
	}
	return max(running+sidecars, starting), found
}

func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

func quantity(name corev1.ResourceName, n int64) resource.Quantity {
	if name == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(n, resource.DecimalSI)
	}
	return *resource.NewQuantity(n, resource.BinarySI)
}
