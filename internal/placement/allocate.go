package placement

import (
	"cmp"
	"slices"
)

// The order of choice, for a pod with the wish prefer-single. Each line is asked only if the one above can't hold the pod:
//
//	one part (an L3 within a NUMA node)   the one that has the least room left over
//	one NUMA node                         the same; in it as few parts as can be
//	one socket                            the same; in it as few and as close nodes as can be
//	the machine                           one node and those closest to it, from where the way is shortest
//
// LSR looks first for room that leaves cores whole: two CPUs are a core, and the third is a core's that is in use already.
// Equals are decided by ID. On a hybrid machine all of it is tried with the performance cores, then with the efficient
// ones, then with both.

// Place finds CPUs for a pod that has none. The error is a *RequestError, *NoRoomError or *PoolError.
func (m *Machine) Place(have []Assignment, r Request) (Assignment, error) {
	if err := r.check(); err != nil {
		return Assignment{}, err
	}
	for i := range have {
		if have[i].UID == r.UID {
			return Assignment{}, &RequestError{UID: r.UID, Field: "uid", Value: r.UID, Allowed: "a pod that has no CPUs yet"}
		}
	}
	return m.board(have).fit(r, nil, 0)
}

// Resize gives a pod another number of CPUs. Growing, it keeps all it has and gets more as near as can be; shrinking, it
// keeps a part of what it has, the tightest. Where CPUs of it are gone it keeps the rest and gets others for them. The
// errors are Place's; nothing has changed then.
func (m *Machine) Resize(have []Assignment, uid string, cpus int) (Assignment, error) {
	i := slices.IndexFunc(have, func(a Assignment) bool { return a.UID == uid })
	if i < 0 {
		return Assignment{}, &RequestError{UID: uid, Field: "uid", Value: uid, Allowed: "a pod that has CPUs"}
	}
	r, had := have[i].Request, have[i].CPUs
	before := r.Count
	r.Count = cpus
	if err := r.check(); err != nil {
		return Assignment{}, err
	}
	b := m.board(slices.Concat(have[:i], have[i+1:]))
	return b.fit(r, b.keep(&r, m.known(had)), before)
}

// keep is which of a pod's CPUs it can go on with: the free ones; for LSE those of free cores, and one a core where it
// counts cores.
func (b *board) keep(r *Request, cpus []int) []int {
	var held []int
	seen := map[int]bool{}
	for _, id := range cpus {
		c := b.m.coreOf[id]
		if r.whole() && !b.whole(c) || !r.whole() && !b.free[id] || r.byCore() && seen[c] {
			continue
		}
		held = append(held, id)
		seen[c] = true
	}
	return held
}

// fit gives a pod what it asks for around the CPUs that it holds. Had is what it had before, for errors.
func (b *board) fit(r Request, held []int, had int) (Assignment, error) {
	if held = b.m.shrink(&r, held, nil); len(held) >= r.Count {
		return b.m.assignment(r, held), nil
	}
	kept := b.m.owned(r.Tier, held)
	pool := b.left - len(kept)
	var refused error
	for _, kind := range b.m.kinds(held) {
		s := search{board: b.copy(), r: &r, kind: kind, got: slices.Clone(held)}
		s.claim(kept)
		if !s.run(r.Count - len(held)) {
			continue
		}
		a := b.m.assignment(r, b.m.shrink(&r, s.got, held))
		if takes := a.Owned.Size() - len(kept); takes > 0 && pool-takes < b.m.limits.MinShared {
			if refused == nil {
				refused = &PoolError{Request: r, Had: had, Takes: takes, Pool: pool, Min: b.m.limits.MinShared}
			}
			continue
		}
		return a, nil
	}
	if refused != nil {
		return Assignment{}, refused
	}
	without := b.copy()
	without.claim(kept)
	e := &NoRoomError{Request: r, Had: had, Missing: r.Count - len(held), Free: without.rooms()}
	if r.NUMA == RequireSingle && len(held) > 0 {
		e.Best = e.Free[b.m.cores[b.m.coreOf[held[0]]].node]
	} else {
		e.Best = slices.MaxFunc(e.Free, func(x, y Room) int { return e.Fits(x) - e.Fits(y) })
	}
	return Assignment{}, e
}

