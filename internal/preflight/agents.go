package preflight

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// agents names the programs that write pods' cgroups too, by the name of the executable.
func agents() map[string]string {
	return map[string]string{
		"koordlet":                           "koordlet (Koordinator)",
		"koord-runtime-proxy":                "koord-runtime-proxy (Koordinator)",
		"katalyst-agent":                     "katalyst-agent (Katalyst)",
		"vc-agent":                           "vc-agent (Volcano)",
		"volcano-agent":                      "volcano-agent (Volcano)",
		"crane-agent":                        "crane-agent (Crane)",
		"cri-resmgr":                         "cri-resmgr (CRI Resource Manager)",
		"cri-resource-manager":               "cri-resource-manager (CRI Resource Manager)",
		"nri-resource-policy-balloons":       "nri-resource-policy-balloons (nri-plugins)",
		"nri-resource-policy-topology-aware": "nri-resource-policy-topology-aware (nri-plugins)",
		"nri-resource-policy-template":       "nri-resource-policy-template (nri-plugins)",
		"nri-memory-qos":                     "nri-memory-qos (nri-plugins)",
	}
}

// OtherAgents tells which other QoS agents run, by process name, sorted; procRoot is where procfs is mounted ("/proc").
// Such an agent writes the files that we write, so a door only observes beside it. What can't be read is not told.
func OtherAgents(procRoot string) []string {
	known := agents()
	var found []string
	for _, p := range processes(procRoot) {
		if label, ok := known[p.name()]; ok && !slices.Contains(found, label) {
			found = append(found, label)
		}
	}
	slices.Sort(found)
	return found
}

// process is one entry of procfs with a command line, so no kernel thread.
type process struct {
	dir  string
	pid  int
	args []string
}

// name is the program as it was called: comm holds 15 bytes only, and threads may change it.
func (p process) name() string { return path.Base(p.args[0]) }

// maxCmdline is above what a kubelet is called with. Others may have megabytes.
const maxCmdline = 32 << 10

// processes lists what runs, by PID. A process that ends meanwhile is left out.
func processes(procRoot string) []process {
	entries, err := os.ReadDir(procRoot)
	if err != nil {
		return nil
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(procRoot, e.Name())
		cmdline, err := readHead(filepath.Join(dir, "cmdline"), maxCmdline)
		if err != nil {
			continue
		}
		cmdline = bytes.TrimRight(cmdline, "\x00")
		if len(cmdline) == 0 {
			continue
		}
		args := strings.Split(string(cmdline), "\x00")
		if args[0] == "" {
			continue
		}
		out = append(out, process{dir: dir, pid: pid, args: args})
	}
	slices.SortFunc(out, func(a, b process) int { return a.pid - b.pid })
	return out
}

// mayLowerOOM tells whether the runtime, else the first process, holds CAP_SYS_RESOURCE:
//
//	CapEff:	000001ffffffffff
func mayLowerOOM(all []process) (*bool, string) {
	const sysResource = 24
	pick := -1
	for i, p := range all {
		if p.name() == "containerd" || p.pid == 1 && pick < 0 {
			pick = i
		}
	}
	if pick < 0 {
		return nil, ""
	}
	p := all[pick]
	field, who := "CapEff:", "containerd"
	if p.name() != "containerd" {
		field, who = "CapBnd:", "process 1"
	}
	data, err := os.ReadFile(filepath.Join(p.dir, "status"))
	if err != nil {
		return nil, ""
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		if v, ok := strings.CutPrefix(line, field); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			if err != nil {
				return nil, ""
			}
			may := caps>>sysResource&1 == 1
			return &may, who
		}
	}
	return nil, ""
}
