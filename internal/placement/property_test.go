package placement_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/cpuset"
	"pgregory.net/rapid"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/placement"
)

// world is a machine as a test looks at it, with nothing of the code under test.
type world struct {
	topology placement.Topology
	limits   placement.Limits
	*placement.Machine

	online, base cpuset.CPUSet
	cpu          map[int]placement.CPU
	cores        map[int]cpuset.CPUSet // online threads by core
}

func newWorld(t *rapid.T, topology placement.Topology, l placement.Limits) *world {
	m, err := placement.New(topology, l)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{topology: topology, limits: l, Machine: m, cpu: map[int]placement.CPU{}, cores: map[int]cpuset.CPUSet{}}
	for _, c := range topology.CPUs {
		w.cpu[c.ID] = c
		w.online = w.online.Union(cpuset.New(c.ID))
		w.cores[core(c)] = w.cores[core(c)].Union(cpuset.New(c.ID))
	}
	w.base = w.online.Difference(l.Reserved).Difference(l.Foreign).Difference(topology.Isolated)
	return w
}

func core(c placement.CPU) int {
	if c.Core < 0 {
		return -1 - c.ID
	}
	return c.Core
}

func drawWorld(t *rapid.T) *world {
	return drawLimits(t, machines()[rapid.SampledFrom(names()).Draw(t, "machine")])
}

func drawLimits(t *rapid.T, topology placement.Topology) *world {
	l := placement.Limits{MinShared: rapid.IntRange(0, 4).Draw(t, "pool keeps")}
	if rapid.Bool().Draw(t, "limits") {
		l.Reserved, l.Foreign = drawCPUs(t, "reserved", topology, 3), drawCPUs(t, "foreign", topology, 2)
	}
	return newWorld(t, topology, l)
}

// drawCPUs may name CPUs that are offline or none.
func drawCPUs(t *rapid.T, what string, topology placement.Topology, most int) cpuset.CPUSet {
	last := topology.CPUs[len(topology.CPUs)-1].ID
	return cpuset.New(rapid.SliceOfN(rapid.IntRange(0, last+1), 0, most).Draw(t, what)...)
}

func drawRequest(t *rapid.T, uid string, since int) placement.Request {
	r := placement.Request{UID: uid, Since: int64(since)}
	r.Tier = rapid.SampledFrom([]v1alpha1.Tier{v1alpha1.LSE, v1alpha1.LSR}).Draw(t, "tier")
	r.Count = drawCount(t)
	r.NUMA = rapid.SampledFrom([]placement.NUMA{"", placement.PreferSingle, placement.RequireSingle, placement.Spread}).Draw(t, "NUMA")
	r.SMT = rapid.SampledFrom([]placement.SMT{"", placement.SMTIdle, placement.SMTUse}).Draw(t, "SMT")
	return r
}

func drawCount(t *rapid.T) int {
	if rapid.Bool().Draw(t, "few") {
		return rapid.IntRange(1, 4).Draw(t, "CPUs")
	}
	return rapid.IntRange(1, 40).Draw(t, "CPUs")
}

// check is what always holds.
func (w *world) check(t *rapid.T, have []placement.Assignment) {
	owned, lse := cpuset.New(), cpuset.New()
	for _, a := range have {
		if !a.Owned.Intersection(owned).IsEmpty() {
			t.Fatalf("%s owns %v, of which others own %v", a.UID, a.Owned, a.Owned.Intersection(owned))
		}
		owned = owned.Union(a.Owned)
		if !a.Owned.IsSubsetOf(w.base) {
			t.Fatalf("%s owns %v; may be given away: %v", a.UID, a.Owned, w.base)
		}
		w.checkOne(t, a)
		if a.Tier == v1alpha1.LSE {
			lse = lse.Union(a.Owned)
		}
	}
	p := w.Pools(have)
	if p.LS.IsEmpty() || p.BE.IsEmpty() || p.System.IsEmpty() {
		t.Fatalf("an empty pool: %+v", p)
	}
	if !p.LS.IsSubsetOf(w.online) || !p.BE.IsSubsetOf(w.online) || !p.System.IsSubsetOf(w.online) {
		t.Fatalf("not online: %+v", p)
	}
	if p.Short != "" {
		if !w.base.IsEmpty() {
			t.Fatalf("%s, though there is %v", p.Short, w.base)
		}
		return
	}
	for name, sets := range map[string][2]cpuset.CPUSet{
		"LS":     {p.LS, w.base.Difference(owned)},
		"BE":     {p.BE, w.base.Difference(lse)},
		"SYSTEM": {p.System, w.online.Difference(w.topology.Isolated).Difference(w.limits.Foreign).Difference(lse)},
	} {
		if !sets[0].Equals(sets[1]) {
			t.Fatalf("%s is %v, not %v", name, sets[0], sets[1])
		}
	}
	room := 0
	for _, r := range w.Free(have) {
		room += r.CPUs
	}
	if room != p.LS.Size() {
		t.Fatalf("%d free, and %d CPUs in the LS pool", room, p.LS.Size())
	}
}

