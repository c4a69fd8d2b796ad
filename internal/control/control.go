// Package control is the conversation between a running door and the operator's CLI: HTTP with JSON on a unix socket
// that root alone may open. It holds the types, the client and the paths; the door serves them.
//
//	c := control.Dial(control.DefaultSocket)
//	s, err := c.Status(ctx) // errors.Is(err, control.ErrNoDoor): nothing listens there
//	fmt.Println(s.Mode, s.Runtime.Version)
package control

import (
	"time"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
)

// Default places, all under the run directory.
const (
	DefaultRunDir = "/run/tideline"
	DefaultSocket = DefaultRunDir + "/control.sock"
)

// Paths of the control socket. GET unless said.
const (
	PathStatus     = "/v1/status"     // Status
	PathContainers = "/v1/containers" // []Container, sorted by pod and name
	PathExplainPod = "/v1/explain"    // ?namespace=&name= -> []Explained; 404 when the door does not know the pod
	PathCPUs       = "/v1/cpus"       // CPUs
	PathPolicyDiff = "/v1/policydiff" // POST, the body a policy file -> []PolicyChange; 400 for a file that is not valid
	PathBypass     = "/v1/bypass"     // POST ?on=true|false -> Status
	PathDisable    = "/v1/disable"    // POST -> DisableReport
	PathHealth     = "/healthz"
	PathReady      = "/readyz"
	PathMetrics    = "/metrics"
)

// Mode says what a door does with what it decides.
type Mode string

// Modes, from the least to the most.
const (
	ModeBypass  Mode = "bypass"  // passes everything on, decides nothing
	ModeObserve Mode = "observe" // decides, counts, explains; changes nothing
	ModeEnforce Mode = "enforce"
)

// Status is the state of a door.
type Status struct {
	Door      string       `json:"door"` // "cri"
	Version   string       `json:"version"`
	PID       int          `json:"pid"`
	Mode      Mode         `json:"mode"`      // what it does now
	StartMode Mode         `json:"startMode"` // what it was started with; differs while bypass is on
	ModeWhy   string       `json:"modeWhy"`   // "another QoS agent runs here: koordlet", ""
	StartedAt time.Time    `json:"startedAt"`
	Listen    string       `json:"listen"`
	Runtime   Runtime      `json:"runtime"`
	Policy    PolicyStatus `json:"policy"`
	Cgroup    CgroupStatus `json:"cgroup"`
	Counts    Counts       `json:"counts"`
	Degraded  []Degraded   `json:"degraded,omitempty"` // what does not work as it should, and why
}

// Runtime is the runtime behind a door.
type Runtime struct {
	Endpoint  string `json:"endpoint"`
	Name      string `json:"name,omitempty"`
	Version   string `json:"version,omitempty"`
	Connected bool   `json:"connected"`
	Error     string `json:"error,omitempty"` // why not
	NRI       *NRI   `json:"nri,omitempty"`   // of the NRI door, while it is connected
}

// NRI is what a runtime says of itself when a plugin registers.
type NRI struct {
	Version             string    `json:"version"` // of NRI in the runtime
	Since               time.Time `json:"since"`
	RegistrationTimeout string    `json:"registrationTimeout"`
	RequestTimeout      string    `json:"requestTimeout"` // past it the runtime drops the plugin
	Updates             bool      `json:"updates"`        // the runtime takes updates that it has not asked for
}

// PolicyStatus is the policy in force.
type PolicyStatus struct {
	Name       string    `json:"name"`
	Source     string    `json:"source"`     // "built in" or a file
	Generation int       `json:"generation"` // counts the reloads that were taken
	LoadedAt   time.Time `json:"loadedAt"`
	Error      string    `json:"error,omitempty"` // why a newer file was not taken
}

// CgroupStatus is what the node can carry.
type CgroupStatus struct {
	Version  int                            `json:"version"`
	Features map[policy.Knob]policy.Feature `json:"features"`
	Journal  int                            `json:"journal"` // cgroups with values that disable would put back
}

// Counts are totals since the start but for Containers.
type Counts struct {
	Containers map[policy.State]int  `json:"containers"`
	Tiers      map[v1alpha1.Tier]int `json:"tiers"` // containers by tier; "" is no tier
	Decisions  int64                 `json:"decisions"`
	Changed    int64                 `json:"changed"`    // messages that were changed
	Refused    int64                 `json:"refused"`    // creations that were refused
	FailedOpen int64                 `json:"failedOpen"` // hooked calls that passed unmodified after a fault of ours
	BadInput   int64                 `json:"badInput"`
	Writes     int64                 `json:"writes"` // kernel files written
	WriteFails int64                 `json:"writeFails"`
	Repairs    int64                 `json:"repairs"` // values that somebody else had changed
}

