package resctrl

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Class is a kind of work and its share of caches and memory bandwidth. Two classes may have the same share: then they
// are in one group.
type Class struct {
	Name  string // begins with a letter or digit; letters, digits, '-', '_', '.'
	L3    CacheShare
	L2    CacheShare
	MB    BandwidthShare
	Batch bool // gives way: its ways lie at the low end, and its wishes go first where CLOSIDs are short
}

// CacheShare is a part of a cache. The zero value is all of it.
type CacheShare struct {
	Percent int  // of the ways, 1 to 100; 0: all
	Mask    Mask // the ways themselves, in each domain; 0: by Percent
}

// BandwidthShare is a limit of memory bandwidth. The zero value is none.
type BandwidthShare struct {
	Percent int    // 1 to 100; 0: no limit
	MBps    uint64 // MB/s in each domain; 0: by Percent
}

// GroupState is a control group as it is.
type GroupState struct {
	Name      string   `json:"name"` // "" of the root group
	Mode      Mode     `json:"mode"`
	Schemata  Schemata `json:"schemata"`
	MonGroups int      `json:"monGroups,omitempty"`
}

// States reads the root group and all control groups. A group that is removed meanwhile is left out.
func (f *FS) States() ([]GroupState, error) {
	groups, err := f.Groups()
	if err != nil {
		return nil, err
	}
	var states []GroupState
	for _, g := range slices.Concat([]*Group{f.Root()}, groups) {
		s, err := g.state()
		if errors.Is(err, ErrGone) && g.path != "." {
			continue
		}
		if err != nil {
			return nil, err
		}
		states = append(states, s)
	}
	return states, nil
}

func (g *Group) state() (GroupState, error) {
	s := GroupState{Name: g.Name()}
	var err error
	if s.Mode, err = g.Mode(); err != nil {
		return s, err
	}
	if s.Schemata, err = g.Schemata(); err != nil {
		return s, err
	}
	mon, err := g.MonGroups()
	s.MonGroups = len(mon)
	return s, err
}

// PlanOptions says which groups are ours.
type PlanOptions struct {
	Prefix string // of the names of our groups, "tideline-"; never empty
}

// Planned is what Plan decides.
type Planned struct {
	Prefix  string         `json:"prefix"`
	Classes []PlannedClass `json:"classes"`          // in the order in which they were asked for
	Groups  []PlannedGroup `json:"groups,omitempty"` // that have to be there, by name
	Steps   []Step         `json:"steps,omitempty"`  // that lead there; none if all is as it should be
	CLOSIDs CLOSIDs        `json:"closids"`
}

// CLOSIDs is who has how many, or has RMIDs where those are fewer.
type CLOSIDs struct {
	Total   int `json:"total"` // the root group's is among them
	Foreign int `json:"foreign"`
	Ours    int `json:"ours"` // as planned
}

// PlannedClass is where a class goes.
type PlannedClass struct {
	Name    string   `json:"name"`
	Group   string   `json:"group"` // "" is the root group
	Outcome Outcome  `json:"outcome"`
	Reasons []Reason `json:"reasons,omitempty"` // of each value that is not exactly what was asked for
}

// Outcome is what became of a class' wishes.
type Outcome string

const (
	Granted  Outcome = "granted"  // within rounding
	Degraded Outcome = "degraded" // some of them, or less: the machine lacks a resource, or CLOSIDs or ways are short
	Refused  Outcome = "refused"  // none
)

// Reason is why a value is what it is.
type Reason struct {
	Resource string `json:"resource,omitempty"`
	Text     string `json:"text"`
}

func (r Reason) String() string {
	if r.Resource == "" {
		return r.Text
	}
	return r.Resource + ": " + r.Text
}

// PlannedGroup is a group that has to be there.
type PlannedGroup struct {
	Name     string   `json:"name"`
	Classes  []string `json:"classes"`
	Schemata Schemata `json:"schemata"` // of all domains of all resources
}

// StepOp is a kind of Step.
type StepOp string

const (
	StepCreate StepOp = "create" // and set
	StepSet    StepOp = "set"
	StepShare  StepOp = "share" // make a group shareable that somebody made exclusive
	StepRemove StepOp = "remove"
)

