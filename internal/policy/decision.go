package policy

import "github.com/tideline-io/tideline/api/v1alpha1"

// Knob is one kernel setting of a cgroup, by its cgroup v2 name on both versions.
type Knob string

// The knobs, in the order in which they are shown and written. The value formats are those of the v2 files, but for CPUWeight.
const (
	CPUSetCPUs  Knob = "cpuset.cpus"   // CPU list, "0-3"
	CPUSetMems  Knob = "cpuset.mems"   // memory node list, "0-1"
	CPUWeight   Knob = "cpu.weight"    // CPU shares as CRI has them, "2" to "262144", or Unset
	CPUMax      Knob = "cpu.max"       // "QUOTA PERIOD" or "max PERIOD", microseconds
	CPUMaxBurst Knob = "cpu.max.burst" // microseconds
	CPUIdle     Knob = "cpu.idle"      // "0" or "1"
	MemoryLow   Knob = "memory.low"    // bytes
	MemoryHigh  Knob = "memory.high"   // bytes or "max"
	MemoryMax   Knob = "memory.max"    // bytes or "max"
	OOMScoreAdj Knob = "oom_score_adj" // -1000 to 1000
	IOPriority  Knob = "ioprio"        // "best-effort:7" or "idle", in the words of ionice
	Resctrl     Knob = "resctrl"       // name of the resctrl group that its threads are in
	IOWeight    Knob = "io.weight"     // "1" to "1000", the default weight
	IOMax       Knob = "io.max"        // lines "MAJ:MIN rbps=N wbps=N riops=N wiops=N", only the limits that are set, in this order, sorted by device
)

// Knobs returns all knobs in order.
func Knobs() []Knob {
	return []Knob{CPUSetCPUs, CPUSetMems, CPUWeight, CPUMax, CPUMaxBurst, CPUIdle, MemoryLow, MemoryHigh, MemoryMax, OOMScoreAdj, IOPriority, Resctrl, IOWeight, IOMax}
}

// OfProcess says whether k belongs to the processes of a container and not to its cgroup: no file of the cgroup holds it, and
// no update changes it.
func (k Knob) OfProcess() bool { return k == OOMScoreAdj || k == IOPriority || k == Resctrl }

// Unset is the value of CPUWeight that leaves the kernel's default in place.
const Unset = "unset"

// Level is the cgroup that a setting belongs to.
type Level string

// Levels.
const (
	LevelContainer Level = "container"
	LevelPod       Level = "pod"
	LevelClass     Level = "class" // a QoS class cgroup of the kubelet, or kubepods itself
)

// Decision is what a pod or a container gets. Settings holds only what differs from what was asked or needs a file of ours.
type Decision struct {
	Tier     v1alpha1.Tier `json:"tier"`
	Source   Source        `json:"source"`
	Settings []Setting     `json:"settings,omitempty"` // in the order of Knobs, one a knob
	Notes    []Note        `json:"notes,omitempty"`    // what was not done, and why
	Refusal  *Refusal      `json:"refusal,omitempty"`  // set: an exclusive tier can't be honoured, and nothing may be applied
}

// Source says what decided the tier.
type Source struct {
	Kind  SourceKind `json:"kind"`
	Key   string     `json:"key,omitempty"`   // label key; of some aliases an annotation key
	Value string     `json:"value,omitempty"` // the value of Key
	Rule  string     `json:"rule,omitempty"`  // name of the policy rule
}

// SourceKind names where a tier came from.
type SourceKind string

// Sources of a tier.
const (
	FromLabel SourceKind = "label"
	FromAlias SourceKind = "alias"
	FromRule  SourceKind = "rule"
	FromNone  SourceKind = "none"
)

// Setting is one absolute value.
type Setting struct {
	Knob   Knob   `json:"knob"`
	Level  Level  `json:"level"`
	Value  string `json:"value"`
	Asked  string `json:"asked,omitempty"` // what the kubelet asked, in the knob's format; "" for nothing
	Rule   string `json:"rule"`            // where the value comes from: "tiers.BE.cpu.idle" or an annotation's key
	Reason string `json:"reason"`          // one clause for people
	Inert  string `json:"inert,omitempty"` // why it has no effect on this machine, though it is written
}

// Note says what was not done, or done with a doubt. Code is a closed set for counting.
type Note struct {
	Code    NoteCode `json:"code"`
	Knob    Knob     `json:"knob,omitempty"`
	Message string   `json:"message"` // names key, value and what is allowed
}

// NoteCode classifies notes.
type NoteCode string

// Note codes.
const (
	NoteBadLabel      NoteCode = "bad-label"      // a tier label that names no tier
	NoteBadAnnotation NoteCode = "bad-annotation" // an annotation that does not parse or asks too much; ignored whole
	NoteUnsupported   NoteCode = "unsupported"    // the kernel lacks the knob
	NoteUnknownInput  NoteCode = "unknown-input"  // a fact is missing (requests, say), so nothing is written
	NoteUnplaced      NoteCode = "unplaced"       // a pod of an exclusive tier has no CPUs of its own
	NoteKept          NoteCode = "kept"           // the kubelet's value stays for a reason worth saying
)

// Refusal refuses a container of a tier whose policy says so.
type Refusal struct {
	Key     string `json:"key"`
	Message string `json:"message"`
}
