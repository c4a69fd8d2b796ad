package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/resctrl"
)

// ResctrlTop is the JSON of one frame of `tideline resctrl top`. Fields are only ever added.
type ResctrlTop struct {
	APIVersion string      `json:"apiVersion"` // "tideline.io/v1alpha1"
	Kind       string      `json:"kind"`       // "ResctrlTop"
	Time       time.Time   `json:"time"`
	Seconds    float64     `json:"seconds"` // since the reading before, that rates are over
	Groups     []TopGroup  `json:"groups"`  // control groups, each followed by its monitoring groups
	Domains    []TopDomain `json:"domains"` // of the machine: the sum over control groups
}

// TopGroup is one group. What a control group counts holds what its monitoring groups count.
type TopGroup struct {
	Name    string      `json:"name"`             // "" of the root group
	Parent  *string     `json:"parent,omitempty"` // the control group of a monitoring group
	Pod     string      `json:"pod,omitempty"`    // NAMESPACE/NAME, of a monitoring group that is named after it or one of its containers
	Owner   groupOwner  `json:"owner"`            // of the control group
	Total   []TopEvent  `json:"total"`            // the sum over domains
	Domains []TopDomain `json:"domains,omitempty"`
}

// TopDomain is what was counted in one domain.
type TopDomain struct {
	Resource string     `json:"resource"`        // "L3"
	ID       int        `json:"id"`              // of the domain
	Sub      bool       `json:"sub,omitempty"`   // a sub-NUMA cluster, whose domain is listed too
	Bytes    uint64     `json:"bytes,omitempty"` // size of the cache, of a domain of the machine, where it is known
	Events   []TopEvent `json:"events"`
}

// TopEvent is one counter: occupancy, or bytes moved.
type TopEvent struct {
	Event     string               `json:"event"`
	State     resctrl.CounterState `json:"state"` // value holds if it is "counted"
	Value     uint64               `json:"value"`
	Rate      *TopRate             `json:"rate,omitempty"`      // of what counts up
	Uncounted int                  `json:"uncounted,omitempty"` // parts of a sum that have no value, or no rate
}

// TopRate is how fast a counter grew.
type TopRate struct {
	State     resctrl.CounterState `json:"state"` // perSecond holds if it is "counted"
	PerSecond float64              `json:"perSecond"`
	Reset     bool                 `json:"reset,omitempty"` // the counter went back
	New       bool                 `json:"new,omitempty"`   // the group was not there at the reading before
}

const (
	eventOccupancy = "llc_occupancy"
	eventLocal     = "mbm_local_bytes"
	eventTotal     = "mbm_total_bytes"
)

const leastInterval = 100 * time.Millisecond

