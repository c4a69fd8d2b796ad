package placement

import (
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/units"
)

// Limits is what can't be given away, besides what Topology says.
type Limits struct {
	// Reserved is for the host and for SYSTEM, by the policy and the kubelet's configuration.
	Reserved cpuset.CPUSet
	// Foreign is owned by others who share it with nobody: pods of the kubelet's static CPU manager.
	Foreign cpuset.CPUSet
	// MinShared is how many CPUs the LS pool keeps; less than 1 is 1. It holds back who comes and who grows; a pod that
	// is placed stays when the policy raises it.
	MinShared int
}

// Machine is a topology with its limits, made ready for deciding. It never changes, so any number of goroutines may use
// it; where a fact changes, make a new one and Rebuild.
type Machine struct {
	topology Topology
	limits   Limits
	span     int     // above every CPU's ID
	cores    []core  // by the ID of their first thread
	coreOf   []int   // by CPU ID: an index of cores, -1 for what is not online
	base     []bool  // by CPU ID: may be given away
	size     int     // of base
	parts    []block // what shares a socket, a node and an L3
	nodes    []block
	sockets  []block
	distance [][]int // between nodes
	threads  int     // of the biggest core
	hybrid   bool
}

// core is the online threads of a core.
type core struct {
	threads            []int // CPU IDs
	part, node, socket int   // indexes
	efficient          bool
}

// block is CPUs that lie together: a part, a node or a socket. Part, node and socket say where its first core is.
type block struct {
	id                 int   // of a node or a socket; -1 where the kernel tells none
	cores              []int // efficient ones last
	parts, nodes       []int
	part, node, socket int
}

// New refuses a topology that is none: no CPU, or CPUs that are not by ID.
func New(t Topology, l Limits) (*Machine, error) {
	if len(t.CPUs) == 0 {
		return nil, fmt.Errorf("topology: no CPU is online")
	}
	last := -1
	for _, c := range t.CPUs {
		if c.ID <= last || c.ID > units.MaxCPU {
			return nil, fmt.Errorf("topology: CPU %d after CPU %d; allowed: CPUs by ID, 0 to %d", c.ID, last, units.MaxCPU)
		}
		last = c.ID
	}
	l.MinShared = max(l.MinShared, 1)
	m := &Machine{topology: t, limits: l, span: last + 1}
	m.base = make([]bool, m.span)
	m.coreOf = slices.Repeat([]int{-1}, m.span)
	byCore := map[int]int{}
	for _, c := range t.CPUs {
		m.base[c.ID] = !t.Isolated.Contains(c.ID) && !l.Reserved.Contains(c.ID) && !l.Foreign.Contains(c.ID)
		if m.base[c.ID] {
			m.size++
		}
		key := c.Core
		if key < 0 {
			key = -1 - c.ID // a CPU without a known sibling is a core
		}
		i, ok := byCore[key]
		if !ok {
			i = len(m.cores)
			byCore[key] = i
			m.cores = append(m.cores, core{efficient: c.Efficient})
		}
		m.coreOf[c.ID] = i
		m.cores[i].threads = append(m.cores[i].threads, c.ID)
		m.threads = max(m.threads, len(m.cores[i].threads))
		m.hybrid = m.hybrid || c.Efficient != t.CPUs[0].Efficient
	}
	m.blocks()
	m.distance = make([][]int, len(m.nodes))
	for i, a := range m.nodes {
		m.distance[i] = make([]int, len(m.nodes))
		for j, b := range m.nodes {
			m.distance[i][j] = m.far(a, b)
		}
	}
	return m, nil
}

// blocks fills parts, nodes and sockets. A part is within one node, since with sub-NUMA clustering an L3 serves several.
func (m *Machine) blocks() {
	type place struct{ socket, node, l3 int }
	first := make([]CPU, len(m.cores))
	for _, c := range slices.Backward(m.topology.CPUs) {
		first[m.coreOf[c.ID]] = c
	}
	var sockets, nodes []int
	for _, c := range first {
		sockets, nodes = append(sockets, c.Socket), append(nodes, c.NUMANode)
	}
	sockets, nodes = unique(sockets), unique(nodes)
	for _, id := range sockets {
		m.sockets = append(m.sockets, block{id: id, socket: len(m.sockets)})
	}
	for _, id := range nodes {
		m.nodes = append(m.nodes, block{id: id, node: len(m.nodes)})
	}
	parts := map[place]int{}
	for i := range m.cores {
		k := &m.cores[i]
		at := place{first[i].Socket, first[i].NUMANode, first[i].L3}
		k.socket, _ = slices.BinarySearch(sockets, at.socket)
		k.node, _ = slices.BinarySearch(nodes, at.node)
		var ok bool
		if k.part, ok = parts[at]; !ok {
			k.part = len(m.parts)
			parts[at] = k.part
			m.parts = append(m.parts, block{id: at.l3, part: k.part, node: k.node, socket: k.socket})
			m.nodes[k.node].parts = append(m.nodes[k.node].parts, k.part)
			m.sockets[k.socket].parts = append(m.sockets[k.socket].parts, k.part)
		}
	}
	for i, p := range m.parts {
		if n := &m.nodes[p.node]; n.parts[0] == i {
			n.socket = p.socket
		}
		if s := &m.sockets[p.socket]; !slices.Contains(s.nodes, p.node) {
			s.nodes = append(s.nodes, p.node)
		}
	}
	for _, efficient := range []bool{false, true} {
		for i, k := range m.cores {
			if k.efficient == efficient {
				m.parts[k.part].cores = append(m.parts[k.part].cores, i)
			}
		}
	}
}