// Step is one change.
type Step struct {
	Op       StepOp   `json:"op"`
	Group    string   `json:"group"`
	Schemata Schemata `json:"schemata,omitempty"`
	Why      string   `json:"why"`
}

func (s Step) String() string { return string(s.Op) + " " + s.Group + ": " + s.Why }

// Plan decides which groups a machine needs for some classes, and what is to be done about those that are there. It is
// pure. The error is about the classes or options themselves; what this machine can't do is in the reasons.
//
// A class that asks for all of everything stays in the root group, which is never changed. Classes that come to the same
// values share a group, named after the first of them. Groups without the prefix are foreign: they keep their CLOSIDs and,
// if they are exclusive, their ways.
//
// A percentage of a cache is rounded up to whole ways, to min_cbm_bits at least, and is one run of ways. Batch classes get the lowest
// ways, others the highest, away from those that I/O hardware fills too (shareable_bits) where that is possible; a mask
// that is given is taken as it is, or refused. Bandwidth is rounded up to bandwidth_gran, to min_bandwidth at least.
//
// Where CLOSIDs or RMIDs don't suffice, in this order and only as far as it takes:
//
//  1. the two batch groups with the widest settings become one, with the narrower value of each resource;
//  2. the widest of the other groups goes back to the root group and has no limit: it takes most anyway;
//  3. with no room for a single group, batch goes back to the root group too.
func Plan(info Info, existing []GroupState, classes []Class, opts PlanOptions) (Planned, error) {
	if err := checkPlan(classes, opts); err != nil {
		return Planned{}, err
	}
	p := planner{info: info, prefix: opts.Prefix, classes: classes, out: make([]PlannedClass, len(classes))}
	for _, g := range existing {
		switch {
		case g.Name == "":
			p.root = g
		case strings.HasPrefix(g.Name, opts.Prefix):
			p.ours = append(p.ours, g)
		default:
			p.foreign = append(p.foreign, g)
		}
	}
	for i, c := range classes {
		p.out[i] = PlannedClass{Name: c.Name, Outcome: Granted}
		p.add(i)
	}
	p.fit()
	return p.planned(), nil
}

func checkPlan(classes []Class, opts PlanOptions) error {
	var errs []error
	if opts.Prefix == "" || checkName(opts.Prefix) != nil {
		errs = append(errs, fmt.Errorf("prefix %s: want the beginning of a group name", quote(opts.Prefix)))
	}
	seen := map[string]bool{}
	for _, c := range classes {
		name := strings.ToLower(c.Name)
		if !isClassName(c.Name) || len(opts.Prefix+name) > 200 {
			errs = append(errs, fmt.Errorf("class %s: want letters, digits, '-', '_', '.'", quote(c.Name)))
		}
		if seen[name] {
			errs = append(errs, fmt.Errorf("class %s: named twice", quote(c.Name)))
		}
		seen[name] = true
		for _, share := range []struct {
			resource string
			percent  int
			both     bool
		}{
			{"L3", c.L3.Percent, c.L3.Percent != 0 && c.L3.Mask != 0},
			{"L2", c.L2.Percent, c.L2.Percent != 0 && c.L2.Mask != 0},
			{"MB", c.MB.Percent, c.MB.Percent != 0 && c.MB.MBps != 0},
		} {
			if share.percent < 0 || share.percent > 100 {
				errs = append(errs, fmt.Errorf("class %s: %s of %d %%: want 1 to 100", quote(c.Name), share.resource, share.percent))
			}
			if share.both {
				errs = append(errs, fmt.Errorf("class %s: %s as a percentage and as a value: want one", quote(c.Name), share.resource))
			}
		}
	}
	return errors.Join(errs...)
}

func isClassName(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !alnum && (i == 0 || c != '-' && c != '_' && c != '.') {
			return false
		}
	}
	return s != ""
}

type planner struct {
	info    Info
	prefix  string
	classes []Class
	root    GroupState
	ours    []GroupState
	foreign []GroupState
	out     []PlannedClass
	groups  []*planGroup
}

// planGroup is a group in the making.
type planGroup struct {
	classes  []int
	schemata Schemata
	batch    bool
}

