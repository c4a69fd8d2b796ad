// Package nri applies decisions as NRI adjustments and updates. It is pure: it never changes a container or a request
// that it is given, and its answers hold only what differs from them, since two plugins that set one field fail the call.
//
//	adj, rest, err := nri.Adjust(d.Settings, 2, req.Container)
//	adj = nri.Annotate(adj, v1alpha1.AnnotationDecision, birth)
//	// rest: what NRI can't carry on this cgroup version; the door writes it to the container's files after its start
//
// The OCI spec ends as package internal/apply/cri has it, but for the I/O priority, which CRI has no field for, and for
// shares that are unset: 0 there, none in the CRI door's spec. runc takes both for "leave the weight alone". crun under
// systemd refuses cpu.idle beside shares of any value.
package nri

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/containerd/nri/pkg/api"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

// ErrWeightStays says that the container or the request has a unified cpu.weight. NRI can add unified keys and replace
// them, not take them out, and the kernel refuses that one while cpu.idle is 1.
var ErrWeightStays = errors.New("NRI can't take a unified cpu.weight out")

// Adjust answers the creation of c with the container-level settings, and returns those that NRI can't carry. It sets
// only what differs from c; nil if nothing does. Hugepages, pids and the swap limit are left alone, but a memory limit
// sets the swap limit to the same: no swap, as in the CRI door. On a cgroup v1 host without swap accounting NRI's
// memory limit therefore fails the start, where containerd leaves it out for CRI.
//
// On cgroup version 2 the files that NRI has no field for go into its unified map; on version 1 runtimes refuse that
// map, so those settings are returned.
//
// An error is ErrWeightStays, or names a setting whose value is not of its knob's format, which is a fault of the caller.
func Adjust(settings []policy.Setting, cgroupVersion int, c *api.Container) (adj *api.ContainerAdjustment, rest []policy.Setting, err error) {
	adj = &api.ContainerAdjustment{}
	if rest, err = set(settings, cgroupVersion, c.GetLinux().GetResources(), adj); err != nil {
		return nil, nil, err
	}
	for _, s := range settings {
		if s.Level != policy.LevelContainer {
			continue
		}
		switch s.Knob {
		case policy.OOMScoreAdj:
			score, err := strconv.Atoi(s.Value)
			if err != nil {
				return nil, nil, bad(s, err)
			}
			if has := c.GetLinux().GetOomScoreAdj(); has == nil || has.GetValue() != int64(score) {
				adj.SetLinuxOomScoreAdj(&score)
			}
		case policy.IOPriority:
			prio := priorities[s.Value]
			if prio.class == api.IOPrioClass_IOPRIO_CLASS_NONE {
				return nil, nil, bad(s, errNoPriority)
			}
			if has := c.GetLinux().GetIoPriority(); has.GetClass() != prio.class || has.GetPriority() != prio.level {
				adj.SetLinuxIOPriority(&api.LinuxIOPriority{Class: prio.class, Priority: prio.level})
			}
		case policy.Resctrl:
			if c.GetLinux().GetRdt().GetClosId().GetValue() == "" { // one that was asked by annotation stays
				adj.SetLinuxRDTClosID(s.Value)
			}
		}
	}
	if adj.Linux == nil {
		return nil, rest, nil
	}
	return adj, rest, nil
}

type priority struct {
	class api.IOPrioClass
	level int32
}

// priorities are the values of policy.IOPriority.
var priorities = map[string]priority{
	string(v1alpha1.IOPriorityLowest): {api.IOPrioClass_IOPRIO_CLASS_BE, 7},
	string(v1alpha1.IOPriorityIdle):   {api.IOPrioClass_IOPRIO_CLASS_IDLE, 0}, // it has no levels
}

var errNoPriority = errors.New("no I/O priority of ours")

// IOPriority is the I/O priority of c as policy.IOPriority has it; "" for none or one of others.
func IOPriority(c *api.Container) string {
	has := c.GetLinux().GetIoPriority()
	for value, p := range priorities {
		if has.GetClass() == p.class && has.GetPriority() == p.level {
			return value
		}
	}
	return ""
}

// Update answers an UpdateContainer request that asks for a container, or makes an unsolicited update of it (asked is
// nil: nothing is asked). It sets only what differs from asked; nil if nothing does. Values are absolute, and shares of
// 0 keep what is stored, which is what an unset weight needs (internal/apply/cri). What belongs to processes is left
// out: no runtime changes it in an update.
//
// containerd replaces the kubelet's request by its sum with a non-nil answer, which loses the swap limit: the runtime
// then uses the memory limit of the request for both, where it has one. Kubelet 1.37 asks nothing else (on cgroup v2
// its swap limit is in the unified map, which stays).
func Update(settings []policy.Setting, cgroupVersion int, id string, asked *api.LinuxResources) (u *api.ContainerUpdate, rest []policy.Setting, err error) {
	u = &api.ContainerUpdate{ContainerId: id}
	if rest, err = set(settings, cgroupVersion, asked, u); err != nil {
		return nil, nil, err
	}
	if u.Linux == nil {
		return nil, rest, nil
	}
	return u, rest, nil
}

