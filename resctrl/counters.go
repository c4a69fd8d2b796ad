package resctrl

import (
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CounterState is what the kernel answers for a counter.
type CounterState string

const (
	Counted     CounterState = "counted"     // Value holds
	Unavailable CounterState = "unavailable" // the hardware has no value at this moment; ask again
	Unassigned  CounterState = "unassigned"  // no hardware counter is assigned to this group and event
	Failed      CounterState = "error"       // the hardware reports an error
	Unreadable  CounterState = "unreadable"  // text that this package does not know, in Text
)

// Counter is one event of a group in one domain.
type Counter struct {
	Event string       `json:"event"` // "llc_occupancy", "mbm_total_bytes", "mbm_local_bytes" or another
	State CounterState `json:"state"`
	Value uint64       `json:"value"`          // bytes: in use at this moment of llc_occupancy, since the group exists of mbm_*
	Text  string       `json:"text,omitempty"` // the kernel's text, where Unreadable
}

// DomainCounters are the counters of a group in one domain.
type DomainCounters struct {
	Resource string    `json:"resource"`      // "L3"
	ID       int       `json:"id"`            // of the domain
	Sub      bool      `json:"sub,omitempty"` // a sub-NUMA cluster of a domain, which is listed too and is the sum
	Events   []Counter `json:"events"`        // by name
}

// Counter finds an event.
func (d DomainCounters) Counter(event string) (Counter, bool) {
	for _, c := range d.Events {
		if c.Event == event {
			return c, true
		}
	}
	return Counter{}, false
}

// Counters are the counters of a group, by resource and domain.
type Counters []DomainCounters

// Total adds up an event over the domains, without sub-NUMA clusters. Domains that have no value are left out, as the
// kernel does for groups; the state is Counted if one has, else that of the first.
func (c Counters) Total(event string) (Counter, bool) {
	var total Counter
	found := false
	for _, d := range c {
		v, ok := d.Counter(event)
		if !ok || d.Sub {
			continue
		}
		switch {
		case !found:
			total, found = v, true
		case v.State == Counted && total.State == Counted:
			total.Value += v.Value
		case v.State == Counted:
			total = v
		}
	}
	return total, found
}

// Counters reads the counters. There are none where nothing is monitored.
func (g *Group) Counters() (Counters, error) {
	dirs, err := g.fs.readDir(g.file("mon_data"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := g.fs.read(g.file("tasks")); err != nil {
			return nil, err
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all Counters
	for _, e := range dirs {
		if !e.Dir {
			continue
		}
		d, ok := parseMonDir(e.Name)
		if !ok {
			continue
		}
		counters, err := g.domainCounters("mon_data/"+e.Name, d)
		if errors.Is(err, ErrGone) {
			continue // the domain went offline; a group that is gone shows at the next directory or below
		}
		if err != nil {
			return nil, err
		}
		all = append(all, counters...)
	}
	if len(all) == 0 && len(dirs) > 0 {
		if _, err := g.fs.read(g.file("tasks")); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(all, func(a, b DomainCounters) int {
		if a.Resource != b.Resource {
			return strings.Compare(a.Resource, b.Resource)
		}
		if a.Sub != b.Sub {
			return map[bool]int{false: -1, true: 1}[a.Sub]
		}
		return a.ID - b.ID
	})
	return all, nil
}

// domainCounters reads a mon_L3_00 directory, and the mon_sub_L3_01 that are in it on machines with sub-NUMA clusters.
func (g *Group) domainCounters(dir string, d DomainCounters) (Counters, error) {
	list, err := g.fs.readDir(g.file(dir))
	if err != nil {
		return nil, err
	}
	var subs Counters
	for _, e := range list {
		if e.Dir {
			if sub, ok := parseMonDir(e.Name); ok && !d.Sub {
				found, err := g.domainCounters(dir+"/"+e.Name, sub)
				if err != nil {
					return nil, err
				}
				subs = append(subs, found...)
			}
			continue
		}
		text, err := g.fs.read(g.file(dir + "/" + e.Name))
		if err != nil {
			if errors.Is(err, ErrGone) {
				return nil, err
			}
			d.Events = append(d.Events, Counter{Event: e.Name, State: Failed})
			continue
		}
		d.Events = append(d.Events, parseCounter(e.Name, text))
	}
	slices.SortFunc(d.Events, func(a, b Counter) int { return strings.Compare(a.Event, b.Event) })
	return append(Counters{d}, subs...), nil
}

// parseMonDir reads "mon_L3_00" and "mon_sub_L3_01".
func parseMonDir(name string) (DomainCounters, bool) {
	rest, ok := strings.CutPrefix(name, "mon_")
	if !ok {
		return DomainCounters{}, false
	}
	rest, sub := strings.CutPrefix(rest, "sub_")
	i := strings.LastIndexByte(rest, '_')
	if i <= 0 || !isName(rest[:i]) {
		return DomainCounters{}, false
	}
	id, err := strconv.ParseUint(rest[i+1:], 10, 31)
	if err != nil {
		return DomainCounters{}, false
	}
	return DomainCounters{Resource: rest[:i], ID: int(id), Sub: sub}, true
}

// parseCounter reads a file of mon_data: a decimal number, or a word in its place.
func parseCounter(event, text string) Counter {
	c := Counter{Event: event}
	text = strings.TrimSpace(text)
	n, err := strconv.ParseUint(text, 10, 64)
	switch {
	case err == nil:
		c.State, c.Value = Counted, n
	case text == "Unavailable":
		c.State = Unavailable
	case text == "Unassigned":
		c.State = Unassigned
	case text == "Error":
		c.State = Failed
	default:
		c.State, c.Text = Unreadable, text
	}
	return c
}

// Rate is how fast a counter grew between two readings.
type Rate struct {
	Resource  string       `json:"resource"`
	ID        int          `json:"id"`
	Sub       bool         `json:"sub,omitempty"`
	Event     string       `json:"event"`
	State     CounterState `json:"state"`     // Counted if PerSecond holds; else what the later reading, or the earlier, was
	PerSecond float64      `json:"perSecond"` // bytes; finite and never negative
	Reset     bool         `json:"reset,omitempty"`
}

// Rates compares two readings of a group that lie elapsed apart. Only what counts up has a rate, the mbm_ events;
// occupancy has none. A counter that went back was reset, when its hardware was given to another group and back or the group was
// made anew: it has no rate this time. So do counters of which one reading has no value, and all if no time has passed.
func Rates(before, after Counters, elapsed time.Duration) []Rate {
	var rates []Rate
	for _, d := range after {
		for _, c := range d.Events {
			if !strings.HasPrefix(c.Event, "mbm_") {
				continue
			}
			r := Rate{Resource: d.Resource, ID: d.ID, Sub: d.Sub, Event: c.Event, State: Unavailable}
			old, ok := before.find(d, c.Event)
			switch {
			case c.State != Counted:
				r.State = c.State
			case ok && old.State != Counted:
				r.State = old.State
			case !ok || elapsed <= 0:
			case c.Value < old.Value:
				r.Reset = true
			default:
				r.State, r.PerSecond = Counted, float64(c.Value-old.Value)/elapsed.Seconds()
			}
			rates = append(rates, r)
		}
	}
	return rates
}

func (c Counters) find(like DomainCounters, event string) (Counter, bool) {
	for _, d := range c {
		if d.Resource == like.Resource && d.ID == like.ID && d.Sub == like.Sub {
			return d.Counter(event)
		}
	}
	return Counter{}, false
}