// say keeps a reason for a class. An outcome only gets worse.
func (p *planner) say(class int, outcome Outcome, resource, format string, args ...any) {
	c := &p.out[class]
	rank := map[Outcome]int{Granted: 0, Degraded: 1, Refused: 2}
	if rank[outcome] > rank[c.Outcome] {
		c.Outcome = outcome
	}
	r := Reason{Resource: resource, Text: fmt.Sprintf(format, args...)}
	if !slices.Contains(c.Reasons, r) { // the halves of a cache under CDP have the same
		c.Reasons = append(c.Reasons, r)
	}
}

// add finds the values of a class and a group for it.
func (p *planner) add(class int) {
	c := p.classes[class]
	var s Schemata
	limited := false
	found := map[string]bool{}
	for _, r := range p.info.Resources {
		cache, _, _ := level(r.Name)
		switch {
		case r.Cache != nil:
			share := map[string]CacheShare{"L3": c.L3, "L2": c.L2}[cache]
			found[cache] = true
			limited = p.cache(class, r, share, &s) || limited
		case r.Bandwidth != nil:
			share := map[string]BandwidthShare{"MB": c.MB}[r.Name]
			found[r.Name] = true
			limited = p.bandwidth(class, r, share, &s) || limited
		}
	}
	for _, wish := range []struct {
		resource string
		all      bool
	}{{"L3", c.L3.all()}, {"L2", c.L2.all()}, {"MB", c.MB.all()}} {
		if !wish.all && !found[wish.resource] {
			p.say(class, Refused, wish.resource, "this machine can't allocate it")
		}
	}
	if !limited {
		p.toRoot(class)
		return
	}
	if p.out[class].Outcome == Refused {
		p.out[class].Outcome = Degraded
	}
	for _, g := range p.groups {
		if g.schemata.String() == s.String() {
			g.classes = append(g.classes, class)
			g.batch = g.batch && c.Batch
			return
		}
	}
	p.groups = append(p.groups, &planGroup{classes: []int{class}, schemata: s, batch: c.Batch})
}

func (s CacheShare) all() bool     { return s.Mask == 0 && (s.Percent == 0 || s.Percent == 100) }
func (s BandwidthShare) all() bool { return s.MBps == 0 && (s.Percent == 0 || s.Percent == 100) }

// toRoot says so if the root group has less than all.
func (p *planner) toRoot(class int) {
	for _, l := range p.root.Schemata {
		r, ok := p.info.Resource(l.Resource)
		for _, d := range l.Domains {
			if ok && (r.Cache != nil && d.Mask() != r.Cache.Mask || r.Bandwidth != nil && d.Value < r.Bandwidth.Max) {
				p.say(class, Granted, l.Resource, "the root group is narrowed: %s", l)
				break
			}
		}
	}
}

// cache sets a cache in all domains. It reports whether that limits the class.
func (p *planner) cache(class int, r ResourceInfo, share CacheShare, s *Schemata) (limited bool) {
	values := map[int]Mask{}
	if !share.all() {
		var ok bool
		if values, ok = p.share(class, r, share); !ok {
			values, share = nil, CacheShare{}
		}
	}
	for _, id := range r.Domains {
		m, ok := values[id]
		if !ok {
			m = p.usable(r, id)
			if !r.Cache.Sparse {
				m = m.Longest()
			}
		}
		if m == 0 || m.Bits() < r.Cache.MinBits {
			continue // exclusive groups have all of it: what the kernel gave stays
		}
		s.Set(r.Name, id, uint64(m))
		limited = limited || !share.all() && m != r.Cache.Mask
	}
	return limited
}

// usable are the ways of a domain that no exclusive group has, for code or for data.
func (p *planner) usable(r ResourceInfo, id int) Mask {
	m := r.Cache.Mask
	for _, g := range p.foreign {
		if g.Mode != Shareable && g.Mode != "" {
			m &^= g.Schemata.ways(r.Name, id)
		}
	}
	if p.root.Mode == Exclusive {
		m &^= p.root.Schemata.ways(r.Name, id)
	}
	return m
}

