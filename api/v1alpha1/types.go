// Package v1alpha1 holds the user-facing types of Tideline: the QoSPolicy file, the pod annotations, their keys,
// defaults and validation. It has no behaviour beyond that, and does no I/O.
//
//	p, err := v1alpha1.ParsePolicy(data) // strict; err lists every problem
//	if err != nil { return err }
//	spec := p.Spec // complete: what the file leaves out holds its default
package v1alpha1

// Tier is the QoS tier of a pod.
type Tier string

// The tiers, named as Koordinator names them.
const (
	LSE    Tier = "LSE"    // exclusive cores
	LSR    Tier = "LSR"    // pinned cores that batch may use while they idle
	LS     Tier = "LS"     // shared pool, latency-sensitive
	BE     Tier = "BE"     // batch, gives way at once
	SYSTEM Tier = "SYSTEM" // host agents
	None   Tier = ""       // no tier: the pod is left as it is
)

// QoSPolicy is the policy file.
type QoSPolicy struct {
	APIVersion string        `json:"apiVersion"`         // APIVersion
	Kind       string        `json:"kind"`               // KindQoSPolicy
	Metadata   Metadata      `json:"metadata,omitempty"` // names the policy in logs
	Spec       QoSPolicySpec `json:"spec,omitempty"`     // what a node does with pods
}

// Metadata names a policy in logs and birth records.
type Metadata struct {
	Name string `json:"name,omitempty"` // up to 253 bytes
}

// QoSPolicySpec is what a node does with pods. After ParsePolicy or Default all five tiers and all aliases are there,
// and a field of a tier is nil only where the tier leaves that value to the kubelet.
type QoSPolicySpec struct {
	// Aliases says whose tier labels are read besides our own.
	Aliases Aliases `json:"aliases,omitempty"`
	// Rules give a tier to pods without a tier label; the first match wins.
	Rules []Rule `json:"rules,omitempty"`
	// ReservedCPUs is a CPU list ("0-1,8") kept from every pool.
	ReservedCPUs string `json:"reservedCPUs,omitempty"`
	// MinSharedCPUs is how many CPUs are left to LS and to pods without a tier, whatever LSE and LSR pods ask for; 1 to 8192.
	MinSharedCPUs *int64 `json:"minSharedCPUs,omitempty"`
	// Untiered says whether pods without a tier leave the CPUs that LSE and LSR pods own.
	Untiered Untiered `json:"untiered,omitempty"`
	// Loops says what is done while containers run.
	Loops Loops `json:"loops,omitempty,omitzero"`
	// Tiers says what each tier means.
	Tiers map[Tier]TierPolicy `json:"tiers,omitempty"`
}

// Aliases switches the tier labels and annotations of peers on (nil means on) or off.
type Aliases struct {
	Koordinator *bool `json:"koordinator,omitempty"` // label koordinator.sh/qosClass
	Volcano     *bool `json:"volcano,omitempty"`     // annotation volcano.sh/qos-level
	Katalyst    *bool `json:"katalyst,omitempty"`    // annotation katalyst.kubewharf.io/qos_level
}

// Rule gives Tier to the pods that match all of Match.
type Rule struct {
	Name  string `json:"name"`  // unique; explain prints it
	Match Match  `json:"match"` // which pods
	Tier  Tier   `json:"tier"`  // the tier that they get
}

// Match selects pods; every field that is set must match, an empty Match matches nothing and is refused.
type Match struct {
	Namespaces []string  `json:"namespaces,omitempty"` // globs ("batch-*"), any of them
	Names      []string  `json:"names,omitempty"`      // globs over the pod's name, any of them
	Labels     string    `json:"labels,omitempty"`     // a label selector: "app in (a,b),!x"
	KubeQoS    []KubeQoS `json:"kubeQoS,omitempty"`    // QoS classes of Kubernetes, any of them
}

// KubeQoS is the QoS class that Kubernetes gives a pod.
type KubeQoS string

// The QoS classes of Kubernetes; Unknown where the cgroup parent does not tell.
const (
	Guaranteed KubeQoS = "Guaranteed"
	Burstable  KubeQoS = "Burstable"
	BestEffort KubeQoS = "BestEffort"
	Unknown    KubeQoS = ""
)

