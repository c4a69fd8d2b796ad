package hostfs_test

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/policy"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// render shows every field of facts, for goldens.
func render(f hostfs.Facts) string {
	var b strings.Builder
	fmt.Fprintf(&b, "kernel %s, cgroup v%d, driver %q, page size %d, memory %d, PSI %t, resctrl %t, online %s, present %q, isolated %q\n",
		f.Kernel, f.Node.CgroupVersion, f.CgroupDriver, f.PageSizeBytes, f.MemTotalBytes, f.PSI, f.Resctrl != nil, f.Node.Online, f.Present, f.Isolated)
	for _, c := range f.CPUs {
		fmt.Fprintf(&b, "cpu %d: package %d, die %d, core %d, node %d, L3 %s, L2 %s, siblings %s, efficient %t\n",
			c.ID, c.Package, c.Die, c.Core, c.NUMANode, renderCache(c.L3), renderCache(c.L2), c.Siblings, c.Efficient)
	}
	for _, n := range f.NUMANodes {
		fmt.Fprintf(&b, "node %d: cpus %q, memory %d, distances %v\n", n.ID, n.CPUs, n.MemTotalBytes, n.Distances)
	}
	for _, d := range f.Node.Devices {
		fmt.Fprintf(&b, "device %s %s, rotational %t\n", d.Name, d.Number, d.Rotational)
	}
	for _, k := range policy.Knobs() {
		support := f.Node.Features[k]
		if support.Support == policy.SupportUnset {
			support.Support = "unknown"
		}
		fmt.Fprintf(&b, "%s: %s, need %q, inert %q\n", k, support.Support, support.Need, support.Inert)
	}
	for _, p := range f.Problems {
		fmt.Fprintf(&b, "problem: %s\n", p)
	}
	return b.String()
}

func renderCache(c hostfs.Cache) string {
	switch {
	case c.ID >= 0:
		return fmt.Sprint(c.ID)
	case c.First >= 0:
		return fmt.Sprintf("of cpu %d", c.First)
	}
	return "-1"
}

func fixtures(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("fixtures: %v, %v", files, err)
	}
	all := map[string][]byte{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[file] = data
	}
	return all
}

func TestFixtures(t *testing.T) {
	t.Parallel()
	for file, data := range fixtures(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			facts, err := hostfs.FromSnapshot(data)
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(file, ".txtar") + ".golden"
			got := render(facts)
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if facts.Node.PageSize != facts.PageSizeBytes {
				t.Errorf("page size of the node: %d", facts.Node.PageSize)
			}
		})
	}
}

const secret = "hunter2"

// machine is a root with all sorts of files, some of which are nobody's business.
func machine(t *testing.T, layout cgrouptest.Layout) string {
	t.Helper()
	k, err := cgrouptest.New(t.TempDir(), layout)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Make("/" + secret + ".slice"); err != nil {
		t.Fatal(err)
	}
	if err := k.Make("/kubepods/pod" + secret + "/" + secret); err != nil {
		t.Fatal(err)
	}
	root := k.Root()
	mountinfo, err := os.ReadFile(root + "/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"proc/self/mountinfo":       string(mountinfo) + "99 1 0:99 /docker/" + secret + " /x rw - cgroup cgroup rw,pids\n97 1 0:97 / /sys/fs/resctrl rw - resctrl resctrl rw\n98 1 0:98 / /" + secret + " rw - nfs " + secret + ":/ rw\n",
		"proc/cmdline":              "root=" + secret,
		"proc/filesystems":          "nodev\tresctrl\nnodev\t" + secret + "\n",
		"proc/version":              "Linux version 6.1.0 (" + secret + "@" + secret + ")",
		"proc/sys/kernel/osrelease": "6.1.0-57-amd64\n",
		"proc/sys/kernel/hostname":  secret,
		"proc/meminfo":              "MemTotal:  1024 kB\nSecret: " + secret + "\n",
		"sys/block/sda/dev":         "8:0\n", "sys/block/sda/size": "5\n", "sys/block/sda/queue/rotational": "1\n", "sys/block/sda/queue/scheduler": "none [bfq]\n",
		"sys/block/sda/device/serial": secret, "sys/block/loop0/dev": "7:0\n", "sys/block/loop0/loop/backing_file": secret,
		"sys/devices/system/cpu/online": "0\n", "sys/devices/system/cpu/cpu0/topology/core_id": "0\n", "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0\n",
		"sys/devices/system/node/online": "0\n", "sys/devices/system/node/node0/cpulist": "0\n", "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 1024 kB\nNode 0 Secret: " + secret + "\n", "sys/devices/system/node/node0/distance": "10\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestSnapshotKeepsFactsAndSecrets(t *testing.T) {
	t.Parallel()
	for version, layout := range []cgrouptest.Layout{cgrouptest.V1, cgrouptest.V2} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			h := hostfs.Open(machine(t, layout))
			h.Clock = func() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }
			want, err := h.ReadFacts()
			if err != nil {
				t.Fatal(err)
			}
			if want.Node.CgroupVersion != version+1 || want.CgroupDriver != "cgroupfs" || want.MemTotalBytes != 1<<20 || len(want.Node.Devices) != 1 || want.PSI {
				t.Errorf("facts: %s", render(want))
			}
			for _, k := range policy.Knobs() {
				f := want.Node.Features[k]
				none := layout == cgrouptest.V1 && slices.Contains([]policy.Knob{policy.MemoryLow, policy.MemoryHigh}, k)
				if (f.Support == policy.Unsupported) != none || f.Support == policy.SupportUnset || f.Inert != "" || none && f.Need != "cgroup v2" {
					t.Errorf("feature %s: %+v", k, f)
				}
			}
			var text bytes.Buffer
			if err := hostfs.Snapshot(h, &text); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(text.String(), secret) {
				t.Errorf("snapshot has a secret:\n%s", text.String())
			}
			if !strings.HasPrefix(text.String(), "# tideline snapshot v1\n# kernel: 6.1.0-57-amd64\n# date: 2026-11-30T12:00:00Z\n-- ") {
				t.Errorf("header: %.200q", text.String())
			}
			got, err := hostfs.FromSnapshot(text.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(render(want), render(got)); diff != "" {
				t.Errorf("-machine +snapshot:\n%s", diff)
			}
			var again bytes.Buffer
			if err := hostfs.Snapshot(h, &again); err != nil || again.String() != text.String() {
				t.Errorf("a second snapshot differs, %v", err)
			}
		})
	}
}

