package preflight_test

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/preflight"
)

// good is a node where every line is ok.
func good() preflight.Facts {
	features := map[policy.Knob]policy.Feature{}
	for _, k := range policy.Knobs() {
		features[k] = policy.Feature{Support: policy.Supported}
	}
	f := preflight.Facts{
		Machine: hostfs.Facts{
			Kernel: "6.1.0-57-amd64", PSI: true, CPUs: []hostfs.CPU{{ID: 0, Siblings: cpuset.New(0, 2)}},
			Node: policy.Node{CgroupVersion: 2, Online: cpuset.New(0, 1, 2, 3), Features: features},
		},
		Runtime: preflight.Runtime{
			Socket: preflight.Socket{Endpoint: "unix:///run/containerd/containerd.sock", Path: "/run/containerd/containerd.sock", Exists: true, IsSocket: true, Mode: fs.ModeSocket | 0o660},
			Asked:  true, Name: "containerd", Version: "2.4.2", CgroupDriver: "systemd",
		},
		Proxy: preflight.Socket{Endpoint: "unix:///run/tideline/cri.sock", Path: "/run/tideline/cri.sock", Exists: true, IsSocket: true, Mode: fs.ModeSocket | 0o660},
		Door:  true, OOM: new(true), OOMOf: "containerd", JournalAt: "/run/tideline/journal",
		Policy: preflight.Policy{Source: "built in"},
	}
	f.Kubelet.Path = preflight.DefaultKubeletConfig
	f.Kubelet.Config.ContainerRuntimeEndpoint = "unix:///run/tideline/cri.sock"
	return f
}

