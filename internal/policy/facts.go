// Package policy is the pure core of Tideline: facts and a compiled policy in, a Decision with reasons out.
// It does no I/O, reads no clock, logs nothing and keeps no state, so that every door, the reconciler and
// `tideline explain` give the same answer.
//
//	p, err := policy.Compile(v1alpha1.Default().Spec)
//	d := p.Container(node, pod, container)
//	for _, s := range d.Settings { fmt.Println(s.Knob, s.Value, s.Reason) }
package policy

import (
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/units"
)

// Node is what a decision may know of the machine. Callers must not change it after they handed it over.
type Node struct {
	CgroupVersion int // 1 (hybrid included) or 2
	Online        cpuset.CPUSet
	Pools         *Pools                  // nil: no pod owns CPUs, so all that is online and not reserved is shared
	Features      map[Knob]Feature        // a knob that is missing here is Unknown
	Groups        map[v1alpha1.Tier]Group // the resctrl groups of the tiers that Policy.Partitions names; nil: none is set up
	Devices       []Device                // whole block devices
	PageSize      int64                   // bytes; 0 is units.DefaultPageSize
}

// Pools is the CPUs of containers that own none, at the moment of a decision; see placement.Pools, which none of them leaves
// empty. It never changes once it is handed over.
type Pools struct {
	LS, BE, System, Online units.CPUMask
	// Placed says that a pod owns CPUs: from then on containers without a tier follow LS, and those of SYSTEM follow System.
	Placed bool
}

// Group is the resctrl group of a tier.
type Group struct {
	Name string // "" where the tier has none, and Why says why
	Why  string
}

// Support is the outcome of a probe.
type Support string

// Probe outcomes. Unknown is tried, and reported when the kernel refuses.
const (
	Supported    Support = "supported"
	Unsupported  Support = "unsupported"
	SupportUnset Support = ""
)

// Feature says whether the kernel can carry a knob, and what it would need.
type Feature struct {
	Support Support `json:"support"`
	Need    string  `json:"need,omitempty"`
	// Inert says why a value of this knob has no effect on this machine though it can be written ("no disk uses bfq or iocost").
	Inert string `json:"inert,omitempty"`
}

// Device is a block device.
type Device struct {
	Name       string `json:"name"`   // "vda"
	Number     string `json:"number"` // "254:0"
	Rotational bool   `json:"rotational"`
}

// Pod is what a decision may know of a pod. Labels and annotations are untrusted.
type Pod struct {
	UID          string
	Namespace    string
	Name         string
	Labels       map[string]string
	Annotations  map[string]string
	CgroupParent string // as the kubelet names it: "/kubepods/burstable/pod…" or a systemd slice
	KubeQoS      v1alpha1.KubeQoS
	Resources    Resources // of the pod as a whole, as the kubelet sums them up for its sandbox; zero where they are not known
	Placed       *Placed   // what became of its placement; nil for a pod that nobody has tried to place
}

// Placed is what became of the placement of a pod of an exclusive tier.
type Placed struct {
	CPUs string // that its containers run on, a CPU list; "" where it has none, and Why says why
	Mems string // the memory nodes of CPUs, a node list; "" for no restriction
	Why  string // why it has no CPUs of its own: an error of package placement, or of the policy
}

// State says how well we know a container.
type State string

// Container states. Adopted and missed containers carry shares in the runtime's stored spec, which every later
// update sends again; the kernel refuses shares while cpu.idle is 1, so they never get cpu.idle.
const (
	Managed State = "managed" // created through a door
	Adopted State = "adopted" // was there before us
	Missed  State = "missed"  // a door failed open
)

// Container is what a decision may know of a container.
type Container struct {
	Name  string
	State State
	Asked Resources
}

// Resources is what the kubelet asked for. A nil field was not asked.
type Resources struct {
	CPUShares   *int64            `json:"cpuShares,omitempty"`   // 2 to 262144
	CPUQuota    *int64            `json:"cpuQuota,omitempty"`    // microseconds a period, -1 for none
	CPUPeriod   *int64            `json:"cpuPeriod,omitempty"`   // microseconds
	CPUSetCPUs  string            `json:"cpusetCPUs,omitempty"`  // CPU list, "" for not asked
	CPUSetMems  string            `json:"cpusetMems,omitempty"`  // node list, "" for not asked
	MemoryLimit *int64            `json:"memoryLimit,omitempty"` // bytes
	OOMScoreAdj *int64            `json:"oomScoreAdj,omitempty"`
	Unified     map[string]string `json:"unified,omitempty"` // cgroup v2 files the kubelet asks for
}
