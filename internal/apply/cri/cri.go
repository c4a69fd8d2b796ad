// Package cri applies decisions to CRI messages. It is pure: it changes the message that it is given, field by field
// in place so that unknown fields survive, and nothing else.
//
//	rest, err := cri.Apply(d.Settings, 2, req.Config.Linux.Resources)
//	// rest: what CRI can't carry on this cgroup version; the door writes it to the container's files after its start
package cri

import (
	"fmt"
	"maps"
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

// Apply puts the container-level settings into res, which is not nil, and returns those that CRI can't carry. The same
// call serves CreateContainer and UpdateContainerResources: values are absolute, and CRI's zero ("not asked" at
// creation, "keep what is stored" in an update) is what an unset weight needs in both (docs/ownership.md).
//
// On cgroup version 2 the files that LinuxContainerResources has no field for go into its unified map; on version 1
// runtimes refuse that map, so those settings are returned. An I/O priority and a resctrl group have neither field nor file:
// they are left out.
//
// An error names a setting whose value is not of its knob's format, which is a fault of the caller; res may then hold a part.
func Apply(settings []policy.Setting, cgroupVersion int, res *runtimeapi.LinuxContainerResources) (rest []policy.Setting, err error) {
	for _, s := range settings {
		if s.Level != policy.LevelContainer {
			continue
		}
		switch s.Knob {
		case policy.CPUSetCPUs:
			res.CpusetCpus = s.Value
		case policy.CPUSetMems:
			res.CpusetMems = s.Value
		case policy.CPUWeight:
			res.CpuShares = 0
			if s.Value == policy.Unset {
				delete(res.Unified, string(policy.CPUWeight)) // EINVAL while cpu.idle is 1
			} else if res.CpuShares, err = strconv.ParseInt(s.Value, 10, 64); err != nil {
				return nil, bad(s, err)
			}
		case policy.CPUMax:
			m, err := units.ParseCPUMax(s.Value)
			if err != nil {
				return nil, bad(s, err)
			}
			res.CpuQuota, res.CpuPeriod = m.Quota, m.Period
		case policy.MemoryMax:
			if res.MemoryLimitInBytes, err = limit(s.Value); err != nil {
				return nil, bad(s, err)
			}
			// A swap limit of the kubelet's (memory plus swap) below the memory limit is refused by the kernel. Zero
			// makes the runtime use the memory limit: no swap.
			res.MemorySwapLimitInBytes = 0
		case policy.OOMScoreAdj:
			if res.OomScoreAdj, err = strconv.ParseInt(s.Value, 10, 64); err != nil {
				return nil, bad(s, err)
			}
		case policy.IOPriority, policy.Resctrl: // one is of a container that was made through the NRI door, into the other its threads are moved
		default:
			if !Carries(cgroupVersion, s.Knob) {
				rest = append(rest, s)
				continue
			}
			if res.Unified == nil {
				res.Unified = map[string]string{}
			}
			res.Unified[string(s.Knob)] = s.Value
		}
	}
	return rest, nil
}

// Carries says whether a CRI message can carry a container's knob: in a field of LinuxContainerResources, or in its
// unified map, which runtimes take on cgroup version 2 alone.
func Carries(cgroupVersion int, k policy.Knob) bool {
	switch k {
	case policy.CPUSetCPUs, policy.CPUSetMems, policy.CPUWeight, policy.CPUMax, policy.MemoryMax, policy.OOMScoreAdj:
		return true
	case policy.IOPriority, policy.Resctrl:
		return false
	default:
		return cgroupVersion == 2
	}
}

func bad(s policy.Setting, err error) error {
	return fmt.Errorf("apply %s %q to the CRI message: %w", s.Knob, s.Value, err)
}

func limit(v string) (int64, error) {
	if v == "max" {
		return -1, nil
	}
	return strconv.ParseInt(v, 10, 64)
}

// Restore makes res, what a runtime reports of a container, show what the kubelet asked for in the fields that
// settings changed. Fields that no setting changed stay as the runtime reports them.
func Restore(settings []policy.Setting, asked policy.Resources, res *runtimeapi.LinuxContainerResources) {
	for _, s := range settings {
		if s.Level != policy.LevelContainer {
			continue
		}
		switch s.Knob {
		case policy.CPUSetCPUs:
			res.CpusetCpus = asked.CPUSetCPUs
		case policy.CPUSetMems:
			res.CpusetMems = asked.CPUSetMems
		case policy.CPUWeight:
			res.CpuShares = value(asked.CPUShares)
		case policy.CPUMax:
			res.CpuQuota, res.CpuPeriod = value(asked.CPUQuota), value(asked.CPUPeriod)
		case policy.MemoryMax:
			res.MemoryLimitInBytes = value(asked.MemoryLimit)
			if res.MemorySwapLimitInBytes != 0 {
				res.MemorySwapLimitInBytes = value(asked.MemoryLimit)
			}
		case policy.OOMScoreAdj:
			res.OomScoreAdj = value(asked.OOMScoreAdj)
		default:
			if v, ok := asked.Unified[string(s.Knob)]; ok {
				if _, reported := res.Unified[string(s.Knob)]; reported {
					res.Unified[string(s.Knob)] = v
				}
			} else {
				delete(res.Unified, string(s.Knob))
			}
		}
	}
	if len(res.Unified) == 0 {
		res.Unified = nil
	}
}

func value(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

// Annotate adds the birth record to a container's annotations.
func Annotate(cfg *runtimeapi.ContainerConfig, key, value string) {
	a := maps.Clone(cfg.GetAnnotations())
	if a == nil {
		a = map[string]string{}
	}
	a[key] = value
	cfg.Annotations = a
}
