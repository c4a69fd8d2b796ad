package placement_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/placement"
)

// shape is a regular machine. Its CPUs are numbered as Linux does on most: the first threads of all cores, then the second.
type shape struct {
	sockets, nodes, l3s, cores, threads int // nodes of a socket, L3s of a node, cores of an L3, threads of a core
}

func (s shape) build() placement.Topology {
	var t placement.Topology
	all := s.sockets * s.nodes * s.l3s * s.cores
	for id := range all * s.threads {
		core := id % all
		l3 := core / s.cores
		node := l3 / s.l3s
		t.CPUs = append(t.CPUs, placement.CPU{ID: id, Socket: node / s.nodes, Die: node / s.nodes, NUMANode: node, L3: l3, L2: core, Core: core})
	}
	for a := range s.sockets * s.nodes {
		n := placement.Node{ID: a, Memory: true, Distances: map[int]int{}}
		for b := range s.sockets * s.nodes {
			switch {
			case a == b:
				n.Distances[b] = 10
			case a/s.nodes == b/s.nodes:
				n.Distances[b] = 12
			default:
				n.Distances[b] = 32
			}
		}
		t.Nodes = append(t.Nodes, n)
	}
	return t
}

// offline takes CPUs away. A core keeps the name that its least thread had.
func offline(t placement.Topology, cpus string) placement.Topology {
	gone := set(cpus)
	t.CPUs = slices.DeleteFunc(slices.Clone(t.CPUs), func(c placement.CPU) bool { return gone.Contains(c.ID) })
	t.Offline = t.Offline.Union(gone)
	return t
}

// snapshots is the machines of internal/hostfs, read once. They are shared, so nobody may change them.
var snapshots = sync.OnceValue(func() map[string]placement.Topology {
	files, err := filepath.Glob("../hostfs/testdata/*.txtar")
	if err != nil || len(files) == 0 {
		panic(fmt.Sprint("no snapshots: ", err))
	}
	m := map[string]placement.Topology{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		facts, err := hostfs.FromSnapshot(data)
		if err != nil {
			panic(err)
		}
		m[filepath.Base(file)] = facts.Topology()
	}
	return m
})

// The machines. In the first line of CPUs are the cores by their first thread.
func machines() map[string]placement.Topology {
	m := maps.Clone(snapshots())
	maps.Copy(m, map[string]placement.Topology{
		// 0 1 2 3 | second threads 4 5 6 7
		"1 node": shape{1, 1, 1, 4, 2}.build(),
		// node 0: 0-3, node 1: 4-7 | second threads 8-11, 12-15
		"2 sockets": shape{2, 1, 1, 4, 2}.build(),
		// nodes 0: 0-3, 1: 4-7, 2: 8-11, 3: 12-15 | second threads from 16; sockets: nodes 0-1, nodes 2-3
		"4 nodes": shape{2, 2, 1, 4, 2}.build(),
		// 16 L3s of 4 cores: 0-3, 4-7, … 60-63 | second threads from 64; node 0: cores 0-31, node 1: 32-63
		"16 L3s": shape{2, 1, 8, 4, 2}.build(),
		// 2 L3s: 0-3, 4-7
		"no SMT": shape{1, 1, 2, 4, 1}.build(),
		"2 CPUs": shape{1, 1, 1, 2, 1}.build(),
		"1 core": shape{1, 1, 1, 1, 2}.build(),
		// as "2 sockets"; 9 is the second thread of core 1, and core 6 is gone
		"offline": offline(shape{2, 1, 1, 4, 2}.build(), "6,9,14"),
	})
	// Four performance cores 0-1, 2-3, 4-5, 6-7 and eight efficient ones 8-15.
	hybrid := shape{1, 1, 1, 16, 1}.build()
	for i := range hybrid.CPUs {
		c := &hybrid.CPUs[i]
		if c.ID < 8 {
			c.Core -= c.ID % 2
			c.L2 = c.Core
		} else {
			c.Efficient = true
			c.L2 = 8 + c.ID/4
		}
	}
	m["hybrid"] = hybrid
	// Sub-NUMA clustering: the L3 of a socket serves two nodes.
	snc := shape{2, 2, 1, 2, 2}.build()
	for i := range snc.CPUs {
		snc.CPUs[i].L3 = snc.CPUs[i].Socket
	}
	m["sub-NUMA"] = snc
	// Node 1 has CPUs and no memory, node 2 has memory and no CPUs.
	odd := shape{2, 1, 1, 2, 2}.build()
	odd.Nodes[1].Memory = false
	odd.Nodes = append(odd.Nodes, placement.Node{ID: 2, Memory: true, Distances: map[int]int{0: 28, 1: 14, 2: 10}})
	odd.Nodes[0].Distances[2], odd.Nodes[1].Distances[2] = 28, 14
	m["odd memory"] = odd
	// A virtual machine that tells nothing.
	dumb := placement.Topology{}
	for id := range 6 {
		dumb.CPUs = append(dumb.CPUs, placement.CPU{ID: id, Socket: -1, Die: -1, NUMANode: -1, L3: -1, L2: -1, Core: -1})
	}
	m["tells nothing"] = dumb
	// 8 L3s of 2 cores, two a node and four a socket; node 0: 0-3, 1: 4-7, 2: 8-11, 3: 12-15 | second threads from 16
	m["8 L3s"] = shape{2, 2, 2, 2, 2}.build()
	// 0 1 2 3 | 4-7 | 8-11 | 12-15
	m["4 threads"] = shape{1, 1, 1, 4, 4}.build()
	// The efficient cores are 0-3.
	little := shape{1, 1, 1, 8, 1}.build()
	for i := range 4 {
		little.CPUs[i].Efficient = true
	}
	m["little first"] = little
	// Two sockets with two L3s each, and NUMA switched off: L3s 0-1, 2-3 | 4-5, 6-7.
	off := shape{2, 1, 2, 2, 1}.build()
	for i := range off.CPUs {
		off.CPUs[i].NUMANode = 0
	}
	off.Nodes = off.Nodes[:1]
	m["NUMA off"] = off
	isolated := shape{2, 1, 2, 2, 2}.build()
	isolated.Isolated = set("2,10,7")
	m["isolated"] = isolated
	return m
}

