package cgroup_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/policy"
)

// step is one bare write to a file of the container's or the pod's cgroup.
type step struct {
	pod  bool
	file string
	data string
}

// stepsV1 were first tried by hand on Linux 6.18. DEV is a block device of the machine.
var stepsV1 = []step{
	{file: "cpu.shares", data: "512"}, {file: "cpu.shares", data: "1"}, {file: "cpu.shares", data: "300000"}, {file: "cpu.shares", data: "x"},
	{file: "cpu.shares", data: "512"}, {file: "cpu.idle", data: "1"}, {file: "cpu.shares", data: "300"}, {file: "cpu.idle", data: "2"},
	{file: "cpu.idle", data: "1"}, {file: "cpu.idle", data: "0"}, {file: "cpu.idle", data: "-1"},
	{file: "cpu.cfs_quota_us", data: "20000"}, {file: "cpu.cfs_burst_us", data: "30000"}, {file: "cpu.cfs_burst_us", data: "20000"},
	{file: "cpu.cfs_quota_us", data: "10000"}, {file: "cpu.cfs_quota_us", data: "-1"}, {file: "cpu.cfs_burst_us", data: "900000"},
	{file: "cpu.cfs_quota_us", data: "20000"}, {file: "cpu.cfs_burst_us", data: "0"}, {file: "cpu.cfs_quota_us", data: "500"},
	{file: "cpu.cfs_period_us", data: "500"}, {file: "cpu.cfs_period_us", data: "2000000"}, {file: "cpu.cfs_quota_us", data: "0"},
	{file: "cpu.cfs_quota_us", data: "-2"}, {pod: true, file: "cpu.cfs_quota_us", data: "10000"}, {file: "cpu.cfs_quota_us", data: "5000"},
	{pod: true, file: "cpu.cfs_quota_us", data: "4000"}, {file: "cpu.cfs_quota_us", data: "20000"}, {file: "cpu.cfs_period_us", data: "10000"},
	{file: "cpu.cfs_quota_us", data: "-1"}, {file: "cpu.cfs_period_us", data: "10000"}, {file: "cpu.cfs_burst_us", data: "abc"},
	{file: "cpu.cfs_burst_us", data: "-1"}, {pod: true, file: "cpu.cfs_quota_us", data: "-1"},
	{file: "memory.limit_in_bytes", data: "10000000"}, {file: "memory.memsw.limit_in_bytes", data: "5000000"},
	{file: "memory.memsw.limit_in_bytes", data: "20000000"}, {file: "memory.limit_in_bytes", data: "30000000"},
	{file: "memory.limit_in_bytes", data: "-1"}, {file: "memory.memsw.limit_in_bytes", data: "-1"}, {file: "memory.limit_in_bytes", data: "-1"},
	{file: "memory.limit_in_bytes", data: "abc"}, {file: "memory.limit_in_bytes", data: "9223372036854775807"},
	{file: "cpuset.cpus", data: "0"}, {file: "cpuset.cpus", data: "0,1"}, {pod: true, file: "cpuset.cpus", data: "0"}, {file: "cpuset.cpus", data: "0"},
	{pod: true, file: "cpuset.cpus", data: "1"}, {pod: true, file: "cpuset.cpus", data: "0"}, {file: "cpuset.cpus", data: "0-1"},
	{file: "cpuset.mems", data: "0"}, {file: "cpuset.mems", data: "0-1"}, {file: "cpuset.mems", data: "60000"}, {file: "cpuset.mems", data: "x"}, {pod: true, file: "cpuset.mems", data: "\n"},
	{file: "cpuset.mems", data: "\n"}, {pod: true, file: "cpuset.mems", data: "\n"}, {file: "cpuset.mems", data: "0"}, {pod: true, file: "cpuset.mems", data: "0"}, {file: "cpuset.mems", data: "0"},
	{file: "cpuset.cpus", data: "60000"}, {file: "cpuset.cpus", data: ""}, {file: "cpuset.cpus", data: "\n"}, {file: "cpuset.cpus", data: "x"},
	{file: "blkio.bfq.weight", data: "1001"}, {file: "blkio.bfq.weight", data: "10"}, {file: "blkio.bfq.weight", data: "0"}, {file: "blkio.bfq.weight", data: "x"},
	{file: "blkio.throttle.read_bps_device", data: "DEV 1048576"}, {file: "blkio.throttle.read_bps_device", data: "DEV 1"},
	{file: "blkio.throttle.read_bps_device", data: "DEV 0"}, {file: "blkio.throttle.read_bps_device", data: "4000:1 10"},
	{file: "blkio.throttle.read_bps_device", data: "4000:1 0"}, {file: "blkio.throttle.read_iops_device", data: "DEV 5000000000"},
	{file: "blkio.throttle.read_iops_device", data: "DEV 4294967295"}, {file: "blkio.throttle.write_iops_device", data: "DEV 7"},
	{file: "blkio.throttle.write_iops_device", data: "DEV 0"}, {file: "blkio.throttle.write_bps_device", data: "x"},
	{file: "blkio.throttle.write_bps_device", data: "DEV"}, {file: "blkio.throttle.write_bps_device", data: "DEV -1"},
	{file: "memory.high", data: "4096"}, {file: "cpu.weight", data: "100"},
}