func (w *world) checkOne(t *rapid.T, a placement.Assignment) {
	cores, with := map[int]int{}, cpuset.New()
	for _, id := range a.CPUs.List() {
		cores[core(w.cpu[id])]++
		if n := w.cpu[id].NUMANode; n >= 0 {
			with = with.Union(cpuset.New(n))
		}
	}
	switch {
	case a.Tier == v1alpha1.LSR:
		if a.CPUs.Size() != a.Count || !a.Owned.Equals(a.CPUs) {
			t.Fatalf("LSR with %d CPUs has %v and owns %v", a.Count, a.CPUs, a.Owned)
		}
	case a.SMT == placement.SMTUse:
		if a.CPUs.Size() < a.Count || a.CPUs.Size()-slices.Max(slices.Collect(maps.Values(cores))) >= a.Count {
			t.Fatalf("LSE with all threads of its cores and %d CPUs has %v", a.Count, a.CPUs)
		}
	default:
		if a.CPUs.Size() != a.Count || len(cores) != a.Count {
			t.Fatalf("LSE with %d CPUs has %v", a.Count, a.CPUs)
		}
	}
	if a.Tier == v1alpha1.LSE {
		want := cpuset.New()
		for c := range cores {
			want = want.Union(w.cores[c])
		}
		if !a.Owned.Equals(want) {
			t.Fatalf("LSE on %v owns %v, not the whole cores %v", a.CPUs, a.Owned, want)
		}
	}
	memory := cpuset.New()
	for _, n := range w.topology.Nodes {
		if n.Memory {
			memory = memory.Union(cpuset.New(n.ID))
		}
	}
	if near := with.Intersection(memory); !near.IsEmpty() && !a.Mems.Equals(near) || !a.Mems.IsSubsetOf(memory) || a.Mems.IsEmpty() != (len(w.topology.Nodes) == 0) {
		t.Fatalf("on nodes %v with memory nodes %v; memory is on %v", with, a.Mems, memory)
	}
}

// whole says which cores are free as a whole.
func (w *world) whole(free cpuset.CPUSet) map[int]bool {
	all := map[int]bool{}
	for c, threads := range w.cores {
		all[c] = threads.IsSubsetOf(free)
	}
	return all
}

// room is what is free for a request, by any group of CPUs.
func (w *world) room(r placement.Request, have []placement.Assignment, group func(placement.CPU) string) map[string]int {
	free := w.base
	for _, a := range have {
		free = free.Difference(a.Owned)
	}
	whole, room, seen := w.whole(free), map[string]int{}, map[int]bool{}
	for _, c := range w.topology.CPUs {
		switch {
		case r.Tier == v1alpha1.LSR && free.Contains(c.ID),
			r.Tier == v1alpha1.LSE && whole[core(c)] && (r.SMT == placement.SMTUse || !seen[core(c)]):
			room[group(c)]++
		}
		seen[core(c)] = true
	}
	return room
}

func machineOf(placement.CPU) string  { return "" }
func nodeOf(c placement.CPU) string   { return fmt.Sprint(c.NUMANode) }
func socketOf(c placement.CPU) string { return fmt.Sprint(c.Socket) }
func partOf(c placement.CPU) string   { return fmt.Sprint(c.Socket, c.NUMANode, c.L3) }
func kindOf(c placement.CPU) string   { return fmt.Sprint(c.Efficient) }