// TierPolicy is what a tier means. A nil field keeps what the kubelet asked for.
type TierPolicy struct {
	CPU         CPUPolicy     `json:"cpu,omitempty"`              // CPU time
	Memory      MemoryPolicy  `json:"memory,omitempty"`           // protection and throttling of memory
	IO          IOPolicy      `json:"io,omitempty"`               // disks
	Resctrl     ResctrlPolicy `json:"resctrl,omitempty,omitzero"` // caches and memory bandwidth
	OOMScoreAdj *int64        `json:"oomScoreAdj,omitempty"`      // a floor, -1000 to 1000
	OnError     OnError       `json:"onError,omitempty"`          // what happens to a container whose tier can't be honoured
}

// CPUPolicy of a tier.
type CPUPolicy struct {
	Idle            *bool     `json:"idle,omitempty"`            // cpu.idle of the containers; BE only
	Burst           Burst     `json:"burst,omitempty"`           // cpu.max.burst of the containers; LS only
	Placement       Placement `json:"placement,omitempty"`       // what a pod gets for its own; LSE and LSR only
	NUMA            NUMA      `json:"numa,omitempty"`            // how the CPUs of a pod lie over NUMA nodes; LSE and LSR only
	SMT             SMT       `json:"smt,omitempty"`             // what becomes of the other threads of a pod's cores; LSE only
	MemoryMigration *bool     `json:"memoryMigration,omitempty"` // whether the memory of running containers follows when their CPUs move; LSE and LSR only
}

// Untiered says what becomes of pods without a tier.
type Untiered string

// Untiered values.
const (
	UntieredPool  Untiered = "pool"  // they run where LS does, from the moment that an LSE or LSR pod has CPUs of its own
	UntieredLeave Untiered = "leave" // they stay where they are, so no pod can be LSE
)

// Loops switches what the node does while containers run.
type Loops struct {
	Reconcile LoopMode `json:"reconcile,omitempty"` // repair of values that somebody else has changed, or that a door could not set
}

// LoopMode is whether a loop works.
type LoopMode string

// LoopMode values.
const (
	LoopOn     LoopMode = "on"
	LoopOff    LoopMode = "off"
	LoopDryRun LoopMode = "dry-run" // it says what it would do, and does nothing
)

// Placement says what the pods of a tier get for their own.
type Placement string

// Placement values.
const (
	PlacementCores Placement = "cores" // whole cores; LSE
	PlacementCPUs  Placement = "cpus"  // CPUs, which batch may use while they idle; LSR
	PlacementNone  Placement = "none"  // nothing: they share with LS
)

// NUMA says how the CPUs of a pod may lie over NUMA nodes.
type NUMA string

// NUMA values.
const (
	NUMAPreferSingle  NUMA = "prefer-single"  // one node if they fit, else as few and as close ones as can be
	NUMARequireSingle NUMA = "require-single" // one node, or the pod is not placed
	NUMASpread        NUMA = "spread"         // evenly over all nodes, as far as they have room
)

// SMT says what becomes of the other threads of the cores of an LSE pod.
type SMT string

// SMT values.
const (
	SMTIdle SMT = "idle" // they stay idle: as many cores as the pod asks for CPUs
	SMTUse  SMT = "use"  // the pod runs on them: as few cores as have the CPUs that it asks for
)

// Burst says how much unused quota a container may save up.
type Burst string

// Burst values.
const (
	BurstLimit Burst = "limit" // as much as its quota
	BurstOff   Burst = "off"   // none
)

// MemoryPolicy of a tier.
type MemoryPolicy struct {
	Low  *Percent `json:"low,omitempty"`  // memory.low, percent of the request; LSE, LSR and LS only
	High *Percent `json:"high,omitempty"` // memory.high, percent of the batch-memory limit, "100%" for none; BE only
}

// Percent is a whole percentage, 0 to 100, written "50%".
type Percent int

// IOPolicy of a tier.
type IOPolicy struct {
	Weight   *int64      `json:"weight,omitempty"`   // 1 to 1000, on the pod's cgroup
	Max      []DeviceMax `json:"max,omitempty"`      // on each container's cgroup
	Priority IOPriority  `json:"priority,omitempty"` // of each container's processes; BE only
}