func unique(ids []int) []int {
	slices.Sort(ids)
	return slices.Compact(ids)
}

// far is the distance of two nodes. Where the firmware tells none, a node of the same socket is closer.
func (m *Machine) far(a, b block) int {
	for _, n := range m.topology.Nodes {
		if n.ID == a.id {
			if d, ok := n.Distances[b.id]; ok {
				return d
			}
		}
	}
	switch {
	case a.id == b.id:
		return 10
	case a.socket == b.socket:
		return 11
	}
	return 20
}

// mems is the memory nodes for these CPUs: those that they are on; where none of them has memory, the closest that has.
// It is empty, for no restriction, where the kernel does not tell.
func (m *Machine) mems(cpus []int) cpuset.CPUSet {
	var with, of []int
	for _, n := range m.topology.Nodes {
		if n.Memory {
			with = append(with, n.ID)
		}
	}
	for _, id := range cpus {
		n := m.nodes[m.cores[m.coreOf[id]].node].id
		if n < 0 {
			return cpuset.New()
		}
		of = append(of, n)
	}
	of = unique(of)
	near := slices.DeleteFunc(slices.Clone(of), func(id int) bool { return !slices.Contains(with, id) })
	if len(near) > 0 || len(with) == 0 {
		return cpuset.New(near...)
	}
	best, least := with[0], -1
	for _, id := range with {
		for _, n := range m.topology.Nodes {
			if d, ok := n.Distances[id]; ok && slices.Contains(of, n.ID) && (least < 0 || d < least) {
				best, least = id, d
			}
		}
	}
	return cpuset.New(best)
}

// known is the CPUs of a set that are online, sorted.
func (m *Machine) known(set cpuset.CPUSet) []int {
	ids := slices.DeleteFunc(set.UnsortedList(), func(id int) bool { return id < 0 || id >= m.span || m.coreOf[id] < 0 })
	slices.Sort(ids)
	return ids
}

// owned is what a pod of this tier owns when it runs on these CPUs, sorted.
func (m *Machine) owned(t v1alpha1.Tier, cpus []int) []int {
	if t != v1alpha1.LSE {
		return cpus
	}
	var own []int
	for _, id := range cpus {
		own = append(own, m.cores[m.coreOf[id]].threads...)
	}
	return unique(own)
}

// assignment is the request carried out with these CPUs.
func (m *Machine) assignment(r Request, cpus []int) Assignment {
	return Assignment{Request: r, CPUs: cpuset.New(cpus...), Owned: cpuset.New(m.owned(r.Tier, cpus)...), Mems: m.mems(cpus)}
}

// board is what is free while something is decided.
type board struct {
	m    *Machine
	free []bool // by CPU ID
	left int    // the LS pool's size
	*levels
}

// levels is the rooms of a search, of which one at a time is under way on a board.
type levels struct{ core, part, node, socket []room }

func (m *Machine) board(have []Assignment) *board {
	b := &board{m: m, free: slices.Clone(m.base), left: m.size, levels: &levels{
		core: make([]room, len(m.cores)), part: make([]room, len(m.parts)), node: make([]room, len(m.nodes)), socket: make([]room, len(m.sockets)),
	}}
	for i := range have {
		b.claim(m.owned(have[i].Tier, m.known(have[i].CPUs)))
	}
	return b
}

// copy is b for a try that may fail.
func (b *board) copy() board {
	c := *b
	c.free = slices.Clone(b.free)
	return c
}

func (b *board) claim(ids []int) {
	for _, id := range ids {
		if b.free[id] {
			b.free[id] = false
			b.left--
		}
	}
}

// count is how many threads of a core are free.
func (b *board) count(c int) int {
	n := 0
	for _, id := range b.m.cores[c].threads {
		if b.free[id] {
			n++
		}
	}
	return n
}

func (b *board) whole(c int) bool { return b.count(c) == len(b.m.cores[c].threads) }

// Room is what is free for exclusive tiers on a NUMA node.
type Room struct {
	Node  int // -1 where the kernel tells none
	CPUs  int // that LSR can have
	Cores int // whole ones, that LSE can have
	// Threads is the CPUs of Cores.
	Threads int
}

// Free is the room on each NUMA node, by ID, without regard to Limits.MinShared.
func (m *Machine) Free(have []Assignment) []Room { return m.board(have).rooms() }

func (b *board) rooms() []Room {
	rooms := make([]Room, len(b.m.nodes))
	for i, n := range b.m.nodes {
		rooms[i].Node = n.id
	}
	for i, k := range b.m.cores {
		r, n := &rooms[k.node], b.count(i)
		r.CPUs += n
		if n == len(k.threads) {
			r.Cores++
			r.Threads += n
		}
	}
	return rooms
}