// kind is which cores of a hybrid machine may be taken.
type kind int

const (
	performance kind = 1 << iota
	efficient
	both = performance | efficient
)

func (k *core) kind() kind {
	if k.efficient {
		return efficient
	}
	return performance
}

// kinds is what to try, in order. A pod that grows stays with the kind that it has.
func (m *Machine) kinds(held []int) []kind {
	if !m.hybrid {
		return []kind{both}
	}
	has := kind(0)
	for _, id := range held {
		has |= m.cores[m.coreOf[id]].kind()
	}
	if has == 0 {
		return []kind{performance, efficient, both}
	}
	return slices.Compact([]kind{has, both})
}

// search is one try to find CPUs. It counts in units: cores, or for LSR and SMTUse threads.
type search struct {
	board
	r    *Request
	kind kind
	got  []int // CPUs to run on
}

// room is what a core or a block has for the request.
type room struct {
	units   int
	whole   int // of units: on cores that are free as a whole
	partial int // the most units on a core that is in use
}

func (r *room) add(o room) {
	r.units += o.units
	r.whole += o.whole
	r.partial = max(r.partial, o.partial)
}

// look brings the rooms up to date.
func (s *search) look() {
	clear(s.part)
	clear(s.node)
	clear(s.socket)
	for i := range s.m.cores {
		k := &s.m.cores[i]
		s.core[i] = room{}
		if k.kind()&s.kind == 0 {
			continue
		}
		n := s.count(i)
		all := n == len(k.threads)
		switch {
		case n == 0 || s.r.whole() && !all:
			continue
		case s.r.byCore():
			s.core[i] = room{units: 1, whole: 1}
		case all:
			s.core[i] = room{units: n, whole: n}
		default:
			s.core[i] = room{units: n, partial: n}
		}
		s.part[k.part].add(s.core[i])
		s.node[k.node].add(s.core[i])
		s.socket[k.socket].add(s.core[i])
	}
}

// run takes what the pod needs besides what it has got.
func (s *search) run(need int) bool {
	s.look()
	switch {
	case s.r.NUMA == Spread:
		return s.spread(need)
	case len(s.got) > 0:
		return s.grow(need)
	}
	if i := s.tightest(s.m.parts, s.part, need); i >= 0 {
		s.take(i, need)
		return true
	}
	// With NUMA switched off, one node serves all sockets.
	if i := s.tightest(s.m.sockets, s.socket, need); i >= 0 && len(s.m.nodes) == 1 {
		return s.fill(s.m.sockets[i].parts, need) == 0
	}
	if i := s.tightest(s.m.nodes, s.node, need); i >= 0 {
		return s.fill(s.m.nodes[i].parts, need) == 0
	}
	if s.r.NUMA == RequireSingle {
		return false
	}
	if i := s.tightest(s.m.sockets, s.socket, need); i >= 0 {
		return s.stretch(s.m.sockets[i].nodes, need)
	}
	var all []int
	for i := range s.m.nodes {
		all = append(all, i)
	}
	return s.stretch(all, need)
}

// tightest is the block that holds need and has the least room: in itself, then in its node, then in its socket. It is -1
// if none does. Blocks where cores would be split that need not be come last.
func (s *search) tightest(blocks []block, rooms []room, need int) int {
	best, least := -1, [4]int{}
	for i := range blocks {
		b := &blocks[i]
		if rooms[i].units < need {
			continue
		}
		key := [4]int{s.splits(rooms[i], need), rooms[i].units, s.node[b.node].units, s.socket[b.socket].units}
		if best < 0 || slices.Compare(key[:], least[:]) < 0 {
			best, least = i, key
		}
	}
	return best
}

// splits is 0 where need is met by whole cores and by CPUs of cores in use, 1 where a core has to be opened for the rest,
// 2 where CPUs that could be a core come from several.
func (s *search) splits(r room, need int) int {
	if s.r.whole() {
		return 0
	}
	rest := need % s.m.threads
	switch {
	case r.whole < need-rest:
		return 2
	case rest > 0 && r.partial < rest:
		return 1
	}
	return 0
}

