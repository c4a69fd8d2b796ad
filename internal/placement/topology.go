// Package placement is the pure core of who runs on which CPUs: it gives pods of the exclusive tiers CPUs of their own,
// and the pools that are left to all others. It does no I/O, reads no clock, logs nothing and keeps no state: topology
// and assignments in, assignments and pools out, the same for the same input.
//
//	m, err := placement.New(topology, placement.Limits{Reserved: reserved, MinShared: 1})
//	a, err := m.Place(have, placement.Request{UID: uid, Tier: v1alpha1.LSE, Count: 4})
//	pools := m.Pools(append(have, a))
package placement

import (
	"k8s.io/utils/cpuset"
)

// Topology is the CPUs of a machine and how they lie together. Callers must not change it after they handed it over.
type Topology struct {
	CPUs  []CPU  // the online ones, by ID
	Nodes []Node // the online memory nodes, by ID; none on a machine without NUMA
	// Offline and Isolated are CPUs that are never given away: those that the kernel has and does not run, and those that
	// isolcpus= keeps from its scheduler (they are online).
	Offline, Isolated cpuset.CPUSet
}

// CPU is one logical CPU. A number that the kernel does not tell is -1; CPUs that share one are together, but for Core.
type CPU struct {
	ID       int
	Socket   int
	Die      int // unique on the machine
	NUMANode int
	L3       int // unique on the machine
	L2       int // unique on the machine
	Core     int // unique on the machine: the least ID of its threads
	// Efficient is set on the smaller cores of a hybrid machine.
	Efficient bool
}

// Node is one memory node.
type Node struct {
	ID        int
	Memory    bool        // it has some
	Distances map[int]int // to the nodes with these IDs, as the firmware tells them; 10 is the node itself
}

// Restrict is the memory nodes that a pod with these is kept to: none, for no restriction, where they are all that have
// memory.
func (t Topology) Restrict(mems cpuset.CPUSet) cpuset.CPUSet {
	for _, n := range t.Nodes {
		if n.Memory && !mems.Contains(n.ID) {
			return mems
		}
	}
	return cpuset.New()
}
