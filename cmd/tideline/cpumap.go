package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/placement"
)

// owners is who has which CPUs of a machine. Sets may overlap; use says what counts.
type owners struct {
	reserved cpuset.CPUSet // by the policy and the kubelet's configuration
	ls, be   cpuset.CPUSet // the pools
	foreign  cpuset.CPUSet // the kubelet's static CPU manager gave them to pods
	assigned []assignment
}

// assignment is a pod with CPUs of its own.
type assignment struct {
	namespace, name string
	tier            v1alpha1.Tier
	cpus            cpuset.CPUSet // that it runs on
	owned           cpuset.CPUSet // these, and siblings that are kept idle
	nodes           cpuset.CPUSet // memory nodes; empty for all
}

func (a assignment) pod() string { return a.namespace + "/" + a.name }

// use is what a CPU is for. The values are in the JSON of `tideline cpus`.
type use string

const (
	useReserved use = "reserved"
	useShared   use = "shared" // by LS and BE
	useLS       use = "LS"     // not BE
	useBE       use = "BE"     // not LS
	usePod      use = "pod"
	useIdle     use = "idle" // of a pod's core, and nobody runs there
	useKubelet  use = "kubelet"
	useIsolated use = "isolated"
	useDisputed use = "disputed"
	useNone     use = "none"
	useOffline  use = "offline"
)

// uses is the legend, in its order. Letters are for pods, and everything else has a sign of its own.
var uses = []struct {
	use
	sign  string
	color string
	text  string
}{
	{useReserved, "#", "33", "reserved for the host"},
	{useShared, ".", "", "pool of LS and BE"},
	{useLS, ":", "32", "pool of LS alone"},
	{useBE, "~", "2", "pool of BE alone"},
	{useIdle, "-", "", "idle sibling of a pod"},
	{useKubelet, "=", "7", "given out by the kubelet"},
	{useIsolated, "%", "35", "isolated (isolcpus=)"},
	{useDisputed, "!", "1;31", "more than one owner"},
	{useNone, "?", "31", "in no pool"},
	{useOffline, "_", "2", "offline"},
}

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	more    = "*" // pods beyond the letters
)

// Pods side by side differ in colour: LSE, which shares with nobody, as a block, LSR as a letter.
var podColors = map[v1alpha1.Tier][]string{
	v1alpha1.LSE: {"30;102", "30;104", "30;105", "30;106", "30;103"},
	v1alpha1.LSR: {"1;32", "1;94", "1;35", "1;36"},
}

// mapped is a CPU's use and how it is drawn.
type mapped struct {
	use
	pod         *assignment // of usePod and useIdle
	sign, color string
}

func letter(i int) string {
	if i < len(letters) {
		return letters[i : i+1]
	}
	return more
}

func podColor(i int, tier v1alpha1.Tier) string {
	colors := podColors[tier]
	if len(colors) == 0 {
		return ""
	}
	return colors[i%len(colors)]
}