func (c *cli) resctrlTop() *cobra.Command {
	var s screen
	var interval time.Duration
	var iterations int
	var byDomain bool
	cmd := &cobra.Command{
		Use: "top", Short: "Show occupancy and bandwidth of the groups, live",
		Long: `Top shows how much of the caches each group occupies and how much memory bandwidth it uses, of control groups and their
monitoring groups, and below that the sums by domain. The first frame comes after one interval, as rates need two readings. A value
that the kernel does not have is shown as it says: Unavailable, Unassigned or Error.

On a terminal frames replace each other, and ctrl-C ends it; else they follow each other. With -o json each frame is one line;
with -o yaml frames are documents with --- before each.`,
		Example: `  tideline resctrl top
  tideline resctrl top --by-domain --interval 5s
  tideline resctrl top -n 1 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.check(); err != nil {
				return err
			}
			if interval < leastInterval {
				return fmt.Errorf("--interval %s: want %s or more", interval, leastInterval)
			}
			if iterations < 0 {
				return fmt.Errorf("--iterations %d: want 0 for no end, or more", iterations)
			}
			_, where, err := c.resctrlOf("")
			switch {
			case errors.Is(err, resctrl.ErrNotMounted):
				return fmt.Errorf("%w\nMount it with: tideline resctrl --mount", err)
			case err != nil:
				return notSupported(err)
			}
			err = c.top(cmd.Context(), topConfig{screen: s, interval: interval, iterations: iterations, byDomain: byDomain, where: *where})
			if errors.Is(err, context.Canceled) {
				return nil // that is how it is ended
			}
			return err
		},
	}
	c.controlFlag(cmd)
	s.flags(cmd)
	f := cmd.Flags()
	f.DurationVar(&interval, "interval", time.Second, "time between frames")
	f.IntVarP(&iterations, "iterations", "n", 0, "frames to show, 0 for no end")
	f.BoolVar(&byDomain, "by-domain", false, "a row for each domain of each group")
	return cmd
}

type topConfig struct {
	screen
	interval   time.Duration
	iterations int
	byDomain   bool
	where      hostfs.Resctrl
}

// top writes frames until their number is reached or ctx ends.
func (c *cli) top(ctx context.Context, cfg topConfig) error {
	fs := resctrl.Open(cfg.where.Files)
	info, err := fs.Info()
	if err != nil {
		return fmt.Errorf("read resctrl at %s: %w", cfg.where.Mount.Point, err)
	}
	if len(info.Monitors) == 0 {
		return errors.New("this CPU or kernel monitors nothing: there is no info/*_MON in resctrl")
	}
	pods, cache := podNames(c.askContainers(ctx)), cacheSizes(fs, info)
	before, err := c.countAll(fs)
	if err != nil {
		return err
	}
	live := cfg.output == "text" && c.resctrlHost.terminal
	for n := 1; ; n++ {
		if err := c.resctrlHost.wait(ctx, cfg.interval); err != nil {
			return err
		}
		after, err := c.countAll(fs)
		if err != nil {
			return err
		}
		frame := newTop(before, after, topNames{pods, cache, events(info)})
		if err := c.writeFrame(frame, cfg, live, n == 1); err != nil {
			return err
		}
		if n == cfg.iterations {
			return nil
		}
		before = after
	}
}

func (c *cli) writeFrame(frame ResctrlTop, cfg topConfig, live, first bool) error {
	var text string
	switch cfg.output {
	case "json":
		data, err := json.Marshal(frame)
		if err != nil {
			return err
		}
		text = string(data) + "\n"
	case "yaml":
		data, err := yaml.Marshal(frame)
		if err != nil {
			return err
		}
		text = "---\n" + string(data)
	default:
		text = frame.text(c.style(cfg.screen), cfg.byDomain)
		if live {
			text = onScreen(text, c.resctrlHost.height(), first)
		} else if !first {
			text = "\n" + text
		}
	}
	_, err := io.WriteString(c.stdout, text)
	return err
}

// onScreen makes a frame replace the one before, without a flicker: each line ends with erasing what was behind it.
func onScreen(text string, height int, first bool) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if height > 2 && len(lines) >= height {
		left := len(lines) - height + 2
		lines = append(lines[:height-2], fmt.Sprintf("... %d lines more: make the terminal higher, or use -o json", left))
	}
	var b strings.Builder
	if first {
		b.WriteString("\x1b[2J")
	}
	b.WriteString("\x1b[H")
	for _, l := range lines {
		b.WriteString(l + "\x1b[K\n")
	}
	return b.String() + "\x1b[J"
}

// podNames tells the pod of a monitoring group by its name: other agents name them after containers and pods.
func podNames(told toldContainers) map[string]string {
	names := map[string]string{}
	for id, c := range told.byID {
		names[id], names[c.PodUID] = podOf(c), podOf(c)
	}
	delete(names, "")
	return names
}

func podOf(c control.Container) string { return c.Namespace + "/" + c.Pod }

// reading is all counters at a moment.
type reading struct {
	at     time.Time
	groups []countedGroup
}

type countedGroup struct {
	path, name string
	parent     *string
	owner      groupOwner
	counters   resctrl.Counters
}

func (r reading) find(path string) (resctrl.Counters, bool) {
	for _, g := range r.groups {
		if g.path == path {
			return g.counters, true
		}
	}
	return nil, false
}

// countAll reads the counters of all groups. Those that go away meanwhile are left out.
func (c *cli) countAll(fs *resctrl.FS) (reading, error) {
	r := reading{at: c.resctrlHost.now()}
	groups, err := fs.Groups()
	if err != nil {
		return r, err
	}
	slices.SortStableFunc(groups, func(a, b *resctrl.Group) int { return rankOf(a.Name()) - rankOf(b.Name()) })
	for _, g := range append([]*resctrl.Group{fs.Root()}, groups...) {
		control := g.Name()
		members := []*resctrl.Group{g}
		mon, err := g.MonGroups()
		if err == nil {
			members = append(members, mon...)
		} else if !errors.Is(err, resctrl.ErrGone) || g.Path() == "." {
			return r, err
		}
		for _, m := range members {
			counters, err := m.Counters()
			if errors.Is(err, resctrl.ErrGone) && m.Path() != "." {
				continue
			}
			if err != nil {
				return r, err
			}
			one := countedGroup{path: m.Path(), name: m.Name(), owner: ownerOf(control), counters: counters}
			if m.Monitoring() {
				one.parent = &control
			}
			r.groups = append(r.groups, one)
		}
	}
	return r, nil
}

// cacheSizes are the sizes of caches in bytes, by resource and domain, by what the root group's masks come to. Where that is not to be had it is left out.
func cacheSizes(fs *resctrl.FS, info resctrl.Info) map[string]map[int]uint64 {
	out := map[string]map[int]uint64{}
	masks, err1 := fs.Root().Schemata()
	sizes, err2 := fs.Root().Sizes()
	if errors.Join(err1, err2) != nil {
		return out
	}
	for _, res := range info.Resources {
		if res.Cache == nil {
			continue
		}
		name := cacheOf(res.Name)
		for _, id := range res.Domains {
			mask, _ := masks.Value(res.Name, id)
			size, _ := sizes.Value(res.Name, id)
			if n := resctrl.Mask(mask).Bits(); n > 0 {
				if out[name] == nil {
					out[name] = map[int]uint64{}
				}
				out[name][id] = size / uint64(n) * uint64(res.Cache.Mask.Bits())
			}
		}
	}
	return out
}

// topNames is what does not change from frame to frame.
type topNames struct {
	pods   map[string]string
	cache  map[string]map[int]uint64
	events []string
}

// newTop compares two readings.
func newTop(before, after reading, names topNames) ResctrlTop {
	top := ResctrlTop{
		APIVersion: v1alpha1.APIVersion, Kind: "ResctrlTop", Time: after.at.UTC(), Seconds: after.at.Sub(before.at).Seconds(), Groups: []TopGroup{}, Domains: []TopDomain{},
	}
	for _, g := range after.groups {
		old, known := before.find(g.path)
		out := TopGroup{Name: g.name, Parent: g.parent, Owner: g.owner, Domains: topDomains(old, g.counters, after.at.Sub(before.at), known)}
		if g.parent != nil {
			out.Pod = names.pods[g.name]
		}
		var parts [][]TopEvent
		for _, d := range out.Domains {
			if !d.Sub {
				parts = append(parts, d.Events)
			}
		}
		out.Total = sumEvents(parts, names.events)
		top.Groups = append(top.Groups, out)
	}
	type place struct {
		resource string
		id       int
		sub      bool
	}
	var places []place
	parts := map[place][][]TopEvent{}
	for _, g := range top.Groups {
		if g.Parent != nil {
			continue // its control group counts it too
		}
		for _, d := range g.Domains {
			p := place{d.Resource, d.ID, d.Sub}
			if parts[p] == nil {
				places = append(places, p)
			}
			parts[p] = append(parts[p], d.Events)
		}
	}
	for _, p := range places {
		top.Domains = append(top.Domains, TopDomain{
			Resource: p.resource, ID: p.id, Sub: p.sub, Bytes: names.cache[p.resource][p.id], Events: sumEvents(parts[p], names.events),
		})
	}
	return top
}

// events are the names of what is monitored, occupancy first.
func events(info resctrl.Info) []string {
	var names []string
	for _, m := range info.Monitors {
		for _, f := range m.Features {
			// mbm_total_bytes_config says that an event can be configured, and is none.
			if !slices.Contains(names, f) && !strings.HasSuffix(f, "_config") {
				names = append(names, f)
			}
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return topColumn(a) - topColumn(b) })
	return names
}

func topColumn(event string) int {
	if i := slices.Index([]string{eventOccupancy, eventLocal, eventTotal}, event); i >= 0 {
		return i
	}
	return 3
}

func topDomains(before, after resctrl.Counters, elapsed time.Duration, known bool) []TopDomain {
	rates := resctrl.Rates(before, after, elapsed)
	var out []TopDomain
	for _, d := range after {
		domain := TopDomain{Resource: d.Resource, ID: d.ID, Sub: d.Sub, Events: []TopEvent{}}
		for _, e := range d.Events {
			event := TopEvent{Event: e.Event, State: e.State, Value: e.Value}
			for _, r := range rates {
				if r.Resource == d.Resource && r.ID == d.ID && r.Sub == d.Sub && r.Event == e.Event {
					event.Rate = &TopRate{State: r.State, PerSecond: r.PerSecond, Reset: r.Reset, New: !known}
				}
			}
			domain.Events = append(domain.Events, event)
		}
		out = append(out, domain)
	}
	return out
}

// sumEvents adds up. Parts without a value are left out, and counted; where no part has one the state is that of the first.
func sumEvents(parts [][]TopEvent, names []string) []TopEvent {
	sums := []TopEvent{}
	for _, name := range names {
		var sum *TopEvent
		for _, part := range parts {
			for _, e := range part {
				if e.Event == name {
					sum = addEvent(sum, e)
				}
			}
		}
		if sum != nil {
			sums = append(sums, *sum)
		}
	}
	return sums
}

func addEvent(sum *TopEvent, e TopEvent) *TopEvent {
	missing := e.State != resctrl.Counted || e.Rate != nil && e.Rate.State != resctrl.Counted
	if sum == nil {
		first := e
		if e.Rate != nil {
			rate := *e.Rate
			first.Rate = &rate
		}
		if missing {
			first.Uncounted++
		}
		return &first
	}
	if missing {
		sum.Uncounted++
	}
	switch {
	case e.State != resctrl.Counted:
	case sum.State == resctrl.Counted:
		sum.Value += e.Value
	default:
		sum.State, sum.Value = e.State, e.Value
	}
	switch {
	case e.Rate == nil || e.Rate.State != resctrl.Counted:
	case sum.Rate == nil || sum.Rate.State != resctrl.Counted:
		rate := *e.Rate
		sum.Rate = &rate
	default:
		sum.Rate.PerSecond += e.Rate.PerSecond
	}
	return sum
}

// text writes a frame for people.
func (t ResctrlTop) text(s style, byDomain bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, bandwidth over %.1f s\n\n", t.Time.Format(time.RFC3339), t.Seconds)
	names := t.eventNames()
	var g grid
	partial := false
	columns := make([]gridColumn, len(names))
	for i, name := range names {
		columns[i].head = topHead(name)
	}
	domains := gridColumn{head: "DOMAIN"}
	most := s.width - 3*(12+gap) // of a name: a value takes 12 columns at most
	if byDomain {
		most -= 12
	}
	most = max(most, 12)
	row := func(name cell, domain string, events []TopEvent, all int) {
		g.first = append(g.first, name)
		domains.cells = append(domains.cells, plain(domain))
		for i, event := range names {
			columns[i].cells = append(columns[i].cells, topCell(events, event, all, &partial))
		}
	}
	for _, group := range t.Groups {
		name := paintedName(group.Name, group.Owner, most)
		if group.Parent != nil {
			name = plain("  " + clip(firstOf(group.Pod, group.Name), most-2))
		}
		if !byDomain {
			row(name, "", group.Total, wholeDomains(group.Domains))
			continue
		}
		for i, d := range group.Domains {
			if i > 0 {
				name = plain("")
			}
			row(name, d.label(), d.Events, 1)
		}
		if len(group.Domains) == 0 {
			row(name, "-", nil, 1)
		}
	}
	g.head = "GROUP"
	if byDomain {
		g.columns = append(g.columns, domains)
	}
	g.columns = append(g.columns, alignStars(columns)...)
	b.WriteString(g.draw(s, 0))
	b.WriteString("\n" + t.domainGrid(names, &partial).draw(s, 0))
	if partial {
		b.WriteString("\n* without the parts that the kernel has no value for\n")
	}
	return b.String()
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func wholeDomains(list []TopDomain) (n int) {
	for _, d := range list {
		if !d.Sub {
			n++
		}
	}
	return n
}

func (d TopDomain) label() string {
	if d.Sub {
		return fmt.Sprintf("%s cluster %d", clip(d.Resource, 12), d.ID)
	}
	return fmt.Sprintf("%s %d", clip(d.Resource, 12), d.ID)
}

// domainGrid is the sums by domain.
func (t ResctrlTop) domainGrid(names []string, partial *bool) grid {
	g := grid{head: "ALL GROUPS"}
	columns := make([]gridColumn, len(names))
	cache := gridColumn{head: "CACHE"}
	groups := 0
	for _, group := range t.Groups {
		if group.Parent == nil {
			groups++
		}
	}
	known := false
	for _, d := range t.Domains {
		g.first = append(g.first, plain(d.label()))
		size := "-"
		if d.Bytes > 0 {
			size, known = bytesText(float64(d.Bytes)), true
		}
		cache.cells = append(cache.cells, cell{runs: []colored{{"", size}}, right: true})
		for i, event := range names {
			columns[i].head = topHead(event)
			columns[i].cells = append(columns[i].cells, topCell(d.Events, event, groups, partial))
		}
	}
	g.columns = alignStars(columns)
	if known {
		g.columns = append([]gridColumn{cache}, columns...)
	}
	return g
}

// alignStars has the numbers of a column end below each other where some have a star behind them.
func alignStars(columns []gridColumn) []gridColumn {
	starred := func(c cell) bool { return strings.HasSuffix(c.runs[len(c.runs)-1].text, "*") }
	for i, col := range columns {
		if !slices.ContainsFunc(col.cells, starred) {
			continue
		}
		columns[i].head += " "
		for j, c := range col.cells {
			if !starred(c) {
				columns[i].cells[j].runs = append(c.runs, colored{"", " "})
			}
		}
	}
	return columns
}

// eventNames are those that some group has and a column is for: others are in JSON.
func (t ResctrlTop) eventNames() []string {
	var names []string
	for _, g := range t.Groups {
		for _, e := range g.Total {
			if topColumn(e.Event) < 3 && !slices.Contains(names, e.Event) {
				names = append(names, e.Event)
			}
		}
	}
	slices.SortFunc(names, func(a, b string) int { return topColumn(a) - topColumn(b) })
	return names
}

func topHead(event string) string {
	return map[string]string{eventOccupancy: "OCCUPANCY", eventLocal: "LOCAL", eventTotal: "TOTAL"}[event]
}

// topCell shows an event of some, which may be a sum over so many parts.
func topCell(events []TopEvent, name string, parts int, partial *bool) cell {
	show := func(color, text string) cell { return cell{runs: []colored{{color, text}}, right: true} }
	i := slices.IndexFunc(events, func(e TopEvent) bool { return e.Event == name })
	if i < 0 {
		return show("", "-")
	}
	e := events[i]
	state, text := e.State, bytesText(float64(e.Value))
	if e.Rate != nil {
		state, text = e.Rate.State, bytesText(e.Rate.PerSecond)+"/s"
		switch {
		case e.State != resctrl.Counted:
			state = e.State
		case e.Rate.New:
			return show("2", "new")
		case e.Rate.Reset:
			return show("2", "reset")
		}
	}
	if state != resctrl.Counted {
		color := "33"
		if state == resctrl.Failed {
			color = "31"
		}
		return show(color, counterWord(state))
	}
	if e.Uncounted > 0 && parts > 1 {
		*partial = true
		text += "*"
	}
	return show("", text)
}

// counterWord is what the kernel wrote in place of a number.
func counterWord(s resctrl.CounterState) string {
	return map[resctrl.CounterState]string{
		resctrl.Unavailable: "Unavailable", resctrl.Unassigned: "Unassigned", resctrl.Failed: "Error", resctrl.Unreadable: "unreadable",
	}[s]
}
