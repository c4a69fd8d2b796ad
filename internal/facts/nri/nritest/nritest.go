// Package nritest does in memory what containerd 2.4 does around NRI with a container's resources, for tests that need
// both ends: CRI message to OCI spec, OCI spec to NRI container, NRI adjustment or update back to the spec. It knows
// nothing of mounts, devices and the rest of a spec, and a host that has swap accounting.
//
//	spec := nritest.Create(req)
//	err := nritest.Adjust(spec, plugin(nritest.Container("c", spec, nil)))
//	spec = nritest.Update(spec, nritest.Request(update))
package nritest

import (
	"fmt"
	"maps"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Create is the spec of a container that is created with r: an empty one, opts.WithResources and opts.WithOOMScoreAdj
// (internal/cri/opts/spec_linux_opts.go). No message gives a spec that says nothing.
func Create(r *runtimeapi.LinuxContainerResources) *specs.Spec {
	s := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}
	if r != nil {
		s.Process.OOMScoreAdj = new(int(r.OomScoreAdj))
		merge(s.Linux.Resources, r)
	}
	return s
}

// Update is the stored spec after UpdateContainerResources with r, which changes resources alone (updateOCIResource in
// internal/cri/server/container_update_resources_linux.go). The stored spec stays as it is.
func Update(stored *specs.Spec, r *runtimeapi.LinuxContainerResources) *specs.Spec {
	s := copied(stored)
	if r != nil {
		merge(s.Linux.Resources, r)
	}
	return s
}

func copied(s *specs.Spec) *specs.Spec {
	res := *s.Linux.Resources
	if res.CPU != nil {
		res.CPU = new(*res.CPU)
	}
	if res.Memory != nil {
		res.Memory = new(*res.Memory)
	}
	res.Unified = maps.Clone(res.Unified)
	process := *s.Process
	return &specs.Spec{Process: &process, Linux: &specs.Linux{Resources: &res}}
}

func merge(to *specs.LinuxResources, r *runtimeapi.LinuxContainerResources) {
	if to.CPU == nil {
		to.CPU = &specs.LinuxCPU{}
	}
	if to.Memory == nil {
		to.Memory = &specs.LinuxMemory{}
	}
	if r.CpuShares != 0 {
		to.CPU.Shares = new(uint64(r.CpuShares))
	}
	if r.CpuQuota != 0 {
		to.CPU.Quota = new(r.CpuQuota)
	}
	if r.CpuPeriod != 0 {
		to.CPU.Period = new(uint64(r.CpuPeriod))
	}
	if r.CpusetCpus != "" {
		to.CPU.Cpus = r.CpusetCpus
	}
	if r.CpusetMems != "" {
		to.CPU.Mems = r.CpusetMems
	}
	swap := r.MemorySwapLimitInBytes
	if r.MemoryLimitInBytes != 0 {
		to.Memory.Limit = new(r.MemoryLimitInBytes)
		if swap == 0 {
			swap = r.MemoryLimitInBytes
		}
	}
	if swap != 0 {
		to.Memory.Swap = &swap
	}
	for _, l := range r.HugepageLimits {
		to.HugepageLimits = append(to.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: l.PageSize, Limit: l.Limit})
	}
	for k, v := range r.Unified {
		if to.Unified == nil {
			to.Unified = map[string]string{}
		}
		to.Unified[k] = v
	}
}

// Container announces a container with the spec (criContainer in internal/cri/nri/nri_api_linux.go).
func Container(name string, s *specs.Spec, annotations map[string]string) *api.Container {
	return &api.Container{Id: name, Name: name, Annotations: annotations, Linux: &api.LinuxContainer{
		Resources: api.FromOCILinuxResources(s.Linux.Resources, nil), OomScoreAdj: api.Int(s.Process.OOMScoreAdj),
		IoPriority: api.FromOCILinuxIOPriority(s.Process.IOPriority),
	}}
}

// Request is the NRI request behind an update (fromCRILinuxResources in internal/cri/nri/nri_api_linux.go).
func Request(r *runtimeapi.LinuxContainerResources) *api.LinuxResources {
	if r == nil {
		return nil
	}
	n := &api.LinuxResources{
		Cpu: &api.LinuxCPU{
			Shares: api.UInt64(r.CpuShares), Quota: api.Int64(r.CpuQuota), Period: api.UInt64(r.CpuPeriod), Cpus: r.CpusetCpus, Mems: r.CpusetMems,
		},
		Memory: &api.LinuxMemory{Limit: api.Int64(r.MemoryLimitInBytes)},
	}
	for _, l := range r.HugepageLimits {
		n.HugepageLimits = append(n.HugepageLimits, &api.HugepageLimit{PageSize: l.PageSize, Limit: l.Limit})
	}
	if len(r.Unified) > 0 {
		n.Unified = maps.Clone(r.Unified)
	}
	return n
}

