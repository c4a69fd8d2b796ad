package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/partition"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/resctrl"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

// resctrlCase is a machine with groups in its resctrl. Docs show its screen too.
type resctrlCase struct {
	name   string
	layout resctrltest.Layout
	setUp  func(t testing.TB, k *resctrltest.Kernel) // nil: as it was mounted
	pods   func(k *resctrltest.Kernel) (map[int]string, []control.Container)
}

// groupIn makes a group with settings.
func groupIn(t testing.TB, k *resctrltest.Kernel, name, schemata string) *resctrl.Group {
	t.Helper()
	g, err := resctrl.Open(k).Create(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := resctrl.ParseSchemata(schemata)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.SetSchemata(s); err != nil {
		t.Fatal(err)
	}
	return g
}

func monIn(t testing.TB, g *resctrl.Group, name string) *resctrl.Group {
	t.Helper()
	m, err := g.CreateMonGroup(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// started starts a process in a group, and says in which cgroup each of its threads is.
func started(t testing.TB, k *resctrltest.Kernel, g *resctrl.Group, threads int, cgroup string, in map[int]string) {
	t.Helper()
	p := k.Start(threads)
	if err := g.AddTasks(p.Threads()); err != nil {
		t.Fatal(err)
	}
	for _, id := range p.Threads() {
		in[id] = cgroup
	}
}

func containerNumber(n int) string { return strings.Repeat(fmt.Sprintf("%x", n), 64) }

func podCgroup(n int) string {
	return fmt.Sprintf("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod%d.slice/cri-containerd-%s.scope", n, containerNumber(n))
}

func toldContainer(n int, tier v1alpha1.Tier, pod, name, group string) control.Container {
	namespace, pod, _ := strings.Cut(pod, "/")
	c := control.Container{ID: containerNumber(n), Name: name, PodUID: pod, Namespace: namespace, Pod: pod, Decision: policy.Decision{Tier: tier}}
	if group != "" {
		c.Decision.Settings = []policy.Setting{{Knob: policy.Resctrl, Value: group}}
	}
	return c
}

func resctrlCases(t testing.TB) []resctrlCase {
	intelPods := map[int]string{}
	return []resctrlCase{
		{name: "intel", layout: resctrltest.Intel(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
			clear(intelPods)
			be := groupIn(t, k, "tideline-be", "L3:0=7;1=7\nMB:0=50;1=50\n")
			groupIn(t, k, "tideline-ls", "L3:0=7fc;1=7fc\n")
			vm := groupIn(t, k, "vm-database", "L3:0=f0;1=1f0\n")
			monIn(t, vm, "qemu-7")
			root := resctrl.Open(k).Root()
			started(t, k, be, 12, podCgroup(1), intelPods)
			started(t, k, be, 3, podCgroup(2), intelPods)
			started(t, k, vm, 6, "/machine.slice/qemu-7.scope", intelPods)
			started(t, k, root, 9, podCgroup(3), intelPods)
			started(t, k, root, 2, podCgroup(4), intelPods)
			started(t, k, root, 31, "/system.slice/containerd.service", intelPods)
		}, pods: func(*resctrltest.Kernel) (map[int]string, []control.Container) {
			return intelPods, []control.Container{
				toldContainer(1, v1alpha1.BE, "batch/etl-5c9f7d8b4-x2x7q", "etl", "tideline-be"),
				toldContainer(2, v1alpha1.BE, "batch/report", "main", "tideline-be"),
				toldContainer(3, v1alpha1.LS, "shop/cart-0", "cart", ""),
				toldContainer(4, v1alpha1.BE, "batch/late", "main", "tideline-be"),
			}
		}},
		{name: "cdp", layout: resctrltest.IntelCDP(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
			groupIn(t, k, "tideline-be", "L3DATA:0=7;1=7\nL3CODE:0=3;1=3\nMB:0=50;1=50\n")
		}},
		{name: "l2", layout: resctrltest.L2Only(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
			groupIn(t, k, "tideline-be", "L2:0=3;1=3;2=3;3=f\n")
		}},
		{name: "l2-l3", layout: resctrltest.IntelL2(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
			groupIn(t, k, "tideline-be", "L2:0=3;1=3;2=3;3=3\nL3:0=3f;1=5f\nMB:0=50;1=50\n")
		}},
		{name: "amd-sparse", layout: resctrltest.AMDSparse(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
			groupIn(t, k, "tideline-be", "L3:0=1f;2=1f;8=1f;11=1f\nMB:0=32;2=32;8=32;11=32\n")
			groupIn(t, k, "COS1", "L3:0=f000;2=f000;8=f000;11=500\nMB:0=17\nSMBA:0=100\n")
		}},
		{name: "no-monitor", layout: resctrltest.NoMonitor(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
			groupIn(t, k, "tideline-be", "L3:0=7;1=7\nMB:0=50;1=50\n")
		}},
		{name: "monitor-only", layout: resctrltest.MonitorOnly(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
			monIn(t, resctrl.Open(k).Root(), "job-17")
		}},
		{name: "mbps", layout: resctrltest.IntelMBps(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
			groupIn(t, k, "tideline-be", "L3:0=7;1=7\nMB:0=12000;1=12000\n")
		}},
		{name: "exclusive", layout: resctrltest.IntelL3(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
			g := groupIn(t, k, "realtime", "L3:0=ff\n")
			if _, err := g.SetExclusive(); err != nil {
				t.Fatal(err)
			}
			if err := g.SetCPUs([]int{6, 7}); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "domains", layout: manyDomains(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
			var same, differ []string
			for d := range 16 {
				same = append(same, fmt.Sprintf("%d=1f", d))
				differ = append(differ, fmt.Sprintf("%d=%x", d, 0xf<<(d%5)))
			}
			groupIn(t, k, "tideline-be", "L3:"+strings.Join(same, ";")+"\n")
			groupIn(t, k, "somebody-elses-group-with-a-long-name", "L3:"+strings.Join(differ, ";")+"\nMB:3=800\n")
		}},
	}
}

// manyDomains is an AMD machine with an L3 for four cores each, 16 of them.
func manyDomains() resctrltest.Layout {
	l := resctrltest.AMD()
	l.CPUs = 64
	var d []resctrltest.Domain
	for id := range 16 {
		d = append(d, resctrltest.Domain{ID: id, CPUs: []int{4 * id, 4*id + 1, 4*id + 2, 4*id + 3}})
	}
	l.Caches[0].Domains, l.Monitor.Domains = d, d
	for i := range l.Bandwidths {
		l.Bandwidths[i].Domains = d
	}
	return l
}

// dump copies the tree of a kernel to where a machine has it.
func dump(t testing.TB, k resctrl.Files, dir, to string) {
	t.Helper()
	list, err := k.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Dir {
			dump(t, k, path.Join(dir, e.Name), filepath.Join(to, e.Name))
			continue
		}
		text, err := k.ReadFile(path.Join(dir, e.Name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, e.Name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// resctrlMachine is the root of a machine with the tree of a kernel, nil for one that is not mounted, and with
// the cgroups of tasks.
func resctrlMachine(t *testing.T, k *resctrltest.Kernel, options string, tasks map[int]string) string {
	t.Helper()
	const mounts = "26 23 0:24 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	files := map[string]string{"proc/filesystems": "nodev\tresctrl\n", "sys/fs/resctrl/.keep": ""}
	files["proc/sys/kernel/osrelease"], files["proc/meminfo"] = "6.12.117+deb12-amd64\n", "MemTotal: 67108864 kB\n"
	files["proc/self/mountinfo"] = mounts
	if k != nil {
		files["sys/devices/system/cpu/online"] = fmt.Sprintf("0-%d\n", k.Layout().CPUs-1)
		files["proc/self/mountinfo"] = mounts + "36 26 0:31 / /sys/fs/resctrl rw,relatime - resctrl resctrl rw" + options + "\n"
	}
	for id, cgroup := range tasks {
		files[fmt.Sprintf("proc/%d/cgroup", id)] = "0::" + cgroup + "\n"
	}
	root := liveMachine(t, "firecracker-2cpu", files)
	if err := os.Remove(filepath.Join(root, "sys/fs/resctrl/.keep")); err != nil {
		t.Fatal(err)
	}
	if k != nil {
		dump(t, k, ".", filepath.Join(root, "sys/fs/resctrl"))
	}
	return root
}

func mountedWith(l resctrltest.Layout) string {
	if o := l.Options.String(); o != "" {
		return "," + o
	}
	return ""
}

// containersDoor is a door that knows these containers.
func containersDoor(t *testing.T, list []control.Container) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+control.PathContainers, func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(list); err != nil {
			t.Error(err)
		}
	})
	return serve(t, mux)
}

// run runs the program on a machine. Its clock goes on a second a call.
func runResctrl(t *testing.T, root, socket string, host resctrlHost, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	c := &cli{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, width: 80, name: "tideline", root: root, resctrlHost: host}
	code = c.run(t.Context(), append(append([]string{"resctrl"}, args...), "--control", socket))
	replace := strings.NewReplacer(root, "", socket, "SOCKET").Replace
	return code, replace(out.String()), replace(errs.String())
}

// newCase boots the machine of a case.
func newCase(t *testing.T, c resctrlCase) (k *resctrltest.Kernel, root, socket string) {
	t.Helper()
	k = resctrltest.New(c.layout)
	if c.setUp != nil {
		c.setUp(t, k)
	}
	socket = "/none.sock"
	var tasks map[int]string
	if c.pods != nil {
		var list []control.Container
		tasks, list = c.pods(k)
		socket = containersDoor(t, list)
	}
	return k, resctrlMachine(t, k, mountedWith(c.layout), tasks), socket
}

func fits(t *testing.T, text string, width int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
			t.Errorf("%d columns, want at most %d: %s", n, width, line)
		}
		if trimmed := strings.TrimRight(line, " \n"); trimmed != strings.TrimSuffix(line, "\n") {
			t.Errorf("spaces at the end of %q", line)
		}
	}
}

func TestResctrlGolden(t *testing.T) {
	t.Parallel()
	for _, c := range resctrlCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, root, socket := newCase(t, c)
			code, text, errs := runResctrl(t, root, socket, resctrlHost{}, "--color=never")
			if code != 0 || errs != "" {
				t.Fatalf("exit %d: %s", code, errs)
			}
			golden(t, "resctrl-"+c.name+".txt", text)
			fits(t, text, 80)
			code, colored, errs := runResctrl(t, root, socket, resctrlHost{}, "show", "--color=always")
			if code != 0 || errs != "" {
				t.Fatalf("exit %d: %s", code, errs)
			}
			golden(t, "resctrl-"+c.name+".ansi", visible(colored))
			if diff := cmp.Diff(text, escapes.ReplaceAllString(colored, "")); diff != "" {
				t.Errorf("-plain +colored without escapes:\n%s", diff)
			}
			_, narrow, _ := runResctrl(t, root, socket, resctrlHost{}, "--width=60")
			fits(t, narrow, 60)
		})
	}
}