// share finds the ways of a class in each domain, or says why there are none.
func (p *planner) share(class int, r ResourceInfo, share CacheShare) (map[int]Mask, bool) {
	if share.Mask != 0 {
		return p.explicit(class, r, share.Mask)
	}
	c := r.Cache
	cache, _, _ := level(r.Name)
	total := c.Mask.Bits()
	ways := (total*share.Percent + 99) / 100
	if total*share.Percent%100 != 0 {
		p.say(class, Granted, cache, "%d %% of %d ways is %.4g, rounded up to %d", share.Percent, total, float64(total*share.Percent)/100, ways)
	}
	if ways < c.MinBits {
		p.say(class, Granted, cache, "%d is below the least that the kernel takes: %d", ways, c.MinBits)
		ways = c.MinBits
	}
	values := map[int]Mask{}
	short, shared := map[int][]int{}, map[Mask][]int{} // domains by what there is to say of them
	for _, id := range r.Domains {
		m := place(ways, p.usable(r, id), c, p.classes[class].Batch)
		switch {
		case m == 0 || m.Bits() < c.MinBits:
			p.say(class, Refused, cache, "exclusive groups leave no room%s", in([]int{id}, r))
			return nil, false
		case m.Bits() < ways:
			short[m.Bits()] = append(short[m.Bits()], id)
		case m&c.Shareable != 0 && m != c.Mask:
			shared[m&c.Shareable] = append(shared[m&c.Shareable], id)
		}
		values[id] = m
	}
	for _, n := range slices.Sorted(maps.Keys(short)) {
		p.say(class, Degraded, cache, "exclusive groups leave only %d of %d ways%s", n, ways, in(short[n], r))
	}
	for _, m := range slices.Sorted(maps.Keys(shared)) {
		p.say(class, Granted, cache, "ways %s are shared with I/O, as no other place has %d%s", m, ways, in(shared[m], r))
	}
	return values, true
}

// in names the domains of a reason, unless it is all of them.
func in(ids []int, r ResourceInfo) string {
	if len(ids) == len(r.Domains) {
		return ""
	}
	return fmt.Sprintf(" in domain %s", strings.Trim(strings.Join(strings.Fields(fmt.Sprint(ids)), ", "), "[]"))
}

func (p *planner) explicit(class int, r ResourceInfo, m Mask) (map[int]Mask, bool) {
	c := r.Cache
	cache, _, _ := level(r.Name)
	first := m.Runs()[0]
	switch {
	case m&^c.Mask != 0:
		p.say(class, Refused, cache, "mask %s has more bits than this machine's %s", m, c.Mask)
		return nil, false
	case !c.Sparse && !m.Contiguous():
		p.say(class, Refused, cache, "mask %s has a hole, which this machine can't do", m)
		return nil, false
	case first.Bits() < c.MinBits:
		p.say(class, Refused, cache, "mask %s has fewer ways side by side than the kernel takes: %d", m, c.MinBits)
		return nil, false
	}
	values := map[int]Mask{}
	for _, id := range r.Domains {
		if taken := m &^ p.usable(r, id); taken != 0 {
			p.say(class, Refused, cache, "ways %s of mask %s belong to an exclusive group%s", taken, m, in([]int{id}, r))
			return nil, false
		}
		values[id] = m
	}
	return values, true
}

// place finds ways for a class: one run, with as few I/O ways as can be, the lowest for batch and the highest for
// others. Where no run is long enough it is the longest, or, where masks may have holes, what there is.
func place(ways int, usable Mask, c *CacheInfo, low bool) Mask {
	var best Mask
	for i := range max(0, c.Mask.Highest()+2-ways) {
		first := i
		if !low {
			first = c.Mask.Highest() + 1 - ways - i
		}
		m := Ways(first, ways)
		if m&^usable == 0 && (best == 0 || (m&c.Shareable).Bits() < (best&c.Shareable).Bits()) {
			best = m
		}
	}
	if best != 0 {
		return best
	}
	if !c.Sparse || c.MinBits > 1 {
		return usable.Longest()
	}
	for _, from := range []Mask{usable &^ c.Shareable, usable & c.Shareable} {
		for from != 0 && best.Bits() < ways {
			bit := from.Lowest()
			if !low {
				bit = from.Highest()
			}
			best |= Ways(bit, 1)
			from &^= Ways(bit, 1)
		}
	}
	return best
}

