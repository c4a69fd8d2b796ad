package preflight

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/internal/units"
)

// DefaultKubeletRoot is the kubelet's own folder where --root-dir names none.
const DefaultKubeletRoot = "/var/lib/kubelet"

// CPUState is what the kubelet's CPU manager keeps in its state file.
type CPUState struct {
	Policy    string        // "none", "static"
	Exclusive cpuset.CPUSet // that it gave to pods
	Pods      int           // that have them
}

// CPUManager is the state file, as it was found.
type CPUManager struct {
	Path   string
	Exists bool
	State  CPUState
	Error  string // why State is not known, though the file exists
}

// ParseCPUState reads the state file of the kubelet's CPU manager. It does not look at the checksum: a damaged file shows
// in the kubelet, which exits over it. From 1.37 on (format v4) the same state stands once more as text in data, which
// counts for the kubelet and has CPUs of whole pods too; v3 has these in podEntries.
//
//	{"policyName":"static","defaultCpuSet":"0-1,4-7","entries":{"6b1f…":{"app":"2-3"}},"checksum":3155871042}
//	{"policyName":"static","defaultCpuSet":"0-1","entries":{},"checksum":1,"data":"{\"policyName\":\"static\",\"podEntries\":{\"6b1f…\":{\"cpuSet\":\"2-3\"}}}","dataChecksum":2}
func ParseCPUState(data []byte) (CPUState, error) {
	type body struct {
		PolicyName string                       `json:"policyName"`
		Entries    map[string]map[string]string `json:"entries"`
		PodEntries map[string]struct {
			CPUSet string `json:"cpuSet"`
		} `json:"podEntries"`
	}
	var file struct {
		body
		Data string `json:"data"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return CPUState{}, fmt.Errorf("parse CPU manager state: %w", err)
	}
	b := file.body
	if file.Data != "" {
		b = body{}
		if err := json.Unmarshal([]byte(file.Data), &b); err != nil {
			return CPUState{}, fmt.Errorf("parse CPU manager state: data: %w", err)
		}
	}
	if b.PolicyName == "" {
		return CPUState{}, errors.New("parse CPU manager state: no policyName")
	}
	s := CPUState{Policy: b.PolicyName}
	pods := map[string]bool{}
	var all units.CPUMask
	add := func(pod, list string) error {
		set, err := units.ParseCPUMask(list)
		if err != nil {
			return fmt.Errorf("parse CPU manager state: pod %s: %w", units.Quote(pod), err)
		}
		for w := range all {
			all[w] |= set[w]
		}
		if !set.IsEmpty() {
			pods[pod] = true
		}
		return nil
	}
	for _, pod := range slices.Sorted(maps.Keys(b.Entries)) {
		for _, container := range slices.Sorted(maps.Keys(b.Entries[pod])) {
			if err := add(pod, b.Entries[pod][container]); err != nil {
				return CPUState{}, err
			}
		}
	}
	for _, pod := range slices.Sorted(maps.Keys(b.PodEntries)) {
		if err := add(pod, b.PodEntries[pod].CPUSet); err != nil {
			return CPUState{}, err
		}
	}
	s.Exclusive, s.Pods = all.Set(), len(pods)
	return s, nil
}

// readCPUManager reads the state file in the kubelet's folder.
func readCPUManager(root, dir string) CPUManager {
	m := CPUManager{Path: path.Join(cmp.Or(dir, DefaultKubeletRoot), "cpu_manager_state")}
	data, err := readFile(filepath.Join(root, m.Path))
	if errors.Is(err, fs.ErrNotExist) {
		return m
	}
	m.Exists = true
	if err == nil {
		m.State, err = ParseCPUState(data)
	}
	if err != nil {
		m.Error = clip(m.Path) + ": " + err.Error()
	}
	return m
}

// ManagerPolicy is the configured CPU manager policy, "none" where there is none.
func (k Kubelet) ManagerPolicy() string {
	if k.Config.CPUManagerPolicy == "" {
		return "none"
	}
	return strings.ToLower(k.Config.CPUManagerPolicy)
}

// Reserved is reservedSystemCPUs, and what set it.
func (k Kubelet) Reserved() (set cpuset.CPUSet, where string, err error) {
	const key = "reservedSystemCPUs"
	where = k.where(key)
	if set, err = units.ParseCPUs(strings.TrimSpace(k.Config.ReservedSystemCPUs)); err != nil {
		err = fmt.Errorf("%s of the kubelet, by %s: %w", key, where, err)
	}
	return set, where, err
}

// checkCPUManager says which policy holds, and what of the node it took.
func checkCPUManager(f Facts) Line {
	const check, key = "kubelet cpuManagerPolicy", "cpuManagerPolicy"
	k := f.Kubelet
	m, name := k.Manager, k.ManagerPolicy()
	by := clip(name) + k.options() + ", by " + k.where(key)
	if m.Exists && m.Error == "" && m.State.Policy != name {
		return Line{Check: check, Level: Degraded, Found: fmt.Sprintf("%s, and %s is of policy %s: the kubelet exits over that when it starts", by, clip(m.Path), units.Quote(m.State.Policy)),
			Change: "drain the node, remove " + clip(m.Path) + ", restart the kubelet"}
	}
	if name == "none" {
		return ok(check, "%s", by)
	}
	found := by + ": the kubelet pins Guaranteed pods, so their cpusets stay its own"
	switch {
	case m.Error != "":
		found += "; which CPUs it gave to them is not known: " + m.Error
	case m.State.Exclusive.IsEmpty():
		found += "; no pod has CPUs of its own"
	default:
		found += fmt.Sprintf("; CPUs %s are given to %s, and we put no other container there", cut(units.FormatCPUs(m.State.Exclusive)), plural(m.State.Pods, "pod", "pods"))
	}
	return Line{Check: check, Level: Degraded, Found: found, Change: k.change(key, "none", ", remove cpu_manager_state from the kubelet's root folder")}
}

// options are those of the policy that are on: " (full-pcpus-only)".
func (k Kubelet) options() string {
	var on []string
	for name, value := range k.Config.CPUManagerPolicyOptions {
		if set, err := strconv.ParseBool(value); err == nil && set {
			on = append(on, clip(name))
		}
	}
	if len(on) == 0 {
		return ""
	}
	slices.Sort(on)
	return " (" + strings.Join(on, ", ") + ")"
}

// checkReserved compares whom the policy and the kubelet keep off which CPUs.
func checkReserved(f Facts) Line {
	const check = "reserved CPUs"
	const key = "reservedSystemCPUs"
	if f.Policy.Error != "" {
		return Line{Check: check, Level: Degraded, Found: "not known: " + f.Policy.Error, Change: "repair the policy, or name its file with --policy"}
	}
	ours := f.Policy.Reserved
	by := "by the policy (" + f.Policy.Source + ")"
	if f.Kubelet.Error != "" {
		return ok(check, "%s %s; the kubelet's are not known", noneOr(ours), by)
	}
	theirs, where, err := f.Kubelet.Reserved()
	if err != nil {
		return Line{Check: check, Level: Degraded, Found: err.Error(), Change: f.Kubelet.change(key, strconv.Quote(units.FormatCPUs(ours)), "")}
	}
	online := f.Machine.Node.Online
	more, less := theirs.Difference(ours), ours.Difference(theirs).Intersection(online)
	static := f.Kubelet.ManagerPolicy() != "none"
	both := fmt.Sprintf("%s %s, %s by the kubelet's %s (%s)", noneOr(ours), by, noneOr(theirs), key, where)
	switch {
	case more.IsEmpty() && less.IsEmpty():
		return ok(check, "%s", both)
	case more.IsEmpty() && !static:
		return ok(check, "%s; it pins no pods, so that will do", both)
	}
	l := Line{Check: check, Level: Degraded, Found: both}
	all := ours.Union(theirs)
	var change []string
	if !more.IsEmpty() {
		l.Found += fmt.Sprintf("; a plugin that runs as a pod knows those of the policy alone, so pods run on CPUs %s there", units.FormatCPUs(more))
		change = append(change, fmt.Sprintf("set spec.reservedCPUs: %q in the policy", units.FormatCPUs(all)))
	}
	if static && !less.IsEmpty() {
		l.Found += fmt.Sprintf("; the kubelet may give CPUs %s to pods", units.FormatCPUs(less))
		then := ""
		// The kubelet exits over a state file in which a reserved CPU is a pod's.
		if !f.Kubelet.Manager.State.Exclusive.Intersection(less).IsEmpty() {
			then = ", drain the node, remove cpu_manager_state from the kubelet's root folder"
		}
		change = append(change, f.Kubelet.change(key, strconv.Quote(units.FormatCPUs(all.Intersection(online))), then))
	}
	l.Change = strings.Join(change, "; ")
	return l
}

func noneOr(set cpuset.CPUSet) string {
	if set.IsEmpty() {
		return "none"
	}
	return units.FormatCPUs(set)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// cut shortens a list that others made as long as they like.
func cut(list string) string {
	const most = 200
	if len(list) > most {
		return list[:most] + "…"
	}
	return list
}

// clip makes a name of the node fit for a line: others choose it.
func clip(name string) string {
	const most = 60
	runes := []rune(name)
	if len(runes) > most {
		name = string(runes[:most]) + "…"
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}