var stepsV2 = []step{
	{file: "cpu.weight", data: "59"}, {file: "cpu.weight", data: "0"}, {file: "cpu.weight", data: "10001"}, {file: "cpu.weight", data: "x"},
	{file: "cpu.idle", data: "1"}, {file: "cpu.weight", data: "100"}, {file: "cpu.weight", data: "0"}, {file: "cpu.idle", data: "2"},
	{file: "cpu.idle", data: "1"}, {file: "cpu.idle", data: "0"},
	{file: "cpu.max", data: "20000 100000"}, {file: "cpu.max.burst", data: "30000"}, {file: "cpu.max.burst", data: "20000"},
	{file: "cpu.max", data: "10000 100000"}, {file: "cpu.max", data: "max"}, {file: "cpu.max.burst", data: "900000"},
	{file: "cpu.max", data: "20000"}, {file: "cpu.max.burst", data: "0"}, {file: "cpu.max", data: "500 100000"}, {file: "cpu.max", data: "20000 500"},
	{file: "cpu.max", data: "20000 2000000"}, {file: "cpu.max", data: "x 100000"}, {file: "cpu.max", data: "30000 50000"},
	{pod: true, file: "cpu.max", data: "10000 100000"}, {file: "cpu.max", data: "40000 50000"}, {file: "cpu.max", data: "max 100000"},
	{file: "cpu.max.burst", data: "-1"}, {file: "cpu.max.burst", data: "abc"}, {pod: true, file: "cpu.max", data: "max 100000"},
	{file: "cpuset.cpus", data: "0"}, {file: "cpuset.cpus", data: "0,1"}, {pod: true, file: "cpuset.cpus", data: "0"}, {pod: true, file: "cpuset.cpus", data: "1"},
	{file: "cpuset.mems", data: "0"}, {file: "cpuset.mems", data: "0-1"}, {file: "cpuset.mems", data: "60000"}, {file: "cpuset.mems", data: "x"}, {pod: true, file: "cpuset.mems", data: "\n"},
	{file: "cpuset.mems", data: "\n"}, {pod: true, file: "cpuset.mems", data: "\n"}, {file: "cpuset.mems", data: "0"}, {pod: true, file: "cpuset.mems", data: "0"}, {file: "cpuset.mems", data: "0"},
	{file: "cpuset.cpus", data: "60000"}, {file: "cpuset.cpus", data: ""}, {file: "cpuset.cpus", data: "\n"}, {file: "cpuset.cpus", data: "x"}, {pod: true, file: "cpuset.cpus", data: "\n"},
	{file: "memory.low", data: "5000"}, {file: "memory.low", data: "max"}, {file: "memory.low", data: "0"}, {file: "memory.high", data: "100000000"},
	{file: "memory.high", data: "max"}, {file: "memory.max", data: "100000000"}, {file: "memory.max", data: "x"}, {file: "memory.max", data: "-1"}, {file: "memory.max", data: "9223372036854775807"},
	{file: "io.bfq.weight", data: "1001"}, {file: "io.bfq.weight", data: "10"}, {file: "io.bfq.weight", data: "default 20"}, {file: "io.bfq.weight", data: "0"},
	{file: "io.weight", data: "10001"}, {file: "io.weight", data: "10"}, {file: "io.weight", data: "default 20"}, {file: "io.weight", data: "0"}, {file: "io.weight", data: "x"},
	{file: "io.max", data: "DEV rbps=1048576"}, {file: "io.max", data: "DEV wiops=10"}, {file: "io.max", data: "DEV rbps=0"}, {file: "io.max", data: "DEV rbps=1"},
	{file: "io.max", data: "DEV riops=5000000000"}, {file: "io.max", data: "4000:1 rbps=10"}, {file: "io.max", data: "DEV x=10"}, {file: "io.max", data: "DEV rbps=x"},
	{file: "io.max", data: "DEV rbps=max wbps=max riops=max wiops=max"}, {file: "io.max", data: "DEV rbps=max"},
	{file: "memory.limit_in_bytes", data: "4096"}, {file: "cpu.shares", data: "100"},
}