// Answered is the CRI message that containerd goes on with after a plugin answered the update r with u: r itself
// without an answer, else request and answer merged, back as CRI, which loses swap limit and OOM score
// (updateResources in NRI's pkg/adaptation/result.go, toCRIResources in containerd's nri_api_linux.go). A nil r is an
// unsolicited update.
func Answered(r *runtimeapi.LinuxContainerResources, u *api.ContainerUpdate) *runtimeapi.LinuxContainerResources {
	if u.GetLinux().GetResources() == nil {
		return r
	}
	n := Request(r)
	if n == nil {
		n = Request(&runtimeapi.LinuxContainerResources{})
	}
	cpu := u.Linux.Resources.GetCpu()
	if v := cpu.GetShares(); v != nil {
		n.Cpu.Shares = v
	}
	if v := cpu.GetQuota(); v != nil {
		n.Cpu.Quota = v
	}
	if v := cpu.GetPeriod(); v != nil {
		n.Cpu.Period = v
	}
	if v := cpu.GetCpus(); v != "" {
		n.Cpu.Cpus = v
	}
	if v := u.Linux.Resources.GetMemory().GetLimit(); v != nil {
		n.Memory.Limit = v
	}
	for k, v := range u.Linux.Resources.Unified {
		if n.Unified == nil {
			n.Unified = map[string]string{}
		}
		n.Unified[k] = v
	}
	c := &runtimeapi.LinuxContainerResources{
		CpuShares: int64(n.Cpu.Shares.GetValue()), CpuQuota: n.Cpu.Quota.GetValue(), CpuPeriod: int64(n.Cpu.Period.GetValue()),
		CpusetCpus: n.Cpu.Cpus, CpusetMems: n.Cpu.Mems, MemoryLimitInBytes: n.Memory.Limit.GetValue(), Unified: n.Unified,
	}
	for _, l := range n.HugepageLimits {
		c.HugepageLimits = append(c.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: l.PageSize, Limit: l.Limit})
	}
	return c
}

// Adjust puts an adjustment into the spec with NRI's own generator, as a containerd without blockio classes does.
func Adjust(s *specs.Spec, a *api.ContainerAdjustment) error {
	return generate.SpecGenerator(generator{spec: s}, generate.WithBlockIOResolver(func(class string) (*specs.LinuxBlockIO, error) {
		return nil, fmt.Errorf("no OCI BlockIO parameters for class %q", class)
	})).Adjust(a)
}

// generator writes what NRI's generator decides. What it does not define, no adjustment of ours needs: it panics.
type generator struct {
	generate.UnderlyingGenerator
	spec *specs.Spec
}

func (g generator) Spec() *specs.Spec { return g.spec }

func (g generator) cpu() *specs.LinuxCPU {
	if g.spec.Linux.Resources.CPU == nil {
		g.spec.Linux.Resources.CPU = &specs.LinuxCPU{}
	}
	return g.spec.Linux.Resources.CPU
}

func (g generator) memory() *specs.LinuxMemory {
	if g.spec.Linux.Resources.Memory == nil {
		g.spec.Linux.Resources.Memory = &specs.LinuxMemory{}
	}
	return g.spec.Linux.Resources.Memory
}

func (g generator) SetLinuxResourcesCPUShares(v uint64)  { g.cpu().Shares = &v }
func (g generator) SetLinuxResourcesCPUQuota(v int64)    { g.cpu().Quota = &v }
func (g generator) SetLinuxResourcesCPUPeriod(v uint64)  { g.cpu().Period = &v }
func (g generator) SetLinuxResourcesCPUCpus(v string)    { g.cpu().Cpus = v }
func (g generator) SetLinuxResourcesCPUMems(v string)    { g.cpu().Mems = v }
func (g generator) SetLinuxResourcesMemoryLimit(v int64) { g.memory().Limit = &v }
func (g generator) SetLinuxResourcesMemorySwap(v int64)  { g.memory().Swap = &v }
func (g generator) SetProcessOOMScoreAdj(v int)          { g.spec.Process.OOMScoreAdj = &v }

func (g generator) SetProcessIOPriority(v *specs.LinuxIOPriority) { g.spec.Process.IOPriority = v }

func (g generator) AddLinuxResourcesUnified(k, v string) {
	if g.spec.Linux.Resources.Unified == nil {
		g.spec.Linux.Resources.Unified = map[string]string{}
	}
	g.spec.Linux.Resources.Unified[k] = v
}

func (g generator) AddAnnotation(k, v string) {
	if g.spec.Annotations == nil {
		g.spec.Annotations = map[string]string{}
	}
	g.spec.Annotations[k] = v
}

func (g generator) RemoveAnnotation(k string) { delete(g.spec.Annotations, k) }
