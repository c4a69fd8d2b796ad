package hostfs_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"k8s.io/utils/cpuset"
)

// model is a machine of which only the published topology is known. Its fixture is written from that, by -update.
type model struct {
	name, origin, kernel string
	offline, isolated    string
	cpus                 []modelCPU // by ID
	nodes                []modelNode
	ids                  bool              // the kernel numbers caches
	more                 map[string]string // further files
}

// modelCPU is what sysfs tells of a CPU; -1 is a file that is not there.
type modelCPU struct {
	pkg, die, core, node, l2, l3, capacity int
	unique                                 int // of the core, where core_id is not
}

type modelNode struct {
	memKiB    int64
	distances string
}

// smt makes CPUs as x86 numbers them: the first threads of all cores, then the second ones.
func smt(cores int, of func(core int) modelCPU) []modelCPU {
	var cpus []modelCPU
	for range 2 {
		for i := range cores {
			c := of(i)
			c.unique = i
			cpus = append(cpus, c)
		}
	}
	return cpus
}

func models() []model {
	oneNode := func(gib int64) []modelNode { return []modelNode{{gib << 20, "10"}} }
	desktop := smt(8, func(i int) modelCPU { return modelCPU{core: i, l2: i, capacity: -1} })
	hybrid := make([]modelCPU, 16)
	for id := range hybrid {
		if id < 8 { // P cores: two threads each, core_id in steps of 4
			hybrid[id] = modelCPU{core: id / 2 * 4, l2: id / 2, capacity: -1, unique: id / 2}
		} else { // E cores: four share an L2
			hybrid[id] = modelCPU{core: 8 + id, l2: 2 + id/4, capacity: -1, unique: id}
		}
	}
	arm := make([]modelCPU, 8)
	for id := range arm {
		arm[id] = modelCPU{die: -1, core: id, l2: id, capacity: 1024, unique: id}
	}
	rk3588 := make([]modelCPU, 8)
	for id := range rk3588 {
		// Clusters of 4, 2 and 2 cores; core_id begins anew in each.
		rk3588[id] = modelCPU{die: -1, core: []int{0, 1, 2, 3, 0, 1, 0, 1}[id], l2: id, node: -1, capacity: []int{414, 414, 1009, 1024}[id/2], unique: id}
	}
	milan := func(node func(core int) int) func(int) modelCPU {
		return func(i int) modelCPU {
			return modelCPU{pkg: i / 16, core: i%16/2*8 + i%2, node: node(i), l2: i, l3: i / 2, capacity: -1}
		}
	}
	return []model{
		{name: "smt-1node", kernel: "6.1.0-57-amd64", ids: true, cpus: desktop, nodes: oneNode(64),
			origin: "Xeon E-2388G: 8 cores, SMT, one L3"},
		{name: "smt-2sockets", kernel: "6.12.117+deb12-amd64", ids: true,
			origin: "2x Xeon Gold 6334: 8 cores a socket, SMT, CPUs numbered in turn over the sockets as some firmwares do",
			cpus: smt(16, func(i int) modelCPU {
				return modelCPU{pkg: i % 2, core: i / 2, node: i % 2, l2: i%2*64 + i/2, l3: i % 2, capacity: -1}
			}),
			nodes: []modelNode{{128 << 20, "10 20"}, {128 << 20, "20 10"}}},
		{name: "numa-4nodes", kernel: "6.1.0-57-amd64", ids: true,
			origin: "EPYC 7313P with NPS4: 16 cores, SMT, four nodes with an L3 each; node 2 has no memory, as with DIMMs missing",
			cpus: smt(16, func(i int) modelCPU {
				return modelCPU{core: i/4*16 + i%4, node: i / 4, l2: i, l3: i / 4, capacity: -1}
			}),
			nodes: []modelNode{{64 << 20, "10 12 12 12"}, {64 << 20, "12 10 12 12"}, {0, "12 12 10 12"}, {64 << 20, "12 12 12 10"}}},
		{name: "epyc-16l3", kernel: "6.12.117+deb12-amd64", ids: true,
			origin: "2x EPYC 73F3 with NPS1: 16 cores a socket, SMT, an L3 for two cores each",
			cpus:   smt(32, milan(func(core int) int { return core / 16 })),
			nodes:  []modelNode{{256 << 20, "10 32"}, {256 << 20, "32 10"}}},
		{name: "arm64-nosmt", kernel: "6.1.0-57-cloud-arm64", cpus: arm, nodes: oneNode(32),
			origin: "AWS m6g.2xlarge (Graviton2): 8 cores, no SMT, no dies; the kernel gives caches no id"},
		{name: "arm64-biglittle", kernel: "6.12.117+deb12-arm64", cpus: rk3588,
			origin: "Rockchip RK3588: 4 small cores, 4 big ones in two clusters of different clock, core_id begins anew in each cluster, no NUMA"},
		{name: "hybrid", kernel: "6.12.117+deb12-amd64", ids: true, cpus: hybrid, nodes: oneNode(32),
			origin: "Core i5-1340P: 4 P cores with SMT, 8 E cores of which four share an L2",
			more:   map[string]string{"sys/devices/cpu_core/cpus": "0-7", "sys/devices/cpu_atom/cpus": "8-15"}},
		{name: "offline-isolated", kernel: "6.1.0-57-amd64", ids: true, cpus: desktop, nodes: oneNode(64), offline: "7,13-15", isolated: "2-3,10-11",
			origin: "smt-1node with isolcpus=2-3,10-11, core 7 and the second threads of cores 5 and 6 taken offline"},
	}
}