// In a container with a cgroup namespace of its own the host's hierarchy is mounted from above: it is the same machine,
// and its snapshot too.
func TestFactsInCgroupNamespace(t *testing.T) {
	t.Parallel()
	root := machine(t, cgrouptest.V2)
	h := hostfs.Open(root)
	want, err := h.ReadFacts()
	if err != nil {
		t.Fatal(err)
	}
	file := root + "/proc/self/mountinfo"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for from, version := range map[string]int{"/../..": 2, "/../../podX": 0} {
		if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte(" / /sys/fs/cgroup"), []byte(" "+from+" /sys/fs/cgroup")), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := h.ReadFacts()
		if err != nil {
			t.Fatal(err)
		}
		if got.Node.CgroupVersion != version {
			t.Errorf("mounted from %s: version %d, want %d", from, got.Node.CgroupVersion, version)
		}
		if version == 0 {
			continue
		}
		var snapshot bytes.Buffer
		if err := hostfs.Snapshot(h, &snapshot); err != nil {
			t.Fatal(err)
		}
		carried, err := hostfs.FromSnapshot(snapshot.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []hostfs.Facts{got, carried} {
			if diff := cmp.Diff(render(want), render(f)); diff != "" {
				t.Errorf("mounted from %s, -host +container:\n%s", from, diff)
			}
		}
	}
}

// This machine, whatever it is, can be read and carried.
func TestThisMachine(t *testing.T) {
	t.Parallel()
	h := hostfs.Open("/")
	facts, err := h.ReadFacts()
	if err != nil {
		t.Fatal(err)
	}
	if facts.Kernel == "" || facts.MemTotalBytes <= 0 || len(facts.CPUs) == 0 || facts.PageSizeBytes != int64(os.Getpagesize()) {
		t.Errorf("facts: %s", render(facts))
	}
	var text bytes.Buffer
	if err := hostfs.Snapshot(h, &text); err != nil {
		t.Fatal(err)
	}
	got, err := hostfs.FromSnapshot(text.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	// Cgroups come and go under the test, and features with them.
	facts.Node.Features, got.Node.Features = nil, nil
	facts.CgroupDriver, got.CgroupDriver = "", ""
	if diff := cmp.Diff(render(facts), render(got)); diff != "" {
		t.Errorf("-machine +snapshot:\n%s", diff)
	}
}

func TestEmptyAndMissingRoot(t *testing.T) {
	t.Parallel()
	facts, err := hostfs.Open(t.TempDir()).ReadFacts()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"proc/sys/kernel/osrelease: not there", "proc/meminfo: not there", "proc/self/mountinfo: not there",
		"sys/devices/system/cpu/online: not there", "sys/devices/system/cpu/present: not there", "sys/devices/system/cpu/isolated: not there",
		"sys/devices/system/node/online: not there",
		"proc/self/mountinfo: no cgroup hierarchy with a controller of ours",
	}
	if diff := cmp.Diff(want, facts.Problems); diff != "" {
		t.Errorf("problems, -want +got:\n%s", diff)
	}
	if _, err := hostfs.Open(filepath.Join(t.TempDir(), "none")).ReadFacts(); err == nil {
		t.Error("no error for a root that is not there")
	}
	if err := hostfs.Snapshot(hostfs.Open(filepath.Join(t.TempDir(), "none")), new(bytes.Buffer)); err == nil {
		t.Error("no error for a snapshot of a root that is not there")
	}
}