// machine is a place for steps: the kernel, or the fake.
type machine interface {
	write(p cgroup.Path, file, data string) error
	read(p cgroup.Path, file string) (string, error)
}

// TestRealKernel runs bare writes, and then calls of FS, on this machine's kernel and on the fake, and wants the same
// answers and the same files after each. On the machine it touches one group of its own only.
func TestRealKernel(t *testing.T) {
	real := newRealGroup(t)
	layout, steps := cgrouptest.V1, stepsV1
	if real.version == 2 {
		layout, steps = cgrouptest.V2, stepsV2
	}
	fake := newFake(t, layout, real.without()...)
	fake.k.Devices = []string{real.device}
	if real.version == 2 {
		fake.k.IdleWeight = real.idleWeight()
	}
	if err := fake.k.SetSize(real.cpus, real.nodes); err != nil {
		t.Fatal(err)
	}
	if err := fake.k.Make(real.ctr); err != nil {
		t.Fatal(err)
	}
	t.Logf("kernel %s, cgroup v%d, device %s, %d CPUs, without %q", release(t), real.version, real.device, real.cpus, real.without())

	files := allFiles(real.version)
	state := func(m machine) map[string]string {
		texts := map[string]string{}
		for _, p := range []cgroup.Path{real.pod, real.ctr} {
			for _, file := range files {
				text, err := m.read(p, file)
				texts[string(p)+"/"+file] = fmt.Sprintf("%q %v", text, errno(err))
			}
		}
		return texts
	}
	if diff := cmp.Diff(state(real), state(fake)); diff != "" {
		t.Fatalf("new cgroups differ, -kernel +fake:\n%s", diff)
	}
	for i, s := range steps {
		p := real.ctr
		if s.pod {
			p = real.pod
		}
		data := strings.ReplaceAll(s.data, "DEV", real.device)
		got, want := fake.write(p, s.file, data), real.write(p, s.file, data)
		if errno(got) != errno(want) {
			t.Errorf("step %d, write %q to %s of %s: fake %v, kernel %v", i, data, s.file, p, got, want)
		}
		if diff := cmp.Diff(state(real), state(fake)); diff != "" {
			t.Errorf("step %d, write %q to %s of %s, -kernel +fake:\n%s", i, data, s.file, p, diff)
		}
	}

	realFS, err := cgroup.Open(cgroup.Config{Root: "/", StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	fakeFS, err := cgroup.Open(fake.k.Config(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	before := state(real)
	for i, call := range fsCalls(real) {
		want, got := call(realFS), call(fakeFS)
		t.Logf("call %d: %s", i, want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("call %d, -kernel +fake:\n%s", i, diff)
		}
		if diff := cmp.Diff(state(real), state(fake)); diff != "" {
			t.Fatalf("call %d, -kernel +fake:\n%s", i, diff)
		}
	}
	if diff := cmp.Diff(before, state(real)); diff != "" {
		t.Errorf("kernel's files after UndoAll, -before +after:\n%s", diff)
	}

	// A cgroup that is made anew under the name is another one.
	if _, err := realFS.Write(real.ctr, policy.CPUMax, "30000 100000"); err != nil {
		t.Fatal(err)
	}
	real.remove(real.ctr)
	if _, err := realFS.Read(real.ctr, policy.CPUMax); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("Read of a removed cgroup: %v, want ErrGone", err)
	}
	real.make(real.ctr)
	if err := realFS.Undo(real.ctr); err != nil {
		t.Error(err)
	}
	if entries, err := realFS.Journal(); err != nil || len(entries) != 0 {
		t.Errorf("journal after Undo: %v, %v", entries, err)
	}
}

// fsCalls are calls whose results are text, so that they compare.
func fsCalls(g *realGroup) []func(*cgroup.FS) string {
	write := func(p cgroup.Path, k policy.Knob, value string) func(*cgroup.FS) string {
		return func(f *cgroup.FS) string {
			ch, err := f.Write(p, k, value)
			if err == nil {
				if got, rerr := f.Read(p, k); rerr != nil || got != ch.New {
					return fmt.Sprintf("%s: New is %q, but Read gives %q, %v", k, ch.New, got, rerr)
				}
			}
			return fmt.Sprintf("%s %q: %q -> %q wrote=%v %v", k, value, ch.Old, ch.New, ch.Wrote, outcome(err))
		}
	}
	all := func(values map[policy.Knob]string) func(*cgroup.FS) string {
		return func(f *cgroup.FS) string {
			var settings []policy.Setting
			for _, k := range policy.Knobs() {
				if value, ok := values[k]; ok {
					settings = append(settings, policy.Setting{Knob: k, Level: policy.LevelContainer, Value: value})
				}
			}
			changes, err := f.WriteAll(g.ctr, settings)
			var b strings.Builder
			for _, ch := range changes {
				fmt.Fprintf(&b, "%s %q -> %q wrote=%v %v\n", ch.Knob, ch.Old, ch.New, ch.Wrote, outcome(ch.Err))
			}
			return b.String() + outcome(err)
		}
	}
	undo := func(f *cgroup.FS) string {
		r, err := f.UndoAll(context.Background())
		return fmt.Sprintf("restored %d, gone %d, failed %d: %v", len(r.Restored), len(r.Gone), len(r.Failed), outcome(err))
	}
	io := g.device + " rbps=1048576 riops=100"
	return []func(*cgroup.FS) string{
		write(g.ctr, policy.CPUWeight, "512"), write(g.ctr, policy.CPUWeight, "512"), write(g.pod, policy.CPUWeight, "512"), write(g.pod, policy.CPUIdle, "1"),
		write(g.ctr, policy.CPUIdle, "1"), write(g.ctr, policy.CPUWeight, policy.Unset), write(g.ctr, policy.CPUWeight, "300"), write(g.ctr, policy.CPUIdle, "0"),
		write(g.ctr, policy.CPUWeight, policy.Unset), write(g.ctr, policy.CPUIdle, "1"), undo,
		write(g.ctr, policy.CPUMax, "20000 100000"), write(g.ctr, policy.CPUMaxBurst, "20000"), write(g.ctr, policy.CPUMaxBurst, "20001"),
		write(g.ctr, policy.CPUMax, "10000 100000"), write(g.ctr, policy.CPUMax, "5000 10000"), write(g.ctr, policy.CPUMax, "max 50000"),
		write(g.ctr, policy.CPUMaxBurst, "800000"), write(g.ctr, policy.CPUMax, "60000 70000"), write(g.pod, policy.CPUMax, "90000 100000"),
		write(g.ctr, policy.CPUMax, "2000 3000"), write(g.ctr, policy.CPUMax, "400000 900000"), undo,
		write(g.ctr, policy.MemoryMax, "100000000"), write(g.ctr, policy.MemoryMax, "50000000"), write(g.ctr, policy.MemoryMax, "200000000"), write(g.ctr, policy.MemoryMax, "max"),
		write(g.ctr, policy.MemoryHigh, "90000000"), write(g.ctr, policy.MemoryLow, "1"), write(g.pod, policy.MemoryLow, "8192"), undo,
		write(g.ctr, policy.CPUSetCPUs, "0"), write(g.pod, policy.CPUSetCPUs, "0"), write(g.ctr, policy.CPUSetCPUs, ""), write(g.ctr, policy.CPUSetCPUs, "60000"),
		write(g.ctr, policy.CPUSetMems, ""), write(g.ctr, policy.CPUSetMems, "0"), write(g.ctr, policy.CPUSetMems, "900"), undo,
		write(g.ctr, policy.IOWeight, "10"), write(g.pod, policy.IOWeight, "500"), write(g.ctr, policy.IOWeight, "1001"),
		write(g.ctr, policy.IOMax, io), write(g.ctr, policy.IOMax, io+" wiops=5000000000"), write(g.ctr, policy.IOMax, g.device+" wbps=4096"), write(g.ctr, policy.IOMax, "4000:1 rbps=10"), write(g.ctr, policy.IOMax, ""),
		write(g.ctr, policy.IOMax, io), undo, undo,
		all(map[policy.Knob]string{
			policy.CPUSetCPUs: "0", policy.CPUWeight: policy.Unset, policy.CPUIdle: "1", policy.CPUMax: "50000 100000", policy.CPUMaxBurst: "10000",
			policy.MemoryMax: "200000000", policy.MemoryHigh: "180000000", policy.IOWeight: "10", policy.IOMax: io,
		}),
		all(map[policy.Knob]string{policy.CPUMax: "10000 100000", policy.CPUMaxBurst: "5000", policy.CPUIdle: "0", policy.CPUWeight: "2048", policy.MemoryLow: "x"}),
		undo,
	}
}

// outcome is an error without its text: what callers may branch on.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	var b []string
	for name, target := range map[string]error{"gone": cgroup.ErrGone, "refused": cgroup.ErrRefused, "value": cgroup.ErrValue, "mismatch": cgroup.ErrMismatch} {
		if errors.Is(err, target) {
			b = append(b, name)
		}
	}
	if u, ok := errors.AsType[cgroup.ErrUnsupported](err); ok {
		b = append(b, u.Error())
	}
	if n := errno(err); n != 0 && len(b) == 0 {
		b = append(b, n.Error())
	}
	slices.Sort(b)
	return strings.Join(b, ", ")
}

func errno(err error) unix.Errno {
	n, _ := errors.AsType[unix.Errno](err)
	return n
}

func release(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func allFiles(version int) []string {
	files := []string{"cpuset.cpus", "cpuset.mems", "cpu.weight", "cpu.max", "cpu.max.burst", "cpu.idle", "memory.low", "memory.high", "memory.max", "io.bfq.weight", "io.weight", "io.max"}
	if version == 1 {
		files = []string{"cpuset.cpus", "cpuset.mems", "cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.idle",
			"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "blkio.bfq.weight", "blkio.throttle.read_bps_device",
			"blkio.throttle.write_bps_device", "blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device"}
	}
	return files
}

// realGroup is a pod and a container in a group of this test's own.
type realGroup struct {
	t        *testing.T
	version  int
	mounts   map[string]string // controller -> mount point
	pod, ctr cgroup.Path
	device   string
	cpus     int
	nodes    int
}

func newRealGroup(t *testing.T) *realGroup {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs-root: cgroups of the machine can't be made")
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	g := &realGroup{t: t, mounts: map[string]string{}}
	unified := ""
	for _, m := range cgroup.ParseMountinfo(string(text)) {
		for _, c := range []string{"cpu", "cpuset", "memory", "blkio"} {
			if m.Type == "cgroup" && m.Root == "/" && slices.Contains(m.Options, c) {
				g.mounts[c], g.version = m.Point, 1
			}
		}
		if m.Type == "cgroup2" && m.Root == "/" {
			unified = m.Point
		}
	}
	ending := ""
	if g.version == 0 && unified != "" {
		enabled, err := os.ReadFile(filepath.Join(unified, "cgroup.subtree_control"))
		if err != nil {
			t.Fatal(err)
		}
		g.version = 2
		for _, c := range []string{"cpu", "cpuset", "memory", "io"} {
			if slices.Contains(strings.Fields(string(enabled)), c) {
				g.mounts[c] = unified
			}
		}
		ending = ".effective"
	}
	if len(g.mounts) < 4 {
		t.Skipf("needs-controllers: cpu, cpuset, memory and block I/O, found only %v", g.mounts)
	}
	count := func(file string) int {
		list, err := os.ReadFile(filepath.Join(g.mounts["cpuset"], file+ending))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(expandList(string(list)), ",") + 1
	}
	g.cpus, g.nodes = count("cpuset.cpus"), count("cpuset.mems")
	g.device = someDevice(t)

	top := cgroup.Path(fmt.Sprintf("/tideline-cgroup-test-%d", os.Getpid()))
	g.pod, g.ctr = top+"/podx", top+"/podx/ctr"
	for _, p := range []cgroup.Path{top, g.pod, g.ctr} {
		t.Cleanup(func() { g.remove(p) })
		g.make(p)
	}
	return g
}

func (g *realGroup) dirs(p cgroup.Path) []string {
	var dirs []string
	for _, point := range g.mounts {
		dirs = append(dirs, filepath.Join(point, string(p)))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

func (g *realGroup) make(p cgroup.Path) {
	g.t.Helper()
	for _, dir := range g.dirs(p) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			g.t.Fatal(err)
		}
		if g.version == 2 && p != g.ctr {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu +cpuset +memory +io"), 0); err != nil {
				g.t.Fatal(err)
			}
		}
	}
	if g.version != 1 {
		return
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		dir := filepath.Join(g.mounts["cpuset"], string(p))
		text, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if err != nil {
			g.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0); err != nil {
			g.t.Fatal(err)
		}
	}
}

func (g *realGroup) remove(p cgroup.Path) {
	for _, dir := range g.dirs(p) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			g.t.Errorf("rmdir %s: %v", dir, err)
		}
	}
}