func (w *world) groups(a placement.Assignment, group func(placement.CPU) string) []string {
	var g []string
	for _, id := range a.CPUs.List() {
		g = append(g, group(w.cpu[id]))
	}
	slices.Sort(g)
	return slices.Compact(g)
}

// checkPlaced compares a placement, or its refusal, with what counting says.
func (w *world) checkPlaced(t *rapid.T, have []placement.Assignment, r placement.Request, a placement.Assignment, err error) {
	total := w.room(r, have, machineOf)[""]
	nodes := w.room(r, have, nodeOf)
	most := 0
	for _, n := range nodes {
		most = max(most, n)
	}
	fits := total >= r.Count
	if r.NUMA == placement.RequireSingle {
		fits = most >= r.Count
	}
	var room *placement.NoRoomError
	var pool *placement.PoolError
	switch {
	case errors.As(err, &room):
		if fits {
			t.Fatalf("%v; but there is room: %v", err, nodes)
		}
		for _, x := range room.Free {
			if room.Fits(x) != nodes[fmt.Sprint(x.Node)] {
				t.Fatalf("%v; but it is %v", err, nodes)
			}
		}
		return
	case errors.As(err, &pool):
		if ls := w.base.Size() - owned(have).Size(); !fits || pool.Pool != ls || ls-pool.Takes >= max(w.limits.MinShared, 1) || pool.Takes < r.Count {
			t.Fatalf("%v; the LS pool is %d, fits is %v", err, ls, fits)
		}
		return
	case err != nil:
		t.Fatal(err)
	case !fits:
		t.Fatalf("%v without room: %v", a.CPUs, nodes)
	}
	if ls := w.Pools(append(slices.Clone(have), a)).LS.Size(); ls < w.limits.MinShared {
		t.Fatalf("the LS pool has %d CPUs left", ls)
	}
	on := w.groups(a, nodeOf)
	if r.NUMA == placement.Spread {
		w.checkSpread(t, r, a, nodes)
		return
	}
	if r.NUMA == placement.RequireSingle && len(on) != 1 {
		t.Fatalf("on nodes %v", on)
	}
	if kinds := w.room(r, have, kindOf); len(kinds) > 1 {
		// Never mixed while one kind holds it. The pool may forbid the one that would be first.
		if got := w.groups(a, kindOf); len(got) > 1 && w.limits.MinShared <= 1 && (kinds["false"] >= r.Count || kinds["true"] >= r.Count) && total-r.Count > 8 {
			t.Fatalf("%v is of both kinds; there is %v", a.CPUs, kinds)
		}
		return
	}
	parts := w.room(r, have, partOf)
	for name, level := range map[string]struct {
		room  map[string]int
		group func(placement.CPU) string
		below map[string]int
	}{
		"part": {parts, partOf, nil}, "node": {nodes, nodeOf, parts}, "socket": {w.room(r, have, socketOf), socketOf, nodes},
	} {
		least := 0
		for _, n := range level.room {
			if n >= r.Count && (least == 0 || n < least) {
				least = n
			}
		}
		if least == 0 {
			continue
		}
		got := w.groups(a, level.group)
		if len(got) != 1 {
			t.Fatalf("%v is on several: %s %v; room: %v", a.CPUs, name, got, level.room)
		}
		below := slices.ContainsFunc(slices.Collect(maps.Values(level.below)), func(n int) bool { return n >= r.Count })
		if r.Tier == v1alpha1.LSE && !below && level.room[got[0]] != least {
			t.Fatalf("%v is on %s %v; room: %v", a.CPUs, name, got, level.room)
		}
	}
	// One node does if one can hold it.
	if sockets := w.groups(a, socketOf); len(sockets) == 1 && len(on) > 1 && most >= r.Count {
		t.Fatalf("%v is on nodes %v where one would do: %v", a.CPUs, on, nodes)
	}
	// Beyond it, no node is left half used for one that is farther from all others.
	left := w.room(r, append(slices.Clone(have), a), nodeOf)
	for _, used := range on {
		for free, n := range left {
			if n > 0 && !slices.Contains(on, free) && len(on) > 1 && nodes[free] >= nodes[used] && w.farther(used, free, on) {
				t.Fatalf("%v is on nodes %v; node %s is closer than node %s and has room: %v", a.CPUs, on, free, used, nodes)
			}
		}
	}
}