// planCase is a machine and a policy.
type planCase struct {
	name   string
	layout resctrltest.Layout
	setUp  func(t testing.TB, k *resctrltest.Kernel)
	policy bool // it has a file of its own, else it is the built-in one
}

func planCases() []planCase {
	return []planCase{
		{name: "built-in", layout: resctrltest.Intel()},
		{name: "rounding", layout: resctrltest.Intel(), policy: true,
			setUp: func(t testing.TB, k *resctrltest.Kernel) {
				groupIn(t, k, "tideline-be", "L3:0=7;1=f\nMB:0=50;1=50\n")
				groupIn(t, k, "tideline-lse", "L3:0=7;1=f\n")
				groupIn(t, k, "vm-database", "L3:0=f0;1=f0\n")
			}},
		{name: "no-closids", layout: resctrltest.IntelL3(), policy: true,
			setUp: func(t testing.TB, k *resctrltest.Kernel) {
				groupIn(t, k, "vm-database", "L3:0=3f000\n")
			}},
		{name: "exclusive", layout: resctrltest.IntelL3(), policy: true, setUp: func(t testing.TB, k *resctrltest.Kernel) {
			if _, err := groupIn(t, k, "realtime", "L3:0=3fff\n").SetExclusive(); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "amd", layout: manyDomains()},
		{name: "done", layout: resctrltest.Intel(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
			groupIn(t, k, "tideline-be", "L3:0=f;1=f\nMB:0=50;1=50\n")
		}},
		{name: "monitor-only", layout: resctrltest.MonitorOnly()},
		{name: "no-limits", layout: resctrltest.Intel(), policy: true},
	}
}

func (c planCase) args() []string {
	if !c.policy {
		return nil
	}
	return []string{"--policy", "testdata/resctrl-plan-" + c.name + ".yaml"}
}

// runPlan is runResctrl of a command that asks no door.
func runPlan(t *testing.T, root string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	c := &cli{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, width: 80, name: "tideline", root: root}
	code = c.run(t.Context(), append([]string{"resctrl", "plan"}, args...))
	return code, strings.ReplaceAll(out.String(), root, ""), strings.ReplaceAll(errs.String(), root, "")
}

func TestResctrlPlanGolden(t *testing.T) {
	t.Parallel()
	for _, c := range planCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, root, _ := newCase(t, resctrlCase{layout: c.layout, setUp: c.setUp})
			args := c.args()
			for _, color := range []string{"never", "always"} {
				code, text, errs := runPlan(t, root, append(args, "--color="+color)...)
				if code != 0 || errs != "" {
					t.Fatalf("exit %d: %s", code, errs)
				}
				if color == "never" {
					golden(t, "resctrl-plan-"+c.name+".txt", text)
					fits(t, text, 80)
				} else {
					golden(t, "resctrl-plan-"+c.name+".ansi", visible(text))
				}
			}
			if code, out, errs := runPlan(t, root, append(args, "-o", "yaml")...); code != 0 || !strings.Contains(out, "kind: ResctrlPlan\n") {
				t.Errorf("exit %d: %s\n%s", code, out, errs)
			}
		})
	}
}

