package placement

import "k8s.io/utils/cpuset"

// Pools is the CPUs of the pods that own none. None of them is ever empty.
type Pools struct {
	LS     cpuset.CPUSet // also of pods without a tier: not reserved, not isolated, owned by nobody
	BE     cpuset.CPUSet // LS, and what LSR pods own: batch runs there while it is idle
	System cpuset.CPUSet // all that LSE and foreign pods don't own, but the isolated ones
	// Short says why LS holds CPUs that it should not; "" while it does not.
	Short string
}

// Pools is what these assignments leave to others.
func (m *Machine) Pools(have []Assignment) Pools {
	type flags struct{ pinned, lse bool }
	by := make([]flags, m.span)
	for i := range have {
		for _, id := range m.owned(have[i].Tier, m.known(have[i].CPUs)) {
			by[id].pinned = true
			by[id].lse = by[id].lse || have[i].whole()
		}
	}
	var ls, be, system, unowned, rest, all []int
	for _, c := range m.topology.CPUs {
		id := c.ID
		all = append(all, id)
		foreign, isolated := m.limits.Foreign.Contains(id), m.topology.Isolated.Contains(id)
		if m.base[id] && !by[id].pinned {
			ls = append(ls, id)
		}
		if m.base[id] && !by[id].lse {
			be = append(be, id)
		}
		if !foreign && !isolated && !by[id].lse {
			system = append(system, id)
		}
		if !foreign && !by[id].pinned {
			rest = append(rest, id)
			if !isolated {
				unowned = append(unowned, id)
			}
		}
	}
	// Place and Rebuild leave a CPU, so this is for what comes from elsewhere: all is reserved or foreign.
	short := ""
	switch {
	case len(ls) > 0:
	case len(unowned) > 0:
		ls, short = unowned, "every CPU that is neither reserved nor isolated is owned, so the LS pool is the reserved CPUs "+list(unowned)
	case len(rest) > 0:
		ls, short = rest, "every CPU that is not isolated is owned, so the LS pool is the isolated CPUs "+list(rest)
	default:
		ls, short = all, "every CPU is owned, so the LS pool is all of them"
	}
	if len(be) == 0 {
		be = ls
	}
	if len(system) == 0 {
		system = ls
	}
	return Pools{LS: cpuset.New(ls...), BE: cpuset.New(be...), System: cpuset.New(system...), Short: short}
}