// snapshot writes the files that the kernel would show.
func (m model) snapshot(t testing.TB) []byte {
	t.Helper()
	set := func(list string) cpuset.CPUSet {
		s, err := cpuset.Parse(list)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	offline := set(m.offline)
	online := cpuset.New()
	var memKiB int64
	for id := range m.cpus {
		if !offline.Contains(id) {
			online = online.Union(cpuset.New(id))
		}
	}
	with := func(same func(c modelCPU) bool) string {
		s := cpuset.New()
		for _, id := range online.List() {
			if same(m.cpus[id]) {
				s = s.Union(cpuset.New(id))
			}
		}
		return s.String()
	}
	files := map[string]string{
		"page-size":                       "4096",
		"proc/sys/kernel/osrelease":       m.kernel,
		"proc/self/mountinfo":             "26 23 0:24 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
		"cgroup/cpu/child":                "cpu.idle\ncpu.max\ncpu.max.burst\ncpu.weight",
		"cgroup/cpu/root":                 "cpu.stat",
		"cgroup/cpuset/child":             "cpuset.cpus\ncpuset.mems",
		"cgroup/cpuset/root":              "cpuset.cpus.effective\ncpuset.mems.effective",
		"cgroup/io/child":                 "io.max\nio.weight",
		"cgroup/io/root":                  "io.stat",
		"cgroup/memory/child":             "memory.high\nmemory.low\nmemory.max",
		"cgroup/memory/root":              "memory.stat",
		"sys/devices/system/cpu/online":   online.String(),
		"sys/devices/system/cpu/present":  fmt.Sprintf("0-%d", len(m.cpus)-1),
		"sys/devices/system/cpu/isolated": m.isolated,
	}
	maps.Copy(files, m.more)
	for _, id := range online.List() {
		c := m.cpus[id]
		at := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", id)
		number := func(name string, n int) {
			if n >= 0 {
				files[at+name] = fmt.Sprint(n)
			}
		}
		number("topology/physical_package_id", c.pkg)
		number("topology/die_id", c.die)
		number("topology/core_id", c.core)
		number("cpu_capacity", c.capacity)
		files[at+"topology/thread_siblings_list"] = with(func(o modelCPU) bool { return o.unique == c.unique })
		for i, level := range []int{1, 1, 2, 3} {
			index := fmt.Sprintf("cache/index%d/", i)
			number(index+"level", level)
			id, shared := c.l2, func(o modelCPU) bool { return o.l2 == c.l2 }
			if level == 3 {
				id, shared = c.l3, func(o modelCPU) bool { return o.l3 == c.l3 }
			}
			switch {
			case level == 1:
			case m.ids:
				number(index+"id", id)
			default:
				files[at+index+"shared_cpu_list"] = with(shared)
			}
		}
	}
	for id, n := range m.nodes {
		at := fmt.Sprintf("sys/devices/system/node/node%d/", id)
		files[at+"cpulist"] = with(func(c modelCPU) bool { return c.node == id })
		files[at+"distance"] = n.distances
		files[at+"meminfo"] = fmt.Sprintf("Node %d MemTotal:       %d kB", id, n.memKiB)
		files["sys/devices/system/node/online"] = strings.TrimSuffix(fmt.Sprintf("0-%d", id), "-0")
		memKiB += n.memKiB
	}
	if memKiB == 0 {
		memKiB = 16 << 20
	}
	files["proc/meminfo"] = fmt.Sprintf("MemTotal:       %d kB", memKiB)

	archive := &txtar.Archive{Comment: []byte("# tideline snapshot v1\n# kernel: " + m.kernel + "\n# date: 2026-11-30T12:00:00Z\n" +
		"# origin: generated by machines_test.go from the published topology, not taken from a machine: " + m.origin + "\n")}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		archive.Files = append(archive.Files, txtar.File{Name: name, Data: []byte(strings.TrimSuffix(files[name]+"\n", "\n\n"))})
	}
	return txtar.Format(archive)
}

// The generated fixtures are what the models say. This runs before TestFixtures, which reads them in parallel.
func TestModels(t *testing.T) {
	for _, m := range models() {
		file := "testdata/" + m.name + ".txtar"
		got := m.snapshot(t)
		if len(got) > 100<<10 {
			t.Errorf("%s: %d bytes", file, len(got))
		}
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s, -want +got:\n%s", file, diff)
		}
	}
}
