package resctrltest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/tideline-io/tideline/resctrl"
)

// SetCounter sets what a group itself counts, and what is read of it: a number, "Unavailable" or "Error". The group is
// given by its path, "." for the root. A control group reads as the sum of itself and its monitoring groups.
func (k *Kernel) SetCounter(path string, domain int, event, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g, rest := k.place(path)
	if rest != "" {
		panic(fmt.Sprintf("set counter of %s: no such group", path))
	}
	if g.counters[event] == nil {
		g.counters[event] = map[int]string{}
	}
	g.counters[event][domain] = text
}

// counter adds up a control group and its monitoring groups. Who has no value is left out, unless nobody has one: then
// it is what the newest one reads.
func (k *Kernel) counter(g *group, event string, domain int) string {
	members := slices.SortedFunc(maps.Values(g.mon), func(a, b *group) int { return a.age - b.age })
	var sum uint64
	counted := false
	var last string
	for _, m := range append([]*group{g}, members...) {
		last = k.own(m, event, domain)
		if n, err := strconv.ParseUint(last, 10, 64); err == nil {
			sum += n
			counted = true
		}
	}
	if !counted {
		return last
	}
	return strconv.FormatUint(sum, 10)
}

// own is a group's own counter. Until a test says otherwise, occupancy is a unit for each number of its RMID.
func (k *Kernel) own(g *group, event string, domain int) string {
	if k.assignable(event) && !g.assigned[event][domain] {
		return "Unassigned"
	}
	if text, ok := g.counters[event][domain]; ok {
		return text
	}
	if event == "llc_occupancy" {
		return strconv.FormatUint(uint64(g.rmid+1)*k.layout.Monitor.Unit, 10)
	}
	return "0"
}

func (k *Kernel) assignable(event string) bool {
	return k.layout.Monitor.Counters > 0 && k.assign == "mbm_event" && strings.HasPrefix(event, "mbm_")
}

// assignAll gives a new group counters, as far as there are any.
func (k *Kernel) assignAll(g *group) {
	m := k.layout.Monitor
	if m == nil || m.Counters == 0 {
		return
	}
	for _, event := range m.Events {
		for _, d := range m.Domains {
			// The root group is the first one.
			if k.assignable(event) && (k.root == nil || k.freeCounters(d.ID) > 0) {
				k.setAssigned(g, event, d.ID, true)
			}
		}
	}
}

func (k *Kernel) setAssigned(g *group, event string, domain int, on bool) {
	if g.assigned[event] == nil {
		g.assigned[event] = map[int]bool{}
	}
	g.assigned[event][domain] = on
}

func (k *Kernel) freeCounters(domain int) int {
	free := k.layout.Monitor.Counters
	for _, g := range k.each() {
		members := []*group{g}
		for _, m := range g.mon {
			members = append(members, m)
		}
		for _, m := range members {
			for _, domains := range m.assigned {
				if domains[domain] {
					free--
				}
			}
		}
	}
	return free
}

// assignments is a line an event.
//
//	mbm_total_bytes:0=e;1=_
func (k *Kernel) assignments(g *group) string {
	var b strings.Builder
	for _, event := range k.layout.Monitor.Events {
		if !strings.HasPrefix(event, "mbm_") {
			continue
		}
		var parts []string
		for _, d := range k.on(k.layout.Monitor.Domains) {
			state := "_"
			if g.assigned[event][d.ID] {
				state = "e"
			}
			parts = append(parts, fmt.Sprintf("%d=%s", d.ID, state))
		}
		fmt.Fprintf(&b, "%s:%s\n", event, strings.Join(parts, ";"))
	}
	return b.String()
}

func (k *Kernel) storeAssignments(g *group, data string) error {
	text, ok := strings.CutSuffix(data, "\n")
	if !ok {
		return syscall.EINVAL
	}
	k.hush()
	for line := range strings.SplitSeq(text, "\n") {
		event, rest, _ := strings.Cut(line, ":")
		if !k.assignable(event) {
			return syscall.EINVAL
		}
		for part := range strings.SplitSeq(rest, ";") {
			id, state, _ := strings.Cut(part, "=")
			for _, d := range k.on(k.layout.Monitor.Domains) {
				if id != "*" && id != strconv.Itoa(d.ID) {
					continue
				}
				switch {
				case state == "_":
					k.setAssigned(g, event, d.ID, false)
				case state != "e":
					return syscall.EINVAL
				case g.assigned[event][d.ID]:
				case k.freeCounters(d.ID) == 0:
					k.say("Out of MBM assignable counters\n")
					return syscall.ENOSPC
				default:
					k.setAssigned(g, event, d.ID, true)
				}
			}
		}
	}
	return nil
}

var _ resctrl.Files = (*Kernel)(nil)