// sorted gives the pods in the order of their letters.
func (o owners) sorted() []assignment {
	pods := slices.Clone(o.assigned)
	slices.SortStableFunc(pods, func(a, b assignment) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	return pods
}

// mapCPUs finds the use of every CPU.
func mapCPUs(t placement.Topology, o owners) map[int]mapped {
	m := map[int]mapped{}
	set := func(cpu int, u use) {
		for _, known := range uses {
			if known.use == u {
				m[cpu] = mapped{use: u, sign: known.sign, color: known.color}
			}
		}
	}
	for _, c := range t.CPUs {
		ls, be := o.ls.Contains(c.ID), o.be.Contains(c.ID)
		switch {
		case o.foreign.Contains(c.ID):
			set(c.ID, useKubelet)
		case t.Isolated.Contains(c.ID):
			set(c.ID, useIsolated)
		case o.reserved.Contains(c.ID):
			set(c.ID, useReserved)
		case ls && be:
			set(c.ID, useShared)
		case ls:
			set(c.ID, useLS)
		case be:
			set(c.ID, useBE)
		default:
			set(c.ID, useNone)
		}
	}
	for _, cpu := range t.Offline.List() {
		set(cpu, useOffline)
	}
	pods := o.sorted()
	for i := range pods {
		a := &pods[i]
		for _, cpu := range a.cpus.Union(a.owned).List() {
			before, ok := m[cpu]
			color := podColor(i, a.tier)
			switch {
			case !ok || before.use == useOffline:
			case before.pod != nil || before.use == useKubelet:
				set(cpu, useDisputed)
			case before.use == useDisputed:
			case a.cpus.Contains(cpu):
				m[cpu] = mapped{use: usePod, pod: a, sign: letter(i), color: color}
			default:
				set(cpu, useIdle)
				idle := m[cpu]
				idle.pod, idle.color = a, color
				m[cpu] = idle
			}
		}
	}
	return m
}

// style is how a drawing looks.
type style struct {
	width int
	color bool
}

func (s style) paint(color, text string) string {
	if !s.color || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// drawCPUs draws a machine: CPUs by socket, node, L3 and core, a legend and a list of pods. Memory is in bytes by node;
// it may be nil.
func drawCPUs(t placement.Topology, o owners, memory map[int]int64, s style) string {
	d := drawing{style: s, page: page{width: s.width}, topology: t, memory: memory, uses: mapCPUs(t, o)}
	d.line(0, 2, summary(t))
	d.sockets()
	d.legend(o)
	d.pods(o.sorted())
	return d.String()
}

type drawing struct {
	style
	page
	topology placement.Topology
	memory   map[int]int64
	uses     map[int]mapped
	told     map[int]bool // nodes whose facts are written
}

// summary counts, and names what the kernel does not tell.
func summary(t placement.Topology) string {
	var parts, unknown []string
	for _, level := range []struct {
		one, many, kind string
		of              func(placement.CPU) int
	}{
		{"socket", "sockets", "sockets", func(c placement.CPU) int { return c.Socket }},
		{"", "", "dies", func(c placement.CPU) int { return c.Die }},
		{"NUMA node", "NUMA nodes", "NUMA nodes", func(c placement.CPU) int { return c.NUMANode }},
		{"L3 cache", "L3 caches", "L3 caches", func(c placement.CPU) int { return c.L3 }},
		{"", "", "L2 caches", func(c placement.CPU) int { return c.L2 }},
		{"core", "cores", "which CPUs are of one core", func(c placement.CPU) int { return c.Core }},
	} {
		seen, missing := map[int]bool{}, false
		for _, c := range t.CPUs {
			if n := level.of(c); n >= 0 {
				seen[n] = true
			} else {
				missing = true
			}
		}
		n := len(seen)
		if level.kind == "NUMA nodes" {
			n = len(t.Nodes)
		}
		if n > 0 && level.one != "" {
			parts = append(parts, plural(n, level.one, level.many))
		}
		if missing {
			unknown = append(unknown, level.kind)
		}
	}
	text := strings.Join(append(parts, plural(len(t.CPUs), "CPU", "CPUs")), ", ")
	if len(unknown) > 0 {
		text += ". Not told by the kernel: " + strings.Join(unknown, ", ")
	}
	return text
}

// block is the cores of one kind of one L3, in one node.
type block struct {
	socket, node, l3 int
	efficient        bool
	cores            [][]placement.CPU
}

// blocks are in the order of drawing; what is unknown comes last.
func (d *drawing) blocks() []block {
	type place struct {
		socket, node, l3 int
		efficient        bool
	}
	type core struct {
		place
		core int
	}
	var blocks []block
	at, coreAt := map[place]int{}, map[core]int{}
	for _, c := range d.topology.CPUs {
		p := place{c.Socket, c.NUMANode, c.L3, c.Efficient}
		i, ok := at[p]
		if !ok {
			i = len(blocks)
			at[p] = i
			blocks = append(blocks, block{p.socket, p.node, p.l3, p.efficient, nil})
		}
		b := &blocks[i]
		k := core{p, c.Core}
		if c.Core < 0 {
			k.core = -1 - c.ID // alone, for all that is known
		}
		j, ok := coreAt[k]
		if !ok {
			j = len(b.cores)
			coreAt[k] = j
			b.cores = append(b.cores, nil)
		}
		b.cores[j] = append(b.cores[j], c)
	}
	last := func(n int) uint { return uint(n) } // -1 is the greatest
	slices.SortStableFunc(blocks, func(a, b block) int {
		kind := 0
		if a.efficient != b.efficient {
			kind = map[bool]int{false: -1, true: 1}[a.efficient]
		}
		return cmp.Or(cmp.Compare(last(a.socket), last(b.socket)), cmp.Compare(last(a.node), last(b.node)), cmp.Compare(last(a.l3), last(b.l3)), kind)
	})
	for _, b := range blocks {
		slices.SortStableFunc(b.cores, func(x, y []placement.CPU) int { // cores of one L2 side by side
			return cmp.Or(cmp.Compare(last(x[0].L2), last(y[0].L2)), cmp.Compare(x[0].ID, y[0].ID))
		})
	}
	return blocks
}

func (d *drawing) sockets() {
	d.told = map[int]bool{}
	blocks := d.blocks()
	hybrid := slices.ContainsFunc(blocks, func(b block) bool { return b.efficient })
	label := 0
	for i := range blocks {
		label = max(label, len(blocks[i].label(hybrid)))
	}
	for i, b := range blocks {
		first := i == 0 || blocks[i-1].socket != b.socket
		if first {
			d.WriteString("\n" + d.paint("1", "socket "+unknownNumber(b.socket)) + "\n")
		}
		if !first && blocks[i-1].node == b.node {
			continue
		}
		if len(d.topology.Nodes) > 0 {
			d.node(b.node)
		}
		rest := blocks[i:]
		if end := slices.IndexFunc(rest, func(o block) bool { return o.socket != b.socket || o.node != b.node }); end >= 0 {
			rest = rest[:end]
		}
		d.rows(rest, hybrid, label)
	}
	empty := true
	for _, n := range d.topology.Nodes {
		if !d.told[n.ID] {
			if empty {
				d.WriteString("\n" + d.paint("1", "no CPUs") + "\n")
				empty = false
			}
			d.node(n.ID)
		}
	}
}

func unknownNumber(n int) string {
	if n < 0 {
		return "?"
	}
	return strconv.Itoa(n)
}

// node writes what is known of a memory node, once.
func (d *drawing) node(id int) {
	text := "node " + unknownNumber(id)
	i := slices.IndexFunc(d.topology.Nodes, func(n placement.Node) bool { return n.ID == id })
	if i >= 0 && !d.told[id] {
		d.told[id] = true
		n := d.topology.Nodes[i]
		switch {
		case !n.Memory:
			text += ", no memory"
		case d.memory[id] > 0:
			text += fmt.Sprintf(", %.1f GiB", float64(d.memory[id])/(1<<30))
		}
		if len(d.topology.Nodes) > 1 && len(n.Distances) > 0 {
			text += ", distances"
			for _, to := range d.topology.Nodes {
				text += fmt.Sprintf(" %d", n.Distances[to.ID])
			}
		}
	}
	d.line(2, 2, text)
}

func (b block) label(hybrid bool) string {
	text := "L3 " + unknownNumber(b.l3)
	switch {
	case !hybrid:
		return text
	case b.efficient:
		return text + " E"
	}
	return text + " P"
}

const (
	rowIndent = 4
	minList   = 15 // "224-239,480-495"
	between   = 3  // blocks of a line, and the list
)

// rows draws the blocks of a node, several on a line where they are small, and the CPUs of each line behind it.
func (d *drawing) rows(blocks []block, hybrid bool, label int) {
	budget := max(d.style.width-rowIndent-between-minList, label+2)
	threads := map[bool]int{}
	for _, b := range blocks {
		for _, c := range b.cores {
			threads[b.efficient] = max(threads[b.efficient], len(c))
		}
	}
	type piece struct {
		text string // as wide as width on the screen
		size int
		cpus []int
	}
	var lines [][]piece
	for _, b := range blocks {
		cell := threads[b.efficient]
		full := perRow(len(b.cores), cell, budget-label-1)
		whole := len(b.cores) <= full
		for start := 0; start < len(b.cores); start += full {
			part := b.cores[start:min(start+full, len(b.cores))]
			name := ""
			if start == 0 {
				name = b.label(hybrid)
			}
			text, size, cpus := d.cells(part, cell)
			p := piece{fmt.Sprintf("%-*s ", label, name) + text, label + 1 + size, cpus}
			// A block joins the line before it if all blocks of the line are whole and as wide as it.
			if n := len(lines); n > 0 && whole && len(lines[n-1]) < d.blocksPerLine(blocks, p.size, budget) && lines[n-1][0].size == p.size && !hybrid {
				lines[n-1] = append(lines[n-1], p)
				continue
			}
			lines = append(lines, []piece{p})
		}
	}
	column := 0
	for _, l := range lines {
		size := -between
		for _, p := range l {
			size += p.size + between
		}
		column = max(column, rowIndent+size+between)
	}
	for _, l := range lines {
		text, size, cpus := strings.Repeat(" ", rowIndent), rowIndent, []int{}
		for i, p := range l {
			if i > 0 {
				text += strings.Repeat(" ", between)
				size += between
			}
			text += p.text
			size += p.size
			cpus = append(cpus, p.cpus...)
		}
		for i, list := range fold(shortList(cpuset.New(cpus...)), max(d.style.width-column, minList)) {
			if i > 0 {
				text, size = "", 0
			}
			d.WriteString(text + strings.Repeat(" ", column-size) + d.paint("2", list) + "\n")
		}
	}
}

// blocksPerLine spreads the blocks evenly over as few lines as there must be.
func (d *drawing) blocksPerLine(blocks []block, size, budget int) int {
	most := max((budget+between)/(size+between), 1)
	lines := (len(blocks) + most - 1) / most
	return (len(blocks) + lines - 1) / lines
}

// perRow is how many cores of a block stand on a line: all, or a multiple of four that fills the lines evenly.
func perRow(cores, cell, budget int) int {
	most := 1
	for most < cores && most < 16 && rowSize(most+1, cell) <= budget {
		most++
	}
	if cores <= most {
		return max(cores, 1)
	}
	if most > 4 {
		most -= most % 4
	}
	lines := (cores + most - 1) / most
	even := (cores + lines - 1) / lines
	return min(most, (even+3)/4*4)
}

// rowSize is the columns of so many cells, in groups of four.
func rowSize(cores, cell int) int { return cores*(cell+1) - 1 + (cores-1)/4 }

// cells draws cores, a thread a sign. Cores that share an L2 stand together; where none do, four.
func (d *drawing) cells(cores [][]placement.CPU, cell int) (text string, size int, cpus []int) {
	shared := false
	for i := 1; i < len(cores); i++ {
		if l2 := cores[i][0].L2; l2 >= 0 && l2 == cores[i-1][0].L2 {
			shared = true
		}
	}
	var b strings.Builder
	for i, core := range cores {
		if i > 0 {
			gap := 1
			if shared && core[0].L2 != cores[i-1][0].L2 || !shared && i%4 == 0 {
				gap = 2
			}
			b.WriteString(strings.Repeat(" ", gap))
			size += gap
		}
		for j := 0; j < len(core); {
			m := d.uses[core[j].ID]
			run := ""
			for ; j < len(core) && d.uses[core[j].ID].color == m.color; j++ {
				run += d.uses[core[j].ID].sign
				cpus = append(cpus, core[j].ID)
			}
			b.WriteString(d.paint(m.color, run))
		}
		b.WriteString(strings.Repeat(" ", cell-len(core)))
		size += cell
	}
	return b.String(), size, cpus
}

// legend has a line for each sign that is drawn.
func (d *drawing) legend(o owners) {
	of := map[use][]int{}
	colors := map[string]string{}
	for cpu, m := range d.uses {
		of[m.use] = append(of[m.use], cpu)
	}
	var rows [][]string
	row := func(sign, text string, cpus cpuset.CPUSet) {
		rows = append(rows, []string{sign, strconv.Itoa(cpus.Size()), text, strings.Join(fold(shortList(cpus), 32), "\n")})
	}
	for _, u := range uses {
		cpus := cpuset.New(of[u.use]...)
		if cpus.IsEmpty() {
			continue
		}
		text := u.text
		if u.use == useIsolated && !cpus.Intersection(o.ls.Union(o.be)).IsEmpty() {
			text = "isolated, yet in a pool"
		}
		row(u.sign, text, cpus)
		colors[u.sign] = u.color
	}
	// Signs tell whose a CPU is; the pools as they are may have it nevertheless.
	pools := o.ls.Union(o.be)
	for _, of := range []struct {
		use
		text string
	}{{useReserved, "reserved, yet in a pool"}, {useKubelet, "given out, yet in a pool"}} {
		var both []int
		for cpu, m := range d.uses {
			if m.use == of.use && pools.Contains(cpu) {
				both = append(both, cpu)
			}
		}
		if len(both) > 0 {
			row("", of.text, cpuset.New(both...))
		}
	}
	lent := cpuset.New()
	for _, a := range o.assigned {
		if a.tier != v1alpha1.LSE {
			lent = lent.Union(a.owned.Union(a.cpus).Intersection(o.be))
		}
	}
	if !lent.IsEmpty() {
		row("", "lent by LSR pods to BE", lent)
	}
	d.WriteString("\n")
	d.signed([]string{"", "N", "OWNER", "CPUS"}, rows, func(_ int, sign string) string { return colors[sign] })
	key := "A group is a core, a sign a thread; the CPUs of a line stand behind it."
	if slices.ContainsFunc(d.topology.CPUs, func(c placement.CPU) bool { return c.Efficient }) {
		key += " P: performance cores, E: efficient ones."
	}
	d.line(3, 0, key)
}

// pods lists who the letters are.
func (d *drawing) pods(pods []assignment) {
	if len(pods) == 0 {
		return
	}
	var rows [][]string
	widest := []int{1, 4, 4, 4, 6}
	for i, a := range pods {
		row := []string{letter(i), string(a.tier)}
		for j, set := range []cpuset.CPUSet{a.cpus, a.owned.Difference(a.cpus), a.nodes} {
			row = append(row, dash(strings.Join(fold(shortList(set), []int{18, 14, 7}[j]), "\n")))
		}
		if a.nodes.IsEmpty() {
			row[4] = "all"
		}
		for j, cell := range row {
			for line := range strings.SplitSeq(cell, "\n") {
				widest[j] = max(widest[j], utf8.RuneCountInString(line))
			}
		}
		rows = append(rows, row)
	}
	rest := d.style.width
	for _, w := range widest {
		rest -= w + gap
	}
	for i, a := range pods {
		rows[i] = append(rows[i], strings.Join(fold(a.pod(), max(rest, minColumn)), "\n"))
	}
	d.WriteString("\n")
	d.signed([]string{"", "TIER", "CPUS", "IDLE", "MEMORY", "POD"}, rows, func(i int, _ string) string { return podColor(i, pods[i].tier) })
}

// signed writes a table whose first column is a sign, in its colour.
func (d *drawing) signed(head []string, rows [][]string, color func(row int, sign string) string) {
	p := page{width: d.style.width}
	p.table(0, head, rows)
	row := -1
	for line := range strings.Lines(p.String()) {
		if line[0] != ' ' {
			row++
			line = d.paint(color(row, line[:1]), line[:1]) + line[1:]
		}
		d.WriteString(line)
	}
}

// fold breaks a text that has no spaces behind commas, dashes and slashes, or anywhere if it must.
func fold(text string, width int) []string {
	var lines []string
	for utf8.RuneCountInString(text) > width {
		head := string([]rune(text)[:width])
		if i := strings.LastIndexAny(head, ",/"); i > 0 {
			head = head[:i+1]
		}
		lines = append(lines, head)
		text = text[len(head):]
	}
	return append(lines, text)
}

// shortList is a CPU list in which "0,2..14" stands for each second one from 0 to 14: firmware that numbers CPUs in turn
// over the sockets makes long lists.
func shortList(set cpuset.CPUSet) string {
	var parts []string
	for ids := set.List(); len(ids) > 0; {
		n := 1
		for n < len(ids) && ids[n]-ids[n-1] == ids[1]-ids[0] {
			n++
		}
		step := 0
		if n > 1 {
			step = ids[1] - ids[0]
		}
		switch {
		case step == 1 && n >= 2:
			parts = append(parts, fmt.Sprintf("%d-%d", ids[0], ids[n-1]))
		case n >= 5:
			parts = append(parts, fmt.Sprintf("%d,%d..%d", ids[0], ids[1], ids[n-1]))
		default:
			n = 1
			parts = append(parts, strconv.Itoa(ids[0]))
		}
		ids = ids[n:]
	}
	return strings.Join(parts, ",")
}
