package resctrltest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tideline-io/tideline/resctrl"
)

// isFile is quick for the one file that may be long.
func (k *Kernel) isFile(g *group, file string) bool {
	if file == "tasks" {
		return true
	}
	_, ok := k.text(g, file)
	return ok
}

// text is what a file reads; ok is false if there is no such file.
func (k *Kernel) text(g *group, file string) (text string, ok bool) {
	m := k.layout.Monitor
	control := g.parent == nil
	switch file {
	case "":
		return "", false
	case "tasks":
		var b strings.Builder
		for _, id := range slices.Sorted(maps.Keys(k.tasks)) {
			// Where nothing can be allocated a control group shows none.
			if t := k.tasks[id]; t.group == g && (!control || len(k.resources) > 0) || control && t.group.parent == g && len(k.resources) > 0 {
				fmt.Fprintf(&b, "%d\n", id)
			}
		}
		return b.String(), true
	case "cpus":
		return cpuMask(g.cpus, k.layout.CPUs) + "\n", true
	case "cpus_list":
		return cpuList(g.cpus) + "\n", true
	case "schemata":
		return k.schemata(g, k.show), control
	case "size":
		return k.schemata(g, size), control
	case "mode":
		return string(g.mode) + "\n", control
	case "ctrl_hw_id":
		return fmt.Sprintf("%d\n", g.closid), control && k.options.Debug
	case "mon_hw_id":
		return fmt.Sprintf("%d\n", g.rmid), m != nil && k.options.Debug
	case "mbm_L3_assignments":
		if m == nil || m.Counters == 0 {
			return "", false
		}
		return k.assignments(g), true
	}
	first, rest, _ := strings.Cut(file, "/")
	dir, name, _ := strings.Cut(rest, "/")
	switch {
	case first == "mon_data" && m != nil:
		for _, d := range k.on(m.Domains) {
			if monDir(d.ID) == dir && slices.Contains(m.Events, name) {
				return k.counter(g, name, d.ID) + "\n", true
			}
		}
	case first != "info" || g != k.root:
	case rest == "last_cmd_status":
		if k.status == "" {
			return "ok\n", true
		}
		return k.status, true
	case dir == "L3_MON" && m != nil:
		return k.monInfo(name)
	default:
		if r := k.resource(dir); r != nil {
			return k.info(r, name)
		}
	}
	return "", false
}

func (k *Kernel) info(r *resource, file string) (string, bool) {
	if file == "num_closids" {
		return fmt.Sprintf("%d\n", r.closids), true
	}
	if c := r.cache; c != nil {
		switch file {
		case "cbm_mask":
			return resctrl.Ways(0, c.Bits).String() + "\n", true
		case "min_cbm_bits":
			return fmt.Sprintf("%d\n", c.MinBits), true
		case "shareable_bits":
			return c.Shareable.String() + "\n", true
		case "sparse_masks":
			return bit(c.Sparse) + "\n", !k.old()
		case "bit_usage":
			return k.bitUsage(r) + "\n", true
		}
		return "", false
	}
	switch file {
	case "min_bandwidth":
		return fmt.Sprintf("%d\n", r.bw.Min), true
	case "bandwidth_gran":
		return fmt.Sprintf("%d\n", r.bw.Gran), true
	case "delay_linear":
		return bit(r.bw.Linear) + "\n", true
	case "thread_throttle_mode":
		return r.bw.ThrottleMode + "\n", r.bw.ThrottleMode != ""
	}
	return "", false
}

