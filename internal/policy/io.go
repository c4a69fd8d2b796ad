package policy

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/units"
)

func (d *deciding) ioWeight() {
	if d.tp.IO.Weight == nil && d.wishes.io.Weight == nil {
		return
	}
	rule := v1alpha1.AnnotationIOQoS
	var weight int64
	if w := d.wishes.io.Weight; w != nil && (d.tp.IO.Weight == nil || *w < *d.tp.IO.Weight) {
		weight = *w
	} else {
		weight, rule = *d.tp.IO.Weight, d.tp.pathIOWeight
	}
	d.put(Setting{Knob: IOWeight, Value: strconv.FormatInt(weight, 10), Rule: rule,
		Reason: "the pod's share of the disks against other pods' (100 is the kernel's default)"})
}

// ioPriority has no input of the kubelet's: CRI carries no I/O priority.
func (d *deciding) ioPriority(c *Container) {
	want := d.tp.IO.Priority
	if want == "" || want == v1alpha1.IOPriorityNone {
		return
	}
	if _, ok := d.supported(IOPriority); !ok {
		return
	}
	if c.State != Managed {
		d.note(NoteKept, IOPriority, "ioprio stays the runtime's: it is set when a container is created, and this one was created without us")
		return
	}
	reason := "batch has the lowest level of the default class; set through the NRI door alone"
	if want == v1alpha1.IOPriorityIdle {
		reason = "batch is served while nothing else is queued; set through the NRI door alone"
	}
	d.put(Setting{Knob: IOPriority, Value: string(want), Rule: d.tp.pathIOPriority, Reason: reason})
}

// ioMax resolves devices and takes the lower of what the tier and the annotation limit.
func (d *deciding) ioMax(c *Container) {
	tier, pod := d.tp.IO.Max, d.wishes.io.Max
	if len(tier) == 0 && len(pod) == 0 {
		return
	}
	limits := make([][4]int64, len(d.node.Devices)) // rbps, wbps, riops, wiops of each device; 0 is none
	byTier := d.lower(limits, tier, d.tp.pathIOMax)
	byPod := d.lower(limits, pod, v1alpha1.AnnotationIOQoS)
	if !byTier && !byPod {
		return
	}
	rule, reason := d.tp.pathIOMax, "disk limits of the tier"
	switch {
	case byTier && byPod:
		rule, reason = v1alpha1.AnnotationIOQoS, "the lower of the annotation's disk limits and the tier's"
	case byPod:
		rule, reason = v1alpha1.AnnotationIOQoS, "disk limits of the annotation"
	}
	d.put(Setting{Knob: IOMax, Value: formatIOMax(d.node.Devices, limits), Asked: c.Asked.Value(IOMax), Rule: rule, Reason: reason})
}

// lower applies each entry to the devices that it names and says whether any value got lower. An entry that names no
// device of the node is noted.
func (d *deciding) lower(limits [][4]int64, entries []v1alpha1.DeviceMax, from string) bool {
	changed := false
	for _, e := range entries {
		hit := false
		for i, dev := range d.node.Devices {
			switch e.Device {
			case v1alpha1.DeviceAll:
			case v1alpha1.DeviceSSD:
				if dev.Rotational {
					continue
				}
			case v1alpha1.DeviceRotational:
				if !dev.Rotational {
					continue
				}
			default:
				if dev.Number != e.Device {
					continue
				}
			}
			hit = true
			for j, v := range [4]int64{e.RBps, e.WBps, e.RIOPS, e.WIOPS} {
				if v > 0 && (limits[i][j] == 0 || v < limits[i][j]) {
					limits[i][j], changed = v, true
				}
			}
		}
		if !hit {
			d.note(NoteUnknownInput, IOMax, from+": device "+units.Quote(e.Device)+" names no disk of this node and is passed over; allowed: "+d.devices())
		}
	}
	return changed
}

// devices lists the disks of the node for people.
func (d *deciding) devices() string {
	const most = 8
	if len(d.node.Devices) == 0 {
		return "none, the node's disks are unknown"
	}
	var b strings.Builder
	for i, dev := range d.node.Devices {
		if i == most {
			b.WriteString(", ...")
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(dev.Number)
		if dev.Rotational {
			b.WriteString(" (rotational)")
		} else {
			b.WriteString(" (ssd)")
		}
	}
	return b.String()
}

func formatIOMax(devices []Device, limits [][4]int64) string {
	order := make([]int, 0, len(devices))
	for i := range devices {
		if limits[i] != [4]int64{} {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return compareDevices(devices[a].Number, devices[b].Number)
	})
	var out []byte
	for n, i := range order {
		if n > 0 {
			out = append(out, '\n')
		}
		out = append(out, devices[i].Number...)
		for j, key := range [4]string{"rbps", "wbps", "riops", "wiops"} {
			if v := limits[i][j]; v > 0 {
				out = append(out, ' ')
				out = append(out, key...)
				out = append(out, '=')
				out = strconv.AppendInt(out, v, 10)
			}
		}
	}
	return string(out)
}

// compareDevices orders "8:0" before "8:16" before "254:0". Numbers of equal length compare as texts do.
func compareDevices(a, b string) int {
	aMajor, aMinor, _ := strings.Cut(a, ":")
	bMajor, bMinor, _ := strings.Cut(b, ":")
	for _, pair := range [2][2]string{{aMajor, bMajor}, {aMinor, bMinor}} {
		if n := len(pair[0]) - len(pair[1]); n != 0 {
			return n
		}
		if n := strings.Compare(pair[0], pair[1]); n != 0 {
			return n
		}
	}
	return 0
}
