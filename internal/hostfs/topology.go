package hostfs

import (
	"cmp"
	"slices"

	"github.com/tideline-io/tideline/internal/placement"
)

// Topology is the facts as placement wants them: numbers are unique on the machine. What was not told stays -1.
func (f Facts) Topology() placement.Topology {
	t := placement.Topology{
		Offline:  f.Present.Difference(f.Node.Online),
		Isolated: f.Isolated.Intersection(f.Node.Online),
	}
	cores, dies := f.cores(), f.dies()
	l2 := f.caches(func(c CPU) Cache { return c.L2 })
	l3 := f.caches(func(c CPU) Cache { return c.L3 })
	for i, c := range f.CPUs {
		t.CPUs = append(t.CPUs, placement.CPU{
			ID: c.ID, Socket: c.Package, Die: dies[i], NUMANode: c.NUMANode, L3: l3[i], L2: l2[i], Core: cores[i], Efficient: c.Efficient,
		})
	}
	for _, n := range f.NUMANodes {
		node := placement.Node{ID: n.ID, Memory: n.MemTotalBytes > 0, Distances: map[int]int{}}
		for i, d := range n.Distances { // as many as online nodes
			node.Distances[f.NUMANodes[i].ID] = d
		}
		t.Nodes = append(t.Nodes, node)
	}
	return t
}

// place is what groups CPUs. Kind keeps apart numbers that mean different things.
type place struct{ kind, a, b, c int }

// least gives each CPU the least ID of its group, -1 where it has no place.
func (f Facts) least(of func(CPU) (place, bool)) []int {
	first := map[place]int{}
	numbers := make([]int, len(f.CPUs))
	for i, c := range f.CPUs { // by ID
		p, ok := of(c)
		if !ok {
			numbers[i] = -1
			continue
		}
		if _, ok := first[p]; !ok {
			first[p] = c.ID
		}
		numbers[i] = first[p]
	}
	return numbers
}

// cores go by the lists of siblings, since core_id repeats: on x86 in each package, on arm64 in each cluster.
func (f Facts) cores() []int {
	return f.least(func(c CPU) (place, bool) {
		if c.Siblings.Contains(c.ID) {
			return place{kind: 1, a: slices.Min(c.Siblings.UnsortedList())}, true
		}
		return place{kind: 2, a: c.Package, b: c.Die, c: c.Core}, c.Core >= 0
	})
}

// dies are numbered through, since die_id begins anew in each package.
func (f Facts) dies() []int {
	var all []place
	of := func(c CPU) place { return place{a: c.Package, b: c.Die} }
	for _, c := range f.CPUs {
		if c.Die >= 0 {
			all = append(all, of(c))
		}
	}
	order := func(x, y place) int { return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b)) }
	slices.SortFunc(all, order)
	all = slices.Compact(all)
	numbers := make([]int, len(f.CPUs))
	for i, c := range f.CPUs {
		numbers[i] = -1
		if c.Die >= 0 {
			numbers[i], _ = slices.BinarySearchFunc(all, of(c), order)
		}
	}
	return numbers
}

// caches keeps the kernel's ids, which people meet in resctrl too. Where one is missing all numbers are those of CPUs,
// so that two ways of numbering never mix.
func (f Facts) caches(of func(CPU) Cache) []int {
	mixed := slices.ContainsFunc(f.CPUs, func(c CPU) bool { return of(c).First >= 0 })
	if mixed {
		return f.least(func(c CPU) (place, bool) {
			if cache := of(c); cache.ID >= 0 {
				return place{kind: 1, a: cache.ID}, true
			}
			return place{kind: 2, a: of(c).First}, of(c).First >= 0
		})
	}
	numbers := make([]int, len(f.CPUs))
	for i, c := range f.CPUs {
		numbers[i] = of(c).ID
	}
	return numbers
}
