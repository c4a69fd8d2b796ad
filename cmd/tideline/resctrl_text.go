package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/resctrl"
)

// ways is the legend of bitmaps, in its order. A sign is a bit of the mask, the highest first, as the kernel writes masks.
var ways = []struct{ sign, color, text string }{
	{"#", "32", "this group's alone"},
	{"+", "33", "shared with other groups"},
	{"%", "35", "this group's, and filled by I/O devices"},
	{"i", "35", "filled by I/O devices (shareable_bits)"},
	{"P", "36", "locked: memory is kept there"},
	{".", "2", "not this group's"},
}

const (
	wayAlone, wayShared, wayIO, wayHardware, wayLocked, wayOther = 0, 1, 2, 3, 4, 5
)

// resctrlLabel is the column that texts stand behind.
const resctrlLabel = 9

// cell is text with colours: runs of one colour each.
type cell struct {
	runs  []colored
	right bool // aligned so
}

type colored struct{ color, text string }

func plain(text string) cell { return cell{runs: []colored{{"", text}}} }

func (c cell) size() (n int) {
	for _, r := range c.runs {
		n += utf8.RuneCountInString(r.text)
	}
	return n
}

func (c cell) draw(s style, width int) string {
	var b strings.Builder
	space := strings.Repeat(" ", max(0, width-c.size()))
	if c.right {
		b.WriteString(space)
	}
	for _, r := range c.runs {
		b.WriteString(s.paint(r.color, r.text))
	}
	if !c.right {
		b.WriteString(space)
	}
	return b.String()
}

// grid is a table of columns that all have a cell for each row. Where they are too many for the width they stand below
// each other, with the first column each time.
type grid struct {
	head    string // of the first column
	first   []cell // names of rows
	columns []gridColumn
}

type gridColumn struct {
	head  string
	cells []cell
}

func (c gridColumn) width() int {
	n := utf8.RuneCountInString(c.head)
	for _, cell := range c.cells {
		n = max(n, cell.size())
	}
	return n
}

// draw writes the grid behind an indent. Rows end without spaces.
func (g grid) draw(s style, indent int) string {
	var b strings.Builder
	first := len(g.head)
	for _, c := range g.first {
		first = max(first, c.size())
	}
	for start := 0; start < len(g.columns) || start == 0; {
		end, used := start, indent+first
		for end < len(g.columns) && (end == start || used+gap+g.columns[end].width() <= s.width) {
			used += gap + g.columns[end].width()
			end++
		}
		if start > 0 {
			b.WriteString("\n")
		}
		part := g.columns[start:end]
		for row := -1; row < len(g.first); row++ {
			name := cell{runs: []colored{{"1", g.head}}}
			if row >= 0 {
				name = g.first[row]
			}
			line := []string{strings.Repeat(" ", indent) + name.draw(s, first)}
			for _, c := range part {
				word := strings.TrimRight(c.head, " ")
				at := cell{runs: []colored{{"1", word}, {"", c.head[len(word):]}}}
				if row >= 0 {
					at = c.cells[row]
				} else if len(c.cells) > 0 && c.cells[0].right {
					at.right = true
				}
				line = append(line, at.draw(s, c.width()))
			}
			b.WriteString(strings.TrimRight(strings.Join(line, strings.Repeat(" ", gap)), " ") + "\n")
		}
		if end == start {
			break
		}
		start = end
	}
	return b.String()
}

// clip cuts text at width, and says so. What can't be printed is a question mark: names of groups may hold anything.
func clip(text string, width int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(0, width-3)]) + "..."
}

// domainList is a list of domains for a heading.
func domainList(ids []int) string { return clip(shortList(cpuset.New(ids...)), 20) }

// maxGroupName is how much of a group's name a screen shows.
const maxGroupName = 22

