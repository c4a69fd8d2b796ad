// Package cri translates CRI messages to the facts of package policy. It is pure: no I/O, no state, and it never
// changes a message.
//
//	pod := cri.Pod(req.GetSandboxConfig())
//	ctr := policy.Container{Name: cri.ContainerName(req.GetConfig()), State: policy.Managed, Asked: cri.Resources(req.GetConfig().GetLinux().GetResources())}
//	d := p.Container(node, pod, ctr)
package cri

import (
	"maps"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
)

// Labels that the kubelet sets on sandboxes and containers (k8s.io/kubelet/pkg/types).
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
)

// Pod tells the pod behind a sandbox. A nil config gives the zero Pod. The maps are shared with the message.
func Pod(cfg *runtimeapi.PodSandboxConfig) policy.Pod {
	m, parent := cfg.GetMetadata(), cfg.GetLinux().GetCgroupParent()
	return policy.Pod{
		UID: m.GetUid(), Namespace: m.GetNamespace(), Name: m.GetName(),
		Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(),
		CgroupParent: parent, KubeQoS: KubeQoS(parent), Resources: Resources(cfg.GetLinux().GetResources()),
	}
}

// ListedPod tells the pod behind an entry of ListPodSandbox, which does not say the cgroup parent.
func ListedPod(s *runtimeapi.PodSandbox) policy.Pod {
	m := s.GetMetadata()
	return policy.Pod{UID: m.GetUid(), Namespace: m.GetNamespace(), Name: m.GetName(), Labels: s.GetLabels(), Annotations: s.GetAnnotations()}
}

// KubeQoS tells the QoS class from the cgroup parent that the kubelet makes for it
// (pkg/kubelet/cm/qos_container_manager_linux.go): "/kubepods/besteffort/pod…", "/kubepods/burstable/pod…",
// "/kubepods/pod…" or the same as systemd slices. Unknown for any other parent, and for one that goes up again.
func KubeQoS(parent string) v1alpha1.KubeQoS {
	if len(parent) > 4096 || strings.Contains(parent+"/", "/../") {
		return v1alpha1.Unknown
	}
	if slice, ok := strings.CutSuffix(parent[strings.LastIndexByte(parent, '/')+1:], ".slice"); ok {
		parent = "/" + strings.ReplaceAll(slice, "-", "/")
	}
	seen := false
	for part := range strings.SplitSeq(parent, "/") {
		switch {
		case part == "kubepods":
			seen = true
		case !seen:
		case part == "besteffort":
			return v1alpha1.BestEffort
		case part == "burstable":
			return v1alpha1.Burstable
		case strings.HasPrefix(part, "pod"):
			return v1alpha1.Guaranteed
		default:
			return v1alpha1.Unknown
		}
	}
	return v1alpha1.Unknown
}

// Resources tells what the kubelet asked for. CRI says "not asked" by zero and by "".
func Resources(r *runtimeapi.LinuxContainerResources) policy.Resources {
	return policy.Resources{
		CPUShares: asked(r.GetCpuShares()), CPUQuota: asked(r.GetCpuQuota()), CPUPeriod: asked(r.GetCpuPeriod()),
		CPUSetCPUs: r.GetCpusetCpus(), CPUSetMems: r.GetCpusetMems(),
		MemoryLimit: asked(r.GetMemoryLimitInBytes()), OOMScoreAdj: asked(r.GetOomScoreAdj()),
		Unified: maps.Clone(r.GetUnified()),
	}
}

func asked(v int64) *int64 {
	if v == 0 {
		return nil
	}
	return &v
}

// Updated tells what is asked after an update: a field that the update does not name keeps what was asked before, as
// runtimes merge an update into the stored spec (containerd's updateOCIResource).
func Updated(before, update policy.Resources) policy.Resources {
	after := before
	for _, f := range []struct{ to, from **int64 }{
		{&after.CPUShares, &update.CPUShares}, {&after.CPUQuota, &update.CPUQuota}, {&after.CPUPeriod, &update.CPUPeriod},
		{&after.MemoryLimit, &update.MemoryLimit}, {&after.OOMScoreAdj, &update.OOMScoreAdj},
	} {
		if *f.from != nil {
			*f.to = *f.from
		}
	}
	if update.CPUSetCPUs != "" {
		after.CPUSetCPUs = update.CPUSetCPUs
	}
	if update.CPUSetMems != "" {
		after.CPUSetMems = update.CPUSetMems
	}
	if len(update.Unified) > 0 {
		after.Unified = maps.Clone(before.Unified)
		if after.Unified == nil {
			after.Unified = map[string]string{}
		}
		maps.Copy(after.Unified, update.Unified)
	}
	return after
}
