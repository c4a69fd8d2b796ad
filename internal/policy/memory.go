package policy

import (
	"strconv"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/units"
)

// low is what a container's memory.low comes to.
type low struct {
	bytes   int64 // what shall hold: our value, or the kubelet's where that is higher; 0 for no protection
	ours    bool  // bytes is our value and differs from what was asked
	asked   int64 // 0 for not asked
	unknown bool  // the request is unknown
	reason  string
}

// lowPercent is the percentage of the request that the tier or the annotation gives, and where it comes from.
func (d *deciding) lowPercent() (v1alpha1.Percent, string) {
	if d.tp.Memory.Low == nil {
		return 0, d.tp.pathLow
	}
	if l := d.wishes.memory.Low; l != nil && *l < *d.tp.Memory.Low {
		return *l, v1alpha1.AnnotationMemoryQoS
	}
	return *d.tp.Memory.Low, d.tp.pathLow
}

func (d *deciding) low(pod Pod, c *Container, percent v1alpha1.Percent) low {
	l := low{asked: askedBytes(c.Asked.Value(MemoryLow))}
	request, from, known := d.memoryRequest(pod, c)
	if !known {
		l.bytes, l.unknown = l.asked, true
		return l
	}
	// More than the limit can't be used; a request above it is a mistake or a lie, and would cost the neighbours.
	if m := c.Asked.MemoryLimit; m != nil && *m > 0 && request > *m {
		request, from = *m, "its memory limit, which is below "+from
	}
	l.bytes = units.PageDown(units.PercentOf(request, int(percent)), d.node.PageSize)
	l.reason = percent.String() + " of " + from + " (" + strconv.FormatInt(request, 10) + " bytes) is spared while others have memory to give"
	if l.asked >= l.bytes {
		l.bytes = l.asked
	} else {
		l.ours = true
	}
	return l
}

// memoryRequest finds what CRI does not carry. A container that the annotation names without memory requests none.
func (d *deciding) memoryRequest(pod Pod, c *Container) (bytes int64, from string, known bool) {
	if r := d.wishes.requests; r != nil {
		if n, ok := r.MemoryBytes(c.Name); ok {
			return n, "the memory request of " + v1alpha1.AnnotationRequests, true
		}
	}
	if m := c.Asked.MemoryLimit; pod.KubeQoS == v1alpha1.Guaranteed && m != nil && *m > 0 {
		return *m, "the memory limit, which a Guaranteed pod requests", true
	}
	return 0, "", false
}

// askedBytes reads a memory file's value; "0", "" and what is no number are not asked, "max" is all there is.
func askedBytes(s string) int64 {
	switch s {
	case "": // the usual case; strconv would make an error of it
		return 0
	case "max":
		return 1<<63 - 1
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func (d *deciding) memoryLow(pod Pod, c *Container) {
	percent, rule := d.lowPercent()
	if percent == 0 {
		return
	}
	if _, ok := d.supported(MemoryLow); !ok {
		return
	}
	l := d.low(pod, c, percent)
	switch {
	case l.unknown:
		d.note(NoteUnknownInput, MemoryLow, "the memory request of container "+units.Quote(c.Name)+" is unknown (no annotation "+v1alpha1.AnnotationRequests+
			" that names it, and no Guaranteed pod), so memory.low is not set")
	case l.ours:
		d.put(Setting{Knob: MemoryLow, Value: strconv.FormatInt(l.bytes, 10), Asked: c.Asked.Value(MemoryLow), Rule: rule, Reason: l.reason})
	case l.bytes > 0:
		d.note(NoteKept, MemoryLow, "the kubelet's memory.low of "+strconv.FormatInt(l.bytes, 10)+" protects at least as much as the tier, so it stays")
	}
}

func (d *deciding) memoryHigh(c *Container) {
	if d.batchMemory == 0 || d.tp.Memory.High == nil {
		return
	}
	percent, rule := *d.tp.Memory.High, d.tp.pathHigh
	if h := d.wishes.memory.High; h != nil && *h < percent {
		percent, rule = *h, v1alpha1.AnnotationMemoryQoS
	}
	if percent == 100 {
		return // the limit itself is the wall
	}
	// Of the limit that holds: where the kubelet's is lower, a percentage of ours would have no effect.
	limit, name := d.batchMemory, "the batch-memory limit"
	if m := c.Asked.MemoryLimit; m != nil && *m > 0 && *m < limit {
		limit, name = *m, "the kubelet's memory limit, which is below the batch-memory limit"
	}
	bytes := units.PageDown(units.PercentOf(limit, int(percent)), d.node.PageSize)
	if bytes == 0 {
		d.note(NoteKept, MemoryHigh, "memory.high is not set: "+percent.String()+" of "+name+" is less than a page")
		return
	}
	asked := c.Asked.Value(MemoryHigh)
	if n := askedBytes(asked); n > 0 && n < bytes {
		d.note(NoteKept, MemoryHigh, "the kubelet's memory.high of "+asked+" is below the tier's, so it stays")
		return
	}
	d.put(Setting{Knob: MemoryHigh, Value: strconv.FormatInt(bytes, 10), Asked: asked, Rule: rule,
		Reason: percent.String() + " of " + name + " (" + strconv.FormatInt(limit, 10) + " bytes): reclaims and slows down before the limit kills"})
}

func (d *deciding) memoryMax(c *Container) {
	if d.batchMemory == 0 {
		return
	}
	if m := c.Asked.MemoryLimit; m != nil && *m > 0 && *m <= d.batchMemory {
		if *m < d.batchMemory {
			d.note(NoteKept, MemoryMax, "the kubelet's memory limit of "+strconv.FormatInt(*m, 10)+" is below the batch-memory limit of "+
				strconv.FormatInt(d.batchMemory, 10)+", so it stays")
		}
		return
	}
	d.put(Setting{Knob: MemoryMax, Value: strconv.FormatInt(d.batchMemory, 10), Asked: c.Asked.Value(MemoryMax), Rule: d.wishes.batchKey,
		Reason: "batch-memory limit"})
}