func names() []string { return slices.Sorted(maps.Keys(machines())) }

func set(s string) cpuset.CPUSet {
	c, err := cpuset.Parse(s)
	if err != nil {
		panic(err)
	}
	return c
}

func machine(t testing.TB, name string, l placement.Limits) *placement.Machine {
	t.Helper()
	topology, ok := machines()[name]
	if !ok {
		t.Fatalf("no machine %q", name)
	}
	m, err := placement.New(topology, l)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// request reads "LSE 4 spread use".
func request(t testing.TB, uid, text string) placement.Request {
	t.Helper()
	r := placement.Request{UID: uid}
	for _, word := range strings.Fields(text) {
		switch word {
		case "LSE", "LSR":
			r.Tier = v1alpha1.Tier(word)
		case "use", "idle":
			r.SMT = placement.SMT(word)
		case "spread", "require-single", "prefer-single":
			r.NUMA = placement.NUMA(word)
		default:
			c := set(word)
			r.Count = c.List()[0]
		}
	}
	return r
}

// has is an assignment as a record tells it: "LSR 3 on 0,1,8".
func has(t testing.TB, uid, text string) placement.Assignment {
	t.Helper()
	r, cpus, ok := strings.Cut(text, " on ")
	if !ok {
		t.Fatalf("%q has no CPUs", text)
	}
	return placement.Assignment{Request: request(t, uid, r), CPUs: set(cpus)}
}

// all makes assignments of pods a, b, c …; each is a second older than the next.
func all(t testing.TB, texts ...string) []placement.Assignment {
	t.Helper()
	var have []placement.Assignment
	for i, text := range texts {
		a := has(t, string(rune('a'+i)), text)
		a.Since = int64(i)
		have = append(have, a)
	}
	return have
}

// text is what a pod has: "0-3 mems 0", for LSE with the threads that stay idle: "0-3 idle 8-11 mems 0".
func text(a placement.Assignment) string {
	s := a.CPUs.String()
	if idle := a.Owned.Difference(a.CPUs); !idle.IsEmpty() {
		s += " idle " + idle.String()
	}
	if !a.Mems.IsEmpty() {
		s += " mems " + a.Mems.String()
	}
	return s
}