// farther says whether used is farther than free from each other node of on.
func (w *world) farther(used, free string, on []string) bool {
	distance := func(a, b string) int {
		for _, n := range w.topology.Nodes {
			for to, d := range n.Distances {
				if fmt.Sprint(n.ID) == a && fmt.Sprint(to) == b {
					return d
				}
			}
		}
		return 0
	}
	return !slices.ContainsFunc(on, func(x string) bool { return x != used && distance(x, used) <= distance(x, free) })
}

func owned(have []placement.Assignment) cpuset.CPUSet {
	all := cpuset.New()
	for _, a := range have {
		all = all.Union(a.Owned)
	}
	return all
}

// checkSpread: no node has two fewer than another unless it is full.
func (w *world) checkSpread(t *rapid.T, r placement.Request, a placement.Assignment, nodes map[string]int) {
	share, step := map[string]int{}, 1
	for _, id := range a.CPUs.List() {
		share[nodeOf(w.cpu[id])]++
	}
	if r.Tier == v1alpha1.LSE && r.SMT == placement.SMTUse {
		step = 2
	}
	kinds := w.room(r, nil, kindOf)
	for n, room := range nodes {
		for _, other := range share {
			if other-share[n] > step && share[n] < room && len(kinds) == 1 && !(step == 2 && room-share[n] < 2) {
				t.Fatalf("%v: %v where there is %v", a.CPUs, share, nodes)
			}
		}
	}
}

func shuffled(t *rapid.T, have []placement.Assignment) []placement.Assignment {
	return rapid.Permutation(have).Draw(t, "order")
}

// A node's life: pods come, grow, shrink and go; the agent restarts.
func TestLife(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		var have []placement.Assignment
		for step := range rapid.IntRange(1, 25).Draw(t, "steps") {
			switch what := rapid.SampledFrom([]string{"place", "place", "place", "resize", "release", "restart"}).Draw(t, "what"); {
			case what == "place":
				r := drawRequest(t, fmt.Sprintf("pod-%d", step), step)
				a, err := w.Place(have, r)
				w.checkPlaced(t, have, r, a, err)
				again, err2 := w.Place(shuffled(t, have), r)
				if diff := cmp.Diff(outcome(a, err), outcome(again, err2)); diff != "" {
					t.Fatalf("in another order:\n%s", diff)
				}
				if err != nil {
					break
				}
				// It comes and goes, and the next decision is as if it had never been.
				other := drawRequest(t, "other", step)
				before, err1 := w.Place(have, other)
				with := append(slices.Clone(have), a)
				after, err2 := w.Place(slices.DeleteFunc(with, func(x placement.Assignment) bool { return x.UID == a.UID }), other)
				if outcome(before, err1) != outcome(after, err2) {
					t.Fatalf("after a release: %s, before: %s", outcome(after, err2), outcome(before, err1))
				}
				have = append(have, a)
			case len(have) == 0:
			case what == "resize":
				i := rapid.IntRange(0, len(have)-1).Draw(t, "pod")
				n := drawCount(t)
				a, err := w.Resize(have, have[i].UID, n)
				w.checkResized(t, have, have[i], n, a, err)
				if err == nil {
					have[i] = a
				}
			case what == "release":
				i := rapid.IntRange(0, len(have)-1).Draw(t, "pod")
				have = slices.Delete(have, i, i+1)
			default:
				w.replay(t, have)
			}
			w.check(t, have)
		}
	})
}