// text writes a report for people.
func (r ResctrlReport) text(s style) string {
	p := &page{width: s.width}
	p.labelled("node", resctrlLabel, r.Node.describe())
	switch r.State {
	case resctrlNotMounted:
		p.labelled("resctrl", resctrlLabel, "not mounted, so nothing is shared out: all tasks have all of the caches and the memory bandwidth")
		p.WriteString("\nMount it until the next boot:\n  tideline resctrl --mount\nor at each boot, by a line of /etc/fstab:\n  resctrl " + resctrl.DefaultPoint + " resctrl defaults 0 0\n")
		return p.String()
	case resctrlNotSupported:
		p.labelled("resctrl", resctrlLabel, "not supported by this kernel on this machine")
		p.WriteString("\n")
		p.line(0, 0, strings.ReplaceAll(whyNotSupported, "\n", " "))
		return p.String()
	}
	r.head(p)
	if len(r.Resources) == 0 {
		p.WriteString("\nNothing can be allocated here, only monitored.\n")
	}
	r.drawSettings(p, s)
	r.drawGroups(p, s)
	r.drawPods(p, s)
	return strings.ReplaceAll(p.String(), pad, " ")
}

// headResources says how resctrl is mounted and what can be allocated.
func (r ResctrlReport) headResources(p *page) {
	how := "no options"
	if o := r.Mount.Options.String(); o != "" {
		how = "options " + o
	}
	if len(r.Mount.Other) > 0 {
		how += " and " + clip(strings.Join(r.Mount.Other, ","), 40)
	}
	p.labelled("resctrl", resctrlLabel, "mounted at "+r.Mount.Point+", "+how)
	for _, res := range sortedResources(r.Resources) {
		p.labelled(clip(res.Name, resctrlLabel-1), resctrlLabel, r.describeResource(res))
	}
}

func (r ResctrlReport) head(p *page) {
	r.headResources(p)
	for _, m := range r.Monitors {
		p.labelled("monitor", resctrlLabel, describeMonitor(m))
	}
	if len(r.Monitors) == 0 {
		p.labelled("monitor", resctrlLabel, "nothing: this CPU or kernel has no monitoring")
	}
	p.labelled("CLOSIDs", resctrlLabel, r.CLOSIDs.describe())
	p.labelled("RMIDs", resctrlLabel, r.RMIDs.describe())
	p.labelled("pods", resctrlLabel, r.aboutPods)
	for _, problem := range r.Problems {
		p.line(0, 2, "! "+problem)
	}
}

func (i *ReportedIDs) describe() string {
	if i == nil {
		return "none"
	}
	var parts []string
	for _, by := range []struct {
		n   int
		who string
	}{{i.Root, "root"}, {i.Tideline, "tideline"}, {i.Foreign, "others"}, {i.IO, "I/O devices"}} {
		if by.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", by.n, by.who))
		}
	}
	return fmt.Sprintf("%d of %d in use: %s; %d free", i.Total-i.free(), i.Total, strings.Join(parts, ", "), i.free())
}

func (r ResctrlReport) describeResource(res resctrl.ResourceInfo) string {
	var parts []string
	switch {
	case res.Cache != nil:
		c := res.Cache
		ways := plural(c.Mask.Bits(), "way", "ways")
		if size := r.wayBytes(res.Name); size > 0 {
			ways += " of " + bytesText(float64(size))
		}
		parts = append(parts, ways)
	case res.Bandwidth != nil:
		b := res.Bandwidth
		switch b.Unit {
		case resctrl.Percent:
			parts = append(parts, fmt.Sprintf("%d%% to %d%% in steps of %d", b.Min, b.Max, b.Gran))
		case resctrl.MBps:
			parts = append(parts, "MB/s, kept by the kernel (mba_MBps)")
		default:
			parts = append(parts, fmt.Sprintf("%d to %d times 1/8 GB/s", b.Min, b.Max))
		}
	default:
		parts = append(parts, "not known to Tideline, kept as it is")
	}
	if n := len(res.Domains); n > 0 {
		word := "domains "
		if n == 1 {
			word = "domain "
		}
		parts = append(parts, word+clip(shortList(cpuset.New(res.Domains...)), 40))
	}
	switch {
	case res.Cache != nil:
		rule := "no holes"
		if res.Cache.Sparse {
			rule = "holes allowed"
		}
		least := "at least " + plural(res.Cache.MinBits, "way", "ways")
		if res.Cache.MinBits == 0 {
			least = "may be empty"
		}
		parts = append(parts, least, rule)
		if io := res.Cache.IOAlloc; io != "" && io != "not supported" {
			parts = append(parts, "I/O allocation "+clip(strings.TrimSpace(io+" "+res.Cache.IOMasks), 40))
		}
	case res.Bandwidth != nil && res.Bandwidth.ThrottleMode != "":
		parts = append(parts, "throttle mode "+clip(res.Bandwidth.ThrottleMode, 20))
	}
	return strings.Join(append(parts, plural(res.NumCLOSIDs, "CLOSID", "CLOSIDs")), ", ")
}

