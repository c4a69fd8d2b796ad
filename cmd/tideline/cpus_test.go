package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/tools/txtar"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/placement"
	"github.com/tideline-io/tideline/internal/preflight"
)

const machines = "../../internal/hostfs/testdata/"

func set(t testing.TB, list string) cpuset.CPUSet {
	t.Helper()
	s, err := cpuset.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func readMachine(t testing.TB, name string) (placement.Topology, map[int]int64) {
	t.Helper()
	facts, err := readNodeFacts(machines + name + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	return facts.Topology(), memoryOf(facts)
}

func memoryOf(f hostfs.Facts) map[int]int64 {
	memory := map[int]int64{}
	for _, n := range f.NUMANodes {
		memory[n.ID] = n.MemTotalBytes
	}
	return memory
}

// drawings are fixtures with invented pods. Docs show them too.
func drawings(t testing.TB) []struct {
	name   string
	owners owners
} {
	pod := func(name string, tier v1alpha1.Tier, cpus, idle, nodes string) assignment {
		namespace, name, _ := strings.Cut(name, "/")
		return assignment{namespace: namespace, name: name, tier: tier, cpus: set(t, cpus), owned: set(t, cpus).Union(set(t, idle)), nodes: set(t, nodes)}
	}
	s := func(list string) cpuset.CPUSet { return set(t, list) }
	return []struct {
		name   string
		owners owners
	}{
		{"smt-2sockets", owners{
			reserved: s("0,16"), foreign: s("6,22"), ls: s("4,8,10,12,14,24,26,28,30,9,11,13,15,25,27,29,31"), be: s("2,4,8,10,12,14,18,20,24,26,28,30,9,11,13,15,25,27,29,31"),
			assigned: []assignment{pod("shop/cart-0", v1alpha1.LSE, "1,3,5,7", "17,19,21,23", "1"), pod("shop/search-5d8f7c9b4-x2x7q", v1alpha1.LSR, "2,18,20", "", "0")},
		}},
		{"epyc-16l3", owners{
			reserved: s("0-1,32-33"), ls: s("4-15,36-47,22-31,54-63"), be: s("2-15,34-47,22-31,54-63"),
			assigned: []assignment{
				pod("db/postgres-0", v1alpha1.LSE, "16-19", "48-51", "1"), pod("db/postgres-1", v1alpha1.LSE, "20-21", "52-53", "1"),
				pod("web/front-7c6d5b8f9d-4m2kz", v1alpha1.LSR, "2-3,34-35", "", "0"),
			},
		}},
		{"hybrid", owners{
			reserved: s("8-9"), ls: s("0-1,6-7,12-15"), be: s("6-7,10-15"),
			assigned: []assignment{pod("media/encode", v1alpha1.LSE, "2,4", "3,5", "0"), pod("media/mux", v1alpha1.LSR, "10-11", "", "")},
		}},
		{"offline-isolated", owners{
			reserved: s("0,8"), ls: s("1,6,9"), be: s("1,5"),
			assigned: []assignment{pod("rt/control", v1alpha1.LSE, "4", "12", "0"), pod("rt/trace", v1alpha1.LSR, "5", "", "0")},
		}},
	}
}

// visible makes escapes text, so that a golden can be reviewed.
func visible(s string) string { return strings.ReplaceAll(s, "\x1b", `\e`) }

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

func TestDrawings(t *testing.T) {
	t.Parallel()
	for _, d := range drawings(t) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			top, memory := readMachine(t, d.name)
			plain := drawCPUs(top, d.owners, memory, style{width: 80})
			colored := drawCPUs(top, d.owners, memory, style{width: 80, color: true})
			golden(t, "cpus-"+d.name+".txt", plain)
			golden(t, "cpus-"+d.name+".ansi", visible(colored))
			if diff := cmp.Diff(plain, escapes.ReplaceAllString(colored, "")); diff != "" {
				t.Errorf("-plain +colored without escapes:\n%s", diff)
			}
		})
	}
}