// bandwidth sets a bandwidth in all domains. It reports whether that limits the class.
func (p *planner) bandwidth(class int, r ResourceInfo, share BandwidthShare, s *Schemata) (limited bool) {
	value := r.Bandwidth.Max
	if !share.all() {
		if v, ok := p.amount(class, r, share); ok {
			value = v
		}
	}
	for _, id := range r.Domains {
		s.Set(r.Name, id, value)
	}
	return value < r.Bandwidth.Max
}

func (p *planner) amount(class int, r ResourceInfo, share BandwidthShare) (uint64, bool) {
	b := r.Bandwidth
	var v uint64
	switch {
	case share.MBps != 0 && b.Unit == MBps:
		return min(share.MBps, b.Max), true
	case share.MBps != 0 && b.Unit == Eighth:
		v = share.MBps/125 + min(1, share.MBps%125)
		p.say(class, Granted, r.Name, "%d MB/s is %d units of 1/8 GB/s", share.MBps, v)
	case share.MBps != 0:
		p.say(class, Refused, r.Name, "MB/s need resctrl mounted with mba_MBps; here it counts percent")
		return 0, false
	case b.Unit == MBps:
		p.say(class, Refused, r.Name, "resctrl is mounted with mba_MBps and takes MB/s, no percent")
		return 0, false
	default:
		v = (b.Max*uint64(share.Percent) + 99) / 100
		if b.Unit == Eighth {
			p.say(class, Granted, r.Name, "%d %% of %d units of 1/8 GB/s is %d", share.Percent, b.Max, v)
		}
	}
	if v < b.Min {
		p.say(class, Granted, r.Name, "%d is below the least that there is: %d", v, b.Min)
		v = b.Min
	}
	if rounded := (v + b.Gran - 1) / b.Gran * b.Gran; rounded != v {
		p.say(class, Granted, r.Name, "%d is rounded up to %d: it goes in steps of %d", v, rounded, b.Gran)
		v = rounded
	}
	return min(v, b.Max), true
}

// room is how many groups of ours there can be, and what limits it.
func (p *planner) room() (n int, what string) {
	n = max(0, p.info.NumCLOSIDs()-1-len(p.foreign))
	what = fmt.Sprintf("%d CLOSIDs, less the root group's and %d of foreign groups", p.info.NumCLOSIDs(), len(p.foreign))
	if rmids := p.info.NumRMIDs(); rmids > 0 {
		mon := p.root.MonGroups
		for _, g := range slices.Concat(p.foreign, p.ours) {
			mon += g.MonGroups
		}
		if left := max(0, rmids-1-len(p.foreign)-mon); left < n {
			n = left
			what = fmt.Sprintf("%d RMIDs, less the root group's, %d of foreign and %d of monitoring groups", rmids, len(p.foreign), mon)
		}
	}
	return n, what
}

// fit degrades until the groups fit, as Plan says.
func (p *planner) fit() {
	room, what := p.room()
	for len(p.groups) > room {
		slices.SortStableFunc(p.groups, wider)
		switch batch := p.batch(); {
		case len(batch) >= 2:
			p.merge(batch[0], batch[1], what)
		case len(batch) == len(p.groups):
			p.drop(batch[0], Refused, what)
		default:
			i := slices.IndexFunc(p.groups, func(g *planGroup) bool { return !g.batch })
			p.drop(p.groups[i], Degraded, what)
		}
	}
}

func (p *planner) batch() []*planGroup {
	var list []*planGroup
	for _, g := range p.groups {
		if g.batch {
			list = append(list, g)
		}
	}
	return list
}

// wider orders groups from the widest: by ways, then by bandwidth.
func wider(a, b *planGroup) int {
	waysA, bandwidthA := a.schemata.width()
	waysB, bandwidthB := b.schemata.width()
	return cmp.Or(waysB-waysA, cmp.Compare(bandwidthB, bandwidthA))
}

func (s Schemata) width() (ways int, bandwidth uint64) {
	for _, l := range s {
		for _, d := range l.Domains {
			switch KindOf(l.Resource) {
			case KindCache:
				ways += d.Mask().Bits()
			case KindBandwidth:
				bandwidth += d.Value
			}
		}
	}
	return ways, bandwidth
}

