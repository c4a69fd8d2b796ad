package placement_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/internal/placement"
)

func TestPlace(t *testing.T) {
	for _, tt := range []struct {
		name, machine string
		limits        placement.Limits
		have          []string
		ask, want     string // want is an error where it is none of text
	}{
		// LSE
		{name: "four full cores of one node, their siblings idle", machine: "2 sockets", ask: "LSE 4", want: "0-3 idle 8-11 mems 0"},
		{name: "the second pod goes to the other node", machine: "2 sockets", have: []string{"LSE 2 on 0-1"}, ask: "LSE 4", want: "4-7 idle 12-15 mems 1"},
		{name: "a small one fills the node that is begun", machine: "2 sockets", have: []string{"LSE 1 on 4"}, ask: "LSE 2", want: "5-6 idle 13-14 mems 1"},
		{name: "with use it runs on all threads of half as many cores", machine: "2 sockets", ask: "LSE 4 use", want: "0-1,8-9 mems 0"},
		{name: "an odd number with use is rounded up to cores", machine: "2 sockets", ask: "LSE 3 use", want: "0-1,8-9 mems 0"},
		{name: "a core with a reserved thread is not whole", machine: "2 sockets", limits: placement.Limits{Reserved: set("0")}, ask: "LSE 2", want: "1-2 idle 9-10 mems 0"},
		{name: "nor one with a thread of the kubelet's", machine: "2 sockets", limits: placement.Limits{Foreign: set("8")}, ask: "LSE 2", want: "1-2 idle 9-10 mems 0"},
		{name: "nor one with an LSR pod", machine: "2 sockets", have: []string{"LSR 1 on 0"}, ask: "LSE 3", want: "1-3 idle 9-11 mems 0"},
		{name: "a core whose second thread is offline is", machine: "offline", ask: "LSE 4", want: "0-3 idle 8,10-11 mems 0"},
		{name: "no SMT, so nothing stays idle", machine: "no SMT", ask: "LSE 3", want: "0-2 mems 0"},
		{name: "isolated CPUs are not ours", machine: "isolated", ask: "LSE 2", want: "0-1 idle 8-9 mems 0"},

		// LSR
		{name: "three CPUs are a core and a half", machine: "1 node", ask: "LSR 3", want: "0-1,4 mems 0"},
		{name: "the next one fills the half", machine: "1 node", have: []string{"LSR 3 on 0-1,4"}, ask: "LSR 1", want: "5 mems 0"},
		{name: "two CPUs are a core of its own, though a half is free", machine: "1 node", have: []string{"LSR 1 on 0"}, ask: "LSR 2", want: "1,5 mems 0"},
		{name: "never the idle thread of an LSE core", machine: "1 node", have: []string{"LSE 2 on 0-1"}, ask: "LSR 3", want: "2-3,6 mems 0"},
		{name: "halves if nothing else is left", machine: "1 node", have: []string{"LSR 1 on 0", "LSR 1 on 1", "LSR 1 on 2"}, limits: placement.Limits{Reserved: set("3,7")}, ask: "LSR 2", want: "4-5 mems 0"},
		{name: "beside a reserved thread rather than a core broken up", machine: "1 node", limits: placement.Limits{Reserved: set("0")}, ask: "LSR 1", want: "4 mems 0"},
		{name: "four threads a core: the core in use that is left with least", machine: "4 threads", have: []string{"LSR 1 on 0", "LSR 2 on 1,5"}, ask: "LSR 2", want: "9,13 mems 0"},
		{name: "what one core in use can't hold comes from the emptiest", machine: "4 threads", have: []string{"LSR 3 on 0,4,8", "LSR 2 on 1,5"}, limits: placement.Limits{Reserved: set("2-3,6-7,10-11,14")}, ask: "LSR 3", want: "9,12-13 mems 0"},
		{name: "and from the emptiest first", machine: "4 threads", have: []string{"LSR 3 on 0,4,8", "LSR 2 on 1,5", "LSR 2 on 2,6"}, limits: placement.Limits{Reserved: set("3,7,11,15")}, ask: "LSR 4", want: "9-10,13-14 mems 0"},
		{name: "an L3 where cores stay whole goes before a tighter one", machine: "16 L3s", have: []string{"LSR 5 on 0-1,64-65,2", "LSR 1 on 3"}, ask: "LSR 2", want: "4,68 mems 0"},

		// L3, then node, then socket, then the machine
		{name: "the L3 that is left with least", machine: "16 L3s", have: []string{"LSE 1 on 0", "LSE 2 on 8-9"}, ask: "LSE 2", want: "10-11 idle 74-75 mems 0"},
		{name: "equal L3s: the one on the fuller node", machine: "16 L3s", have: []string{"LSE 4 on 32-35"}, ask: "LSE 2", want: "36-37 idle 100-101 mems 1"},
		{name: "and on the fuller of its nodes", machine: "8 L3s", have: []string{"LSE 2 on 12-13"}, ask: "LSE 1", want: "14 idle 30 mems 3"},
		{name: "equal nodes: the one on the fuller socket", machine: "8 L3s", have: []string{"LSE 4 on 12-15"}, ask: "LSE 1", want: "8 idle 24 mems 2"},
		{name: "two L3s where three would do", machine: "16 L3s", have: []string{"LSE 3 on 4-6"}, ask: "LSE 7", want: "0-3,8-10 idle 64-67,72-74 mems 0"},
		{name: "one node, few L3s: all of the free ones, then the tightest for the rest", machine: "16 L3s", have: []string{"LSE 2 on 4-5"}, ask: "LSE 6", want: "0-3,6-7 idle 64-67,70-71 mems 0"},
		{name: "a node where the other would do, if it is tighter", machine: "16 L3s", have: []string{"LSE 4 on 0-3"}, ask: "LSE 28", want: "4-31 idle 68-95 mems 0"},
		{name: "two nodes of one socket, the tighter one", machine: "4 nodes", have: []string{"LSE 1 on 12"}, ask: "LSE 6", want: "8-11,13-14 idle 24-27,29-30 mems 2-3"},
		{name: "more than a socket: it and the closest node", machine: "4 nodes", ask: "LSE 10", want: "0-9 idle 16-25 mems 0-2"},
		{name: "more than a socket has: the far node that holds the rest", machine: "4 nodes", have: []string{"LSE 4 on 4-7", "LSE 3 on 8-10"}, ask: "LSE 7", want: "0-3,12-14 idle 16-19,28-30 mems 0,3"},
		{name: "an L3 over two nodes is no reason to leave a node", machine: "sub-NUMA", have: []string{"LSE 1 on 0"}, ask: "LSE 2", want: "2-3 idle 10-11 mems 1"},
		{name: "a socket where NUMA is off", machine: "NUMA off", have: []string{"LSE 1 on 0"}, ask: "LSE 3", want: "1-3 mems 0"},
		{name: "the other socket where NUMA is off", machine: "NUMA off", have: []string{"LSE 2 on 0,2"}, ask: "LSE 3", want: "4-6 mems 0"},
		{name: "a machine that tells nothing", machine: "tells nothing", ask: "LSE 3", want: "0-2"},

		// NUMA wishes
		{name: "require-single holds", machine: "2 sockets", ask: "LSE 4 require-single", want: "0-3 idle 8-11 mems 0"},
		{name: "require-single refuses", machine: "2 sockets", have: []string{"LSE 2 on 0-1", "LSE 1 on 4"}, ask: "LSE 4 require-single",
			want: `place pod "new": 4 whole cores asked on one NUMA node, node 1 has the most with 3; free: 2 on node 0, 3 on node 1`},
		{name: "require-single refuses with use", machine: "2 sockets", ask: "LSE 9 require-single use",
			want: `place pod "new": 9 CPUs on whole cores asked on one NUMA node, node 0 has the most with 8; free: 8 on node 0, 8 on node 1`},
		{name: "where prefer-single takes two", machine: "2 sockets", have: []string{"LSE 2 on 0-1", "LSE 1 on 4"}, ask: "LSE 4", want: "2,5-7 idle 10,13-15 mems 0-1"},
		{name: "spread is even", machine: "4 nodes", ask: "LSE 8 spread", want: "0-1,4-5,8-9,12-13 idle 16-17,20-21,24-25,28-29 mems 0-3"},
		{name: "what is over goes where most is free", machine: "4 nodes", have: []string{"LSE 1 on 0"}, ask: "LSE 5 spread", want: "1,4-5,8,12 idle 17,20-21,24,28 mems 0-3"},
		{name: "as even as the room is", machine: "4 nodes", have: []string{"LSE 4 on 0-3"}, ask: "LSE 4 spread", want: "4-5,8,12 idle 20-21,24,28 mems 1-3"},
		{name: "spread with use counts cores", machine: "2 sockets", ask: "LSE 4 spread use", want: "0,4,8,12 mems 0-1"},

		// hybrid
		{name: "performance cores first", machine: "hybrid", ask: "LSE 2", want: "0,2 idle 1,3 mems 0"},
		{name: "efficient ones if there are enough of those alone", machine: "hybrid", ask: "LSE 6", want: "8-13 mems 0"},
		{name: "mixed at the end", machine: "hybrid", have: []string{"LSE 4 on 8-11"}, ask: "LSE 5", want: "0,2,4,6,12 idle 1,3,5,7 mems 0"},
		{name: "LSR as well", machine: "hybrid", ask: "LSR 3", want: "0-2 mems 0"},

		// memory
		{name: "the closest node with memory", machine: "odd memory", have: []string{"LSE 2 on 0-1"}, ask: "LSE 1", want: "2 idle 6 mems 2"},
		{name: "what of its nodes has memory", machine: "odd memory", ask: "LSE 3", want: "0-2 idle 4-6 mems 0"},

		// refusals
		{name: "no room", machine: "1 node", have: []string{"LSE 2 on 0-1"}, ask: "LSE 3", want: `place pod "new": 3 whole cores asked, 2 free`},
		{name: "no room for one", machine: "1 node", have: []string{"LSR 1 on 0", "LSR 1 on 1", "LSR 1 on 2", "LSR 1 on 3"}, ask: "LSE 1", want: `place pod "new": 1 whole core asked, 0 free`},
		{name: "no room on two nodes", machine: "2 sockets", limits: placement.Limits{Reserved: set("0")}, ask: "LSE 8", want: `place pod "new": 8 whole cores asked, 7 free; free: 3 on node 0, 4 on node 1`},
		{name: "no room for threads", machine: "2 sockets", ask: "LSR 17", want: `place pod "new": 17 CPUs asked, 16 free; free: 8 on node 0, 8 on node 1`},
		{name: "no room for cores with use", machine: "1 node", limits: placement.Limits{Reserved: set("0")}, ask: "LSE 7 use", want: `place pod "new": 7 CPUs on whole cores asked, 6 free`},
		{name: "the LS pool would be empty", machine: "1 node", ask: "LSE 4", want: `place pod "new": takes 8 of the 8 CPUs that the LS pool has, and the pool keeps 1; allowed: to take at most 7`},
		{name: "the LS pool keeps what the policy says", machine: "1 node", limits: placement.Limits{MinShared: 4}, ask: "LSR 5", want: `place pod "new": takes 5 of the 8 CPUs that the LS pool has, and the pool keeps 4; allowed: to take at most 4`},
		{name: "one core with two threads holds no LSE", machine: "1 core", ask: "LSE 1", want: `place pod "new": takes 2 of the 2 CPUs that the LS pool has, and the pool keeps 1; allowed: to take at most 1`},
		{name: "but LSR", machine: "1 core", ask: "LSR 1", want: "0 mems 0"},
		{name: "two CPUs", machine: "2 CPUs", ask: "LSE 1", want: "0 mems 0"},
		{name: "the last CPU is the pool's", machine: "2 CPUs", have: []string{"LSE 1 on 0"}, ask: "LSR 1", want: `place pod "new": takes 1 of the 1 CPUs that the LS pool has, and the pool keeps 1; allowed: to take at most 0`},
		{name: "no tier", machine: "2 CPUs", ask: "1", want: `place pod "new": tier: ""; allowed: LSE, LSR`},
		{name: "no CPUs", machine: "2 CPUs", ask: "LSE 0", want: `place pod "new": cpus: "0"; allowed: 1 to 8192`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := machine(t, tt.machine, tt.limits)
			a, err := m.Place(all(t, tt.have...), request(t, "new", tt.ask))
			if got := outcome(a, err); got != tt.want {
				t.Errorf("%s beside %q:\n got %s\nwant %s", tt.ask, tt.have, got, tt.want)
			}
		})
	}
}