// fill takes need from the parts: from the tightest that holds it, else all of the roomiest, and so on. It returns what
// it did not find.
func (s *search) fill(parts []int, need int) int {
	for need > 0 {
		s.look()
		i, holds := s.next(parts, s.m.parts, s.part, need)
		switch {
		case i < 0:
			return need
		case holds:
			s.take(i, need)
			return 0
		}
		need -= s.part[i].units
		s.take(i, s.part[i].units)
	}
	return 0
}

// fillNodes is fill for nodes.
func (s *search) fillNodes(nodes []int, need int) int {
	for need > 0 {
		s.look()
		i, holds := s.next(nodes, s.m.nodes, s.node, need)
		switch {
		case i < 0:
			return need
		case holds:
			return s.fill(s.m.nodes[i].parts, need)
		}
		all := s.node[i].units
		need -= all
		s.fill(s.m.nodes[i].parts, all)
	}
	return 0
}

// next is the tightest of the blocks with these indexes that holds need, else the roomiest; -1 if all are full.
func (s *search) next(among []int, blocks []block, rooms []room, need int) (i int, holds bool) {
	of := make([]room, len(rooms))
	for _, i := range among {
		of[i] = rooms[i]
	}
	if i := s.tightest(blocks, of, need); i >= 0 {
		return i, true
	}
	best := -1
	for i := range of {
		if of[i].units > 0 && (best < 0 || of[i].units > of[best].units) {
			best = i
		}
	}
	return best, false
}

// stretch takes need from several of the nodes: from one and then from those closest to it. It begins at the one from
// which the way to all of them is shortest; of such, at the one that gives most.
func (s *search) stretch(nodes []int, need int) bool {
	best, least := -1, [2]int{}
	for _, first := range nodes {
		order := slices.DeleteFunc(slices.Clone(nodes), func(n int) bool { return s.node[n].units == 0 })
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Or(s.far(first, a)-s.far(first, b), s.node[b].units-s.node[a].units)
		})
		found, key := 0, [2]int{0, -s.node[first].units}
		for _, n := range order {
			if found < need {
				found += s.node[n].units
				key[0] += s.m.distance[first][n]
			}
		}
		if s.node[first].units > 0 && found >= need && (best < 0 || slices.Compare(key[:], least[:]) < 0) {
			best, least = first, key
		}
	}
	if best < 0 {
		return false
	}
	need -= s.node[best].units
	s.fill(s.m.nodes[best].parts, s.node[best].units)
	return s.outward([]int{best}, nodes, need) == 0
}

// far is the distance of two nodes, 0 of a node to itself whatever the firmware says.
func (s *search) far(a, b int) int {
	if a == b {
		return 0
	}
	return s.m.distance[a][b]
}

// outward takes need from the nodes, those closest to one of from first.
func (s *search) outward(from, nodes []int, need int) int {
	rings := map[int][]int{}
	for _, n := range nodes {
		d := -1
		for _, f := range from {
			if x := s.far(f, n); d < 0 || x < d {
				d = x
			}
		}
		rings[d] = append(rings[d], n)
	}
	var ds []int
	for d := range rings {
		ds = append(ds, d)
	}
	for _, d := range unique(ds) {
		need = s.fillNodes(rings[d], need)
	}
	return need
}

// grow takes need as near as can be to what the pod has: on its cores, in its parts, on its nodes, then outward.
func (s *search) grow(need int) bool {
	var parts, nodes []int
	for _, id := range slices.Clone(s.got) {
		k := &s.m.cores[s.m.coreOf[id]]
		parts, nodes = append(parts, k.part), append(nodes, k.node)
		if s.r.byCore() {
			continue
		}
		for _, other := range k.threads {
			// What stands idle beside the threads of an LSE pod is its own.
			if need > 0 && (s.free[other] || s.r.whole() && !slices.Contains(s.got, other)) {
				s.get(other)
				need--
			}
		}
	}
	parts, nodes = unique(parts), unique(nodes)
	if need = s.fill(parts, need); need == 0 {
		return true
	}
	if s.r.NUMA == RequireSingle {
		return s.fillNodes(nodes, need) == 0
	}
	var all []int
	for i := range s.m.nodes {
		all = append(all, i)
	}
	return s.outward(nodes, all, need) == 0
}