func (g *realGroup) file(p cgroup.Path, file string) string {
	controller, _, _ := strings.Cut(file, ".")
	point, ok := g.mounts[controller]
	if !ok && controller == "io" {
		point = g.mounts["blkio"]
	}
	return filepath.Join(point, string(p), file)
}

func (g *realGroup) write(p cgroup.Path, file, data string) error {
	fd, err := unix.Open(g.file(p, file), unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(data))
	return err
}

func (g *realGroup) read(p cgroup.Path, file string) (string, error) {
	text, err := os.ReadFile(g.file(p, file))
	return strings.TrimSuffix(string(text), "\n"), err
}

// idleWeight is what this kernel shows as the weight of an idle group.
func (g *realGroup) idleWeight() string {
	g.t.Helper()
	if err := g.write(g.ctr, "cpu.idle", "1"); err != nil {
		return "0"
	}
	weight, err := g.read(g.ctr, "cpu.weight")
	if err := errors.Join(err, g.write(g.ctr, "cpu.idle", "0")); err != nil {
		g.t.Fatal(err)
	}
	return weight
}

// without lists the files that this kernel does not have.
func (g *realGroup) without() []string {
	var missing []string
	for _, file := range allFiles(g.version) {
		if _, err := os.Stat(g.file(g.ctr, file)); err != nil {
			missing = append(missing, file)
		}
	}
	return missing
}

