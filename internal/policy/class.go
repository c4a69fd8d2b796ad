package policy

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/tideline-io/tideline/api/v1alpha1"
)

// Classes decides on the kubelet's cgroups above the pods: kubepods and its QoS classes. pods holds the decision of
// each pod by its cgroup path. The answer holds settings of LevelClass by cgroup path, only where there are any.
//
//   - memory.low: the kernel gives a child no more protection than its parent has, so every parent carries the sum of
//     the pods below it (Documentation/admin-guide/cgroup-v2.rst, "memory.low").
//   - io.weight of the BestEffort class: weights rank siblings, so a batch pod's own weight ranks it among BestEffort
//     pods alone; against all others its class counts.
func (p *Policy) Classes(n Node, pods map[string]Decision) map[string][]Setting {
	low, batch := map[string]int64{}, map[string]bool{}
	weight := ""
	for _, pod := range slices.Sorted(maps.Keys(pods)) {
		d := pods[pod]
		for _, class := range classes(pod) {
			if s := d.setting(MemoryLow); s != nil {
				if v, err := strconv.ParseInt(s.Value, 10, 64); err == nil && low[class] <= maxBytes-v {
					low[class] += v
				}
			}
			if d.Tier == v1alpha1.BE && bestEffort(class) {
				batch[class] = true
			}
		}
	}
	if w := p.tiers[v1alpha1.BE].IO.Weight; w != nil && n.Features[IOWeight].Support != Unsupported {
		weight = strconv.FormatInt(*w, 10)
	}
	out := map[string][]Setting{}
	for class, sum := range low {
		if sum > 0 && n.Features[MemoryLow].Support != Unsupported {
			out[class] = append(out[class], Setting{Knob: MemoryLow, Level: LevelClass, Value: strconv.FormatInt(sum, 10), Rule: "sum of the pods' memory.low",
				Reason: "a pod gets no more protection than its parents carry"})
		}
	}
	for class := range batch {
		if weight != "" {
			out[class] = append(out[class], Setting{Knob: IOWeight, Level: LevelClass, Value: weight, Rule: "tiers.BE.io.weight", Inert: n.Features[IOWeight].Inert,
				Reason: fmt.Sprintf("batch pods run in %s and compete with all others through it", path.Base(class))})
		}
	}
	return out
}

// maxBytes is the most that cgroup files take (LONG_MAX rounded to a page).
const maxBytes = 1<<63 - 4096

func (d Decision) setting(k Knob) *Setting {
	for i := range d.Settings {
		if d.Settings[i].Knob == k {
			return &d.Settings[i]
		}
	}
	return nil
}

// classes gives the cgroups above a pod, from its parent up to kubepods; none when the pod is not below a kubepods.
func classes(pod string) []string {
	var out []string
	for dir := path.Dir(pod); dir != "/" && dir != "."; dir = path.Dir(dir) {
		out = append(out, dir)
		if base := path.Base(dir); base == "kubepods" || strings.HasSuffix(base, "kubepods.slice") {
			return out
		}
	}
	return nil
}

func bestEffort(class string) bool {
	base := path.Base(class)
	return base == "besteffort" || strings.HasSuffix(base, "-besteffort.slice")
}

// Neutral is the value that takes a setting back: what the kubelet asked, else the kernel's default said explicitly.
// "" means that there is none to be said: a weight or memory nodes that nobody asked, and what processes have,
// which no update changes.
func Neutral(n Node, s Setting, asked Resources) string {
	if s.Knob.OfProcess() {
		return ""
	}
	if v := asked.Value(s.Knob); v != "" {
		return v
	}
	switch s.Knob {
	case CPUSetCPUs:
		return n.Online.String()
	case CPUMax:
		return "max 100000"
	case CPUMaxBurst, CPUIdle, MemoryLow:
		return "0"
	case MemoryHigh, MemoryMax:
		return "max"
	case IOMax:
		lines := strings.Split(s.Value, "\n")
		for i, l := range lines {
			dev, _, _ := strings.Cut(l, " ")
			lines[i] = dev + " rbps=max wbps=max riops=max wiops=max"
		}
		return strings.Join(lines, "\n")
	}
	return ""
}
