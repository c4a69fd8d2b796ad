package doors

import (
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/facts/nri"
	"github.com/tideline-io/tideline/internal/policy"
)

// What the kubelet writes to the annotations of each pod (pkg/kubelet/types/pod_update.go).
const (
	annotationSource = "kubernetes.io/config.source"
	annotationSeen   = "kubernetes.io/config.seen"
)

// kubelet says a pod as CRI messages.
type kubelet struct {
	adds kubeletAdds
	opts kube.Options
	pod  *corev1.Pod // as the API server stores it
	now  map[string]policy.Resources
}

// stored is what the API server makes of a manifest: admission adds its annotations to pods that have a tier.
func (c *testCase) stored(p *policy.Policy, manifest *corev1.Pod, opts kube.Options) *corev1.Pod {
	pod := manifest.DeepCopy()
	if !c.Kubelet.NoUID {
		pod.UID = uid
	}
	if tier, _, _ := p.Tier(kube.Pod(pod, opts)); tier != v1alpha1.None && c.Admission != "off" {
		kube.Admit(pod)
	}
	return pod
}

func (k *kubelet) sandbox() *runtimeapi.PodSandboxConfig {
	labels := map[string]string{}
	maps.Copy(labels, k.pod.Labels)
	labels[cri.LabelPodName], labels[cri.LabelPodNamespace], labels[cri.LabelPodUID] = k.pod.Name, k.pod.Namespace, string(k.pod.UID)
	annotations := map[string]string{}
	maps.Copy(annotations, k.pod.Annotations)
	annotations[annotationSource], annotations[annotationSeen] = "api", "2026-11-30T13:48:00.000000000Z"
	parent := kube.Pod(k.pod, k.opts).CgroupParent
	if k.adds.CgroupParent != nil {
		parent = filled(*k.adds.CgroupParent)
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: k.pod.Name, Namespace: k.pod.Namespace, Uid: string(k.pod.UID)},
		Labels:   labels, Annotations: annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: parent, Resources: node.Resources(kube.Pod(k.pod, k.opts).Resources)},
	}
}

// created is a container as the kubelet asks for it.
type created struct {
	kind   kube.Kind
	name   string
	config *runtimeapi.ContainerConfig
}

func (k *kubelet) containers() []created {
	k.now = map[string]policy.Resources{}
	var out []created
	for _, c := range kube.Containers(k.pod, k.opts) {
		adds := k.adds.Containers[c.Name]
		cfg := &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: adds.Restarts},
			Labels: map[string]string{
				cri.LabelContainerName: c.Name, cri.LabelPodName: k.pod.Name, cri.LabelPodNamespace: k.pod.Namespace, cri.LabelPodUID: string(k.pod.UID),
			},
			Annotations: map[string]string{nri.AnnotationRestartCount: strconv.FormatUint(uint64(adds.Restarts), 10)},
			Linux:       &runtimeapi.LinuxContainerConfig{},
		}
		if !adds.Nothing {
			cfg.Linux.Resources = k.asking(c.Asked)
			adds.into(cfg.Linux.Resources)
		}
		k.now[c.Name] = c.Asked
		out = append(out, created{kind: c.Kind, name: c.Name, config: cfg})
	}
	return out
}

// asking is a message that shares no map with r.
func asking(r policy.Resources) *runtimeapi.LinuxContainerResources {
	return proto.CloneOf(node.Resources(r))
}

// asking is what the kubelet sends for r. On cgroup v1 it asks no swap beyond the limit, where the host accounts for swap
// (ConfigureNoSwap in pkg/kubelet/kuberuntime).
func (k *kubelet) asking(r policy.Resources) *runtimeapi.LinuxContainerResources {
	m := asking(r)
	if k.opts.CgroupVersion == 1 {
		m.MemorySwapLimitInBytes = m.MemoryLimitInBytes
	}
	return m
}

func (a asks) into(r *runtimeapi.LinuxContainerResources) {
	put := func(to *int64, v int64) {
		if v != 0 {
			*to = v
		}
	}
	put(&r.CpuShares, a.CPUShares)
	put(&r.CpuQuota, a.CPUQuota)
	put(&r.CpuPeriod, a.CPUPeriod)
	put(&r.MemoryLimitInBytes, a.Memory)
	put(&r.MemorySwapLimitInBytes, a.Swap)
	put(&r.OomScoreAdj, a.OOM)
	if a.CPUSetCPUs != "" {
		r.CpusetCpus = a.CPUSetCPUs
	}
	if a.CPUSetMems != "" {
		r.CpusetMems = a.CPUSetMems
	}
	for _, size := range slices.Sorted(maps.Keys(a.Hugepages)) {
		r.HugepageLimits = append(r.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: size, Limit: a.Hugepages[size]})
	}
	if len(a.Unified) > 0 && r.Unified == nil {
		r.Unified = map[string]string{}
	}
	maps.Copy(r.Unified, a.Unified)
}

// knobs are those that the node and not the manifest decides.
func (a asks) knobs() []policy.Knob {
	var out []policy.Knob
	for k, set := range map[policy.Knob]bool{
		policy.CPUSetCPUs: a.CPUSetCPUs != "", policy.CPUSetMems: a.CPUSetMems != "", policy.CPUWeight: a.CPUShares != 0,
		policy.CPUMax: a.CPUQuota != 0 || a.CPUPeriod != 0, policy.MemoryMax: a.Memory != 0 || a.Swap != 0, policy.OOMScoreAdj: a.OOM != 0,
		"hugetlb": len(a.Hugepages) > 0,
	} {
		if set || a.Nothing {
			out = append(out, k)
		}
	}
	for k := range a.Unified {
		out = append(out, policy.Knob(k))
	}
	if a.Nothing {
		out = append(out, "memory.min", policy.MemoryLow, "memory.swap.max")
	}
	return out
}

// message is one UpdateContainerResources.
type message struct {
	container string
	linux     *runtimeapi.LinuxContainerResources
}

// update says a step as CRI messages, and has the pod be as it is afterwards.
func (k *kubelet) update(u testUpdate) []message {
	k.pod = k.pod.DeepCopy()
	for _, list := range [][]corev1.Container{k.pod.Spec.InitContainers, k.pod.Spec.Containers} {
		for i := range list {
			if r, ok := u.Resize[list[i].Name]; ok {
				list[i].Resources = r
			}
		}
	}
	if u.PodResources != nil {
		k.pod.Spec.Resources = u.PodResources
	}
	var out []message
	for _, c := range kube.Containers(k.pod, k.opts) {
		adds, sent := u.Asks[c.Name]
		switch {
		case c.Kind == kube.Init:
		case !same(k.now[c.Name], c.Asked): // the whole of it, as in a creation
			linux := k.asking(c.Asked)
			adds.into(linux)
			out = append(out, message{c.Name, linux})
		case sent:
			linux := &runtimeapi.LinuxContainerResources{}
			adds.into(linux)
			out = append(out, message{c.Name, linux})
		}
		k.now[c.Name] = c.Asked
	}
	return out
}

func same(a, b policy.Resources) bool { return maps.Equal(resources("", a), resources("", b)) }