// topCase is a machine with groups, and what they count meanwhile.
type topCase struct {
	name   string
	layout resctrltest.Layout
	setUp  func(t testing.TB, k *resctrltest.Kernel)
	later  func(t testing.TB, k *resctrltest.Kernel) // between the readings
	pods   []control.Container
	args   []string
}

func counts(k *resctrltest.Kernel, path, event string, values ...string) {
	for i, v := range values {
		k.SetCounter(path, k.Layout().Monitor.Domains[i].ID, event, v)
	}
}

func topCases() []topCase {
	intel := topCase{
		name: "intel", layout: resctrltest.Intel(),
		setUp: func(t testing.TB, k *resctrltest.Kernel) {
			be := groupIn(t, k, "tideline-be", "L3:0=7;1=7\n")
			monIn(t, groupIn(t, k, "vm-database", "L3:0=f0;1=1f0\n"), "qemu-7")
			monIn(t, be, containerNumber(1))
			counts(k, ".", "llc_occupancy", "11534336", "9961472")
			counts(k, ".", "mbm_local_bytes", "91000000000", "4000000")
			counts(k, ".", "mbm_total_bytes", "92000000000", "5000000")
			counts(k, "tideline-be", "llc_occupancy", "983040", "65536")
			counts(k, "tideline-be", "mbm_local_bytes", "5000", "0")
			counts(k, "tideline-be", "mbm_total_bytes", "9000", "0")
			counts(k, "tideline-be/mon_groups/"+containerNumber(1), "llc_occupancy", "655360", "0")
			counts(k, "vm-database", "llc_occupancy", "0", "131072")
			counts(k, "vm-database/mon_groups/qemu-7", "llc_occupancy", "Unavailable", "524288")
			counts(k, "vm-database/mon_groups/qemu-7", "mbm_local_bytes", "Error", "1000")
			counts(k, "vm-database/mon_groups/qemu-7", "mbm_total_bytes", "Error", "1000")
		},
		later: func(t testing.TB, k *resctrltest.Kernel) {
			counts(k, ".", "mbm_local_bytes", "94341000000", "5048576")
			counts(k, ".", "mbm_total_bytes", "95400000000", "7000000")
			counts(k, "tideline-be", "mbm_local_bytes", "734005000", "12000")
			counts(k, "tideline-be", "mbm_total_bytes", "4000", "54000")
			counts(k, "vm-database/mon_groups/qemu-7", "mbm_local_bytes", "Error", "52001000")
			counts(k, "vm-database/mon_groups/qemu-7", "mbm_total_bytes", "Error", "53001000")
			if g, err := resctrl.Open(k).Group("made-later"); err == nil && g != nil {
				return
			}
			groupIn(t, k, "made-later", "L3:0=7;1=7\n")
		},
		pods: []control.Container{toldContainer(1, v1alpha1.BE, "batch/etl-5c9f7d8b4-x2x7q", "etl", "tideline-be")},
	}
	byDomain := intel
	byDomain.name, byDomain.args = "by-domain", []string{"--by-domain"}
	return []topCase{
		intel, byDomain,
		{name: "assignable", layout: resctrltest.AMDSparse(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
			groupIn(t, k, "tideline-be", "L3:0=1f;2=1f;8=1f;11=1f\n")
			groupIn(t, k, "tideline-ls", "L3:0=ff00\n")
			for _, name := range []string{"COS1", "COS2"} {
				groupIn(t, k, name, "L3:0=f000\n")
			}
			// The counter of one domain is taken away.
			if err := k.WriteFile("tideline-be/mbm_L3_assignments", "mbm_total_bytes:8=_\n"); err != nil {
				t.Fatal(err)
			}
		}, later: func(t testing.TB, k *resctrltest.Kernel) {
			counts(k, ".", "mbm_total_bytes", "1000000", "2000000", "0", "4000000")
			counts(k, "tideline-be", "mbm_total_bytes", "1000000", "2000000", "3000000", "4000000")
			counts(k, "tideline-ls", "mbm_local_bytes", "123", "0", "0", "0")
		}},
	}
}