// Every CPU is drawn once, and no line is too long, whatever the machine.
func TestDrawingsFit(t *testing.T) {
	t.Parallel()
	tops := map[string]placement.Topology{"512 CPUs": big(2, 1, 8, 16, 2), "32 CPUs an L3": big(2, 4, 1, 32, 2), "8 threads a core": big(2, 1, 1, 24, 8), "a thousand nodes": big(1, 1024, 1, 1, 1), "none": {}}
	files, err := filepath.Glob(machines + "*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		tops[name], _ = readMachine(t, name)
	}
	for name, top := range tops {
		all := cpuset.New()
		for _, c := range top.CPUs {
			all = all.Union(cpuset.New(c.ID))
		}
		for _, width := range []int{60, 80} {
			o := owners{ls: all, assigned: []assignment{
				{namespace: strings.Repeat("n", 63), name: strings.Repeat("long-name.", 25), tier: v1alpha1.LSR, cpus: all, owned: all, nodes: all},
			}}
			text := drawCPUs(top, o, nil, style{width: width})
			for line := range strings.Lines(text) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
					t.Errorf("%s: %d columns, want at most %d: %s", name, n, width, line)
				}
			}
			drawn := regexp.MustCompile(`\n\n   [AN] `).Split(text, 2)[0]
			drawn = strings.Join(regexp.MustCompile(`(?m)^    .*`).FindAllString(drawn, -1), "\n")
			if got := strings.Count(drawn, "a"); got != len(top.CPUs) {
				t.Errorf("%s: %d signs for %d CPUs:\n%s", name, got, len(top.CPUs), text)
			}
		}
	}
	if n := strings.Count(drawCPUs(tops["512 CPUs"], owners{}, nil, style{width: 80}), "\n"); n > 30 {
		t.Errorf("%d lines for 512 CPUs", n)
	}
}

// big numbers CPUs as x86 does: the first threads of all cores, then the second ones.
func big(sockets, nodes, l3s, cores, threads int) placement.Topology {
	var t placement.Topology
	for s := range sockets {
		for n := range nodes {
			t.Nodes = append(t.Nodes, placement.Node{ID: s*nodes + n, Memory: true})
		}
	}
	all := sockets * nodes * l3s * cores
	for id := range all * threads {
		core := id % all
		l3 := core / cores
		t.CPUs = append(t.CPUs, placement.CPU{ID: id, Core: core, L2: core, L3: l3, NUMANode: l3 / l3s, Socket: l3 / l3s / nodes})
	}
	return t
}

