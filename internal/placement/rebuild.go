package placement

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/internal/units"
)

// Rebuilt is what became of the assignments of a node, the older pod first in each list.
type Rebuilt struct {
	Kept  []Assignment
	Moved []Move
	Lost  []Loss
}

// Move is a pod that has other CPUs than before.
type Move struct {
	From, To Assignment
	Reason   string // why it could not keep From: "CPU 5 is not online"
}

// Loss is a pod that has no CPUs of its own any more, though it may be running.
type Loss struct {
	Assignment        // as it was
	Reason     string // why it could not keep them
	Err        error  // why there are no others: an error of Place; nil where none were looked for
}

// Assignments is what holds from here on, the older pod first.
func (r *Rebuilt) Assignments() []Assignment {
	all := slices.Clone(r.Kept)
	for _, m := range r.Moved {
		all = append(all, m.To)
	}
	slices.SortFunc(all, older)
	return all
}

// Rebuild brings the assignments of records in line with the machine, after a restart or when a fact has changed. The
// order of the records does not matter.
//
//	all its CPUs are there and no older pod's           kept as it is, even below Limits.MinShared
//	some are gone, or an older pod has them             moved: it keeps the rest and gets others near them, else new ones
//	it is not what was asked for                        the same
//	there are no others, or the LS pool would be empty  lost
//	a second record of a pod                            lost
//
// The older pod is the one with the lower Since, then the lower UID. What can be kept goes before what has to be moved, so
// one pod's misfortune moves nobody else.
func (m *Machine) Rebuild(records []Assignment) Rebuilt {
	records = slices.Clone(records)
	slices.SortFunc(records, older)
	var out Rebuilt
	b := m.board(nil)
	owners := make([]string, m.span)
	settled := make(map[string]bool, len(records))
	settle := func(a Assignment) {
		own := m.owned(a.Tier, m.known(a.CPUs))
		b.claim(own)
		for _, id := range own {
			owners[id] = a.UID
		}
		settled[a.UID] = true
	}
	var rest []Loss // unless they are moved
	for _, a := range records {
		if reason := b.fault(&a, owners); settled[a.UID] || reason != "" {
			rest = append(rest, Loss{Assignment: a, Reason: reason})
			continue
		}
		a = m.assignment(a.Request, m.known(a.CPUs))
		settle(a)
		out.Kept = append(out.Kept, a)
	}
	for _, l := range rest {
		var to Assignment
		if settled[l.UID] {
			l.Reason = "it is a second record of the pod"
			out.Lost = append(out.Lost, l)
			continue
		}
		if to, l.Err = b.replace(l.Request, m.known(l.CPUs)); l.Err != nil {
			out.Lost = append(out.Lost, l)
			continue
		}
		settle(to)
		out.Moved = append(out.Moved, Move{From: l.Assignment, To: to, Reason: l.Reason})
	}
	return out
}

// older orders records. Those of one pod that differ need an order too.
func older(a, b Assignment) int {
	if c := cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.UID, b.UID)); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Count, b.Count), cmp.Compare(a.NUMA, b.NUMA),
		cmp.Compare(a.SMT, b.SMT), slices.Compare(a.CPUs.List(), b.CPUs.List()))
}

// replace finds CPUs for a pod that can't keep these.
func (b *board) replace(r Request, cpus []int) (Assignment, error) {
	if err := r.check(); err != nil {
		return Assignment{}, err
	}
	to, err := b.fit(r, b.keep(&r, cpus), 0)
	if err != nil {
		to, err = b.fit(r, nil, 0)
	}
	if err != nil {
		return Assignment{}, err
	}
	if n := to.Owned.Size(); n >= b.left {
		return Assignment{}, &PoolError{Request: r, Takes: n, Pool: b.left, Min: 1}
	}
	return to, nil
}

// fault is why a pod can't keep what its record says, "" if it can.
func (b *board) fault(a *Assignment, owners []string) string {
	if a.check() != nil {
		return "its record asks for what can't be"
	}
	m := b.m
	cpus := m.known(a.CPUs)
	if len(cpus) < a.CPUs.Size() {
		return are(a.CPUs.Difference(cpuset.New(cpus...)), "not online")
	}
	own := m.owned(a.Tier, cpus)
	var gone []int
	for _, id := range own {
		if !b.free[id] {
			gone = append(gone, id)
		}
	}
	if len(gone) > 0 {
		return b.gone(gone, owners)
	}
	if len(cpus) == 0 {
		return "its record has no CPUs"
	}
	if want := a.want(m, cpus); want != "" {
		return fmt.Sprintf("its record has CPUs %s; allowed: %s", list(cpus), want)
	}
	if len(own) >= b.left {
		return "with it the LS pool would be empty"
	}
	return ""
}

// gone says why a pod can't have the first of these CPUs and those like it.
func (b *board) gone(ids []int, owners []string) string {
	why := func(id int) string {
		switch {
		case b.m.topology.Isolated.Contains(id):
			return "isolated"
		case b.m.limits.Reserved.Contains(id):
			return "reserved"
		case b.m.limits.Foreign.Contains(id):
			return "owned by a pod that is not ours to place"
		}
		return "owned by pod " + units.Quote(owners[id])
	}
	first := why(ids[0])
	return are(cpuset.New(slices.DeleteFunc(ids, func(id int) bool { return why(id) != first })...), first)
}

// want says what a pod's CPUs should be, "" if they are.
func (r *Request) want(m *Machine, cpus []int) string {
	cores := map[int]int{}
	for _, id := range cpus {
		cores[m.coreOf[id]]++
	}
	switch {
	case r.byCore() && (len(cpus) != r.Count || len(cores) != r.Count):
		return fmt.Sprintf("%d, each of another core", r.Count)
	case !r.whole() && len(cpus) != r.Count:
		return fmt.Sprintf("%d", r.Count)
	case r.whole() && !r.byCore():
		biggest := 0
		for _, n := range cores {
			biggest = max(biggest, n)
		}
		if len(cpus) < r.Count || len(cpus)-biggest >= r.Count {
			return fmt.Sprintf("as few cores as have %d", r.Count)
		}
	}
	return ""
}

// are says it of one CPU or of several.
func are(set cpuset.CPUSet, what string) string {
	ids := slices.DeleteFunc(set.UnsortedList(), func(id int) bool { return id < 0 || id > units.MaxCPU })
	switch len(ids) {
	case 0:
		return "its CPUs are none that a kernel has"
	case 1:
		return "CPU " + list(ids) + " is " + what
	}
	return "CPUs " + list(ids) + " are " + what
}

// list is a CPU list for a message.
func list(ids []int) string {
	var m units.CPUMask
	for _, id := range ids {
		m[id/64] |= 1 << (id % 64)
	}
	return m.String()
}