// runTop runs top on a kernel whose counters go on while it waits.
func runTop(t *testing.T, c topCase, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	k := resctrltest.New(c.layout)
	c.setUp(t, k)
	socket := "/none.sock"
	if c.pods != nil {
		socket = containersDoor(t, c.pods)
	}
	clock := time.Date(2026, 12, 1, 5, 0, 0, 0, time.UTC)
	host := resctrlHost{
		now: func() time.Time { return clock },
		wait: func(ctx context.Context, d time.Duration) error {
			clock = clock.Add(d)
			c.later(t, k)
			return ctx.Err()
		},
		open: func(resctrl.MountPoint) resctrl.Files { return k },
	}
	return runResctrl(t, resctrlMachine(t, k, mountedWith(c.layout), nil), socket, host, append(append([]string{"top"}, c.args...), args...)...)
}

func TestResctrlTopGolden(t *testing.T) {
	t.Parallel()
	for _, c := range topCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			code, text, errs := runTop(t, c, "-n", "1")
			if code != 0 || errs != "" {
				t.Fatalf("exit %d: %s", code, errs)
			}
			golden(t, "resctrl-top-"+c.name+".txt", text)
			fits(t, text, 80)
			_, colored, _ := runTop(t, c, "-n", "1", "--color=always")
			golden(t, "resctrl-top-"+c.name+".ansi", visible(colored))
			if diff := cmp.Diff(text, escapes.ReplaceAllString(colored, "")); diff != "" {
				t.Errorf("-plain +colored without escapes:\n%s", diff)
			}
		})
	}
}

// A machine whose resctrl is not mounted, and one that has none.
func TestResctrlAbsent(t *testing.T) {
	t.Parallel()
	notMounted := resctrlMachine(t, nil, "", nil)
	none := liveMachine(t, "firecracker-2cpu", nil)
	snapshot := func(root string) string {
		file := filepath.Join(t.TempDir(), "facts")
		c := &cli{stdin: strings.NewReader(""), stdout: new(bytes.Buffer), stderr: new(bytes.Buffer), width: 80, name: "tideline", root: root}
		if code := c.run(t.Context(), []string{"snapshot", "-o", file}); code != 0 {
			t.Fatalf("exit %d", code)
		}
		return file
	}
	for _, m := range []struct{ name, root, state, err string }{
		{"not-mounted", notMounted, "notMounted", "error: resctrl is not mounted (mount -t resctrl resctrl /sys/fs/resctrl)\n"},
		{"not-supported", none, "notSupported", "error: resctrl is not supported by this kernel on this machine\n"},
	} {
		code, text, errs := runResctrl(t, m.root, "/none.sock", resctrlHost{})
		if code != 0 || errs != "" {
			t.Errorf("%s: exit %d: %s", m.name, code, errs)
		}
		golden(t, "resctrl-"+m.name+".txt", text)
		fits(t, text, 80)
		code, out, _ := runResctrl(t, m.root, "/none.sock", resctrlHost{}, "-o", "json")
		var r ResctrlReport
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || string(r.State) != m.state {
			t.Errorf("%s: exit %d, %v, state %s", m.name, code, err, r.State)
		}
		file := snapshot(m.root)
		code, ofSnapshot, errs := runResctrl(t, m.root, "/none.sock", resctrlHost{}, "--node-facts", file)
		if want := strings.Join(strings.Fields(strings.Replace(text, "this machine", file, 1)), " "); code != 0 || strings.Join(strings.Fields(ofSnapshot), " ") != want {
			t.Errorf("%s, snapshot: exit %d: %s%s", m.name, code, ofSnapshot, errs)
		}
		if code, _, errs := runResctrl(t, m.root, "/none.sock", resctrlHost{}, "top"); code != 1 || !strings.HasPrefix(errs, m.err) {
			t.Errorf("%s, top: exit %d: %s", m.name, code, errs)
		}
		for _, args := range [][]string{nil, {"--node-facts", file}} {
			if code, _, errs := runPlan(t, m.root, args...); code != 1 || !strings.HasPrefix(errs, m.err) {
				t.Errorf("%s, plan: exit %d: %s", m.name, code, errs)
			}
		}
	}
}