func describeMonitor(m resctrl.MonitorInfo) string {
	text := clip(strings.TrimSuffix(m.Name, "_MON"), 20) + ": " + clip(strings.Join(m.Features, ", "), 400)
	switch {
	case m.AssignMode == "mbm_event":
		text += "; counters are assigned (mbm_event)"
		if len(m.Counters) > 0 {
			text += ": " + countsText(m.Counters) + ", " + countsText(m.Available) + " free"
		}
	case m.AssignMode != "":
		text += "; mbm_assign_mode " + clip(m.AssignMode, 20) + " (of " + clip(strings.Join(m.AssignModes, ", "), 40) + ")"
	}
	return text
}

// countsText is a number by domain: "32 in each domain", "32 in 0-3, 16 in 4".
func countsText(counts []resctrl.Domain) string {
	byValue := map[uint64][]int{}
	var values []uint64
	for _, d := range counts {
		if byValue[d.Value] == nil {
			values = append(values, d.Value)
		}
		byValue[d.Value] = append(byValue[d.Value], d.ID)
	}
	if len(values) == 1 {
		return fmt.Sprintf("%d in each domain", values[0])
	}
	var parts []string
	for _, v := range values {
		parts = append(parts, fmt.Sprintf("%d in %s", v, domainList(byValue[v])))
	}
	return cmp.Or(clip(strings.Join(parts, " and "), 60), "none")
}

// wayBytes is the size of a way, by what masks come to; 0 where that is not known.
func (r ResctrlReport) wayBytes(resource string) uint64 {
	for _, g := range r.Groups {
		for _, set := range g.Settings {
			for _, v := range set.Domains {
				if set.Resource == resource && v.Mask != nil && v.Mask.Bits() > 0 && v.Bytes > 0 {
					return v.Bytes / uint64(v.Mask.Bits())
				}
			}
		}
	}
	return 0
}

// bytesText shows bytes, or bytes a second, in at most 9 columns.
func bytesText(n float64) string {
	unit := 0
	for n >= 1000 && unit < 5 {
		n /= 1024
		unit++
	}
	name := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}[unit]
	switch {
	case unit == 0 || n >= 100:
		return fmt.Sprintf("%.0f %s", n, name)
	case n >= 10:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0") + " " + name
	}
	return strings.TrimSuffix(strings.TrimSuffix(fmt.Sprintf("%.2f", n), "0"), ".0") + " " + name
}

// settingIndex finds settings, by group, resource and domain.
type settingIndex []map[string]map[int]ReportedValue

func (r ResctrlReport) index() settingIndex {
	x := make(settingIndex, len(r.Groups))
	for i, g := range r.Groups {
		x[i] = map[string]map[int]ReportedValue{}
		for _, set := range g.Settings {
			x[i][set.Resource] = map[int]ReportedValue{}
			for _, v := range set.Domains {
				x[i][set.Resource][v.ID] = v
			}
		}
	}
	return x
}

// ways are those of a cache that a group has in a domain, for code or for data.
func (x settingIndex) ways(group int, cache string, id int) (m resctrl.Mask) {
	for _, half := range []string{"", "CODE", "DATA"} {
		if v, ok := x[group][cache+half][id]; ok && v.Mask != nil {
			m |= *v.Mask
		}
	}
	return m
}