func (k *Kernel) monInfo(file string) (string, bool) {
	m := k.layout.Monitor
	counts := func(n func(domain int) int) string {
		var parts []string
		for _, d := range k.on(m.Domains) {
			parts = append(parts, fmt.Sprintf("%d=%d", d.ID, n(d.ID)))
		}
		return strings.Join(parts, ";") + "\n"
	}
	switch file {
	case "mon_features":
		return strings.Join(m.Events, "\n") + "\n", true
	case "num_rmids":
		return fmt.Sprintf("%d\n", m.RMIDs), true
	case "max_threshold_occupancy":
		return fmt.Sprintf("%d\n", k.threshold), true
	}
	if m.Counters == 0 {
		return "", false
	}
	switch file {
	case "mbm_assign_mode":
		if k.assign == "default" {
			return "mbm_event\n[default]\n", true
		}
		return "[mbm_event]\ndefault\n", true
	case "num_mbm_cntrs":
		return counts(func(int) int { return m.Counters }), true
	case "available_mbm_cntrs":
		return counts(k.freeCounters), true
	case "mbm_assign_on_mkdir":
		return "1\n", true
	}
	return "", false
}

func bit(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

func (k *Kernel) bitUsage(r *resource) string {
	var parts []string
	for _, d := range k.on(r.domains) {
		var shared, exclusive resctrl.Mask
		for _, g := range k.each() {
			v := resctrl.Mask(g.values[r.name][d.ID])
			if g.mode == resctrl.Exclusive {
				exclusive |= v
			} else {
				shared |= v
			}
		}
		letters := make([]byte, 0, r.cache.Bits)
		for b := r.cache.Bits - 1; b >= 0; b-- {
			hardware := r.cache.Shareable.Has(b)
			switch {
			case hardware && shared.Has(b):
				letters = append(letters, resctrl.BitBoth)
			case hardware:
				letters = append(letters, resctrl.BitHardware)
			case shared.Has(b):
				letters = append(letters, resctrl.BitShared)
			case exclusive.Has(b):
				letters = append(letters, resctrl.BitExclusive)
			default:
				letters = append(letters, resctrl.BitUnused)
			}
		}
		parts = append(parts, fmt.Sprintf("%d=%s", d.ID, letters))
	}
	return strings.Join(parts, ";")
}

// schemata is a line a resource, names aligned at the right.
func (k *Kernel) schemata(g *group, value func(r *resource, v uint64) string) string {
	width := 0
	for _, r := range k.resources {
		n := len(r.name)
		if r.cache != nil && r.cache.CDP {
			n = len(r.cache.Name) + len("CODE")
		}
		width = max(width, n)
	}
	var b strings.Builder
	for _, r := range k.resources {
		fmt.Fprintf(&b, "%*s:", width, r.name)
		for i, d := range k.on(r.domains) {
			if i > 0 {
				b.WriteByte(';')
			}
			fmt.Fprintf(&b, "%d=%s", d.ID, value(r, g.values[r.name][d.ID]))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// show pads values to the width of the widest resource.
func (k *Kernel) show(r *resource, v uint64) string {
	width := 0
	for _, o := range k.resources {
		if o.cache != nil {
			width = max(width, (o.cache.Bits+3)/4)
		} else {
			width = max(width, o.bw.Width)
		}
	}
	if r.cache != nil {
		return fmt.Sprintf("%0*x", width, v)
	}
	return fmt.Sprintf("%*d", width, v)
}

func size(r *resource, v uint64) string {
	if r.cache == nil {
		return strconv.FormatUint(v, 10)
	}
	return strconv.FormatUint(r.cache.Bytes/uint64(r.cache.Bits)*uint64(resctrl.Mask(v).Bits()), 10)
}

// cpuMask is a hexadecimal mask of n CPUs with a comma after each 32.
func cpuMask(cpus map[int]bool, n int) string {
	words := make([]uint32, (n+31)/32)
	for c := range cpus {
		words[c/32] |= 1 << (c % 32)
	}
	last := len(words) - 1
	text := fmt.Sprintf("%0*x", (n-32*last+3)/4, words[last])
	for i := last - 1; i >= 0; i-- {
		text += fmt.Sprintf(",%08x", words[i])
	}
	return text
}

func cpuList(cpus map[int]bool) string {
	var parts []string
	list := slices.Sorted(maps.Keys(cpus))
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, strconv.Itoa(list[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", list[i], list[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}