// answer is what api.ContainerAdjustment and api.ContainerUpdate have in common.
type answer interface {
	SetLinuxCPUSetCPUs(string)
	SetLinuxCPUSetMems(string)
	SetLinuxCPUShares(uint64)
	SetLinuxCPUQuota(int64)
	SetLinuxCPUPeriod(int64)
	SetLinuxMemoryLimit(int64)
	AddLinuxUnified(key, value string)
}

// set puts what differs from has into to. A field that is missing in has is as good as zero: runtimes take zero for
// "not asked" in each of them.
func set(settings []policy.Setting, cgroupVersion int, has *api.LinuxResources, to answer) (rest []policy.Setting, err error) {
	for _, s := range settings {
		if s.Level != policy.LevelContainer {
			continue
		}
		switch s.Knob {
		case policy.CPUSetCPUs:
			if has.GetCpu().GetCpus() != s.Value {
				to.SetLinuxCPUSetCPUs(s.Value)
			}
		case policy.CPUSetMems:
			if has.GetCpu().GetMems() != s.Value {
				to.SetLinuxCPUSetMems(s.Value)
			}
		case policy.CPUWeight:
			var shares uint64
			if s.Value == policy.Unset {
				if err := weightless(s, has); err != nil {
					return nil, err
				}
			} else if shares, err = strconv.ParseUint(s.Value, 10, 63); err != nil {
				return nil, bad(s, err)
			}
			if has.GetCpu().GetShares().GetValue() != shares {
				to.SetLinuxCPUShares(shares)
			}
		case policy.CPUMax:
			m, err := units.ParseCPUMax(s.Value)
			if err != nil {
				return nil, bad(s, err)
			}
			if has.GetCpu().GetQuota().GetValue() != m.Quota {
				to.SetLinuxCPUQuota(m.Quota)
			}
			if has.GetCpu().GetPeriod().GetValue() != uint64(m.Period) {
				to.SetLinuxCPUPeriod(m.Period)
			}
		case policy.MemoryMax:
			bytes, err := limit(s.Value)
			if err != nil {
				return nil, bad(s, err)
			}
			if has.GetMemory().GetLimit().GetValue() != bytes {
				to.SetLinuxMemoryLimit(bytes)
			}
		case policy.OOMScoreAdj, policy.IOPriority, policy.Resctrl: // no resources to NRI
		default:
			if !Carries(cgroupVersion, s.Knob) {
				rest = append(rest, s)
				continue
			}
			if s.Knob == policy.CPUIdle && s.Value == "1" {
				if err := weightless(s, has); err != nil {
					return nil, err
				}
			}
			if v, ok := has.GetUnified()[string(s.Knob)]; !ok || v != s.Value {
				to.AddLinuxUnified(string(s.Knob), s.Value)
			}
		}
	}
	return rest, nil
}

func weightless(s policy.Setting, has *api.LinuxResources) error {
	if _, ok := has.GetUnified()[string(policy.CPUWeight)]; ok {
		return bad(s, ErrWeightStays)
	}
	return nil
}

// Carries says whether an NRI message can carry a container's knob: in a field of its own, or in the unified map, which
// runtimes take on cgroup version 2 alone. No update carries what belongs to processes.
func Carries(cgroupVersion int, k policy.Knob) bool {
	switch k {
	case policy.CPUSetCPUs, policy.CPUSetMems, policy.CPUWeight, policy.CPUMax, policy.MemoryMax, policy.OOMScoreAdj, policy.IOPriority, policy.Resctrl:
		return true
	default:
		return cgroupVersion == 2
	}
}

func bad(s policy.Setting, err error) error {
	return fmt.Errorf("apply %s %q to the NRI message: %w", s.Knob, s.Value, err)
}

func limit(v string) (int64, error) {
	if v == "max" {
		return -1, nil
	}
	return strconv.ParseInt(v, 10, 64)
}

// Annotate adds the birth record to an adjustment, which may be nil, over any value that the container has for the key.
//
// It does not mark the key for removal first (api.MarkForRemoval), which would also take it from a plugin before us:
// NRI's generator walks marker and value in the random order of a map, and the value is lost each second time. So a
// plugin that writes our key fails the creation, which it does not do by chance.
func Annotate(adj *api.ContainerAdjustment, key, value string) *api.ContainerAdjustment {
	if adj == nil {
		adj = &api.ContainerAdjustment{}
	}
	adj.AddAnnotation(key, value)
	return adj
}