// spread takes need so that the nodes' shares are as equal as their room lets them be. With SMTUse a share may be a part of
// a core; of what is too much then, fit gives back.
func (s *search) spread(need int) bool {
	share, more := make([]int, len(s.m.nodes)), make([]int, len(s.m.nodes))
	for _, id := range s.got {
		share[s.m.cores[s.m.coreOf[id]].node]++
	}
	for ; need > 0; need-- {
		best := -1
		for n := range share {
			left := s.node[n].units - more[n]
			if left > 0 && (best < 0 || share[n] < share[best] || share[n] == share[best] && left > s.node[best].units-more[best]) {
				best = n
			}
		}
		if best < 0 {
			return false
		}
		share[best]++
		more[best]++
	}
	for n, k := range more {
		s.fill(s.m.nodes[n].parts, k)
	}
	return true
}

// get takes a CPU to run on.
func (s *search) get(id int) {
	s.got = append(s.got, id)
	s.claim([]int{id})
}

// take takes need units of a part, which has them.
func (s *search) take(part, need int) {
	cores := s.m.parts[part].cores
	if !s.r.whole() {
		for need > 0 {
			c := s.open(cores, need)
			for _, id := range s.m.cores[c].threads {
				if need > 0 && s.free[id] {
					s.get(id)
					need--
				}
			}
		}
		return
	}
	for _, c := range cores {
		if need <= 0 {
			return
		}
		if s.core[c].units == 0 {
			continue
		}
		threads := s.m.cores[c].threads
		if s.r.byCore() {
			s.get(threads[0]) // which is enough for the core not to be whole any more
			need--
			continue
		}
		for _, id := range threads {
			s.get(id)
		}
		need -= len(threads)
	}
}

// open is the core that LSR takes from next: a free one that it needs whole; else the one in use that holds the rest and
// has the least; else the one in use that has the most; else a free one.
func (s *search) open(cores []int, need int) int {
	best, least := -1, [2]int{}
	for _, c := range cores {
		n := s.count(c)
		if n == 0 || s.core[c].units == 0 {
			continue
		}
		all := n == len(s.m.cores[c].threads)
		var key [2]int
		switch {
		case all && n <= need:
			return c
		case !all && n >= need:
			key = [2]int{0, n}
		case !all:
			key = [2]int{1, -n}
		default:
			key = [2]int{2, 0}
		}
		if best < 0 || slices.Compare(key[:], least[:]) < 0 {
			best, least = c, key
		}
	}
	return best
}

// shrink keeps of these CPUs as many as are asked for, so that they are together: what goes is on efficient cores, on the
// node, in the part and on the core with the least of them, and has the highest ID. A pod that spreads gives from the node
// with the most. LSE gives whole cores. What is fixed stays.
func (m *Machine) shrink(r *Request, cpus, fixed []int) []int {
	for len(cpus) > r.Count {
		nodes, parts, cores := make([]int, len(m.nodes)), make([]int, len(m.parts)), make([]int, len(m.cores))
		for _, id := range cpus {
			c := m.coreOf[id]
			cores[c]++
			parts[m.cores[c].part]++
			nodes[m.cores[c].node]++
		}
		best, least := -1, [5]int{}
		for _, id := range cpus {
			c := m.coreOf[id]
			k := &m.cores[c]
			if r.whole() && len(cpus)-cores[c] < r.Count || slices.ContainsFunc(fixed, func(f int) bool { return m.coreOf[f] == c }) {
				continue
			}
			key := [5]int{1, nodes[k.node], parts[k.part], cores[c], -id}
			if k.efficient && m.hybrid {
				key[0] = 0
			}
			if r.NUMA == Spread {
				key[1] = -key[1]
			}
			if best < 0 || slices.Compare(key[:], least[:]) < 0 {
				best, least = id, key
			}
		}
		if best < 0 {
			break
		}
		cpus = slices.DeleteFunc(slices.Clone(cpus), func(id int) bool {
			return id == best || r.whole() && m.coreOf[id] == m.coreOf[best]
		})
	}
	return cpus
}