func TestResctrlMount(t *testing.T) {
	t.Parallel()
	const at = "36 26 0:31 / /sys/fs/resctrl rw,relatime - resctrl resctrl "
	for _, tc := range []struct {
		name    string
		mounted string // options that it is mounted with before, "" for not
		none    bool   // the machine has none
		args    []string
		answer  error // of the kernel
		code    int
		errs    string
		asked   string // options that the kernel was asked for, "-" for not
	}{
		{name: "mounts", args: []string{"--mount"}, errs: "mounted resctrl at /sys/fs/resctrl with no options; it stays until the next boot, or: umount /sys/fs/resctrl\n"},
		{name: "with options", args: []string{"--mount", "--mount-options", "cdp,mba_MBps"}, asked: "cdp,mba_MBps",
			errs: "mounted resctrl at /sys/fs/resctrl with options cdp,mba_MBps; it stays until the next boot, or: umount /sys/fs/resctrl\n"},
		{name: "mounted already", mounted: "rw", args: []string{"--mount"}, asked: "-", errs: "resctrl is mounted at /sys/fs/resctrl with no options already; nothing was done\n"},
		{name: "mounted otherwise", mounted: "rw,cdp", args: []string{"--mount"}, asked: "-", code: 1,
			errs: "error: mount resctrl: resctrl is mounted at /sys/fs/resctrl with options cdp, not with no options: unmount it first, which removes all groups\n"},
		{name: "read-only", mounted: "ro", args: []string{"--mount"}, asked: "-", code: 1, errs: "error: mount resctrl: /sys/fs/resctrl: resctrl is mounted read-only\n"},
		{name: "not supported", none: true, args: []string{"--mount"}, asked: "-", code: 1, errs: "error: resctrl is not supported by this kernel on this machine\n" + whyNotSupported + "\n"},
		{name: "an option that the machine lacks", args: []string{"--mount", "--mount-options", "cdpl2"}, answer: syscall.EINVAL, asked: "cdpl2", code: 1,
			errs: "error: mount resctrl at /sys/fs/resctrl with options cdpl2: this kernel or CPU lacks one of them; the kernel's log says which (dmesg)\n"},
		{name: "not root", args: []string{"--mount"}, answer: syscall.EPERM, code: 1, errs: "error: mount resctrl: operation not permitted\nRun this as root.\n"},
		{name: "bad options", args: []string{"--mount", "--mount-options", "cdp,x"}, asked: "-", code: 1,
			errs: "error: --mount-options \"cdp,x\": want some of cdp, cdpl2, mba_MBps and debug, with commas between them\n"},
		{name: "options alone", args: []string{"--mount-options", "cdp"}, asked: "-", code: 1, errs: "error: --mount-options without --mount: nothing is to be mounted\n"},
		{name: "a snapshot", args: []string{"--mount", "--node-facts", "x"}, asked: "-", code: 1, errs: "error: --mount with --node-facts: only this machine's resctrl can be mounted\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			k := resctrltest.New(resctrltest.Intel())
			root := resctrlMachine(t, nil, "", nil)
			if tc.none {
				root = liveMachine(t, "firecracker-2cpu", nil)
			}
			mount := func(options string) {
				const cgroups = "26 23 0:24 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
				if err := os.WriteFile(filepath.Join(root, "proc/self/mountinfo"), []byte(cgroups+at+options+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if tc.mounted != "" {
				mount(tc.mounted)
			}
			asked := "-"
			host := resctrlHost{
				open: func(resctrl.MountPoint) resctrl.Files { return k },
				mount: func(o resctrl.MountOptions) error {
					asked = o.String()
					if tc.answer == nil {
						mount(strings.TrimSuffix("rw,"+o.String(), ","))
					}
					return tc.answer
				},
			}
			code, out, errs := runResctrl(t, root, "/none.sock", host, tc.args...)
			if code != tc.code || errs != tc.errs || asked != tc.asked {
				t.Errorf("exit code %d, want %d; asked %q, want %q; stderr (-want +got):\n%s", code, tc.code, asked, tc.asked, cmp.Diff(tc.errs, errs))
			}
			if code == 0 && !strings.Contains(out, "resctrl  mounted at /sys/fs/resctrl, ") {
				t.Errorf("screen:\n%s", out)
			}
		})
	}
}

func TestResctrlFlags(t *testing.T) {
	t.Parallel()
	for errs, args := range map[string][]string{
		"error: -o xml: want text, json or yaml\n":                      {"-o", "xml"},
		"error: --color red: want auto, always or never\n":              {"top", "--color", "red"},
		"error: --interval 1ms: want 100ms or more\n":                   {"top", "--interval", "1ms"},
		"error: --iterations -1: want 0 for no end, or more\n":          {"top", "-n", "-1"},
		"error: read policy: open nowhere: no such file or directory\n": {"plan", "--policy", "nowhere"},
	} {
		code, out, got := try(t, 80, "", append([]string{"resctrl"}, args...)...)
		if code != 1 || out != "" || got != errs {
			t.Errorf("%v: exit %d, %q%q", args, code, out, got)
		}
	}
}

// The JSON is read by programs. YAML is the same.
func TestResctrlJSON(t *testing.T) {
	t.Parallel()
	c := resctrlCases(t)[0]
	_, root, socket := newCase(t, c)
	_, out, _ := runResctrl(t, root, socket, resctrlHost{}, "-o", "json")
	golden(t, "resctrl-intel.json", out)
	_, asYAML, _ := runResctrl(t, root, socket, resctrlHost{}, "-o", "yaml")
	data, err := yaml.YAMLToJSON([]byte(asYAML))
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := errors.Join(json.Unmarshal([]byte(out), &want), json.Unmarshal(data, &got)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-json +yaml:\n%s", diff)
	}
	plan := planCases()[1]
	_, root, _ = newCase(t, resctrlCase{layout: plan.layout, setUp: plan.setUp})
	_, out, _ = runPlan(t, root, append(plan.args(), "-o", "json")...)
	golden(t, "resctrl-plan-rounding.json", out)
}

// Frames: JSON has one a line, YAML is documents, text has them below each other, and a terminal shows one at a time.
func TestResctrlTopFrames(t *testing.T) {
	t.Parallel()
	c := topCases()[0]
	_, out, _ := runTop(t, c, "-n", "2", "-o", "json")
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines", len(lines))
	}
	golden(t, "resctrl-top-intel.json", lines[0]+"\n")
	var second ResctrlTop
	if err := json.Unmarshal([]byte(lines[1]), &second); err != nil || second.Seconds != 1 || second.Groups[3].Name != "made-later" || second.Groups[3].Total[1].Rate.New {
		t.Errorf("second frame: %v\n%s", err, lines[1])
	}
	_, out, _ = runTop(t, c, "-n", "2", "-o", "yaml", "--interval", "2s")
	docs := strings.Split(out, "---\n")
	if len(docs) != 3 || docs[0] != "" || !strings.Contains(docs[2], "seconds: 2\n") {
		t.Errorf("%d documents:\n%s", len(docs), out)
	}
	_, out, _ = runTop(t, c, "-n", "2")
	if n := strings.Count(out, "GROUP  "); n != 2 || strings.Contains(out, "\x1b") || !strings.Contains(out, "\n\n2026-12-01T05:00:02Z") {
		t.Errorf("%d frames:\n%s", n, out)
	}
}

func TestOnScreen(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		height int
		first  bool
		want   string
	}{
		{"first", 24, true, `\e[2J\e[Ha\e[K|b\e[K|c\e[K|d\e[K|\e[J`},
		{"height not known", 0, false, `\e[Ha\e[K|b\e[K|c\e[K|d\e[K|\e[J`},
		{"low", 4, false, `\e[Ha\e[K|b\e[K|... 2 lines more: make the terminal higher, or use -o json\e[K|\e[J`},
	} {
		if got := strings.ReplaceAll(visible(onScreen("a\nb\nc\nd\n", tc.height, tc.first)), "\n", "|"); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

// What ends top: ctrl-C is no error, a machine without monitoring is.
func TestResctrlTopEnds(t *testing.T) {
	t.Parallel()
	c := topCases()[0]
	ended := c
	frames := 0
	ended.later = func(testing.TB, *resctrltest.Kernel) { frames++ }
	k := resctrltest.New(c.layout)
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	tl := &cli{stdin: strings.NewReader(""), stdout: &out, stderr: &out, width: 80, name: "tideline", root: resctrlMachine(t, k, "", nil), resctrlHost: resctrlHost{
		now: time.Now, terminal: true, height: func() int { return 24 }, open: func(resctrl.MountPoint) resctrl.Files { return k },
		wait: func(ctx context.Context, _ time.Duration) error {
			if frames++; frames > 3 {
				cancel()
			}
			return ctx.Err()
		},
	}}
	if code := tl.run(ctx, []string{"resctrl", "top", "--control", "/none.sock"}); code != 0 || strings.Count(out.String(), "\x1b[H") != 3 || strings.Count(out.String(), "\x1b[2J") != 1 {
		t.Errorf("exit %d:\n%q", code, out.String())
	}
	none := topCase{layout: resctrltest.NoMonitor(), setUp: func(testing.TB, *resctrltest.Kernel) {}}
	if code, _, errs := runTop(t, none, "-n", "1"); code != 1 || errs != "error: this CPU or kernel monitors nothing: there is no info/*_MON in resctrl\n" {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// A group that goes away while it is read is left out.
func TestResctrlGroupGoes(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"schemata", "tasks", "mode", "cpus_list", "mon_groups"} {
		k := resctrltest.New(resctrltest.Intel())
		g := groupIn(t, k, "tideline-be", "L3:0=7;1=7\n")
		gone := false
		k.Before(func(_, name string) error {
			if name == "tideline-be/"+file && !gone {
				gone = true
				return g.Remove()
			}
			return nil
		})
		host := resctrlHost{open: func(resctrl.MountPoint) resctrl.Files { return k }}
		code, out, errs := runResctrl(t, resctrlMachine(t, resctrltest.New(resctrltest.Intel()), "", nil), "/none.sock", host)
		if code != 0 || strings.Contains(out, "tideline-be") || !gone {
			t.Errorf("%s: exit %d: %s%s", file, code, out, errs)
		}
	}
}

// Without a door tasks are counted by container; many strays are few lines.
func TestResctrlMembers(t *testing.T) {
	t.Parallel()
	tasks := map[int]string{}
	var list []control.Container
	c := resctrlCase{layout: resctrltest.Intel(), setUp: func(t testing.TB, k *resctrltest.Kernel) {
		g := groupIn(t, k, "tideline-be", "L3:0=7;1=7\n")
		started(t, k, g, 2, podCgroup(1), tasks)
		started(t, k, g, 1, podCgroup(1)+"/nested", tasks)
		started(t, k, g, 1, "/kubepods/besteffort/pod7/"+containerNumber(2), tasks)
		started(t, k, g, 1, "/system.slice/crio-"+containerNumber(3)+".scope", tasks)
		started(t, k, g, 1, "/user.slice", tasks)
		for n := range 5 {
			started(t, k, resctrl.Open(k).Root(), 1, podCgroup(5+n), tasks)
			list = append(list, toldContainer(5+n, v1alpha1.BE, fmt.Sprintf("batch/job-%d", n), "main", "tideline-be"))
		}
	}}
	k := resctrltest.New(c.layout)
	c.setUp(t, k)
	root := resctrlMachine(t, k, "", tasks)
	_, out, _ := runResctrl(t, root, "/none.sock", resctrlHost{})
	for _, line := range []string{
		"tideline-be  tideline  shareable  -         6  3 containers, 1 task of the host\n",
		"tideline-be  ?         3  container 111111111111...\n", "tideline-be  ?         1  container 222222222222...\n", "tideline-be  ?         1  container 333333333333...\n",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("no line %q in:\n%s", line, out)
		}
	}
	_, out, _ = runResctrl(t, root, containersDoor(t, list), resctrlHost{})
	for _, line := range []string{
		"! pod batch/job-2, container main: 1 task in root, not in tideline-be\n! and so of 2 containers more\n",
		"tideline-be  tideline  shareable  -         6  3 containers, 1 task of the host\n",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("no line %q in:\n%s", line, out)
		}
	}
}

// With io_alloc the hardware's I/O has a class, which no group can have.
func TestResctrlIOAlloc(t *testing.T) {
	t.Parallel()
	var r ResctrlReport
	r.fill(resctrlTree{info: resctrl.Info{Resources: []resctrl.ResourceInfo{{Name: "L3", NumCLOSIDs: 16, Cache: &resctrl.CacheInfo{Mask: 0xfff, IOAlloc: "enabled", IOMasks: "0=f;1=f"}}}}})
	if got := r.CLOSIDs.describe(); got != "1 of 16 in use: 1 I/O devices; 15 free" {
		t.Error(got)
	}
	if got := r.describeResource(r.Resources[0]); got != "12 ways, may be empty, no holes, I/O allocation enabled 0=f;1=f, 16 CLOSIDs" {
		t.Error(got)
	}
}

func TestContainerOf(t *testing.T) {
	t.Parallel()
	outer, inner := containerNumber(1), containerNumber(2)
	known := map[string]control.Container{inner: {}, "short": {}}
	for text, want := range map[string]string{
		"":                                     "",
		"0::/\n":                               "",
		"0::/user.slice/session-1.scope\n":     "",
		"0::/kubepods/podX/" + outer + "\n":    outer,
		"0::/a/crio-" + outer + ".scope/x\n":   outer,
		"0::/k/" + outer + "/" + inner + "\n":  inner,
		"0::/k/" + inner + "/" + outer + "\n":  inner,
		"0::/k/cri-containerd-short.scope\n":   "short",
		"9:cpuset:/k/" + outer + "\n3:cpu:/\n": outer,
		"9:cpuset:/docker/" + outer + "/" + containerNumber(3) + "\n": containerNumber(3),
		"nonsense": "",
	} {
		if got := containerOf(text, known); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// A snapshot shows what the machine shows, but for who is in the groups and what others call theirs.
func TestResctrlSnapshot(t *testing.T) {
	t.Parallel()
	c := resctrlCases(t)[0]
	_, root, _ := newCase(t, c)
	var taken bytes.Buffer
	tl := &cli{stdin: strings.NewReader(""), stdout: &taken, stderr: new(bytes.Buffer), width: 80, name: "tideline", root: root}
	if code := tl.run(t.Context(), []string{"snapshot"}); code != 0 {
		t.Fatalf("exit %d", code)
	}
	const file = "testdata/resctrl-node7.snapshot"
	date := regexp.MustCompile("\n# date: .*\n").ReplaceAllString(taken.String(), "\n# date: 2026-12-01T05:00:00Z\n")
	golden(t, filepath.Base(file), date)
	code, out, errs := runResctrl(t, t.TempDir(), "/none.sock", resctrlHost{}, "--node-facts", file)
	if code != 0 || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	golden(t, "resctrl-snapshot.txt", out)
	code, out, errs = runPlan(t, t.TempDir(), "--node-facts", file)
	if code != 0 || errs != "" || !strings.Contains(out, "set tideline-be, which has L3:0=7, wanted f") || !strings.Contains(out, "foreign-1") {
		t.Errorf("plan: exit %d: %s%s", code, out, errs)
	}
	if partition.Prefix != "tideline-" {
		t.Error("package hostfs keeps names that begin with tideline-")
	}
	old := filepath.Join(t.TempDir(), "old")
	if err := os.WriteFile(old, []byte("# tideline snapshot v1\n-- proc/self/mountinfo --\n36 25 0:31 / /sys/fs/resctrl rw - resctrl resctrl rw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs = runResctrl(t, t.TempDir(), "/none.sock", resctrlHost{}, "--node-facts", old)
	if want := "error: " + old + ": it was taken by an older tideline, without the resctrl tree; take it again\n"; code != 1 || errs != want {
		t.Errorf("exit %d: %s, want %s", code, errs, want)
	}
}

// Whatever a snapshot holds, there is a screen or an error, and it fits.
func FuzzResctrlSnapshot(f *testing.F) {
	for _, l := range resctrltest.Layouts() {
		k := resctrltest.New(l)
		var b strings.Builder
		b.WriteString("# tideline snapshot v1\n-- proc/self/mountinfo --\n36 25 0:31 / /sys/fs/resctrl rw - resctrl resctrl rw\n")
		var walk func(dir string)
		walk = func(dir string) {
			list, err := k.ReadDir(dir)
			if err != nil {
				f.Fatal(err)
			}
			for _, e := range list {
				at := path.Join(dir, e.Name)
				text, _ := k.ReadFile(at)
				switch {
				case e.Dir:
					walk(at)
				case e.Name == "tasks":
					fmt.Fprintf(&b, "-- resctrl/%s.count --\n3\n", at)
				default:
					fmt.Fprintf(&b, "-- resctrl/%s --\n%s", at, text)
				}
			}
		}
		if len(l.Caches) > 0 {
			if _, err := resctrl.Open(k).Create(context.Background(), "tideline-be"); err != nil {
				f.Fatal(err)
			}
		}
		walk(".")
		f.Add([]byte(b.String()))
	}
	f.Add([]byte("# tideline snapshot v1\n-- proc/self/mountinfo --\n36 25 0:31 / /sys/fs/resctrl rw - resctrl resctrl rw\n" +
		"-- resctrl/tasks.count --\n0\n-- resctrl/mode --\nx\n-- resctrl/cpus_list --\n\n-- resctrl/schemata --\nL3:0=7\nMB:1=5\nX:y\n-- resctrl/info/L3/bandwidth_gran --\n1\n-- resctrl/info/L3/num_closids --\n9\n-- resctrl/info/MB/num_closids --\n9\n-- resctrl/info/MB/cbm_mask --\nffffffffffffffff\n-- resctrl/info/X/num_closids --\n9\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		facts, err := hostfs.FromSnapshot(data)
		if err != nil || facts.Resctrl == nil || facts.Resctrl.Files == nil {
			return
		}
		tree, err := readResctrl(*facts.Resctrl)
		if err != nil {
			return
		}
		r := ResctrlReport{State: resctrlMounted, Mount: &facts.Resctrl.Mount}
		r.fill(tree)
		plain := r.text(style{width: 80})
		if colored := r.text(style{width: 80, color: true}); plain != escapes.ReplaceAllString(colored, "") {
			t.Error("colour changes the text")
		}
		compiled, err := policy.Compile(v1alpha1.Default().Spec)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := planResctrl(tree, compiled.Partitions()); err == nil {
			p.text(style{width: 80})
		}
	})
}

// The screens of docs/resctrl.md are the goldens.
func TestResctrlDoc(t *testing.T) {
	const doc = "../../docs/resctrl.md"
	data, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	replace := strings.NewReplacer("SOCKET", control.DefaultSocket, "testdata/resctrl-plan-rounding.yaml", "policy.yaml", "testdata/resctrl-plan-no-closids.yaml", "policy.yaml")
	marker := regexp.MustCompile("(?ms)^<!-- golden: ([a-z0-9.-]+) -->\n```([a-z]*)\n.*?^```$")
	shown := map[string]bool{}
	want := marker.ReplaceAllStringFunc(string(data), func(block string) string {
		m := marker.FindStringSubmatch(block)
		text, err := os.ReadFile("testdata/" + m[1])
		if err != nil {
			t.Fatal(err)
		}
		shown[m[1]] = true
		return "<!-- golden: " + m[1] + " -->\n```" + m[2] + "\n" + replace.Replace(string(text)) + "```"
	})
	if *update {
		if err := os.WriteFile(doc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		data = []byte(want)
	}
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("%s, go test -update writes it, -want +got:\n%s", doc, diff)
	}
	for _, name := range []string{"intel", "cdp", "l2", "amd-sparse", "no-monitor", "not-mounted", "top-intel", "plan-rounding", "plan-no-closids"} {
		if !shown["resctrl-"+name+".txt"] {
			t.Errorf("%s does not show resctrl-%s.txt", doc, name)
		}
	}
	for i, w := range ways {
		if row := "| `" + w.sign + "` | "; !strings.Contains(want, row) {
			t.Errorf("%s has no row %s of way %d", doc, row, i)
		}
	}
}
