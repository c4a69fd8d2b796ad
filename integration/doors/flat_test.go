package doors

import (
	"fmt"
	"maps"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/internal/policy"
)

// flat is what a door makes of a pod, one value a key, so that a difference has a name:
//
//	pod.labels[app]              facts of the pod
//	pod.set.memory.low           decision on the pod's own cgroup
//	app.asked.cpu.quota          facts of container app
//	app.set.cpu.max              decision, also app.tier, app.source, app.note.CODE.KNOB, app.refusal
//	app.answer                   what the runtime is told
//	app.oci.cpu.quota            the OCI spec
//	app.files.cpu.idle           for the cgroup's files
//	app.birth                    the birth record
//	app.shown.cpu.quota          ContainerStatus
type flat map[string]string

func (f flat) add(prefix string, m flat) {
	for k, v := range m {
		f[prefix+k] = v
	}
}

func podFacts(p policy.Pod) flat {
	f := flat{"uid": p.UID, "namespace": p.Namespace, "name": p.Name, "cgroupParent": p.CgroupParent, "kubeQoS": string(p.KubeQoS)}
	for k, v := range p.Labels {
		f["labels["+k+"]"] = v
	}
	for k, v := range p.Annotations {
		f["annotations["+k+"]"] = v
	}
	f.add("resources.", resources("", p.Resources))
	return f
}

func number[T int64 | uint64 | int](f flat, key string, p *T) {
	if p != nil {
		f[key] = fmt.Sprint(*p)
	}
}

func text(f flat, key, v string) {
	if v != "" {
		f[key] = v
	}
}

func resources(prefix string, r policy.Resources) flat {
	f := flat{}
	number(f, prefix+"cpu.shares", r.CPUShares)
	number(f, prefix+"cpu.quota", r.CPUQuota)
	number(f, prefix+"cpu.period", r.CPUPeriod)
	text(f, prefix+"cpuset.cpus", r.CPUSetCPUs)
	text(f, prefix+"cpuset.mems", r.CPUSetMems)
	number(f, prefix+"memory.limit", r.MemoryLimit)
	number(f, prefix+"oom_score_adj", r.OOMScoreAdj)
	for k, v := range r.Unified {
		f[prefix+"unified."+k] = v
	}
	return f
}

func decision(d policy.Decision) flat {
	f := flat{"tier": string(d.Tier), "source": fmt.Sprintf("%s %s=%s %s", d.Source.Kind, d.Source.Key, d.Source.Value, d.Source.Rule)}
	for _, s := range d.Settings {
		f["set."+string(s.Knob)] = fmt.Sprintf("%s (asked %q; %s: %s)%s", s.Value, s.Asked, s.Rule, s.Reason, s.Inert)
	}
	for _, n := range d.Notes {
		f["note."+string(n.Code)+"."+string(n.Knob)] += n.Message
	}
	if r := d.Refusal; r != nil {
		f["refusal"] = r.Key + ": " + r.Message
	}
	return f
}

// oci is the resources of a spec, the OOM score and the I/O priority.
func oci(s *specs.Spec) flat {
	f := flat{}
	if s == nil {
		return f
	}
	r := s.Linux.Resources
	if r.CPU != nil {
		number(f, "cpu.shares", r.CPU.Shares)
		number(f, "cpu.quota", r.CPU.Quota)
		number(f, "cpu.period", r.CPU.Period)
		text(f, "cpuset.cpus", r.CPU.Cpus)
		text(f, "cpuset.mems", r.CPU.Mems)
	}
	if r.Memory != nil {
		number(f, "memory.limit", r.Memory.Limit)
		number(f, "memory.swap", r.Memory.Swap)
	}
	number(f, "oom_score_adj", s.Process.OOMScoreAdj)
	if p := s.Process.IOPriority; p != nil {
		f["ioprio"] = fmt.Sprintf("%s %d", p.Class, p.Priority)
	}
	for _, h := range r.HugepageLimits {
		f["hugetlb."+h.Pagesize] += strconv.FormatUint(h.Limit, 10)
	}
	for k, v := range r.Unified {
		f["unified."+k] = v
	}
	return f
}

func files(rest []policy.Setting) flat {
	f := flat{}
	for _, s := range rest {
		f[string(s.Knob)] = s.Value
	}
	return f
}

// status is what containerd tells the kubelet of a container (copyResourcesToStatus in internal/cri/server/helpers.go).
func status(s *specs.Spec) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{}
	if adj := s.Process.OOMScoreAdj; adj != nil {
		out.OomScoreAdj = int64(*adj)
	}
	r := s.Linux.Resources
	if c := r.CPU; c != nil {
		if c.Shares != nil {
			out.CpuShares = int64(*c.Shares)
		}
		if c.Quota != nil {
			out.CpuQuota = *c.Quota
		}
		if c.Period != nil {
			out.CpuPeriod = int64(*c.Period)
		}
		out.CpusetCpus, out.CpusetMems = c.Cpus, c.Mems
	}
	if m := r.Memory; m != nil {
		if m.Limit != nil {
			out.MemoryLimitInBytes = *m.Limit
		}
		if m.Swap != nil {
			out.MemorySwapLimitInBytes = *m.Swap
		}
	}
	for _, h := range r.HugepageLimits {
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: h.Pagesize, Limit: h.Limit})
	}
	out.Unified = maps.Clone(r.Unified)
	return out
}

func shown(r *runtimeapi.LinuxContainerResources) flat {
	f := flat{}
	for k, v := range map[string]int64{
		"cpu.shares": r.CpuShares, "cpu.quota": r.CpuQuota, "cpu.period": r.CpuPeriod, "memory.limit": r.MemoryLimitInBytes,
		"memory.swap": r.MemorySwapLimitInBytes, "oom_score_adj": r.OomScoreAdj,
	} {
		if v != 0 {
			f[k] = strconv.FormatInt(v, 10)
		}
	}
	text(f, "cpuset.cpus", r.CpusetCpus)
	text(f, "cpuset.mems", r.CpusetMems)
	for _, h := range r.HugepageLimits {
		f["hugetlb."+h.PageSize] += strconv.FormatUint(h.Limit, 10)
	}
	for k, v := range r.Unified {
		f["unified."+k] = v
	}
	return f
}

// knobs says which kernel setting a field of resources belongs to.
var knobs = map[string]policy.Knob{
	"cpu.shares": policy.CPUWeight, "cpu.quota": policy.CPUMax, "cpu.period": policy.CPUMax, "memory.limit": policy.MemoryMax, "memory.swap": policy.MemoryMax,
}