func (w *world) checkResized(t *rapid.T, have []placement.Assignment, was placement.Assignment, n int, a placement.Assignment, err error) {
	r := was.Request
	r.Count = n
	var room *placement.NoRoomError
	var pool *placement.PoolError
	switch {
	case errors.As(err, &room):
		free := w.room(r, have, machineOf)[""]
		if r.NUMA == placement.RequireSingle {
			free = w.room(r, have, nodeOf)[w.groups(was, nodeOf)[0]]
		}
		if n <= was.CPUs.Size() || free >= room.Missing {
			t.Fatalf("%v; has %v, free are %d", err, was.CPUs, free)
		}
		return
	case errors.As(err, &pool):
		if n <= was.Count {
			t.Fatal(err)
		}
		return
	case err != nil:
		t.Fatal(err)
	}
	if a.Request != r {
		t.Fatalf("request %+v", a.Request)
	}
	if n >= was.Count && !was.CPUs.IsSubsetOf(a.CPUs) {
		t.Fatalf("grew from %v to %v", was.CPUs, a.CPUs)
	}
	if n <= was.Count && !a.CPUs.IsSubsetOf(was.CPUs) {
		t.Fatalf("shrank from %v to %v", was.CPUs, a.CPUs)
	}
	if r.NUMA == placement.RequireSingle && len(w.groups(a, nodeOf)) != 1 {
		t.Fatalf("on several nodes: %v", a.CPUs)
	}
	if len(w.groups(a, nodeOf)) > len(w.groups(was, nodeOf)) && r.NUMA != placement.Spread {
		for _, node := range w.groups(was, nodeOf) {
			if kinds := w.room(r, nil, kindOf); len(kinds) == 1 && w.room(r, append(without(have, a.UID), a), nodeOf)[node] > 1 {
				t.Fatalf("left node %s, where there is room, from %v to %v", node, was.CPUs, a.CPUs)
			}
		}
	}
}

func without(have []placement.Assignment, uid string) []placement.Assignment {
	return slices.DeleteFunc(slices.Clone(have), func(a placement.Assignment) bool { return a.UID == uid })
}

// replay restarts from records, which hold no more than a request and CPUs.
func (w *world) replay(t *rapid.T, have []placement.Assignment) {
	var records []placement.Assignment
	for _, a := range have {
		records = append(records, placement.Assignment{Request: a.Request, CPUs: a.CPUs})
	}
	r := w.Rebuild(shuffled(t, records))
	if len(r.Moved)+len(r.Lost) > 0 {
		t.Fatalf("a restart moved pods:\n%s", story(r))
	}
	if diff := cmp.Diff(lines(have), lines(r.Assignments())); diff != "" {
		t.Fatalf("after a restart:\n%s", diff)
	}
}

func lines(have []placement.Assignment) []string {
	var out []string
	for _, a := range have {
		out = append(out, fmt.Sprintf("%+v: %s, owns %v", a.Request, text(a), a.Owned))
	}
	slices.Sort(out)
	return out
}

// Facts change: CPUs go offline and come back, others are reserved, the kubelet takes some.
func TestRebuildAfterChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		var have []placement.Assignment
		for i := range rapid.IntRange(1, 12).Draw(t, "pods") {
			if a, err := w.Place(have, drawRequest(t, fmt.Sprintf("pod-%d", i), rapid.IntRange(0, 3).Draw(t, "age"))); err == nil {
				have = append(have, a)
			}
		}
		topology := w.topology
		if gone := drawCPUs(t, "offline", topology, 4); !w.online.IsSubsetOf(gone) {
			topology = offline(topology, gone.String())
		}
		after := drawLimits(t, topology)
		after.checkRebuilt(t, have)
		// All that had its CPUs before still has those.
		untouched := func(a placement.Assignment) bool { return a.Owned.IsSubsetOf(after.base) }
		r := after.Rebuild(have)
		for _, l := range r.Lost {
			if untouched(l.Assignment) && l.Reason != "with it the LS pool would be empty" {
				t.Fatalf("lost without need:\n%s", story(r))
			}
		}
		for _, m := range r.Moved {
			if untouched(m.From) {
				t.Fatalf("moved without need:\n%s", story(r))
			}
		}
	})
}

// Records may hold anything.
func TestRebuildOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		var records []placement.Assignment
		for range rapid.IntRange(0, 8).Draw(t, "records") {
			uid := fmt.Sprintf("pod-%d", rapid.IntRange(0, 9).Draw(t, "uid"))
			a := placement.Assignment{Request: drawRequest(t, uid, rapid.IntRange(0, 3).Draw(t, "age")), CPUs: drawCPUs(t, "has", w.topology, 5)}
			if rapid.IntRange(0, 9).Draw(t, "hostile") == 0 {
				a.Count, a.Tier, a.CPUs = rapid.IntRange(-1, 9000).Draw(t, "asks"), "LS", cpuset.New(-5, 1, 1<<40)
			}
			if rapid.Bool().Draw(t, "count fits") {
				a.Count = max(a.CPUs.Size(), 1)
			}
			records = append(records, a)
		}
		w.checkRebuilt(t, records)
	})
}

