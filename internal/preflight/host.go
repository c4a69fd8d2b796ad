package preflight

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/internal/units"
)

// HostProcesses is what runs outside kubepods.
type HostProcesses struct {
	Count  int
	Names  []string    // the most frequent ones, "sshd" or "sshd (3)"
	Groups []HostGroup // by cgroup, then by CPUs
}

// HostGroup is processes of one top cgroup that may run on the same CPUs.
type HostGroup struct {
	Cgroup string // "/system.slice", "/" where they have none
	CPUs   string // a CPU list as the kernel gives it, "" where it can't be read
	Count  int
}

// inKubepods says whether a process is in a pod's cgroup in any hierarchy:
//
//	0::/kubepods.slice/kubepods-burstable.slice/…
//	5:memory:/kubepods/besteffort/pod1234/abcd
func (p process) inKubepods() bool {
	data, err := readHead(filepath.Join(p.dir, "cgroup"), maxFile)
	return err == nil && bytes.Contains(data, kubepods)
}

var kubepods = []byte("kubepods")

// comm is the short name, fit for a list; titles that programs write over their arguments ("sshd: user") are not.
func (p process) comm() string {
	data, err := readHead(filepath.Join(p.dir, "comm"), maxFile)
	if name := strings.TrimSpace(string(data)); err == nil && name != "" {
		return name
	}
	return p.name()
}

// topCgroup is the first component of a process's cgroup: in systemd's own hierarchy where there is one, since on v1 the
// controllers have all services in their root; else in the unified one or in that of cpu.
//
//	9:name=systemd:/system.slice/sshd.service
//	3:cpu,cpuacct:/
//	0::/system.slice/sshd.service
func topCgroup(text string) string {
	found := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		_, rest, _ := strings.Cut(line, ":")
		names, at, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		top, _, _ := strings.Cut(strings.TrimPrefix(at, "/"), "/")
		for name := range strings.SplitSeq(names, ",") {
			found[name] = "/" + top
		}
	}
	for _, name := range []string{"name=systemd", "", "cpu", "cpuset"} {
		if top := found[name]; top != "" && top != "/" {
			return top
		}
	}
	return "/"
}

