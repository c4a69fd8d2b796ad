// Package preflight checks whether a node is ready for Tideline and says what to change. Gather reads the node, Check
// is pure over what was gathered. It changes nothing and calls no runtime: what a runtime answered is handed in.
//
//	facts := preflight.Gather(preflight.Config{Root: "/", ProxyEndpoint: "unix:///run/tideline/cri.sock"})
//	lines := preflight.Check(facts)
//	ready := !preflight.NeedsFix(lines)
package preflight

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/policy"
)

// Level says how a check went.
type Level string

// Levels.
const (
	OK       Level = "ok"
	Degraded Level = "degraded" // Tideline works; a part of it does not, or less well
	Fix      Level = "fix"      // to be changed before Tideline can work
)

// Line is one check. Names are stable; knob checks are called "knob " and the knob.
type Line struct {
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Found  string `json:"found"`
	Change string `json:"change,omitempty"` // what to do, exactly; "" where there is nothing to do
	// More is details, a line each.
	More []string `json:"more,omitempty"`
}

// NeedsFix says whether any line is Fix.
func NeedsFix(lines []Line) bool {
	return slices.ContainsFunc(lines, func(l Line) bool { return l.Level == Fix })
}

// Facts is what was gathered of a node. The zero value of a field is "not known".
type Facts struct {
	Machine      hostfs.Facts
	MachineError string // why Machine is not known
	Kubelet      Kubelet
	Policy       Policy // is left to the caller
	Runtime      Runtime
	Proxy        Socket // what the kubelet should talk to
	Door         bool   // a door answers on the control socket
	NRI          *NRI   // the door is the plugin, or is to be; nil: the proxy
	Agents       []string
	Host         HostProcesses
	OOM          *bool  // the runtime may lower an oom_score_adj
	OOMOf        string // whose right OOM tells
	Journal      int    // cgroups whose overwritten values stand in the journal
	JournalAt    string
}

// Socket is a unix socket as it stands in the file system.
type Socket struct {
	Endpoint string // "unix:///run/…"
	Path     string // "" where the endpoint is no unix socket
	Exists   bool
	IsSocket bool
	Mode     fs.FileMode
	UID      uint32
	Error    string // why it could not be read, other than that it is not there
}

// Runtime is the container runtime behind the proxy.
type Runtime struct {
	Socket       Socket
	Asked        bool   // it was called
	Name         string // "containerd"
	Version      string
	CgroupDriver string // "systemd", "cgroupfs", or "" where it does not say
	Error        string // why it did not answer
}

// NRI is what the plugin says of its runtime; the zero value where no plugin answers.
type NRI struct {
	Connected                        bool
	Runtime, Version, RequestTimeout string
	Updates                          bool   // the runtime takes updates that it has not asked for
	Error                            string // why it is not connected
}

// Policy is what the node's policy says.
type Policy struct {
	Source   string // "built in" or a file
	Reserved cpuset.CPUSet
	Error    string // why it is not known
}

// Check judges the facts. The order is fixed: kernel, cgroups, knobs, sockets, kubelet, reserved CPUs,
// other agents, host.
func Check(f Facts) []Line {
	lines := []Line{checkKernel(f), checkCgroup(f), checkDriver(f), checkPSI(f)}
	lines = append(lines, checkKnobs(f)...)
	lines = append(lines, checkRuntime(f)...)
	if f.NRI != nil {
		lines = append(lines, checkNRI(f))
	} else {
		lines = append(lines, checkProxy(f)...)
	}
	lines = append(lines, checkKubelet(f)...)
	lines = append(lines, checkReserved(f))
	lines = append(lines, checkAgents(f), checkHost(f), checkOOM(f), checkJournal(f))
	return lines
}

func ok(check, format string, args ...any) Line {
	return Line{Check: check, Level: OK, Found: fmt.Sprintf(format, args...)}
}