func (w *world) checkRebuilt(t *rapid.T, records []placement.Assignment) {
	r := w.Rebuild(records)
	now := r.Assignments()
	w.check(t, now)
	w.replay(t, now)
	if diff := cmp.Diff(story(r), story(w.Rebuild(shuffled(t, records)))); diff != "" {
		t.Fatalf("in another order:\n%s", diff)
	}
	// Each record once, and kept ones as they were.
	var before, after []string
	key := func(a placement.Assignment) string { return fmt.Sprintf("%+v %v", a.Request, a.CPUs) }
	for _, a := range records {
		before = append(before, key(a))
	}
	for _, a := range r.Kept {
		after = append(after, key(a))
	}
	for _, m := range r.Moved {
		after = append(after, key(m.From))
		if m.To.Request != m.From.Request || m.Reason == "" {
			t.Fatalf("%+v", m)
		}
	}
	for _, l := range r.Lost {
		after = append(after, key(l.Assignment))
		if l.Reason == "" {
			t.Fatalf("%+v", l)
		}
	}
	slices.Sort(before)
	slices.Sort(after)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Fatal(diff)
	}
	// Of two that want a CPU and could both stay, the older has it.
	for _, m := range r.Moved {
		for _, k := range r.Kept {
			if !m.From.CPUs.Intersection(k.CPUs).IsEmpty() && (m.From.Since < k.Since || m.From.Since == k.Since && m.From.UID < k.UID) {
				alone := w.Rebuild([]placement.Assignment{m.From})
				if len(alone.Kept) == 1 && len(r.Lost) == 0 && len(r.Moved) == 1 {
					t.Fatalf("the younger stays:\n%s", story(r))
				}
			}
		}
	}
}

// A snapshot of a machine may say anything: cores over sockets, nodes without CPUs, distances of a few.
func TestStrangeTopologies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var topology placement.Topology
		number := rapid.IntRange(-1, 3)
		for _, id := range slices.Compact(slices.Sorted(slices.Values(rapid.SliceOfN(rapid.IntRange(0, 40), 1, 24).Draw(t, "CPUs")))) {
			topology.CPUs = append(topology.CPUs, placement.CPU{
				ID: id, Socket: number.Draw(t, "socket"), Die: number.Draw(t, "die"), NUMANode: number.Draw(t, "node"), L3: number.Draw(t, "L3"),
				L2: number.Draw(t, "L2"), Core: rapid.IntRange(-1, 9).Draw(t, "core"), Efficient: rapid.IntRange(0, 3).Draw(t, "efficient") == 0,
			})
		}
		for id := range rapid.IntRange(0, 5).Draw(t, "nodes") {
			n := placement.Node{ID: id, Memory: rapid.Bool().Draw(t, "memory"), Distances: map[int]int{}}
			for range rapid.IntRange(0, 5).Draw(t, "distances") {
				n.Distances[rapid.IntRange(0, 5).Draw(t, "to")] = rapid.IntRange(-1, 255).Draw(t, "distance")
			}
			topology.Nodes = append(topology.Nodes, n)
		}
		w := drawLimits(t, topology)
		var have []placement.Assignment
		for i := range rapid.IntRange(1, 8).Draw(t, "pods") {
			if a, err := w.Place(have, drawRequest(t, fmt.Sprintf("pod-%d", i), i)); err == nil {
				have = append(have, a)
			} else if err.Error() == "" {
				t.Fatal("no words")
			}
			if len(have) > 0 {
				j := rapid.IntRange(0, len(have)-1).Draw(t, "which")
				if a, err := w.Resize(have, have[j].UID, drawCount(t)); err == nil {
					have[j] = a
				}
			}
			all := cpuset.New()
			for _, a := range have {
				if !a.Owned.IsSubsetOf(w.base) || !a.CPUs.IsSubsetOf(a.Owned) || !a.Owned.Intersection(all).IsEmpty() || a.CPUs.Size() < a.Count {
					t.Fatalf("%+v", have)
				}
				all = all.Union(a.Owned)
			}
			if p := w.Pools(have); p.LS.IsEmpty() || p.Short == "" && !p.LS.Equals(w.base.Difference(all)) {
				t.Fatalf("LS %v beside %v", p.LS, all)
			}
			w.replay(t, have)
		}
	})
}