// Degraded is one thing that does not work as it should.
type Degraded struct {
	What  string    `json:"what"`
	Why   string    `json:"why"`
	Since time.Time `json:"since"`
}

// Container is what a door knows of a container.
type Container struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Attempt   uint32            `json:"attempt"`
	PodUID    string            `json:"podUID"`
	Namespace string            `json:"namespace"`
	Pod       string            `json:"pod"`
	State     policy.State      `json:"state"`
	Asked     *policy.Resources `json:"asked"` // nil: unknown, the record is missing
	Decision  policy.Decision   `json:"decision"`
	Cgroup    string            `json:"cgroup,omitempty"` // cgroup path, once the container runs
	Error     string            `json:"error,omitempty"`  // the last failed write or the reason of a missed container
}

// CPUs is who has which CPUs, as a door sees it. Lists are as the kernel writes them: "0-3,8".
type CPUs struct {
	Reserved string        `json:"reserved"` // by the policy and the kubelet
	Foreign  string        `json:"foreign"`  // of pods that the kubelet's static CPU manager gave CPUs of their own
	Pools    CPUPools      `json:"pools"`
	Pods     []PodCPUs     `json:"pods"`     // with CPUs of their own, by namespace and name
	Unplaced []UnplacedPod `json:"unplaced"` // of an exclusive tier that have none, by namespace and name
}

// CPUPools is the CPUs of containers that own none.
type CPUPools struct {
	LS     string `json:"LS"` // also of pods without a tier
	BE     string `json:"BE"`
	System string `json:"SYSTEM"`
	Short  string `json:"short,omitempty"` // why LS holds CPUs that it should not
}

// PodCPUs is a pod with CPUs of its own.
type PodCPUs struct {
	UID       string        `json:"uid"`
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Tier      v1alpha1.Tier `json:"tier"`
	CPUs      string        `json:"cpus"`        // that it runs on
	Owned     string        `json:"owned"`       // these, and siblings that are kept idle
	Mems      string        `json:"memoryNodes"` // "" for all
}

// UnplacedPod is a pod of an exclusive tier without CPUs of its own.
type UnplacedPod struct {
	UID       string        `json:"uid"`
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Tier      v1alpha1.Tier `json:"tier"`
	Why       string        `json:"why"`
}

// Explained is one cgroup of a pod: the pod itself or a container, wanted against real.
type Explained struct {
	Level    policy.Level    `json:"level"`
	Name     string          `json:"name"` // container name; "" for the pod
	ID       string          `json:"id,omitempty"`
	State    policy.State    `json:"state,omitempty"`
	Cgroup   string          `json:"cgroup,omitempty"`
	Decision policy.Decision `json:"decision"`
	Rows     []Row           `json:"rows"` // every knob that was asked, decided or can be read, in the order of policy.Knobs
}

// Row is one knob on its way. "" is nothing or not to be had.
type Row struct {
	Knob      policy.Knob `json:"knob"`
	Asked     string      `json:"asked"`
	Wanted    string      `json:"wanted"`
	Spec      string      `json:"spec"`      // in the runtime's stored spec
	Kernel    string      `json:"kernel"`    // in the cgroup's file
	Effective string      `json:"effective"` // what holds after the parents: "inert: parent has 0", a smaller quota, ...
	Reason    string      `json:"reason"`
}

// PolicyChange is one value of a pod, one of its containers or a class cgroup that another policy would change.
type PolicyChange struct {
	Class     string        `json:"class,omitempty"` // path of a cgroup above the pods; then there is no pod
	Namespace string        `json:"namespace,omitempty"`
	Pod       string        `json:"pod,omitempty"`
	Container string        `json:"container,omitempty"` // "" for the pod's own cgroup
	Tier      v1alpha1.Tier `json:"tier"`
	NextTier  v1alpha1.Tier `json:"nextTier"`
	Knob      policy.Knob   `json:"knob,omitempty"` // "" where the tier alone changes
	Now       string        `json:"now"`            // "" for no value of ours
	Next      string        `json:"next"`           // the same
	Rule      string        `json:"rule,omitempty"` // where Next comes from
	When      When          `json:"when"`
}

// When says when a change of the policy reaches a value.
type When string

// When values.
const (
	AtOnce        When = "at once"
	NextUpdate    When = "next update"
	NextContainer When = "next container"
)

// DisableReport is what disable did.
type DisableReport struct {
	Restored int      `json:"restored"`         // values put back
	Updated  int      `json:"updated"`          // containers whose stored spec holds the kubelet's values again
	Groups   int      `json:"groups,omitempty"` // resctrl groups removed
	Errors   []string `json:"errors,omitempty"`
}