// IOPriority is an I/O priority in the kernel's words. There is no realtime: nothing makes it give way.
type IOPriority string

// IOPriority values.
const (
	IOPriorityNone   IOPriority = "none"          // the runtime's own
	IOPriorityLowest IOPriority = "best-effort:7" // the lowest level of the class that processes are in by default
	IOPriorityIdle   IOPriority = "idle"          // served while nothing else is queued
)

// DeviceMax limits a block device or every block device of a class. Zero means no limit.
type DeviceMax struct {
	Device string `json:"device"`          // "MAJOR:MINOR", or a class: "ssd", "rotational", "all"
	RBps   int64  `json:"rbps,omitempty"`  // bytes read a second
	WBps   int64  `json:"wbps,omitempty"`  // bytes written a second
	RIOPS  int64  `json:"riops,omitempty"` // reads a second
	WIOPS  int64  `json:"wiops,omitempty"` // writes a second
}

// ResctrlPolicy is how much of caches and memory bandwidth the containers of a tier may use, all of them together. A part
// that a node can't limit is passed over. What is left out is not limited.
type ResctrlPolicy struct {
	L3 *Percent `json:"l3,omitempty"` // of the ways of each L3 cache, 1% to 100%; at least what the CPU allows
	L2 *Percent `json:"l2,omitempty"` // of the ways of each L2 cache, 1% to 100%
	MB *Percent `json:"mb,omitempty"` // of the memory bandwidth of each memory domain, 1% to 100%
}

// OnError says what happens to a container whose tier can't be honoured.
type OnError string

// OnError values.
const (
	Refuse OnError = "refuse" // the creation fails with FailedPrecondition
	Pass   OnError = "pass"   // it starts unmodified
)

// Requests is the JSON of AnnotationRequests: {"containers":{"app":{"cpu":"500m","memory":"1Gi"}}}.
type Requests struct {
	Containers map[string]ResourceNames `json:"containers"` // by container name: all of the pod
}

// ResourceNames maps a resource name to a quantity as Kubernetes writes it.
type ResourceNames map[string]string

// BatchResources is the JSON of AnnotationBatchResources:
// {"containers":{"app":{"requests":{"kubernetes.io/batch-cpu":"2k"},"limits":{"kubernetes.io/batch-memory":"1Gi"}}}}.
type BatchResources struct {
	Containers map[string]BatchContainer `json:"containers"` // by container name
}

// BatchContainer holds the batch resources of one container.
type BatchContainer struct {
	Requests ResourceNames `json:"requests,omitempty"` // what it was scheduled by
	Limits   ResourceNames `json:"limits,omitempty"`   // what it may use; zero is no limit
}

// MemoryQoS is the JSON of AnnotationMemoryQoS: {"low":"25%","high":"80%"}. Each may only lower what the tier gives.
type MemoryQoS struct {
	Low  *Percent `json:"low,omitempty"`  // memory.low, percent of the request
	High *Percent `json:"high,omitempty"` // memory.high, percent of the batch-memory limit; BE only
}

// IOQoS is the JSON of AnnotationIOQoS: {"weight":50,"max":[{"device":"ssd","wbps":10485760}]}.
// Weight may only lower what the tier gives; Max is added to the tier's, the lower value of each limit holds.
type IOQoS struct {
	Weight *int64      `json:"weight,omitempty"` // 1 to 1000, on the pod's cgroup
	Max    []DeviceMax `json:"max,omitempty"`    // on each container's cgroup
}

// CPUPlacement is the JSON of AnnotationCPUPlacement: {"numa":"require-single","smt":"use"}.
type CPUPlacement struct {
	NUMA NUMA `json:"numa,omitempty"` // instead of the tier's
	SMT  SMT  `json:"smt,omitempty"`  // "use" where the tier's is "idle"; LSE only
}

// ResctrlClass is the JSON of AnnotationResctrlClass: {"tier":"BE"}.
type ResctrlClass struct {
	Tier Tier `json:"tier"` // whose share of caches and memory bandwidth the pod has, instead of its own tier's; it may not be larger
}
