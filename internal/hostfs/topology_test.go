package hostfs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/placement"
)

// count is a topology in short: how many of each, without those that are unknown.
func count(t placement.Topology) string {
	of := func(number func(placement.CPU) int) int {
		seen := map[int]bool{}
		for _, c := range t.CPUs {
			if n := number(c); n >= 0 {
				seen[n] = true
			}
		}
		return len(seen)
	}
	efficient := 0
	for _, c := range t.CPUs {
		if c.Efficient {
			efficient++
		}
	}
	memory := 0
	for _, n := range t.Nodes {
		if n.Memory {
			memory++
		}
	}
	return fmt.Sprintf("%d CPUs, %d cores, %d L2, %d L3, %d dies, %d sockets, %d of %d nodes with CPUs, %d with memory, %d efficient, offline %q, isolated %q",
		len(t.CPUs), of(func(c placement.CPU) int { return c.Core }), of(func(c placement.CPU) int { return c.L2 }), of(func(c placement.CPU) int { return c.L3 }),
		of(func(c placement.CPU) int { return c.Die }), of(func(c placement.CPU) int { return c.Socket }), of(func(c placement.CPU) int { return c.NUMANode }),
		len(t.Nodes), memory, efficient, t.Offline, t.Isolated)
}

func TestTopology(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"arm64-biglittle":  `8 CPUs, 8 cores, 8 L2, 1 L3, 0 dies, 1 sockets, 0 of 0 nodes with CPUs, 0 with memory, 4 efficient, offline "", isolated ""`,
		"arm64-nosmt":      `8 CPUs, 8 cores, 8 L2, 1 L3, 0 dies, 1 sockets, 1 of 1 nodes with CPUs, 1 with memory, 0 efficient, offline "", isolated ""`,
		"epyc-16l3":        `64 CPUs, 32 cores, 32 L2, 16 L3, 2 dies, 2 sockets, 2 of 2 nodes with CPUs, 2 with memory, 0 efficient, offline "", isolated ""`,
		"firecracker-2cpu": `2 CPUs, 2 cores, 0 L2, 0 L3, 1 dies, 1 sockets, 1 of 1 nodes with CPUs, 1 with memory, 0 efficient, offline "", isolated ""`,
		"hybrid":           `16 CPUs, 12 cores, 6 L2, 1 L3, 1 dies, 1 sockets, 1 of 1 nodes with CPUs, 1 with memory, 8 efficient, offline "", isolated ""`,
		"numa-4nodes":      `32 CPUs, 16 cores, 16 L2, 4 L3, 1 dies, 1 sockets, 4 of 4 nodes with CPUs, 3 with memory, 0 efficient, offline "", isolated ""`,
		"offline-isolated": `12 CPUs, 7 cores, 7 L2, 1 L3, 1 dies, 1 sockets, 1 of 1 nodes with CPUs, 1 with memory, 0 efficient, offline "7,13-15", isolated "2-3,10-11"`,
		"old-5.4":          `3 CPUs, 3 cores, 0 L2, 0 L3, 0 dies, 1 sockets, 1 of 1 nodes with CPUs, 1 with memory, 0 efficient, offline "", isolated ""`,
		"small":            `2 CPUs, 1 cores, 0 L2, 1 L3, 1 dies, 1 sockets, 0 of 0 nodes with CPUs, 0 with memory, 0 efficient, offline "", isolated ""`,
		"smt-1node":        `16 CPUs, 8 cores, 8 L2, 1 L3, 1 dies, 1 sockets, 1 of 1 nodes with CPUs, 1 with memory, 0 efficient, offline "", isolated ""`,
		"smt-2sockets":     `32 CPUs, 16 cores, 16 L2, 2 L3, 2 dies, 2 sockets, 2 of 2 nodes with CPUs, 2 with memory, 0 efficient, offline "", isolated ""`,
		"v1-hybrid":        `2 CPUs, 2 cores, 0 L2, 0 L3, 1 dies, 1 sockets, 1 of 1 nodes with CPUs, 1 with memory, 0 efficient, offline "", isolated ""`,
		"v2-numa":          `8 CPUs, 4 cores, 0 L2, 2 L3, 2 dies, 2 sockets, 2 of 3 nodes with CPUs, 3 with memory, 0 efficient, offline "", isolated ""`,
	}
	got := map[string]string{}
	for file, data := range fixtures(t) {
		facts, err := hostfs.FromSnapshot(data)
		if err != nil {
			t.Fatal(err)
		}
		got[strings.TrimSuffix(filepath.Base(file), ".txtar")] = count(facts.Topology())
		checkTopology(t, facts)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// checkTopology holds for every snapshot, a fuzzed one too.
func checkTopology(t *testing.T, facts hostfs.Facts) {
	t.Helper()
	top := facts.Topology()
	if len(top.CPUs) != facts.Node.Online.Size() || !top.Offline.Intersection(facts.Node.Online).IsEmpty() || !top.Isolated.IsSubsetOf(facts.Node.Online) {
		t.Errorf("%d CPUs, offline %s, isolated %s of online %s", len(top.CPUs), top.Offline, top.Isolated, facts.Node.Online)
	}
	byID := map[int]placement.CPU{}
	for _, c := range top.CPUs {
		byID[c.ID] = c
	}
	socketOf := map[int]int{}
	for _, c := range top.CPUs {
		if c.Core >= 0 && (c.Core > c.ID || byID[c.Core].Core != c.Core) {
			t.Errorf("CPU %d is of core %d, and CPU %d of %d", c.ID, c.Core, c.Core, byID[c.Core].Core)
		}
		if c.L2 < -1 || c.L3 < -1 || c.Die < -1 || c.NUMANode < -1 {
			t.Errorf("CPU %+v", c)
		}
		if c.Die >= 0 {
			if s, ok := socketOf[c.Die]; ok && s != c.Socket {
				t.Errorf("die %d is of sockets %d and %d", c.Die, s, c.Socket)
			}
			socketOf[c.Die] = c.Socket
		}
	}
	for _, n := range top.Nodes {
		if len(n.Distances) != 0 && len(n.Distances) != len(top.Nodes) {
			t.Errorf("node %d: %d distances to %d nodes", n.ID, len(n.Distances), len(top.Nodes))
		}
	}
}

// The files of a snapshot as files of a machine give the same topology.
func TestTopologyOfFiles(t *testing.T) {
	t.Parallel()
	for name, data := range fixtures(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for _, f := range txtar.Parse(data).Files {
				if !strings.HasPrefix(f.Name, "sys/devices/") {
					continue
				}
				file := filepath.Join(root, f.Name)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, f.Data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := hostfs.Open(root).ReadFacts()
			if err != nil {
				t.Fatal(err)
			}
			want, err := hostfs.FromSnapshot(data)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.Topology(), got.Topology(), cmp.Comparer(func(a, b cpuset.CPUSet) bool { return a.Equals(b) })); diff != "" {
				t.Errorf("-snapshot +files:\n%s", diff)
			}
		})
	}
}

