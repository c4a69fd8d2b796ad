package placement

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/units"
)

// NUMA is how a pod's CPUs may lie over NUMA nodes.
type NUMA string

// NUMA values; the empty one is PreferSingle.
const (
	PreferSingle  NUMA = "prefer-single"  // one node if it fits, else as few and as close ones as can be
	RequireSingle NUMA = "require-single" // one node or a refusal
	Spread        NUMA = "spread"         // evenly over all nodes, as far as they have room
)

// SMT is what becomes of the other threads of an LSE pod's cores. LSR does not read it.
type SMT string

// SMT values; the empty one is SMTIdle.
const (
	SMTIdle SMT = "idle" // N CPUs are N cores, and the pod runs on one thread of each
	SMTUse  SMT = "use"  // N CPUs are as few cores as have N threads, and the pod runs on all of them
)

// Request is what a pod asks for.
type Request struct {
	UID   string
	Tier  v1alpha1.Tier // LSE or LSR
	Count int           // CPUs, from 1: see the function Count
	NUMA  NUMA
	SMT   SMT
	// Since is when the pod was first placed, on any clock that survives a restart. In Rebuild the older one wins.
	Since int64
}

// Assignment is what a pod has. Owned and Mems follow from Tier, CPUs and the machine; functions that take assignments
// read neither.
type Assignment struct {
	Request
	CPUs  cpuset.CPUSet // that its containers run on
	Owned cpuset.CPUSet // CPUs, and for LSE the threads beside them that stay idle
	Mems  cpuset.CPUSet // the memory nodes of CPUs; empty for no restriction
}

// RequestError is a request that no machine could carry out.
type RequestError struct {
	UID, Field, Value, Allowed string
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("place pod %s: %s: %s; allowed: %s", units.Quote(e.UID), e.Field, units.Quote(e.Value), e.Allowed)
}

func (r *Request) check() error {
	bad := func(field, value, allowed string) error {
		return &RequestError{UID: r.UID, Field: field, Value: value, Allowed: allowed}
	}
	switch {
	case !r.Tier.Exclusive():
		return bad("tier", string(r.Tier), "LSE, LSR")
	case r.Count < 1 || r.Count > units.MaxCPU+1:
		return bad("cpus", strconv.Itoa(r.Count), "1 to "+strconv.Itoa(units.MaxCPU+1))
	case r.NUMA != "" && r.NUMA != PreferSingle && r.NUMA != RequireSingle && r.NUMA != Spread:
		return bad("numa", string(r.NUMA), "prefer-single, require-single, spread")
	case r.SMT != "" && r.SMT != SMTIdle && r.SMT != SMTUse:
		return bad("smt", string(r.SMT), "idle, use")
	}
	return nil
}

// whole says whether the request takes cores and not single threads.
func (r *Request) whole() bool { return r.Tier == v1alpha1.LSE }

// byCore says whether the request counts cores.
func (r *Request) byCore() bool { return r.whole() && r.SMT != SMTUse }

// NoRoomError says that the free CPUs of the machine, or of one node where the pod requires one, can't hold a pod.
type NoRoomError struct {
	Request Request
	Had     int    // what the pod had before; 0 for a new one
	Missing int    // how many it asks for besides what it keeps, in the unit that Fits counts
	Free    []Room // by node
	Best    Room   // the node with the most room for this request
}

// Fits is how much of the request's unit a room holds: cores, or for LSR and SMTUse CPUs.
func (e *NoRoomError) Fits(r Room) int {
	switch {
	case e.Request.byCore():
		return r.Cores
	case e.Request.whole():
		return r.Threads
	}
	return r.CPUs
}

func (e *NoRoomError) Error() string {
	r := &e.Request
	unit := "CPUs"
	if e.Missing == 1 {
		unit = "CPU"
	}
	switch {
	case r.byCore() && e.Missing == 1:
		unit = "whole core"
	case r.byCore():
		unit = "whole cores"
	case r.whole():
		unit += " on whole cores"
	}
	var b strings.Builder
	b.WriteString(verb(r, e.Had))
	b.WriteString(strconv.Itoa(e.Missing))
	if e.Had > 0 {
		b.WriteString(" more")
	}
	b.WriteString(" " + unit + " asked")
	total := 0
	for _, room := range e.Free {
		total += e.Fits(room)
	}
	switch {
	case len(e.Free) == 1:
		fmt.Fprintf(&b, ", %d free", total)
		return b.String()
	case r.NUMA != RequireSingle:
		fmt.Fprintf(&b, ", %d free", total)
	case e.Had > 0:
		fmt.Fprintf(&b, " on the NUMA node that it is on")
	default:
		fmt.Fprintf(&b, " on one NUMA node, node %d has the most with %d", e.Best.Node, e.Fits(e.Best))
	}
	b.WriteString("; free: ")
	const most = 16
	for i, room := range e.Free {
		if i == most {
			fmt.Fprintf(&b, " and %d nodes more", len(e.Free)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d on node %d", e.Fits(room), room.Node)
	}
	return b.String()
}

// PoolError says that a pod would leave too few CPUs to the LS pool.
type PoolError struct {
	Request Request
	Had     int // what the pod had before; 0 for a new one
	Takes   int // CPUs that it would take out of the pool, with the threads that stay idle
	Pool    int // CPUs of the pool
	Min     int // how many the pool keeps
}

func (e *PoolError) Error() string {
	return fmt.Sprintf("%stakes %d of the %d CPUs that the LS pool has, and the pool keeps %d; allowed: to take at most %d",
		verb(&e.Request, e.Had), e.Takes, e.Pool, e.Min, max(e.Pool-e.Min, 0))
}

func verb(r *Request, had int) string {
	if had > 0 {
		return fmt.Sprintf("resize pod %s from %d to %d CPUs: ", units.Quote(r.UID), had, r.Count)
	}
	return "place pod " + units.Quote(r.UID) + ": "
}