// cacheOf is the cache that a resource is of: L3 of L3CODE and L3DATA.
func cacheOf(resource string) string {
	return strings.TrimSuffix(strings.TrimSuffix(resource, "CODE"), "DATA")
}

// drawSettings draws all settings, a row a group.
func (r ResctrlReport) drawSettings(p *page, s style) {
	if len(r.Resources) == 0 {
		return
	}
	var g grid
	io := slices.ContainsFunc(r.Resources, func(x resctrl.ResourceInfo) bool { return x.Cache != nil && x.Cache.Shareable != 0 })
	if io {
		g.first = append(g.first, plain("I/O devices"))
	}
	for _, group := range r.Groups {
		g.first = append(g.first, paintedName(group.Name, group.Owner, maxGroupName))
	}
	used, index, hidden := map[int]bool{}, r.index(), 0
	for _, res := range sortedResources(r.Resources) {
		if res.Cache == nil && res.Bandwidth == nil {
			g.columns = append(g.columns, r.unknownColumn(res, io))
			continue
		}
		for i, ids := range index.fold(res) {
			if i >= maxColumns {
				hidden += len(ids)
				continue
			}
			col := gridColumn{head: res.Name + " " + domainList(ids)}
			if io {
				col.cells = append(col.cells, ioCell(res, used))
			}
			for i := range r.Groups {
				col.cells = append(col.cells, r.settingCell(index, res, i, ids[0], used))
			}
			if res.Bandwidth != nil {
				for i := range col.cells {
					col.cells[i].right = true
				}
			}
			g.columns = append(g.columns, col)
		}
	}
	p.WriteString("\n" + g.draw(s, 0))
	if hidden > 0 {
		fmt.Fprintf(p, "... and %s more, see -o json\n", plural(hidden, "domain", "domains"))
	}
	p.WriteString(waysLegend(s, used))
}