func TestOddTopologies(t *testing.T) {
	t.Parallel()
	const cpu = "sys/devices/system/cpu/cpu"
	for _, tc := range []struct {
		name  string
		files map[string]string // besides online
		of    func(placement.CPU) int
		want  []int
	}{
		{"core ids repeat, siblings tell", map[string]string{
			cpu + "0/topology/core_id": "0", cpu + "1/topology/core_id": "0",
			cpu + "0/topology/thread_siblings_list": "0,2", cpu + "2/topology/thread_siblings_list": "0,2",
			cpu + "1/topology/thread_siblings_list": "1,3", cpu + "3/topology/thread_siblings_list": "1,3",
		}, core, []int{0, 1, 0, 1}},
		{"no siblings, core ids by package", map[string]string{
			cpu + "0/topology/core_id": "5", cpu + "1/topology/core_id": "5", cpu + "2/topology/core_id": "5", cpu + "3/topology/core_id": "5",
			cpu + "0/topology/physical_package_id": "0", cpu + "1/topology/physical_package_id": "1", cpu + "2/topology/physical_package_id": "0", cpu + "3/topology/physical_package_id": "1",
		}, core, []int{0, 1, 0, 1}},
		{"no siblings, no core ids", nil, core, []int{-1, -1, -1, -1}},
		{"siblings that leave the CPU itself out", map[string]string{cpu + "0/topology/thread_siblings_list": "1", cpu + "0/topology/core_id": "0"}, core, []int{0, -1, -1, -1}},
		{"siblings that disagree", map[string]string{
			cpu + "0/topology/thread_siblings_list": "0-1", cpu + "1/topology/thread_siblings_list": "1-2", cpu + "2/topology/thread_siblings_list": "1-2", cpu + "3/topology/thread_siblings_list": "3",
		}, core, []int{0, 1, 1, 3}},
		{"an offline sibling is listed", map[string]string{
			cpu + "1/topology/thread_siblings_list": "1,9", cpu + "2/topology/thread_siblings_list": "2,8",
		}, core, []int{-1, 1, 2, -1}},
		{"dies begin anew in each package", map[string]string{
			cpu + "0/topology/die_id": "0", cpu + "1/topology/die_id": "1", cpu + "2/topology/die_id": "0",
			cpu + "0/topology/physical_package_id": "7", cpu + "1/topology/physical_package_id": "7", cpu + "2/topology/physical_package_id": "3",
		}, func(c placement.CPU) int { return c.Die }, []int{1, 2, 0, -1}},
		{"caches with ids", map[string]string{
			cpu + "0/cache/index0/level": "3", cpu + "0/cache/index0/id": "7", cpu + "1/cache/index0/level": "3", cpu + "1/cache/index0/id": "0", cpu + "2/cache/index0/level": "2", cpu + "2/cache/index0/id": "5",
		}, l3, []int{7, 0, -1, -1}},
		{"caches without ids", map[string]string{
			cpu + "0/cache/index0/level": "3", cpu + "0/cache/index0/shared_cpu_list": "0,2", cpu + "2/cache/index0/level": "3", cpu + "2/cache/index0/shared_cpu_list": "0,2", cpu + "1/cache/index0/level": "3",
		}, l3, []int{0, -1, 0, -1}},
		{"an id that equals another cache's first CPU", map[string]string{
			cpu + "0/cache/index0/level": "3", cpu + "0/cache/index0/shared_cpu_list": "0-1", cpu + "1/cache/index0/level": "3", cpu + "1/cache/index0/shared_cpu_list": "0-1",
			cpu + "2/cache/index0/level": "3", cpu + "2/cache/index0/id": "0", cpu + "3/cache/index0/level": "3", cpu + "3/cache/index0/id": "0",
		}, l3, []int{0, 0, 2, 2}},
		{"a list of sharers that is none", map[string]string{cpu + "0/cache/index0/level": "3", cpu + "0/cache/index0/shared_cpu_list": "0-99999999"}, l3, []int{-1, -1, -1, -1}},
		{"capacities of two kinds of cores", map[string]string{
			cpu + "0/cpu_capacity": "400", cpu + "1/cpu_capacity": "1024", cpu + "2/cpu_capacity": "1009",
		}, efficient, []int{1, 0, 0, 0}},
		{"PMUs go before capacities", map[string]string{
			"sys/devices/cpu_core/cpus": "0-1", "sys/devices/cpu_atom/cpus": "2", "sys/devices/cpu_lowpower/cpus": "3", cpu + "0/cpu_capacity": "1", cpu + "1/cpu_capacity": "1024",
		}, efficient, []int{0, 0, 1, 1}},
		{"a PMU that lists nonsense", map[string]string{"sys/devices/cpu_atom/cpus": "x"}, efficient, []int{0, 0, 0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var b strings.Builder
			b.WriteString("# tideline snapshot v1\n-- sys/devices/system/cpu/online --\n0-3\n")
			for name, text := range tc.files {
				fmt.Fprintf(&b, "-- %s --\n%s\n", name, text)
			}
			facts, err := hostfs.FromSnapshot([]byte(b.String()))
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			for _, c := range facts.Topology().CPUs {
				got = append(got, tc.of(c))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s\nproblems: %q", diff, facts.Problems)
			}
			checkTopology(t, facts)
		})
	}
}