// merge gives two groups the narrower value of each resource. The result may be equal to another group.
func (p *planner) merge(a, b *planGroup, what string) {
	before := []Schemata{a.schemata, b.schemata}
	narrow := a.schemata.Clone()
	for _, l := range b.schemata {
		for _, d := range l.Domains {
			have, ok := narrow.Value(l.Resource, d.ID)
			less := d.Value < have
			if KindOf(l.Resource) == KindCache {
				less = cmp.Or(d.Mask().Bits()-Mask(have).Bits(), cmp.Compare(d.Value, have)) < 0
			}
			if !ok || less {
				narrow.Set(l.Resource, d.ID, d.Value)
			}
		}
	}
	for i, g := range []*planGroup{a, b} {
		for _, c := range g.classes {
			if before[i].String() != narrow.String() {
				p.say(c, Degraded, "", "shares a group with other batch classes, at the narrower settings: there are %s", what)
			}
		}
	}
	a.classes = slices.Sorted(slices.Values(slices.Concat(a.classes, b.classes)))
	a.schemata = narrow
	p.groups = slices.DeleteFunc(p.groups, func(g *planGroup) bool { return g == b })
	for _, g := range p.groups {
		if g != a && g.schemata.String() == narrow.String() {
			g.classes = slices.Sorted(slices.Values(slices.Concat(g.classes, a.classes)))
			p.groups = slices.DeleteFunc(p.groups, func(o *planGroup) bool { return o == a })
			return
		}
	}
}

// drop leaves a group's classes in the root group.
func (p *planner) drop(g *planGroup, outcome Outcome, what string) {
	for _, c := range g.classes {
		p.say(c, outcome, "", "stays in the root group, without a limit: there are %s", what)
		p.toRoot(c)
	}
	p.groups = slices.DeleteFunc(p.groups, func(o *planGroup) bool { return o == g })
}

// planned names the groups and compares them with those that are there.
func (p *planner) planned() Planned {
	result := Planned{Prefix: p.prefix, Classes: p.out}
	for _, g := range p.groups {
		name := p.prefix + strings.ToLower(p.classes[slices.Min(g.classes)].Name)
		planned := PlannedGroup{Name: name, Schemata: g.schemata}
		for _, c := range g.classes {
			p.out[c].Group = name
			planned.Classes = append(planned.Classes, p.classes[c].Name)
		}
		result.Groups = append(result.Groups, planned)
	}
	slices.SortFunc(result.Groups, func(a, b PlannedGroup) int { return strings.Compare(a.Name, b.Name) })
	result.CLOSIDs = CLOSIDs{Total: p.info.NumCLOSIDs(), Foreign: len(p.foreign), Ours: len(result.Groups)}
	result.Steps = p.steps(result.Groups)
	return result
}

// steps makes groups before it removes others, so that tasks can be moved between; the other way round where CLOSIDs
// don't suffice for both.
func (p *planner) steps(groups []PlannedGroup) []Step {
	var set, create, remove []Step
	for _, g := range groups {
		i := slices.IndexFunc(p.ours, func(o GroupState) bool { return o.Name == g.Name })
		if i < 0 {
			create = append(create, Step{StepCreate, g.Name, g.Schemata, "for " + strings.Join(g.Classes, ", ")})
			continue
		}
		if m := p.ours[i].Mode; m != Shareable && m != "" {
			set = append(set, Step{Op: StepShare, Group: g.Name, Why: fmt.Sprintf("its mode is %s", m)})
		}
		if diffs := p.ours[i].Schemata.Differences(g.Schemata); len(diffs) > 0 {
			set = append(set, Step{StepSet, g.Name, g.Schemata, diffs[0].String()})
		}
	}
	for _, o := range p.ours {
		if !slices.ContainsFunc(groups, func(g PlannedGroup) bool { return g.Name == o.Name }) {
			remove = append(remove, Step{Op: StepRemove, Group: o.Name, Why: "no class needs it"})
		}
	}
	slices.SortFunc(remove, func(a, b Step) int { return strings.Compare(a.Group, b.Group) })
	if room, _ := p.room(); len(p.ours)+len(create) > room {
		return slices.Concat(set, remove, create)
	}
	return slices.Concat(set, create, remove)
}