func TestCheckGood(t *testing.T) {
	t.Parallel()
	for _, l := range preflight.Check(good()) {
		if l.Level != preflight.OK || l.Change != "" {
			t.Errorf("%s: %s %q %q, want ok", l.Check, l.Level, l.Found, l.Change)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	const file = "/var/lib/kubelet/config.yaml"
	for _, tc := range []struct {
		name   string
		change func(*preflight.Facts)
		want   []preflight.Line // that are not ok
	}{
		{"old kernel", func(f *preflight.Facts) { f.Machine.Kernel = "5.10.0-9" }, []preflight.Line{
			{Check: "kernel", Level: preflight.Degraded, Found: "5.10.0-9, and cpu.max.burst needs 5.14, cpu.idle 5.15", Change: "run Linux 5.15 or later"}}},
		{"older kernel", func(f *preflight.Facts) { f.Machine.Kernel = "5.4" }, []preflight.Line{
			{Check: "kernel", Level: preflight.Degraded, Found: "5.4, and reclaim at memory.high may livelock before 5.9",
				Change: "run Linux 5.15 or later; until then set tiers.BE.memory.high: 100% in the policy"}}},
		{"odd kernel", func(f *preflight.Facts) { f.Machine.Kernel = "x" }, []preflight.Line{
			{Check: "kernel", Level: preflight.Degraded, Found: `release "x" can't be read as a version`, Change: "compare the knob lines below"}}},
		{"cgroup v1", func(f *preflight.Facts) { f.Machine.Node.CgroupVersion = 1 }, []preflight.Line{
			{Check: "cgroup version", Level: preflight.Degraded, Found: "1: memory.low and memory.high are missing, and Kubernetes is about to drop it", Change: "boot with systemd.unified_cgroup_hierarchy=1"},
			{Check: "kubelet failCgroupV1", Level: preflight.Fix, Found: "true, by default: a kubelet from 1.35 on does not start on cgroup v1", Change: "set failCgroupV1: false in " + file + ", restart the kubelet"}}},
		{"cgroup v1 allowed", func(f *preflight.Facts) {
			f.Machine.Node.CgroupVersion, f.Kubelet.Config.FailCgroupV1 = 1, new(false)
		}, []preflight.Line{
			{Check: "cgroup version", Level: preflight.Degraded, Found: "1: memory.low and memory.high are missing, and Kubernetes is about to drop it", Change: "boot with systemd.unified_cgroup_hierarchy=1"}}},
		{"PSI off", func(f *preflight.Facts) { f.Machine.PSI = false }, []preflight.Line{
			{Check: "pressure (PSI)", Level: preflight.Degraded, Found: "off: pressure of CPU, memory and disk can't be seen", Change: "boot with psi=1 (needs CONFIG_PSI)"}}},
		{"knobs", func(f *preflight.Facts) {
			f.Machine.Node.Features = map[policy.Knob]policy.Feature{
				policy.CPUIdle:  {Support: policy.Unsupported, Need: "Linux 5.15"},
				policy.IOWeight: {Support: policy.Supported, Inert: "no disk uses bfq or iocost"},
			}
		}, []preflight.Line{
			{Check: "knob cpu.idle", Level: preflight.Degraded, Found: "missing here", Change: "needs Linux 5.15"},
			{Check: "knob io.weight", Level: preflight.Degraded, Found: "can be written, without effect: no disk uses bfq or iocost"}}},
		{"runtime away", func(f *preflight.Facts) { f.Runtime.Socket.Exists = false }, []preflight.Line{
			{Check: "runtime socket", Level: preflight.Fix, Found: "/run/containerd/containerd.sock is not there", Change: "start the runtime, or name its socket with --runtime-endpoint"}}},
		{"runtime silent", func(f *preflight.Facts) { f.Runtime.Error = "it does not answer CRI: x" }, []preflight.Line{
			{Check: "runtime", Level: preflight.Fix, Found: "it does not answer CRI: x", Change: "see that the runtime runs and serves CRI at unix:///run/containerd/containerd.sock"}}},
		{"runtime socket open to all", func(f *preflight.Facts) { f.Runtime.Socket.Mode |= 0o666 }, []preflight.Line{
			{Check: "runtime socket", Level: preflight.Fix, Found: "/run/containerd/containerd.sock has mode 0666: every user of the node may start privileged containers",
				Change: "chmod 0660 /run/containerd/containerd.sock, and look for what opened it"}}},
		{"runtime socket of a user", func(f *preflight.Facts) { f.Runtime.Socket.UID = 1000 }, []preflight.Line{
			{Check: "runtime socket", Level: preflight.Fix, Found: "/run/containerd/containerd.sock belongs to user 1000, who may start privileged containers", Change: "chown root /run/containerd/containerd.sock"}}},
		{"CRI-O", func(f *preflight.Facts) { f.Runtime.Socket.Path = "/run/crio/crio.sock" }, []preflight.Line{
			{Check: "runtime socket", Level: preflight.Fix, Found: "/run/crio/crio.sock is CRI-O's: behind a proxy the kubelet no longer sees that by the path and reads statistics another way",
				Change: "leave the kubelet at CRI-O; the proxy supports containerd"}}},
		{"proxy at CRI-O's path", func(f *preflight.Facts) {
			f.Proxy.Path, f.Kubelet.Config.ContainerRuntimeEndpoint = "/run/tideline/run/crio/crio.sock", "/run/tideline/run/crio/crio.sock"
		}, []preflight.Line{
			{Check: "proxy socket", Level: preflight.Fix, Found: "/run/tideline/run/crio/crio.sock: the kubelet takes a runtime at such a path for CRI-O and reads statistics another way",
				Change: "let the proxy listen at another path than …/run/crio/crio.sock"}}},
		{"no proxy", func(f *preflight.Facts) { f.Proxy.Exists, f.Door = false, false }, []preflight.Line{
			{Check: "proxy socket", Level: preflight.Fix, Found: "/run/tideline/cri.sock is not there: no proxy runs", Change: "systemctl start tideline-runtime-proxy"}}},
		{"plugin", func(f *preflight.Facts) {
			f.NRI = &preflight.NRI{Connected: true, Runtime: "containerd 2.4.2", Version: "v0.12.3", RequestTimeout: "2s", Updates: true}
			f.Proxy.Exists, f.Kubelet.Config.ContainerRuntimeEndpoint = false, ""
		}, nil},
		{"plugin and a kubelet that looks for the proxy", func(f *preflight.Facts) {
			f.NRI = &preflight.NRI{Connected: true, Runtime: "containerd 2.4.2", Version: "v0.12.3", RequestTimeout: "2s", Updates: true}
		}, []preflight.Line{{Check: "kubelet containerRuntimeEndpoint", Level: preflight.Fix,
			Found:  "unix:///run/tideline/cri.sock, by default: the proxy's socket, and the plugin is the door",
			Change: "set containerRuntimeEndpoint: unix:///run/containerd/containerd.sock in " + file + ", restart the kubelet"}}},
		{"plugin in an old runtime", func(f *preflight.Facts) {
			f.NRI = &preflight.NRI{Connected: true, Runtime: "containerd 2.1.0", Version: "v0.8.0", RequestTimeout: "2s"}
			f.Kubelet.Config.ContainerRuntimeEndpoint = ""
		}, []preflight.Line{{Check: "nri plugin", Level: preflight.Degraded,
			Found:  "containerd 2.1.0 has NRI v0.8.0, which can deadlock with updates outside of its hooks: disable puts files back and leaves what the runtime stores",
			Change: "run a containerd with NRI 0.12.1 or later (2.4)"}}},
		{"plugin without a runtime", func(f *preflight.Facts) {
			f.NRI = &preflight.NRI{Error: "connect to NRI: no such file"}
			f.Kubelet.Config.ContainerRuntimeEndpoint = ""
		}, []preflight.Line{{Check: "nri plugin", Level: preflight.Fix, Found: "not connected: connect to NRI: no such file",
			Change: "does the runtime run, with NRI enabled? tideline install --door nri --dry-run says what enables it"}}},
		{"no plugin", func(f *preflight.Facts) {
			f.NRI, f.Door, f.Kubelet.Config.ContainerRuntimeEndpoint = &preflight.NRI{}, false, ""
		}, []preflight.Line{{Check: "nri plugin", Level: preflight.Fix, Found: "no plugin runs", Change: "systemctl start tideline-nri-plugin, or tideline install --door nri"}}},
		{"proxy without its control socket", func(f *preflight.Facts) { f.Door = false }, []preflight.Line{
			{Check: "proxy socket", Level: preflight.Degraded, Found: "/run/tideline/cri.sock is there, but no door answers on the control socket",
				Change: "systemctl status tideline-runtime-proxy, or name its socket with --control"}}},
		{"kubelet talks past the proxy", func(f *preflight.Facts) { f.Kubelet.Config.ContainerRuntimeEndpoint = "" }, []preflight.Line{
			{Check: "kubelet containerRuntimeEndpoint", Level: preflight.Fix, Found: "unix:///run/containerd/containerd.sock, by default: the kubelet does not talk to the proxy",
				Change: "set containerRuntimeEndpoint: unix:///run/tideline/cri.sock in " + file + ", restart the kubelet"}}},
		{"kubelet managers", func(f *preflight.Facts) {
			f.Kubelet.Config.CPUManagerPolicy, f.Kubelet.Config.MemoryManagerPolicy, f.Kubelet.Config.TopologyManagerPolicy = "static", "Static", "restricted"
		}, []preflight.Line{
			{Check: "kubelet cpuManagerPolicy", Level: preflight.Degraded, Found: "static, by default: the kubelet pins Guaranteed pods, so their cpusets stay its own; no pod has CPUs of its own",
				Change: "set cpuManagerPolicy: none in " + file + ", remove cpu_manager_state from the kubelet's root folder, restart the kubelet"},
			{Check: "kubelet memoryManagerPolicy", Level: preflight.Degraded, Found: "Static, by default: the kubelet binds Guaranteed pods to memory nodes, so their cpusets stay its own",
				Change: "set memoryManagerPolicy: None in " + file + ", remove memory_manager_state from the kubelet's root folder, restart the kubelet"},
			{Check: "kubelet topologyManagerPolicy", Level: preflight.Degraded, Found: "restricted, by default: the kubelet may refuse pods by a topology that the tiers do not know",
				Change: "set topologyManagerPolicy: none in " + file + ", restart the kubelet"}}},
		{"kubelet memory QoS", func(f *preflight.Facts) {
			f.Kubelet.Config.MemoryReservationPolicy, f.Kubelet.Config.MemoryThrottlingFactor = "TieredReservation", new(0.9)
		}, []preflight.Line{
			{Check: "kubelet memoryReservationPolicy", Level: preflight.Degraded, Found: "TieredReservation, by default: the kubelet protects memory, and we stay within its sums",
				Change: "set memoryReservationPolicy: None in " + file + ", restart the kubelet"},
			{Check: "kubelet memoryThrottlingFactor", Level: preflight.Degraded, Found: "0.9, by default: the kubelet sets memory.high of Burstable and BestEffort containers",
				Change: "take memoryThrottlingFactor from /var/lib/kubelet/config.yaml, restart the kubelet"}}},
		{"kubelet memory QoS gated off", func(f *preflight.Facts) {
			f.Kubelet.Config.MemoryThrottlingFactor, f.Kubelet.Config.FeatureGates = new(0.9), map[string]bool{"MemoryQoS": false}
		}, nil},
		{"no pod cgroups", func(f *preflight.Facts) { f.Kubelet.Config.CgroupsPerQOS = new(false) }, []preflight.Line{
			{Check: "kubelet cgroupsPerQOS", Level: preflight.Fix, Found: "false, by default: pods have no cgroups of their own", Change: "set cgroupsPerQOS: true in " + file + ", restart the kubelet"}}},
		{"kubelet unknown", func(f *preflight.Facts) { f.Kubelet = preflight.Kubelet{Error: "open x: no such file"} }, []preflight.Line{
			{Check: "kubelet", Level: preflight.Degraded, Found: "configuration not read: open x: no such file", Change: "name the file with --kubelet-config"}}},
		{"another agent", func(f *preflight.Facts) { f.Agents = []string{"koordlet (Koordinator)"} }, []preflight.Line{
			{Check: "other QoS agents", Level: preflight.Fix, Found: "koordlet (Koordinator): two writers of one cgroup file undo each other, so the door only observes here",
				Change: "remove from this node what you don't want, then restart tideline-runtime-proxy"}}},
		{"no CAP_SYS_RESOURCE", func(f *preflight.Facts) { f.OOM = new(false) }, []preflight.Line{
			{Check: "oom_score_adj", Level: preflight.Degraded, Found: "containerd lacks CAP_SYS_RESOURCE: Guaranteed pods can't get -997, and pods fail to start unless the runtime knows",
				Change: "restrict_oom_score_adj = true in containerd's CRI plugin, or give the runtime CAP_SYS_RESOURCE"}}},
		{"journal in use", func(f *preflight.Facts) { f.Journal = 3 }, nil},
		{"leftover journal", func(f *preflight.Facts) { f.Journal, f.Door, f.Proxy.Exists = 3, false, false }, []preflight.Line{
			{Check: "proxy socket", Level: preflight.Fix, Found: "/run/tideline/cri.sock is not there: no proxy runs", Change: "systemctl start tideline-runtime-proxy"},
			{Check: "journal", Level: preflight.Fix, Found: "3 cgroups in /run/tideline/journal hold values of ours and no door runs",
				Change: "systemctl start tideline-runtime-proxy; then tideline disable, if they should go"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := good()
			tc.change(&f)
			lines := preflight.Check(f)
			var got []preflight.Line
			fix := false
			for _, l := range lines {
				if l.Level != preflight.OK {
					got = append(got, l)
				}
				fix = fix || l.Level == preflight.Fix
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("lines that are not ok (-want +got):\n%s", diff)
			}
			if preflight.NeedsFix(lines) != fix {
				t.Errorf("NeedsFix = %v, want %v", !fix, fix)
			}
		})
	}
}

func line(t *testing.T, f preflight.Facts, check string) preflight.Line {
	t.Helper()
	for _, l := range preflight.Check(f) {
		if l.Check == check {
			return l
		}
	}
	t.Fatalf("no line %q", check)
	return preflight.Line{}
}

func TestCheckHost(t *testing.T) {
	t.Parallel()
	many := preflight.HostProcesses{Count: 7, Names: []string{"sshd"}}
	for i := range 7 {
		many.Groups = append(many.Groups, preflight.HostGroup{Cgroup: fmt.Sprintf("/%d\x1b[31m%s", i, strings.Repeat("x", 99)), CPUs: "0-3", Count: 1})
	}
	services := preflight.HostProcesses{Count: 7, Names: []string{"sshd"}, Groups: []preflight.HostGroup{
		{Cgroup: "/", CPUs: "", Count: 1}, {Cgroup: "/init.scope", CPUs: "0,2", Count: 1},
		{Cgroup: "/system.slice", CPUs: "0,2", Count: 2}, {Cgroup: "/system.slice", CPUs: "0-3", Count: 3},
	}}
	const head = "7 outside kubepods (sshd); they are never moved"
	for _, tc := range []struct {
		name             string
		online           int
		version          int
		policy, reserved string
		host             preflight.HostProcesses
		want             string
		more             []string
	}{
		{"advice", 4, 2, "", "", services, head + `; 6 may run on CPUs of the pools. Where LSE pods are to have their cores alone, set spec.reservedCPUs: "0,2" in the policy and ` +
			`keep these off the others, as by systemctl set-property system.slice AllowedCPUs=0,2`,
			[]string{"/system.slice: 5 processes on CPUs 0-3", "/ (in no cgroup): 1 process, CPUs not known", "/init.scope: 1 process on CPUs 0,2"}},
		{"reserved", 4, 2, "0,2", "", services, head + `; 3 may run on CPUs of the pools. Where LSE pods are to have their cores alone, ` +
			`keep these off the others, as by systemctl set-property system.slice AllowedCPUs=0,2`,
			[]string{"/system.slice: 5 processes on CPUs 0-3, 3 of them in the pools", "/ (in no cgroup): 1 process, CPUs not known", "/init.scope: 1 process on CPUs 0,2, outside the pools"}},
		{"all off the pools", 4, 2, "0-3", "", services, head,
			[]string{"/system.slice: 5 processes on CPUs 0-3, outside the pools", "/ (in no cgroup): 1 process, CPUs not known", "/init.scope: 1 process on CPUs 0,2, outside the pools"}},
		{"few CPUs", 2, 2, "", "", preflight.HostProcesses{Count: 7, Names: []string{"sshd"}, Groups: services.Groups[2:3]},
			head + "; 2 may run on CPUs of the pools, and 2 CPUs are too few to reserve one", []string{"/system.slice: 2 processes on CPUs 0,2"}},
		{"as the kubelet, on v1", 4, 1, "", "0-1", preflight.HostProcesses{Count: 7, Names: []string{"sshd"}, Groups: services.Groups[2:3]},
			head + `; 2 may run on CPUs of the pools. Where LSE pods are to have their cores alone, set spec.reservedCPUs: "0-1" in the policy and CPUAffinity=0-1 in the systemd units of these, but for the runtime's`,
			[]string{"/system.slice: 2 processes on CPUs 0,2"}},
		{"many cgroups with names that nobody should see", 2, 2, "0-1", "", many, head, []string{"", "", "", "", "", "and 2 more cgroups, see /proc/PID/cgroup"}},
		{"CPUs unknown", 0, 2, "", "", services, head, nil},
		{"nothing", 4, 2, "", "", preflight.HostProcesses{}, "none seen outside kubepods", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := good()
			f.Host, f.Machine.Node.CgroupVersion = tc.host, tc.version
			f.Machine.Node.Online = cpuset.New()
			for i := range tc.online {
				f.Machine.Node.Online = f.Machine.Node.Online.Union(cpuset.New(i))
			}
			f.Policy.Reserved, _ = cpuset.Parse(tc.policy)
			f.Kubelet.Config.ReservedSystemCPUs = tc.reserved
			l := line(t, f, "host processes")
			if l.Found != tc.want || l.Level != preflight.OK {
				t.Errorf("found %s %q, want %q", l.Level, l.Found, tc.want)
			}
			for i, more := range l.More {
				if len(more) > 120 || strings.Contains(more, "\x1b") {
					t.Errorf("a name is not clipped: %q", more)
				}
				if i < len(tc.more) && tc.more[i] == "" {
					l.More[i] = ""
				}
			}
			if diff := cmp.Diff(tc.more, l.More); diff != "" {
				t.Errorf("more (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckReserved(t *testing.T) {
	t.Parallel()
	const file = "/var/lib/kubelet/config.yaml"
	for _, tc := range []struct {
		name, policy, kubelet, manager string
		change                         func(*preflight.Facts)
		want                           preflight.Line
	}{
		{"none", "", "", "none", nil, preflight.Line{Level: preflight.OK, Found: "none by the policy (built in), none by the kubelet's reservedSystemCPUs (default)"}},
		{"agreed", "0-1", "0,1", "static", nil, preflight.Line{Level: preflight.OK, Found: "0-1 by the policy (built in), 0-1 by the kubelet's reservedSystemCPUs (default)"}},
		{"agreed but for an offline CPU", "0-1,9", "0-1", "static", nil, preflight.Line{Level: preflight.OK, Found: "0-1,9 by the policy (built in), 0-1 by the kubelet's reservedSystemCPUs (default)"}},
		{"the policy's alone, and nobody pins", "0-1", "", "none", nil, preflight.Line{Level: preflight.OK, Found: "0-1 by the policy (built in), none by the kubelet's reservedSystemCPUs (default); it pins no pods, so that will do"}},
		{"the policy's alone", "0-1", "", "static", nil, preflight.Line{Level: preflight.Degraded,
			Found:  "0-1 by the policy (built in), none by the kubelet's reservedSystemCPUs (default); the kubelet may give CPUs 0-1 to pods",
			Change: `set reservedSystemCPUs: "0-1" in ` + file + ", restart the kubelet"}},
		{"the policy's alone, and given away", "0-1", "", "static", func(f *preflight.Facts) { f.Kubelet.Manager.State.Exclusive = cpuset.New(1) }, preflight.Line{Level: preflight.Degraded,
			Found:  "0-1 by the policy (built in), none by the kubelet's reservedSystemCPUs (default); the kubelet may give CPUs 0-1 to pods",
			Change: `set reservedSystemCPUs: "0-1" in ` + file + ", drain the node, remove cpu_manager_state from the kubelet's root folder, restart the kubelet"}},
		{"the kubelet's alone", "", "0-1", "none", nil, preflight.Line{Level: preflight.Degraded,
			Found: "none by the policy (built in), 0-1 by the kubelet's reservedSystemCPUs (default); a plugin that runs as a pod knows those of the policy alone, so pods run on CPUs 0-1 there", Change: `set spec.reservedCPUs: "0-1" in the policy`}},
		{"each another", "0,9", "1", "static", nil, preflight.Line{Level: preflight.Degraded,
			Found:  "0,9 by the policy (built in), 1 by the kubelet's reservedSystemCPUs (default); a plugin that runs as a pod knows those of the policy alone, so pods run on CPUs 1 there; the kubelet may give CPUs 0 to pods",
			Change: `set spec.reservedCPUs: "0-1,9" in the policy; set reservedSystemCPUs: "0-1" in ` + file + ", restart the kubelet"}},
		{"no list", "0", "x", "none", nil, preflight.Line{Level: preflight.Degraded,
			Found:  `reservedSystemCPUs of the kubelet, by default: parse "x": want a CPU list such as 0-3,8 with numbers up to 8191`,
			Change: `set reservedSystemCPUs: "0" in ` + file + ", restart the kubelet"}},
		{"no policy", "", "", "none", func(f *preflight.Facts) { f.Policy.Error = "read policy: x" }, preflight.Line{Level: preflight.Degraded,
			Found: "not known: read policy: x", Change: "repair the policy, or name its file with --policy"}},
		{"no kubelet", "0", "", "none", func(f *preflight.Facts) { f.Kubelet.Error = "x" }, preflight.Line{Level: preflight.OK, Found: "0 by the policy (built in); the kubelet's are not known"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := good()
			f.Policy.Reserved, _ = cpuset.Parse(tc.policy)
			f.Kubelet.Config.ReservedSystemCPUs, f.Kubelet.Config.CPUManagerPolicy = tc.kubelet, tc.manager
			if tc.change != nil {
				tc.change(&f)
			}
			tc.want.Check = "reserved CPUs"
			if diff := cmp.Diff(tc.want, line(t, f, tc.want.Check)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckCPUManager(t *testing.T) {
	t.Parallel()
	const change = "set cpuManagerPolicy: none in /var/lib/kubelet/config.yaml, remove cpu_manager_state from the kubelet's root folder, restart the kubelet"
	const pins = "static, by default: the kubelet pins Guaranteed pods, so their cpusets stay its own"
	const at = "/var/lib/kubelet/cpu_manager_state"
	for _, tc := range []struct {
		name, policy string
		manager      preflight.CPUManager
		options      map[string]string
		want         preflight.Line
	}{
		{"none", "", preflight.CPUManager{Path: at, Exists: true, State: preflight.CPUState{Policy: "none"}}, nil, preflight.Line{Level: preflight.OK, Found: "none, by default"}},
		{"gave away", "static", preflight.CPUManager{Path: at, Exists: true, State: preflight.CPUState{Policy: "static", Exclusive: cpuset.New(1, 2, 3), Pods: 2}},
			map[string]string{"strict-cpu-reservation": "true", "full-pcpus-only": "true", "align-by-socket": "false"},
			preflight.Line{Level: preflight.Degraded, Found: strings.Replace(pins, "static", "static (full-pcpus-only, strict-cpu-reservation)", 1) + "; CPUs 1-3 are given to 2 pods, and we put no other container there", Change: change}},
		{"gave none away", "static", preflight.CPUManager{Path: at}, nil, preflight.Line{Level: preflight.Degraded, Found: pins + "; no pod has CPUs of its own", Change: change}},
		{"not known", "static", preflight.CPUManager{Path: at, Exists: true, Error: at + ": no regular file"}, nil,
			preflight.Line{Level: preflight.Degraded, Found: pins + "; which CPUs it gave to them is not known: " + at + ": no regular file", Change: change}},
		{"changed without the state", "none", preflight.CPUManager{Path: at, Exists: true, State: preflight.CPUState{Policy: "static"}}, nil,
			preflight.Line{Level: preflight.Degraded, Found: "none, by default, and " + at + ` is of policy "static": the kubelet exits over that when it starts`, Change: "drain the node, remove " + at + ", restart the kubelet"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := good()
			f.Kubelet.Config.CPUManagerPolicy, f.Kubelet.Config.CPUManagerPolicyOptions, f.Kubelet.Manager = tc.policy, tc.options, tc.manager
			tc.want.Check = "kubelet cpuManagerPolicy"
			if diff := cmp.Diff(tc.want, line(t, f, tc.want.Check)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// node makes a fake root. Processes are PID -> command line, "@kubepods" at the end puts one in a pod.
func node(t *testing.T, files, processes map[string]string) string {
	t.Helper()
	root := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		write(name, text)
	}
	for pid, cmd := range processes {
		cmd, pod := strings.CutSuffix(cmd, " @kubepods")
		dir := "proc/" + pid + "/"
		cgroup := "0::/system.slice/x.service\n"
		if pod {
			cgroup = "0::/kubepods.slice/kubepods-burstable.slice/x\n"
		}
		write(dir+"cgroup", cgroup)
		if cmd == "" { // a kernel thread
			write(dir+"cmdline", "")
			continue
		}
		write(dir+"cmdline", strings.ReplaceAll(cmd, " ", "\x00")+"\x00")
		name := filepath.Base(strings.Fields(cmd)[0])
		write(dir+"comm", name[:min(len(name), 15)]+"\n")
		write(dir+"status", "Name:\tx\nCapEff:\t000001fffeffffff\nCapBnd:\t000001ffffffffff\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3\n")
	}
	return root
}

func TestOtherAgents(t *testing.T) {
	t.Parallel()
	root := node(t, nil, map[string]string{
		"1": "/sbin/init", "2": "", "10": "/koordlet -v=4 @kubepods", "11": "/usr/bin/koord-runtime-proxy", "12": "/usr/local/bin/koordlet @kubepods",
		"13": "/bin/nri-resource-policy-topology-aware --nri-plugin-index 90 @kubepods", "14": "grep koordlet", "15": "tail -f katalyst-agent",
	})
	want := []string{"koord-runtime-proxy (Koordinator)", "koordlet (Koordinator)", "nri-resource-policy-topology-aware (nri-plugins)"}
	if diff := cmp.Diff(want, preflight.OtherAgents(filepath.Join(root, "proc"))); diff != "" {
		t.Errorf("OtherAgents (-want +got):\n%s", diff)
	}
	if got := preflight.OtherAgents(filepath.Join(root, "nothing")); got != nil {
		t.Errorf("without procfs: %v, want none", got)
	}
}

func TestGather(t *testing.T) {
	t.Parallel()
	root := node(t, map[string]string{
		"var/lib/kubelet/config.yaml":    "kind: KubeletConfiguration\ncgroupDriver: systemd\ncpuManagerPolicy: none\ncontainerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n",
		"etc/kubelet.d/20-b.conf":        "kind: KubeletConfiguration\ncpuManagerPolicy: static\nfailCgroupV1: true\n",
		"etc/kubelet.d/10-a.conf":        "kind: KubeletConfiguration\ncpuManagerPolicy: none\n",
		"etc/kubelet.d/30.yaml":          "kind: KubeletConfiguration\ncpuManagerPolicy: ignored\n",
		"data/kubelet/cpu_manager_state": `{"policyName":"static","defaultCpuSet":"0-1","entries":{"uid":{"app":"2-3"}},"checksum":1}`,
		"run/tideline/journal/a.json":    "{}", "run/tideline/journal/a.json.tmp": "{}",
	}, map[string]string{
		"1": "/sbin/init", "2": "", "20": "/usr/sbin/sshd -D", "21": "/usr/sbin/sshd -D", "22": "/usr/bin/containerd", "30": "/app @kubepods",
		"24": "/tmp/kubelet --config=/dev/zero --root-dir=/dev @kubepods",
		"23": "/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --config-dir /etc/kubelet.d --root-dir=/data/kubelet --cpu-manager-policy-options full-pcpus-only=true --cpu-manager-policy-options=x=0 --fail-cgroupv1=false --container-runtime-endpoint=unix:///var/run/tideline/cri.sock",
	})
	f := preflight.Gather(preflight.Config{Root: root, RuntimeEndpoint: "unix:///run/containerd/containerd.sock", ProxyEndpoint: "unix:///run/tideline/cri.sock", JournalDir: "/run/tideline/journal"})
	if f.Kubelet.Error != "" {
		t.Fatal(f.Kubelet.Error)
	}
	wantConfig := preflight.KubeletConfig{CgroupDriver: "systemd", CPUManagerPolicy: "static", CPUManagerPolicyOptions: map[string]string{"full-pcpus-only": "true", "x": "0"}, FailCgroupV1: new(false), ContainerRuntimeEndpoint: "unix:///var/run/tideline/cri.sock"}
	if diff := cmp.Diff(wantConfig, f.Kubelet.Config); diff != "" {
		t.Errorf("kubelet (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(preflight.HostProcesses{Count: 5, Names: []string{"sshd (2)", "containerd", "init", "kubelet"}, Groups: []preflight.HostGroup{{Cgroup: "/system.slice", CPUs: "0-3", Count: 5}}}, f.Host); diff != "" {
		t.Errorf("host processes (-want +got):\n%s", diff)
	}
	if f.OOM == nil || *f.OOM || f.OOMOf != "containerd" {
		t.Errorf("OOM = %v of %q, want false of containerd", f.OOM, f.OOMOf)
	}
	if f.Journal != 1 {
		t.Errorf("Journal = %d, want 1", f.Journal)
	}
	byCheck := map[string]preflight.Line{}
	for _, l := range preflight.Check(f) {
		byCheck[l.Check] = l
	}
	for _, want := range []preflight.Line{
		{Check: "kubelet cpuManagerPolicy", Level: preflight.Degraded, Found: "static (full-pcpus-only), by /etc/kubelet.d/20-b.conf: the kubelet pins Guaranteed pods, so their cpusets stay its own; CPUs 2-3 are given to 1 pod, and we put no other container there",
			Change: "set cpuManagerPolicy: none in /etc/kubelet.d/20-b.conf, remove cpu_manager_state from the kubelet's root folder, restart the kubelet"},
		{Check: "kubelet containerRuntimeEndpoint", Level: preflight.OK, Found: "unix:///var/run/tideline/cri.sock, by flag --container-runtime-endpoint"},
	} {
		if diff := cmp.Diff(want, byCheck[want.Check]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Check, diff)
		}
	}
}

func TestGatherFlagToChange(t *testing.T) {
	t.Parallel()
	root := node(t, map[string]string{"k.yaml": "kind: KubeletConfiguration\n"}, map[string]string{"1": "kubelet --config /k.yaml --container-runtime-endpoint unix:///run/containerd/containerd.sock"})
	f := preflight.Gather(preflight.Config{Root: root, ProxyEndpoint: "unix:///run/tideline/cri.sock"})
	const want = "take --container-runtime-endpoint from the kubelet's command line, set containerRuntimeEndpoint: unix:///run/tideline/cri.sock in /k.yaml, restart the kubelet"
	for _, l := range preflight.Check(f) {
		if l.Check == "kubelet containerRuntimeEndpoint" && l.Change != want {
			t.Errorf("change %q, want %q", l.Change, want)
		}
	}
}

func TestGatherBadKubeletConfig(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, text, want string }{
		{"other kind", "kind: Pod\n", "kind is Pod, not KubeletConfiguration"},
		{"not YAML", "a: [", "parse "},
		{"wrong type", "kind: KubeletConfiguration\nfailCgroupV1: maybe\n", "parse "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			root := node(t, map[string]string{"var/lib/kubelet/config.yaml": tc.text}, nil)
			if f := preflight.Gather(preflight.Config{Root: root}); !strings.Contains(f.Kubelet.Error, tc.want) {
				t.Errorf("error %q, want %q in it", f.Kubelet.Error, tc.want)
			}
		})
	}
}

func TestGatherSocket(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("", "tl") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	if err := os.Mkdir(filepath.Join(root, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(root, "run/c.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(filepath.Join(root, "run/c.sock"), 0o660); err != nil {
		t.Fatal(err)
	}
	f := preflight.Gather(preflight.Config{Root: root, RuntimeEndpoint: "unix:///run/c.sock", ProxyEndpoint: "tcp://x"})
	got := fmt.Sprint(f.Runtime.Socket.Exists, f.Runtime.Socket.IsSocket, f.Runtime.Socket.Mode, f.Proxy.Path)
	if want := "true true Srw-rw----"; got != want {
		t.Errorf("sockets %q, want %q", got, want)
	}
}

func TestSocketPath(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"unix:///run/a.sock": "/run/a.sock", "/run/a.sock": "/run/a.sock", "unix:///var/run/a.sock": "/run/a.sock",
		"tcp://1.2.3.4": "", "": "", "a.sock": "", "unix://a": "",
	} {
		if got := preflight.SocketPath(in); got != want {
			t.Errorf("SocketPath(%q) = %q, want %q", in, got, want)
		}
	}
}