func expandList(list string) string {
	var all []string
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		var a, b int
		if n, _ := fmt.Sscanf(part, "%d-%d", &a, &b); n < 2 {
			b = a
		}
		for ; a <= b; a++ {
			all = append(all, fmt.Sprint(a))
		}
	}
	return strings.Join(all, ",")
}

// someDevice returns the number of a disk, or one of no device at all: the refusals then compare.
func someDevice(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/sys/block/*/dev")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		number, err := os.ReadFile(file)
		size, serr := os.ReadFile(filepath.Join(filepath.Dir(file), "size"))
		if err == nil && serr == nil && strings.TrimSpace(string(size)) != "0" {
			return strings.TrimSpace(string(number))
		}
	}
	t.Skip("needs-disk: there is no block device with a size")
	return ""
}

// fake is the fake as a machine.
type fake struct{ k *cgrouptest.Kernel }

func newFake(t *testing.T, layout cgrouptest.Layout, without ...string) fake {
	t.Helper()
	k, err := cgrouptest.New(t.TempDir(), layout, without...)
	if err != nil {
		t.Fatal(err)
	}
	return fake{k}
}

func (f fake) write(p cgroup.Path, file, data string) error {
	err := f.k.Set(p, file, data)
	if errno(err) == 0 && err != nil {
		return unix.ENOENT
	}
	return err
}

func (f fake) read(p cgroup.Path, file string) (string, error) {
	text, err := f.k.Get(p, file)
	if errno(err) == 0 && err != nil {
		return "", unix.ENOENT
	}
	return text, err
}