// allowed is the CPUs that a process may run on:
//
//	Cpus_allowed_list:	0-3,8
func (p process) allowed() string {
	data, err := readHead(filepath.Join(p.dir, "status"), maxFile)
	if err != nil {
		return ""
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		if v, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// hostProcesses counts what runs outside kubepods.
func hostProcesses(all []process) HostProcesses {
	var out HostProcesses
	names, groups := map[string]int{}, map[HostGroup]int{}
	for _, p := range all {
		data, err := readHead(filepath.Join(p.dir, "cgroup"), maxFile)
		if err != nil || bytes.Contains(data, kubepods) { // an error: it has ended
			continue
		}
		out.Count++
		names[p.comm()]++
		groups[HostGroup{Cgroup: topCgroup(string(data)), CPUs: p.allowed()}]++
	}
	for g, n := range groups {
		g.Count = n
		out.Groups = append(out.Groups, g)
	}
	slices.SortFunc(out.Groups, func(a, b HostGroup) int {
		return cmp.Or(cmp.Compare(a.Cgroup, b.Cgroup), cmp.Compare(a.CPUs, b.CPUs))
	})
	list := make([]string, 0, len(names))
	for name := range names {
		list = append(list, name)
	}
	slices.SortFunc(list, func(a, b string) int { return cmp.Or(cmp.Compare(names[b], names[a]), cmp.Compare(a, b)) })
	for i, name := range list {
		if i == maxShown {
			out.Names = append(out.Names, "…")
			break
		}
		n := names[name]
		if name = clip(name); n > 1 {
			name = fmt.Sprintf("%s (%d)", name, n)
		}
		out.Names = append(out.Names, name)
	}
	return out
}

// maxShown is how many names, and how many cgroups, a check tells.
const maxShown = 5

// hostTop is a top cgroup.
type hostTop struct {
	name           string
	count, inPools int
	cpus           units.CPUMask
}

// tops puts the groups of each cgroup together, the biggest first.
func (h HostProcesses) tops(pools cpuset.CPUSet) []hostTop {
	shared := units.CPUMaskOf(pools)
	var tops []hostTop
	for _, g := range h.Groups {
		if len(tops) == 0 || tops[len(tops)-1].name != g.Cgroup {
			tops = append(tops, hostTop{name: g.Cgroup})
		}
		t := &tops[len(tops)-1]
		t.count += g.Count
		may, err := units.ParseCPUMask(g.CPUs)
		if err != nil {
			continue
		}
		for w := range may {
			t.cpus[w] |= may[w]
		}
		may.Intersect(&shared)
		if !may.IsEmpty() {
			t.inPools += g.Count
		}
	}
	slices.SortStableFunc(tops, func(a, b hostTop) int { return cmp.Compare(b.count, a.count) })
	return tops
}

func (t hostTop) String() string {
	text := clip(t.name)
	if t.name == "/" {
		text += " (in no cgroup)"
	}
	text += ": " + plural(t.count, "process", "processes")
	if t.cpus.IsEmpty() {
		return text + ", CPUs not known"
	}
	text += " on CPUs " + t.cpus.String()
	switch {
	case t.inPools == 0:
		text += ", outside the pools"
	case t.inPools < t.count:
		text += fmt.Sprintf(", %d of them in the pools", t.inPools)
	}
	return text
}

// checkHost says what shares CPUs with pods and is not ours to move. It is no fault: a node without LSE pods needs nothing.
func checkHost(f Facts) Line {
	const check = "host processes"
	if f.Host.Count == 0 {
		return ok(check, "none seen outside kubepods")
	}
	l := ok(check, "%d outside kubepods (%s); they are never moved", f.Host.Count, strings.Join(f.Host.Names, ", "))
	online := f.Machine.Node.Online
	if online.IsEmpty() {
		return l
	}
	tops := f.Host.tops(online.Difference(f.Policy.Reserved))
	inPools := 0
	for i, t := range tops {
		inPools += t.inPools
		switch {
		case i < maxShown:
			l.More = append(l.More, t.String())
		case i == maxShown:
			l.More = append(l.More, fmt.Sprintf("and %s, see /proc/PID/cgroup", plural(len(tops)-i, "more cgroup", "more cgroups")))
		}
	}
	if inPools == 0 {
		return l
	}
	l.Found += fmt.Sprintf("; %d may run on CPUs of the pools", inPools)
	reserved := f.Policy.Reserved
	if theirs, _, err := f.Kubelet.Reserved(); err == nil {
		reserved = reserved.Union(theirs)
	}
	if reserved = reserved.Intersection(online); reserved.IsEmpty() {
		if online.Size() < 4 || len(f.Machine.CPUs) == 0 || f.Machine.CPUs[0].Siblings.IsEmpty() {
			l.Found += fmt.Sprintf(", and %s are too few to reserve one", plural(online.Size(), "CPU", "CPUs"))
			return l
		}
		reserved = f.Machine.CPUs[0].Siblings
	}
	list := units.FormatCPUs(reserved)
	l.Found += ". Where LSE pods are to have their cores alone, "
	if !reserved.Equals(f.Policy.Reserved.Intersection(online)) {
		l.Found += fmt.Sprintf("set spec.reservedCPUs: %q in the policy and ", list)
	}
	if f.Machine.Node.CgroupVersion == 2 {
		l.Found += "keep these off the others, as by systemctl set-property system.slice AllowedCPUs=" + list
	} else {
		// AllowedCPUs= is for cgroup v2 alone. From Linux 6.2 on a container keeps the affinity that it inherits, unless its
		// runtime takes it back, as runc 1.2.7 and 1.3.1 do: https://github.com/opencontainers/runc/pull/4858
		l.Found += "CPUAffinity=" + list + " in the systemd units of these, but for the runtime's"
	}
	return l
}