// waysLegend has the signs that were drawn.
func waysLegend(s style, used map[int]bool) string {
	var b strings.Builder
	for i, w := range ways {
		if used[i] && i != wayOther {
			b.WriteString("   " + s.paint(w.color, w.sign) + " " + w.text + "\n")
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n" + b.String()
}

func paintedName(name string, owner groupOwner, most int) cell {
	color := ""
	if owner == ownerTideline {
		color = "1"
	}
	return cell{runs: []colored{{color, clip(groupName(name), most)}}}
}

// sortedResources gives caches before bandwidth, and of caches the last level and data first.
func sortedResources(list []resctrl.ResourceInfo) []resctrl.ResourceInfo {
	rank := func(x resctrl.ResourceInfo) int {
		switch {
		case x.Cache != nil:
			return 0
		case x.Bandwidth != nil:
			return 1
		}
		return 2
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b resctrl.ResourceInfo) int {
		if ra, rb := rank(a), rank(b); ra != 0 || rb != 0 {
			return cmp.Or(ra-rb, cmp.Compare(a.Name, b.Name))
		}
		return cmp.Compare(b.Name, a.Name) // L3 before L2, L3DATA before L3CODE
	})
	return list
}

// maxColumns bounds how many columns a resource gets. No machine needs as many.
const maxColumns = 64

// fold puts domains together in which all groups have the same.
func (x settingIndex) fold(res resctrl.ResourceInfo) [][]int {
	names := []string{res.Name}
	if res.Cache != nil {
		// What the other half has tells which ways are shared.
		names = []string{cacheOf(res.Name), cacheOf(res.Name) + "CODE", cacheOf(res.Name) + "DATA"}
	}
	var keys []string
	byKey := map[string][]int{}
	for _, id := range res.Domains {
		var b strings.Builder
		for i := range x {
			for _, name := range names {
				switch v, ok := x[i][name][id]; {
				case !ok:
					b.WriteString("?;")
				case v.Mask != nil:
					b.WriteString(v.Mask.String() + ";")
				default:
					b.WriteString(strconv.FormatUint(*v.Amount, 10) + ";")
				}
			}
		}
		key := b.String()
		if byKey[key] == nil {
			keys = append(keys, key)
		}
		byKey[key] = append(byKey[key], id)
	}
	var out [][]int
	for _, key := range keys {
		out = append(out, byKey[key])
	}
	return out
}

func ioCell(res resctrl.ResourceInfo, used map[int]bool) cell {
	if res.Cache == nil {
		return plain("")
	}
	return bits(res.Cache.Mask, used, func(bit int) int {
		if res.Cache.Shareable.Has(bit) {
			return wayHardware
		}
		return wayOther
	})
}

// bits draws a mask, a sign a bit, the highest first.
func bits(all resctrl.Mask, used map[int]bool, of func(bit int) int) cell {
	const most = 40 // the kernel has 32
	var c cell
	if all.Bits() > most {
		var m resctrl.Mask
		for bit := range 64 {
			if all.Has(bit) && of(bit) != wayOther {
				m |= resctrl.Ways(bit, 1)
			}
		}
		return plain(m.String())
	}
	for bit := all.Highest(); bit >= 0; bit-- {
		if !all.Has(bit) {
			continue
		}
		n := of(bit)
		used[n] = true
		if last := len(c.runs) - 1; last >= 0 && c.runs[last].color == ways[n].color {
			c.runs[last].text += ways[n].sign
			continue
		}
		c.runs = append(c.runs, colored{ways[n].color, ways[n].sign})
	}
	return c
}

func (r ResctrlReport) settingCell(x settingIndex, res resctrl.ResourceInfo, group, id int, used map[int]bool) cell {
	g := r.Groups[group]
	v, ok := x[group][res.Name][id]
	switch {
	case !ok:
		return plain("?")
	case v.Amount != nil:
		return plain(amountText(res.Bandwidth, *v.Amount))
	case res.Cache == nil:
		return plain(v.Mask.String())
	}
	others := resctrl.Mask(0)
	for i := range r.Groups {
		if i != group {
			others |= x.ways(i, cacheOf(res.Name), id)
		}
	}
	all := res.Cache.Mask | *v.Mask
	return bits(all, used, func(bit int) int {
		switch {
		case !v.Mask.Has(bit):
			return wayOther
		case g.Mode == resctrl.PseudoLocked:
			return wayLocked
		case res.Cache.Shareable.Has(bit):
			return wayIO
		case others.Has(bit):
			return wayShared
		}
		return wayAlone
	})
}

// amountText shows an amount of bandwidth.
func amountText(b *resctrl.BandwidthInfo, n uint64) string {
	switch {
	case b == nil:
		return strconv.FormatUint(n, 10)
	case b.Unit == resctrl.Percent:
		return strconv.FormatUint(n, 10) + "%"
	case n >= b.Max:
		return "no limit"
	case b.Unit == resctrl.MBps:
		return strconv.FormatUint(n, 10) + " MB/s"
	}
	return strconv.FormatFloat(float64(n)/8, 'f', -1, 64) + " GB/s"
}

func (r ResctrlReport) unknownColumn(res resctrl.ResourceInfo, io bool) gridColumn {
	col := gridColumn{head: clip(res.Name, 20)}
	if io {
		col.cells = append(col.cells, plain(""))
	}
	for _, g := range r.Groups {
		text := "?"
		for _, set := range g.Settings {
			if set.Resource == res.Name {
				text = clip(set.Text, 30)
			}
		}
		col.cells = append(col.cells, plain(text))
	}
	return col
}

// maxMonRows and maxPodRows bound what a screen has of one group.
const (
	maxMonRows = 5
	maxPodRows = 10
)

// drawGroups lists the groups and what is in them.
func (r ResctrlReport) drawGroups(p *page, s style) {
	if len(r.Groups) == 0 {
		return
	}
	var rows [][]string
	for _, g := range r.Groups {
		rows = append(rows, []string{clip(groupName(g.Name), maxGroupName), whose(g), string(g.Mode), dash(clip(shortList(parseCPUsOf(g.CPUs)), 14)), strconv.Itoa(g.Tasks), g.behind()})
		for i, m := range g.MonGroups {
			if i == maxMonRows {
				rows = append(rows, []string{"  ...", "", "", "", "", fmt.Sprintf("%d monitoring groups more, see -o json", len(g.MonGroups)-i)})
				break
			}
			rows = append(rows, []string{"  " + clip(m.Name, maxGroupName-2), "monitors", "", dash(clip(shortList(parseCPUsOf(m.CPUs)), 14)), strconv.Itoa(m.Tasks), ""})
		}
	}
	p.WriteString("\n")
	rightAlign(rows, 4, len("TASKS"))
	headed(p, s, []string{"GROUP", "WHOSE", "MODE", "CPUS", "TASKS", "IN IT"}, rows)
}

// headed is a table whose first line stands out.
func headed(p *page, s style, head []string, rows [][]string) {
	t := page{width: s.width}
	t.table(0, head, rows)
	first, rest, _ := strings.Cut(t.String(), "\n")
	p.WriteString(s.paint("1", first) + "\n" + rest)
}

// pad stands for a space before a cell of page.table, which would be lost; text puts it back.
const pad = "\x00"

// rightAlign pads the cells of a column, whose heading is so wide.
func rightAlign(rows [][]string, column, width int) {
	for _, row := range rows {
		width = max(width, len(row[column]))
	}
	for _, row := range rows {
		row[column] = strings.Repeat(pad, width-len(row[column])) + row[column]
	}
}

func whose(g ReportedResctrlGroup) string {
	return map[groupOwner]string{ownerRoot: "-", ownerTideline: "tideline", ownerForeign: "others"}[g.Owner]
}

func parseCPUsOf(list string) cpuset.CPUSet {
	set, err := cpuset.Parse(list)
	if err != nil {
		return cpuset.New()
	}
	return set
}

// behind says who the tasks of a group are.
func (g ReportedResctrlGroup) behind() string {
	if g.Containers == nil {
		return ""
	}
	var parts []string
	if n := len(g.Containers); n > 0 {
		text := plural(n, "container", "containers")
		var tiers []string
		count := map[string]int{}
		known := false
		for _, m := range g.Containers {
			tier := "unknown"
			if m.Tier != nil {
				known = true
				tier = cmp.Or(string(*m.Tier), "none")
			}
			if count[tier] == 0 {
				tiers = append(tiers, tier)
			}
			count[tier]++
		}
		if known {
			slices.Sort(tiers)
			for i, t := range tiers {
				tiers[i] = fmt.Sprintf("%d %s", count[t], t)
			}
			text += " (" + strings.Join(tiers, ", ") + ")"
		}
		parts = append(parts, text)
	}
	if g.HostTasks > 0 {
		parts = append(parts, plural(g.HostTasks, "task", "tasks")+" of the host")
	}
	return strings.Join(parts, ", ")
}

// drawPods lists the pods of the groups but the root, in which everything is that has no other group.
func (r ResctrlReport) drawPods(p *page, s style) {
	var rows [][]string
	doored := false
	for _, g := range r.Groups {
		if g.Owner == ownerRoot {
			continue
		}
		for i, m := range g.Containers {
			if i == maxPodRows {
				rows = append(rows, []string{clip(groupName(g.Name), maxGroupName), "", "", fmt.Sprintf("%d containers more, see -o json", len(g.Containers)-i)})
				break
			}
			who, tier := "container "+clip(m.ID, 15), "?"
			if m.Tier != nil {
				doored = true
				tier = cmp.Or(string(*m.Tier), "none")
				who = m.Namespace + "/" + m.Pod + " " + m.Name
			}
			rows = append(rows, []string{clip(groupName(g.Name), maxGroupName), tier, strconv.Itoa(m.Tasks), who})
		}
	}
	if len(rows) == 0 {
		return
	}
	head := "CONTAINER"
	if doored {
		head = "POD AND CONTAINER"
	}
	p.WriteString("\n")
	rightAlign(rows, 2, len("TASKS"))
	headed(p, s, []string{"GROUP", "TIER", "TASKS", head}, rows)
}