func TestUses(t *testing.T) {
	t.Parallel()
	top := big(1, 1, 1, 12, 1)
	top.Isolated, top.Offline = set(t, "0"), set(t, "12")
	o := owners{
		reserved: set(t, "1"), ls: set(t, "0,2-3"), be: set(t, "2,4,9"), foreign: set(t, "5-6"),
		assigned: []assignment{
			{namespace: "b", name: "a", tier: v1alpha1.LSR, cpus: set(t, "9-10"), owned: set(t, "9-10,12,77")},
			{namespace: "a", name: "z", tier: v1alpha1.LSE, cpus: set(t, "7"), owned: set(t, "6-8,10")},
		},
	}
	want := map[int]string{0: "% isolated", 1: "# reserved", 2: ". shared", 3: ": LS", 4: "~ BE", 5: "= kubelet", 6: "! disputed", 7: "a pod a/z", 8: "- idle a/z", 9: "b pod b/a", 10: "! disputed", 11: "? none", 12: "_ offline"}
	got := map[int]string{}
	for cpu, m := range mapCPUs(top, o) {
		got[cpu] = m.sign + " " + string(m.use)
		if m.pod != nil {
			got[cpu] += " " + m.pod.pod()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	signs := letters + more
	for _, u := range uses {
		if strings.Contains(signs, u.sign) {
			t.Errorf("sign %s twice", u.sign)
		}
		signs += u.sign
	}
	if letter(51) != "Z" || letter(52) != more {
		t.Errorf("letters %s, %s", letter(51), letter(52))
	}
	text := drawCPUs(top, o, nil, style{width: 80})
	for _, line := range []string{"%  1  isolated, yet in a pool   0\n", "   1  lent by LSR pods to BE    9\n", "_  1  offline                   12\n"} {
		if !strings.Contains(text, line) {
			t.Errorf("no line %q in:\n%s", line, text)
		}
	}
}

func TestShortList(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"": "", "3": "3", "0-1": "0-1", "0-3,8": "0-3,8", "0,2,4": "0,2,4", "0,2,4,6": "0,2,4,6", "0,2,4,6,8-9": "0,2..8,9", "1,5,9,13,17,18": "1,5..17,18", "0,8": "0,8", "0,8-9": "0,8-9",
	} {
		if got := shortList(set(t, list)); got != want {
			t.Errorf("%s: %s, want %s", list, got, want)
		}
	}
	for text, want := range map[string]string{"0-3,8-9": "0-3,|8-9", "": "", "abcdefgh": "abcdef|gh", "shop/cart": "shop/|cart"} {
		if got := strings.Join(fold(text, 6), "|"); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestCPUs(t *testing.T) {
	t.Parallel()
	reserved := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(reserved, []byte("apiVersion: tideline.io/v1alpha1\nkind: QoSPolicy\nmetadata: {name: mine}\nspec: {reservedCPUs: \"0,8,99\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	replace := strings.NewReplacer(reserved, "POLICY")
	file := func(name string) []string { return []string{"cpus", "--node-facts", machines + name + ".txtar"} }
	for _, tc := range []struct {
		name, golden string
		args         []string
		code         int
		errs         string
	}{
		{"a machine with two CPUs", "cpus-firecracker-2cpu.txt", file("firecracker-2cpu"), 0, ""},
		{"JSON", "cpus-firecracker-2cpu.json", append(file("firecracker-2cpu"), "-o", "json"), 0, ""},
		{"policy", "cpus-policy.txt", append(file("offline-isolated"), "--policy", reserved), 0, ""},
		{"color", "cpus-policy.ansi", append(file("offline-isolated"), "--policy", reserved, "--color=always"), 0, ""},
		{"no color", "cpus-policy.txt", append(file("offline-isolated"), "--policy", reserved, "--color=never"), 0, ""},
		{"no wider than 80", "cpus-policy.txt", append(file("offline-isolated"), "--policy", reserved, "--width=200"), 0, ""},
		{"bad color", "", append(file("small"), "--color=red"), 1, "error: --color red: want auto, always or never\n"},
		{"bad output", "", append(file("small"), "-o", "yaml"), 1, "error: -o yaml: want text or json\n"},
		{"no machine", "", []string{"cpus"}, 1, "error: this machine does not tell its CPUs: sys/devices/system/cpu/online: not there\n" +
			"Take the facts of a node with tideline snapshot -o FILE, and give them with --node-facts FILE\n"},
		{"no facts", "", []string{"cpus", "--node-facts", "testdata/none"}, 1, "error: read node facts: open testdata/none: no such file or directory\n"},
		{"bad facts", "", []string{"cpus", "--node-facts", "testdata/pods.yaml"}, 1,
			"error: node facts testdata/pods.yaml: read snapshot: the first line is not \"# tideline snapshot v1\"\nTake them on the node with: tideline snapshot -o FILE\n"},
		{"bad policy", "", append(file("small"), "--policy", "testdata/none"), 1, "error: read policy: open testdata/none: no such file or directory\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, errs := try(t, 80, "", tc.args...)
			if code != tc.code || errs != tc.errs {
				t.Errorf("exit code %d, want %d; stderr (-want +got):\n%s", code, tc.code, cmp.Diff(tc.errs, errs))
			}
			if tc.golden != "" {
				golden(t, tc.golden, visible(replace.Replace(out)))
			}
		})
	}
}

// liveMachine makes a root of a snapshot, with further files.
func liveMachine(t *testing.T, name string, files map[string]string) string {
	t.Helper()
	archive, err := txtar.ParseFile(machines + name + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	for at, text := range files {
		archive.Files = append(archive.Files, txtar.File{Name: at, Data: []byte(text)})
	}
	root := t.TempDir()
	for _, f := range archive.Files {
		at := filepath.Join(root, f.Name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// The door on this machine tells the pods and the pools; without one they are not known, and the command says so.
func TestCPUsOfADoor(t *testing.T) {
	t.Parallel()
	run := func(socket string, args ...string) (string, int) {
		var out, errs bytes.Buffer
		c := &cli{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, width: 80, name: "tideline", root: liveMachine(t, "smt-2sockets", nil)}
		code := c.run(t.Context(), append([]string{"cpus", "--control", socket}, args...))
		return strings.NewReplacer(c.root, "", socket, "SOCKET").Replace(out.String() + errs.String()), code
	}
	socket := fakeDoor(t, control.Status{}, nil, control.DisableReport{})
	for name, args := range map[string][]string{"cpus-door.txt": nil, "cpus-door.json": {"-o", "json"}} {
		out, code := run(socket, args...)
		if code != 0 {
			t.Errorf("%s: exit %d", name, code)
		}
		golden(t, name, out)
	}
	if out, code := run(socket + ".none"); code != 0 || !strings.Contains(out, "no door runs here") {
		t.Errorf("without a door: exit %d\n%s", code, out)
	}
	if out, _ := run(socket, "--node-facts", machines+"hybrid.txtar"); strings.Contains(out, "cart-0") {
		t.Errorf("a snapshot has the pods of this machine:\n%s", out)
	}
}

// What the kubelet has of the CPUs is read on this machine.
func TestCPUsKubelet(t *testing.T) {
	t.Parallel()
	const config, state = "var/lib/kubelet/config.yaml", "var/lib/kubelet/cpu_manager_state"
	reserve := func(list string) string {
		return "apiVersion: tideline.io/v1alpha1\nkind: QoSPolicy\nmetadata: {name: mine}\nspec: {reservedCPUs: \"" + list + "\"}\n"
	}
	for _, tc := range []struct {
		name, golden string
		files        map[string]string
		json         bool
		kubelet      string // the line, where there is no golden
		problems     []string
	}{
		{name: "static", golden: "cpus-kubelet.txt", files: map[string]string{
			hostPolicy: reserve("0,8"), config: "cpuManagerPolicy: static\nreservedSystemCPUs: 0-1\n",
			state: `{"policyName":"static","defaultCpuSet":"0-4,6,8-9","entries":{"u":{"a":"5","b":"12"}},"checksum":1}`,
		}},
		{name: "JSON", golden: "cpus-kubelet.json", json: true, files: map[string]string{
			hostPolicy: reserve("0,8"), config: "cpuManagerPolicy: static\nreservedSystemCPUs: 0-1\n",
			state: `{"policyName":"static","defaultCpuSet":"0-4,6,8-9","entries":{"u":{"a":"5","b":"12"}},"checksum":1}`,
		}},
		{name: "none, without a state", files: map[string]string{config: "kind: KubeletConfiguration\n"}, kubelet: "CPU manager none, reserves no CPUs"},
		{name: "no kubelet", kubelet: "not known: read /var/lib/kubelet/config.yaml: no such file or directory"},
		{name: "agreed", files: map[string]string{
			hostPolicy: reserve("0,8"), config: "cpuManagerPolicy: static\nreservedSystemCPUs: 0,8\n",
		}, kubelet: "CPU manager static, reserves 0,8"},
		{name: "a state that is none", files: map[string]string{config: "cpuManagerPolicy: static\n", state: "{"}, kubelet: "CPU manager static, reserves no CPUs",
			problems: []string{"/var/lib/kubelet/cpu_manager_state: parse CPU manager state: unexpected end of JSON input"}},
		{name: "a state of another policy, without a configuration to read", files: map[string]string{
			config: "kind: Pod\n", state: `{"policyName":"static","entries":{"u":{"a":"5,7"}}}`,
		}, kubelet: "not known: parse /var/lib/kubelet/config.yaml: kind is Pod, not KubeletConfiguration, gave CPUs 5,7 to 1 pod", problems: []string{
			"parse /var/lib/kubelet/config.yaml: kind is Pod, not KubeletConfiguration",
			"/var/lib/kubelet/cpu_manager_state: CPUs 7 are given to pods, and are not online",
		}},
		{name: "a policy that the state is not of", files: map[string]string{config: "kind: KubeletConfiguration\n", state: `{"policyName":"static"}`}, kubelet: "CPU manager none, reserves no CPUs",
			problems: []string{`/var/lib/kubelet/cpu_manager_state: of CPU manager policy "static", and none is configured`}},
		{name: "no list", files: map[string]string{config: "reservedSystemCPUs: 0-99999\n"}, kubelet: "CPU manager none",
			problems: []string{`reservedSystemCPUs of the kubelet, by /var/lib/kubelet/config.yaml: parse "0-99999": want a CPU list such as 0-3,8 with numbers up to 8191`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := &cli{root: liveMachine(t, "offline-isolated", tc.files)}
			facts, source, err := c.machine("")
			if err != nil {
				t.Fatal(err)
			}
			spec, err := c.policy("", true)
			if err != nil {
				t.Fatal(err)
			}
			k := preflight.ReadKubelet(c.root, "")
			r, o, err := reportCPUs(facts, source, spec, &k, told{about: "not known: no door runs here"})
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if tc.json {
				if err := writeJSON(&got, r); err != nil {
					t.Fatal(err)
				}
			} else {
				got.WriteString(r.text(facts.Topology(), o, style{width: 80}))
			}
			if tc.golden != "" {
				golden(t, tc.golden, strings.ReplaceAll(got.String(), c.root, ""))
				return
			}
			if r.aboutKubelet != tc.kubelet {
				t.Errorf("kubelet %q, want %q", r.aboutKubelet, tc.kubelet)
			}
			if diff := cmp.Diff(tc.problems, r.Problems, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// The JSON is read by programs: sets add up, and an owner is named.
func TestCPUReport(t *testing.T) {
	t.Parallel()
	d := drawings(t)[0]
	top, _ := readMachine(t, d.name)
	data, err := json.Marshal(newCPUReport(top, d.owners))
	if err != nil {
		t.Fatal(err)
	}
	var got CPUReport
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	want := []ReportedPod{
		{Namespace: "shop", Name: "cart-0", Tier: v1alpha1.LSE, CPUs: "1,3,5,7", Owned: "1,3,5,7,17,19,21,23", MemoryNodes: "1"},
		{Namespace: "shop", Name: "search-5d8f7c9b4-x2x7q", Tier: v1alpha1.LSR, CPUs: "2,18,20", Owned: "2,18,20", MemoryNodes: "0"},
	}
	if diff := cmp.Diff(want, got.Pods); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if c := got.CPUs[17]; c != (ReportedCPU{ID: 17, Socket: 1, Die: 1, NUMANode: 1, L3: 1, L2: 64, Core: 1, Use: useIdle, Pod: "shop/cart-0"}) {
		t.Errorf("CPU %+v", c)
	}
}

// A machine that shows hardly anything is drawn nevertheless.
func TestCPUsUnknown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bare")
	if err := os.WriteFile(file, []byte("# tideline snapshot v1\n-- sys/devices/system/cpu/online --\n0-9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := try(t, 80, "", "cpus", "--node-facts", file)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	golden(t, "cpus-bare.txt", strings.ReplaceAll(out, file, "FILE"))
}

func FuzzDrawCPUs(f *testing.F) {
	files, err := filepath.Glob(machines + "*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		facts, err := hostfs.FromSnapshot(data)
		if err != nil {
			return
		}
		top := facts.Topology()
		o := owners{ls: facts.Node.Online, assigned: []assignment{{name: "p", tier: v1alpha1.LSE, cpus: top.Isolated, owned: facts.Present}}}
		plain := drawCPUs(top, o, memoryOf(facts), style{width: 80})
		colored := drawCPUs(top, o, memoryOf(facts), style{width: 80, color: true})
		if plain != escapes.ReplaceAllString(colored, "") {
			t.Error("colour changes the text")
		}
		newCPUReport(top, o)
	})
}

// The drawings of docs/cpus.md are the goldens.
func TestCPUsDoc(t *testing.T) {
	const doc = "../../docs/cpus.md"
	data, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	want := string(data)
	for _, d := range drawings(t) {
		top, memory := readMachine(t, d.name)
		head := "<!-- drawing: " + d.name + " -->\n```\n"
		before, rest, ok := strings.Cut(want, head)
		_, after, end := strings.Cut(rest, "```\n")
		if !ok || !end {
			t.Fatalf("%s has no drawing %s", doc, d.name)
		}
		want = before + head + drawCPUs(top, d.owners, memory, style{width: 80}) + "```\n" + after
	}
	for _, u := range uses {
		if row := "| `" + u.sign + "` | `" + string(u.use) + "` |"; !strings.Contains(want, row) {
			t.Errorf("%s has no row %s", doc, row)
		}
	}
	if *update {
		if err := os.WriteFile(doc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if data, err = os.ReadFile(doc); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("%s, go test -update writes it, -want +got:\n%s", doc, diff)
	}
}
