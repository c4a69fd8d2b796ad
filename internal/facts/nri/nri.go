// Package nri translates NRI messages to the facts of package policy. It is pure: no I/O, no state, and it never
// changes a message.
//
//	pod := nri.Pod(req.GetPod())
//	ctr := policy.Container{Name: c.GetName(), State: policy.Managed, Asked: nri.Resources(c.GetLinux().GetResources(), c.GetLinux().GetOomScoreAdj())}
//	d := p.Container(node, pod, ctr)
package nri

import (
	"maps"
	"strconv"

	"github.com/containerd/nri/pkg/api"

	"github.com/tideline-io/tideline/internal/facts/cri"
	"github.com/tideline-io/tideline/internal/policy"
)

// AnnotationRestartCount is set by the kubelet on each container, from the same number as the attempt of the CRI
// metadata (pkg/kubelet/kuberuntime, generateContainerConfig and newContainerAnnotations).
const AnnotationRestartCount = "io.kubernetes.container.restartCount"

// Pod tells the pod behind a sandbox. A nil sandbox gives the zero Pod. The maps are shared with the message.
//
// containerd puts more into them than the kubelet did: labels of the pause image where the pod has none of that name,
// its own label io.cri-containerd.kind, and annotations io.kubernetes.cri.*.
func Pod(p *api.PodSandbox) policy.Pod {
	parent := p.GetLinux().GetCgroupParent()
	return policy.Pod{
		UID: p.GetUid(), Namespace: p.GetNamespace(), Name: p.GetName(),
		Labels: p.GetLabels(), Annotations: p.GetAnnotations(),
		CgroupParent: parent, KubeQoS: cri.KubeQoS(parent), Resources: Resources(p.GetLinux().GetPodResources(), nil),
	}
}

// Attempt tells which instance of its name in the pod a container is, 0 if it does not say. NRI does not carry the CRI
// metadata. containerd shows the annotations of the CRI message above those of the OCI spec, so the value is the
// kubelet's, unless a plugin with a lower index replaces it in the creation that is under way.
func Attempt(c *api.Container) uint32 {
	n, err := strconv.ParseUint(c.GetAnnotations()[AnnotationRestartCount], 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// Resources tells what was asked at creation, from the resources and the OOM score of an announced container. They are
// those of its OCI spec, and the result is that of cri.Resources for the CRI message behind it (containerd 2.4,
// opts.WithResources and opts.WithOOMScoreAdj). Zero is "not asked" here too: containerd writes an explicit
// oom_score_adj of 0 when the CRI message has none, and shares of 0 are what a plugin writes to unset them.
//
// A spec does not say who wrote it, so the result differs from what the kubelet asked
//   - by what plugins with a lower index have changed;
//   - by a higher oom_score_adj under containerd's restrict_oom_score_adj;
//   - by resources of a base_runtime_spec;
//   - in Synchronize, by our own adjustment and by all updates since: there a record of the container is the better source.
func Resources(r *api.LinuxResources, oom *api.OptionalInt) policy.Resources {
	cpu := r.GetCpu()
	return policy.Resources{
		CPUShares: asked(int64(cpu.GetShares().GetValue())), CPUQuota: asked(cpu.GetQuota().GetValue()), CPUPeriod: asked(int64(cpu.GetPeriod().GetValue())),
		CPUSetCPUs: cpu.GetCpus(), CPUSetMems: cpu.GetMems(),
		MemoryLimit: asked(r.GetMemory().GetLimit().GetValue()), OOMScoreAdj: asked(oom.GetValue()),
		Unified: maps.Clone(r.GetUnified()),
	}
}

// Update tells what an UpdateContainer request asks; cri.Updated merges it into what was asked before. containerd sets
// what the kubelet does not name to zero. The kubelet's oom_score_adj and swap limit are not in the request; no runtime
// takes the first in an update.
func Update(r *api.LinuxResources) policy.Resources { return Resources(r, nil) }

func asked(v int64) *int64 {
	if v == 0 {
		return nil
	}
	return &v
}