func core(c placement.CPU) int { return c.Core }
func l3(c placement.CPU) int   { return c.L3 }
func efficient(c placement.CPU) int {
	if c.Efficient {
		return 1
	}
	return 0
}

func TestNodes(t *testing.T) {
	t.Parallel()
	const text = `# tideline snapshot v1
-- sys/devices/system/cpu/online --
0-1
-- sys/devices/system/cpu/present --
0-3
-- sys/devices/system/cpu/isolated --
1-2
-- sys/devices/system/node/online --
0,2,5
-- sys/devices/system/node/node0/distance --
10 21 31
-- sys/devices/system/node/node0/cpulist --
0-1
-- sys/devices/system/node/node0/meminfo --
Node 0 MemTotal:       1024 kB
-- sys/devices/system/node/node2/distance --
21 10
-- sys/devices/system/node/node2/meminfo --
Node 2 MemTotal:       0 kB
-- sys/devices/system/node/node5/distance --
31 x 10
`
	facts, err := hostfs.FromSnapshot([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	got := facts.Topology()
	want := []placement.Node{
		{ID: 0, Memory: true, Distances: map[int]int{0: 10, 2: 21, 5: 31}},
		{ID: 2, Distances: map[int]int{}},
		{ID: 5, Distances: map[int]int{}},
	}
	if diff := cmp.Diff(want, got.Nodes); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.Offline.String() != "2-3" || got.Isolated.String() != "1" {
		t.Errorf("offline %s, isolated %s", got.Offline, got.Isolated)
	}
	for _, p := range []string{"node2/distance: 2 distances for 3 online nodes", `node5/distance: no distance: "x"`} {
		if !strings.Contains(strings.Join(facts.Problems, "\n"), p) {
			t.Errorf("no problem %q in %q", p, facts.Problems)
		}
	}
}