// A link in the root must not lead out of it.
func TestRootIsNotLeft(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "meminfo")
	root := t.TempDir()
	if err := os.WriteFile(outside, []byte("MemTotal: 1024 kB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(root+"/proc", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, root+"/proc/meminfo"); err != nil {
		t.Fatal(err)
	}
	facts, err := hostfs.Open(root).ReadFacts()
	if err != nil || facts.MemTotalBytes != 0 {
		t.Errorf("memory %d, %v", facts.MemTotalBytes, err)
	}
}

func TestBadSnapshots(t *testing.T) {
	t.Parallel()
	const head = "# tideline snapshot v1\n"
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"only a header":    {head, true},
		"no header":        {"-- page-size --\n4096\n", false},
		"other version":    {"# tideline snapshot v2\n", false},
		"empty":            {"", false},
		"path out":         {head + "-- ../x --\n", false},
		"absolute path":    {head + "-- /x --\n", false},
		"file twice":       {head + "-- x --\n-- x --\n", false},
		"too long":         {head + strings.Repeat(" ", 4<<20), false},
		"file and its dir": {head + "-- sys/block --\n-- sys/block/vda --\n", true},
	} {
		if _, err := hostfs.FromSnapshot([]byte(c.text)); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Values that no kernel writes are problems, and take neither time nor memory.
func TestOddValues(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# tideline snapshot v1\n-- sys/devices/system/cpu/online --\n0-8191\n-- sys/devices/system/node/online --\n0-1023\n")
	for i := range 1024 {
		fmt.Fprintf(&b, "-- sys/devices/system/node/node%d/cpulist --\n0-8191\n", i)
	}
	for i := range 8192 {
		fmt.Fprintf(&b, "-- sys/devices/system/cpu/cpu%d/topology/thread_siblings_list --\n0-8191\n", i)
	}
	start := time.Now()
	facts, err := hostfs.FromSnapshot([]byte(b.String()))
	if err != nil || len(facts.CPUs) != 8192 || len(facts.NUMANodes) != 1024 || facts.CPUs[5].Siblings.Size() != 0 {
		t.Errorf("%d CPUs, %d nodes, %v, after %v", len(facts.CPUs), len(facts.NUMANodes), err, time.Since(start))
	}

	const odd = `# tideline snapshot v1
-- page-size --
-5
-- proc/meminfo --
MemTotal: 99999999999999999999 kB
-- sys/devices/system/cpu/online --
0-4000000000
-- sys/devices/system/node/online --
x
-- sys/block/vda/dev --
x
-- sys/block/vdb/size --
1
-- proc/self/mountinfo --
1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
-- cgroup/cpu/root --
`
	facts, err = hostfs.FromSnapshot([]byte(odd))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"proc/sys/kernel/osrelease: not there",
		`proc/meminfo: bad line "MemTotal: 99999999999999999999 kB"`,
		`sys/devices/system/cpu/online: no list of at most 8192 numbers below 8192: "0-4000000000"`,
		"sys/devices/system/cpu/present: not there", "sys/devices/system/cpu/isolated: not there",
		`sys/devices/system/node/online: no list of at most 1024 numbers below 8192: "x"`,
		`sys/block/vda/dev: no device number: "x"`,
		"sys/block/vdb/dev: not there",
	}
	if len(facts.Problems) < len(want) {
		t.Fatalf("problems: %q", facts.Problems)
	}
	if diff := cmp.Diff(want, facts.Problems[:len(want)]); diff != "" {
		t.Errorf("problems, -want +got:\n%s", diff)
	}
}

func FuzzFromSnapshot(f *testing.F) {
	for _, data := range fixtures(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		facts, err := hostfs.FromSnapshot(data)
		if err != nil {
			return
		}
		if len(facts.CPUs) != facts.Node.Online.Size() {
			t.Errorf("%d CPUs, online %s", len(facts.CPUs), facts.Node.Online)
		}
		checkTopology(t, facts)
		for k, support := range facts.Node.Features {
			if support.Support == policy.Unsupported && support.Need == "" {
				t.Errorf("%s is unsupported without a need", k)
			}
		}
		for _, d := range facts.Node.Devices {
			if !fs.ValidPath(d.Name) || strings.Contains(d.Name, "/") || strings.ContainsAny(d.Number, " \n") {
				t.Errorf("device %+v", d)
			}
		}
	})
}