func outcome(a placement.Assignment, err error) string {
	if err != nil {
		return err.Error()
	}
	return text(a)
}

func TestResize(t *testing.T) {
	for _, tt := range []struct {
		name, machine string
		limits        placement.Limits
		has           string
		beside        []string
		cpus          int
		want          string
	}{
		{name: "LSE grows in its L3", machine: "16 L3s", has: "LSE 2 on 8-9", cpus: 4, want: "8-11 idle 72-75 mems 0"},
		{name: "LSE grows past its neighbour", machine: "16 L3s", has: "LSE 2 on 8-9", beside: []string{"LSE 1 on 10"}, cpus: 3, want: "8-9,11 idle 72-73,75 mems 0"},
		{name: "in its L3, though there is a tighter one", machine: "16 L3s", has: "LSE 2 on 8-9", beside: []string{"LSE 3 on 4-6"}, cpus: 3, want: "8-10 idle 72-74 mems 0"},
		{name: "then on its node, in an L3 that is in use", machine: "16 L3s", has: "LSE 2 on 8-9", beside: []string{"LSE 2 on 10-11", "LSE 2 on 20-21"}, cpus: 4, want: "8-9,22-23 idle 72-73,86-87 mems 0"},
		{name: "then on the closest node", machine: "4 nodes", has: "LSE 2 on 8-9", beside: []string{"LSE 2 on 10-11"}, cpus: 4, want: "8-9,12-13 idle 24-25,28-29 mems 2-3"},
		{name: "LSE with use gets a core for two more", machine: "2 sockets", has: "LSE 2 use on 5,13", cpus: 4, want: "4-5,12-13 mems 1"},
		{name: "and nothing where it has had one too many", machine: "2 sockets", has: "LSE 3 use on 4-5,12-13", cpus: 4, want: "4-5,12-13 mems 1"},
		{name: "and keeps a core that has one thread only", machine: "offline", has: "LSE 1 use on 1", cpus: 2, want: "0-1,8 mems 0"},
		{name: "and a thread of its own that came online, which is no CPU of the pool's", machine: "2 sockets", limits: placement.Limits{MinShared: 16}, has: "LSE 1 use on 1", cpus: 2, want: "1,9 mems 0"},
		{name: "LSR grows on its own core first", machine: "2 sockets", has: "LSR 1 on 5", cpus: 2, want: "5,13 mems 1"},
		{name: "then by whole cores", machine: "2 sockets", has: "LSR 1 on 5", beside: []string{"LSR 1 on 4"}, cpus: 4, want: "5-6,13-14 mems 1"},
		{name: "a hybrid machine: the same kind of cores", machine: "hybrid", has: "LSE 2 on 8-9", cpus: 4, want: "8-11 mems 0"},
		{name: "a pod that has both kinds takes what there is", machine: "hybrid", has: "LSE 2 on 6,8", cpus: 3, want: "0,6,8 idle 1,7 mems 0"},
		{name: "spread stays even", machine: "2 sockets", has: "LSE 2 spread on 0,4", cpus: 4, want: "0-1,4-5 idle 8-9,12-13 mems 0-1"},
		{name: "and so when it shrinks", machine: "2 sockets", has: "LSE 4 spread on 0-1,4-5", cpus: 2, want: "0,4 idle 8,12 mems 0-1"},
		{name: "LSE shrinks to the node where it has most", machine: "2 sockets", has: "LSE 5 on 3-7", cpus: 4, want: "4-7 idle 12-15 mems 1"},
		{name: "LSE shrinks to the L3 where it has most", machine: "16 L3s", has: "LSE 5 on 3-7", cpus: 4, want: "4-7 idle 68-71 mems 0"},
		{name: "LSE with use gives a whole core or nothing", machine: "2 sockets", has: "LSE 4 use on 0-1,8-9", cpus: 3, want: "0-1,8-9 mems 0"},
		{name: "LSE with use gives a whole core", machine: "2 sockets", has: "LSE 4 use on 0-1,8-9", cpus: 2, want: "0,8 mems 0"},
		{name: "LSR keeps cores whole", machine: "2 sockets", has: "LSR 3 on 0-1,9", cpus: 2, want: "1,9 mems 0"},
		{name: "efficient cores go first", machine: "hybrid", has: "LSE 3 on 0,8,9", cpus: 1, want: "0 idle 1 mems 0"},
		{name: "whatever their numbers are", machine: "little first", has: "LSE 3 on 3-5", cpus: 2, want: "4-5 mems 0"},
		{name: "the same number", machine: "2 sockets", has: "LSR 3 on 0-1,9", cpus: 3, want: "0-1,9 mems 0"},
		{name: "a CPU that is gone is replaced", machine: "offline", has: "LSE 3 on 5-7", cpus: 3, want: "4-5,7 idle 12-13,15 mems 1"},

		{name: "no room", machine: "1 node", has: "LSE 2 on 0-1", beside: []string{"LSE 1 on 2"}, cpus: 4, want: `resize pod "pod" from 2 to 4 CPUs: 2 more whole cores asked, 1 free`},
		{name: "no room on its node", machine: "2 sockets", has: "LSE 2 require-single on 4-5", beside: []string{"LSE 1 on 6"}, cpus: 4,
			want: `resize pod "pod" from 2 to 4 CPUs: 2 more whole cores asked on the NUMA node that it is on; free: 4 on node 0, 1 on node 1`},
		{name: "the pool keeps its CPUs", machine: "1 node", limits: placement.Limits{MinShared: 4}, has: "LSE 2 on 0-1", cpus: 3,
			want: `resize pod "pod" from 2 to 3 CPUs: takes 2 of the 4 CPUs that the LS pool has, and the pool keeps 4; allowed: to take at most 0`},
		{name: "a pool that is too small already stops nobody from shrinking", machine: "1 node", limits: placement.Limits{MinShared: 6}, has: "LSE 3 on 0-2", cpus: 2, want: "0-1 idle 4-5 mems 0"},
		{name: "to nothing", machine: "1 node", has: "LSE 3 on 0-2", cpus: 0, want: `place pod "pod": cpus: "0"; allowed: 1 to 8192`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := machine(t, tt.machine, tt.limits)
			have := append(all(t, tt.beside...), has(t, "pod", tt.has))
			a, err := m.Resize(have, "pod", tt.cpus)
			if got := outcome(a, err); got != tt.want {
				t.Errorf("%s to %d beside %q:\n got %s\nwant %s", tt.has, tt.cpus, tt.beside, got, tt.want)
			}
			if err == nil && a.Count != tt.cpus {
				t.Errorf("the request says %d", a.Count)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	m := machine(t, "2 sockets", placement.Limits{Reserved: set("0"), MinShared: 2})
	_, err := m.Place(nil, request(t, "new", "LSE 9 require-single"))
	var room *placement.NoRoomError
	if !errors.As(err, &room) {
		t.Fatalf("%T: %v", err, err)
	}
	want := placement.NoRoomError{
		Request: request(t, "new", "LSE 9 require-single"), Missing: 9,
		Free: []placement.Room{{Node: 0, CPUs: 7, Cores: 3, Threads: 6}, {Node: 1, CPUs: 8, Cores: 4, Threads: 8}},
		Best: placement.Room{Node: 1, CPUs: 8, Cores: 4, Threads: 8},
	}
	if diff := cmp.Diff(want, *room); diff != "" {
		t.Error(diff)
	}
	_, err = m.Place(nil, request(t, "new", "LSR 14"))
	var pool *placement.PoolError
	if !errors.As(err, &pool) || pool.Takes != 14 || pool.Pool != 15 || pool.Min != 2 {
		t.Errorf("%T: %v", err, err)
	}
	for name, f := range map[string]func() error{
		"placed already": func() error {
			_, err := m.Place(all(t, "LSR 1 on 1"), request(t, "a", "LSR 1"))
			return err
		},
		"not placed": func() error { _, err := m.Resize(nil, "a", 1); return err },
		"bad wish": func() error {
			_, err := m.Place(nil, placement.Request{UID: "a", Tier: "LSR", Count: 1, NUMA: "near"})
			return err
		},
		"bad SMT wish": func() error {
			_, err := m.Place(nil, placement.Request{UID: "a", Tier: "LSR", Count: 1, SMT: "off"})
			return err
		},
	} {
		var bad *placement.RequestError
		if err := f(); !errors.As(err, &bad) {
			t.Errorf("%s: %T: %v", name, err, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		cpus []placement.CPU
		want string
	}{
		{"nothing", nil, "topology: no CPU is online"},
		{"twice", []placement.CPU{{ID: 1}, {ID: 1}}, "topology: CPU 1 after CPU 1; allowed: CPUs by ID, 0 to 8191"},
		{"negative", []placement.CPU{{ID: -1}}, "topology: CPU -1 after CPU -1; allowed: CPUs by ID, 0 to 8191"},
		{"too high", []placement.CPU{{ID: 8192}}, "topology: CPU 8192 after CPU -1; allowed: CPUs by ID, 0 to 8191"},
	} {
		_, err := placement.New(placement.Topology{CPUs: tt.cpus}, placement.Limits{})
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// A firmware that tells no distances: nodes of a socket are closer.
func TestNoDistances(t *testing.T) {
	topology := machines()["4 nodes"]
	for i := range topology.Nodes {
		topology.Nodes[i].Distances = nil
	}
	m, err := placement.New(topology, placement.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := m.Place(all(t, "LSE 4 on 0-3"), request(t, "new", "LSE 10"))
	if got, want := outcome(a, err), "4-5,8-15 idle 20-21,24-31 mems 1-3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestErrorOfManyNodes(t *testing.T) {
	m, err := placement.New(shape{2, 9, 1, 1, 1}.build(), placement.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Place(nil, request(t, "new", "LSR 2 require-single"))
	want := `place pod "new": 2 CPUs asked on one NUMA node, node 0 has the most with 1; free: 1 on node 0, 1 on node 1, 1 on node 2, 1 on node 3, ` +
		`1 on node 4, 1 on node 5, 1 on node 6, 1 on node 7, 1 on node 8, 1 on node 9, 1 on node 10, 1 on node 11, 1 on node 12, 1 on node 13, ` +
		`1 on node 14, 1 on node 15 and 2 nodes more`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}