// checkKernel names what release a kernel needs; whether a feature is there is what the knob lines say.
func checkKernel(f Facts) Line {
	const check = "kernel"
	major, minor, known := release(f.Machine.Kernel)
	switch {
	case !known:
		return Line{Check: check, Level: Degraded, Found: "release " + strconv.Quote(f.Machine.Kernel) + " can't be read as a version", Change: "compare the knob lines below"}
	case before(major, minor, 5, 9):
		return Line{Check: check, Level: Degraded, Found: f.Machine.Kernel + ", and reclaim at memory.high may livelock before 5.9", Change: "run Linux 5.15 or later; until then set tiers.BE.memory.high: 100% in the policy"}
	case before(major, minor, 5, 15):
		return Line{Check: check, Level: Degraded, Found: f.Machine.Kernel + ", and cpu.max.burst needs 5.14, cpu.idle 5.15", Change: "run Linux 5.15 or later"}
	}
	return ok(check, "%s", f.Machine.Kernel)
}

func release(s string) (major, minor int, ok bool) {
	parts := strings.SplitN(s, ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	digits := strings.TrimRight(parts[1], "+-abcdefghijklmnopqrstuvwxyz")
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(digits)
	return major, minor, err1 == nil && err2 == nil
}

func before(major, minor, wantMajor, wantMinor int) bool {
	return major < wantMajor || major == wantMajor && minor < wantMinor
}

func checkCgroup(f Facts) Line {
	const check = "cgroup version"
	switch {
	case f.MachineError != "":
		return Line{Check: check, Level: Fix, Found: f.MachineError, Change: "run this as root on the node"}
	case f.Machine.Node.CgroupVersion == 0:
		return Line{Check: check, Level: Fix, Found: "no hierarchy with a controller of ours is mounted", Change: "mount cgroup2 at /sys/fs/cgroup, or run this on the node and not in a container"}
	case f.Machine.Node.CgroupVersion == 1:
		return Line{Check: check, Level: Degraded, Found: "1: memory.low and memory.high are missing, and Kubernetes is about to drop it",
			Change: "boot with systemd.unified_cgroup_hierarchy=1"}
	}
	return ok(check, "%d", f.Machine.Node.CgroupVersion)
}

// checkDriver prefers what the runtime says, as the kubelet does since 1.34.
func checkDriver(f Facts) Line {
	const check = "cgroup driver"
	driver, from := f.Runtime.CgroupDriver, "the runtime says so and the kubelet follows"
	if driver == "" && f.Machine.CgroupDriver != "" {
		driver, from = f.Machine.CgroupDriver, "by the name of the kubelet's cgroup"
	}
	if driver == "" {
		driver, from = f.Kubelet.Config.CgroupDriver, "by "+f.Kubelet.where("cgroupDriver")
		if f.Kubelet.Error != "" {
			return Line{Check: check, Level: Degraded, Found: "not known: no pod runs here, and neither the runtime nor the kubelet's configuration tells it", Change: "name the kubelet's configuration with --kubelet-config"}
		}
	}
	if driver == "" {
		driver = "cgroupfs"
	}
	if driver == "systemd" {
		return ok(check, "systemd, %s; a daemon-reload resets io.weight and memory.low of slices; they come back with the next pod, a resize or a restart of the door", from)
	}
	return ok(check, "%s, %s", driver, from)
}

func checkPSI(f Facts) Line {
	if f.Machine.PSI {
		return ok("pressure (PSI)", "on")
	}
	return Line{Check: "pressure (PSI)", Level: Degraded, Found: "off: pressure of CPU, memory and disk can't be seen", Change: "boot with psi=1 (needs CONFIG_PSI)"}
}

func checkKnobs(f Facts) []Line {
	if f.MachineError != "" {
		return nil
	}
	var lines []Line
	for _, k := range policy.Knobs() {
		check, feature := "knob "+string(k), f.Machine.Node.Features[k]
		switch {
		case feature.Support == policy.Unsupported:
			lines = append(lines, Line{Check: check, Level: Degraded, Found: "missing here", Change: "needs " + feature.Need})
		case feature.Inert != "":
			lines = append(lines, Line{Check: check, Level: Degraded, Found: "can be written, without effect: " + feature.Inert, Change: feature.Need})
		case feature.Support == policy.Supported:
			lines = append(lines, ok(check, "supported"))
		default:
			lines = append(lines, ok(check, "not probed; the first write tells"))
		}
	}
	return lines
}

// crioSuffix is the end of a path by which the kubelet takes its runtime for CRI-O and reads container statistics from
// cAdvisor instead of CRI (pkg/kubelet/cadvisor, CrioSocketSuffix).
const crioSuffix = "run/crio/crio.sock"

func checkRuntime(f Facts) []Line {
	const check = "runtime socket"
	s := f.Runtime.Socket
	var lines []Line
	switch {
	case strings.HasSuffix(s.Path, crioSuffix) || strings.EqualFold(f.Runtime.Name, "cri-o"):
		return []Line{{Check: check, Level: Fix, Found: s.Path + " is CRI-O's: behind a proxy the kubelet no longer sees that by the path and reads statistics another way",
			Change: "leave the kubelet at CRI-O; the proxy supports containerd"}}
	case s.Path == "":
		return []Line{{Check: check, Level: Fix, Found: strconv.Quote(s.Endpoint) + " is no unix socket", Change: "name the runtime with --runtime-endpoint unix:///run/containerd/containerd.sock"}}
	case s.Error != "":
		return []Line{{Check: check, Level: Fix, Found: s.Error, Change: "run this as root on the node"}}
	case !s.Exists:
		return []Line{{Check: check, Level: Fix, Found: s.Path + " is not there", Change: "start the runtime, or name its socket with --runtime-endpoint"}}
	case !s.IsSocket:
		return []Line{{Check: check, Level: Fix, Found: s.Path + " is no socket", Change: "name the runtime's socket with --runtime-endpoint"}}
	case s.Mode.Perm()&0o002 != 0:
		lines = append(lines, Line{Check: check, Level: Fix, Found: fmt.Sprintf("%s has mode %04o: every user of the node may start privileged containers", s.Path, s.Mode.Perm()),
			Change: "chmod 0660 " + s.Path + ", and look for what opened it"})
	case s.UID != 0:
		lines = append(lines, Line{Check: check, Level: Fix, Found: fmt.Sprintf("%s belongs to user %d, who may start privileged containers", s.Path, s.UID), Change: "chown root " + s.Path})
	default:
		lines = append(lines, ok(check, "%s, mode %04o, owner root", s.Path, s.Mode.Perm()))
	}
	const answer = "runtime"
	switch {
	case !f.Runtime.Asked:
	case f.Runtime.Error != "":
		lines = append(lines, Line{Check: answer, Level: Fix, Found: f.Runtime.Error, Change: "see that the runtime runs and serves CRI at " + s.Endpoint})
	case f.Runtime.CgroupDriver == "":
		lines = append(lines, ok(answer, "%s %s, which does not tell its cgroup driver (RuntimeConfig)", f.Runtime.Name, f.Runtime.Version))
	default:
		lines = append(lines, ok(answer, "%s %s", f.Runtime.Name, f.Runtime.Version))
	}
	return lines
}

func checkProxy(f Facts) []Line {
	const check = "proxy socket"
	s := f.Proxy
	switch {
	case s.Path == "":
		return []Line{{Check: check, Level: Fix, Found: strconv.Quote(s.Endpoint) + " is no unix socket", Change: "name the proxy's socket with --proxy-endpoint unix:///run/tideline/cri.sock"}}
	case strings.HasSuffix(s.Path, crioSuffix):
		return []Line{{Check: check, Level: Fix, Found: s.Path + ": the kubelet takes a runtime at such a path for CRI-O and reads statistics another way",
			Change: "let the proxy listen at another path than …/" + crioSuffix}}
	case s.Path == f.Runtime.Socket.Path:
		return []Line{{Check: check, Level: Fix, Found: s.Path + " is the runtime's own socket", Change: "let the proxy listen at another path"}}
	case s.Error != "":
		return []Line{{Check: check, Level: Fix, Found: s.Error, Change: "run this as root on the node"}}
	case !s.Exists:
		return []Line{{Check: check, Level: Fix, Found: s.Path + " is not there: no proxy runs", Change: "systemctl start tideline-runtime-proxy"}}
	case !s.IsSocket:
		return []Line{{Check: check, Level: Fix, Found: s.Path + " is no socket", Change: "remove it, then systemctl restart tideline-runtime-proxy"}}
	case s.Mode.Perm()&0o002 != 0:
		return []Line{{Check: check, Level: Fix, Found: fmt.Sprintf("%s has mode %04o: every user of the node may start privileged containers", s.Path, s.Mode.Perm()), Change: "chmod 0660 " + s.Path}}
	case !f.Door:
		return []Line{{Check: check, Level: Degraded, Found: s.Path + " is there, but no door answers on the control socket", Change: "systemctl status tideline-runtime-proxy, or name its socket with --control"}}
	}
	return []Line{ok(check, "%s, mode %04o, a door answers", s.Path, s.Mode.Perm())}
}

func checkNRI(f Facts) Line {
	const check = "nri plugin"
	n := f.NRI
	switch {
	case !f.Door:
		return Line{Check: check, Level: Fix, Found: "no plugin runs", Change: "systemctl start tideline-nri-plugin, or tideline install --door nri"}
	case !n.Connected:
		return Line{Check: check, Level: Fix, Found: "not connected: " + n.Error, Change: "does the runtime run, with NRI enabled? tideline install --door nri --dry-run says what enables it"}
	case !n.Updates:
		return Line{Check: check, Level: Degraded, Found: fmt.Sprintf("%s has NRI %s, which can deadlock with updates outside of its hooks: disable puts files back and leaves what the runtime stores", n.Runtime, n.Version),
			Change: "run a containerd with NRI 0.12.1 or later (2.4)"}
	}
	return ok(check, "connected to %s with NRI %s, which drops a plugin after %s", n.Runtime, n.Version, n.RequestTimeout)
}

func checkAgents(f Facts) Line {
	const check = "other QoS agents"
	if len(f.Agents) == 0 {
		return ok(check, "none")
	}
	return Line{Check: check, Level: Fix, Found: strings.Join(f.Agents, ", ") + ": two writers of one cgroup file undo each other, so the door only observes here",
		Change: "remove from this node what you don't want, then restart tideline-runtime-proxy"}
}

func checkOOM(f Facts) Line {
	const check = "oom_score_adj"
	switch {
	case f.OOM == nil:
		return ok(check, "not known whether the runtime may lower it")
	case !*f.OOM:
		return Line{Check: check, Level: Degraded, Found: f.OOMOf + " lacks CAP_SYS_RESOURCE: Guaranteed pods can't get -997, and pods fail to start unless the runtime knows",
			Change: "restrict_oom_score_adj = true in containerd's CRI plugin, or give the runtime CAP_SYS_RESOURCE"}
	}
	return ok(check, "%s may lower it", f.OOMOf)
}

func checkJournal(f Facts) Line {
	const check = "journal"
	switch {
	case f.Journal == 0:
		return ok(check, "empty: no kernel value of ours stands here")
	case f.Door:
		return ok(check, "%d cgroups with values that disable would put back", f.Journal)
	}
	return Line{Check: check, Level: Fix, Found: fmt.Sprintf("%d cgroups in %s hold values of ours and no door runs", f.Journal, f.JournalAt),
		Change: "systemctl start tideline-runtime-proxy; then tideline disable, if they should go"}
}
