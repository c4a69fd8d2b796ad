package resctrl_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/resctrl"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

func open(l resctrltest.Layout) (*resctrltest.Kernel, *resctrl.FS) {
	k := resctrltest.New(l)
	k.SetLimbo(0)
	return k, resctrl.Open(k)
}

func create(t *testing.T, f *resctrl.FS, name string) *resctrl.Group {
	t.Helper()
	g, err := f.Create(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func parse(t *testing.T, text string) resctrl.Schemata {
	t.Helper()
	s, err := resctrl.ParseSchemata(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func set(t *testing.T, g *resctrl.Group, text string) []resctrl.Difference {
	t.Helper()
	diffs, err := g.SetSchemata(parse(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return diffs
}

func TestInfo(t *testing.T) {
	t.Parallel()
	_, f := open(resctrltest.Intel())
	got, err := f.Info()
	if err != nil {
		t.Fatal(err)
	}
	want := resctrl.Info{
		Resources: []resctrl.ResourceInfo{
			{Name: "L3", NumCLOSIDs: 16, Domains: []int{0, 1}, Cache: &resctrl.CacheInfo{
				Mask: 0x7ff, MinBits: 1, Shareable: 0x600,
				Usage: []resctrl.BitUsage{{ID: 0, Letters: "XXSSSSSSSSS"}, {ID: 1, Letters: "XXSSSSSSSSS"}},
			}},
			{Name: "MB", NumCLOSIDs: 8, Domains: []int{0, 1}, Bandwidth: &resctrl.BandwidthInfo{
				Unit: resctrl.Percent, Min: 10, Max: 100, Gran: 10, Linear: true, ThrottleMode: "max",
			}},
		},
		Monitors: []resctrl.MonitorInfo{{
			Name: "L3_MON", Features: []string{"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"}, NumRMIDs: 16, Threshold: 1 << 20,
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.NumCLOSIDs() != 8 || got.NumRMIDs() != 16 || got.CDP("L3") {
		t.Errorf("%d CLOSIDs, %d RMIDs, CDP %t", got.NumCLOSIDs(), got.NumRMIDs(), got.CDP("L3"))
	}
	if m := got.Resources[0].Cache.Usage[0].Mask(resctrl.BitBoth); m != 0x600 {
		t.Errorf("bits that hardware and groups use: %s", m)
	}
}

func TestInfoOfLayouts(t *testing.T) {
	t.Parallel()
	var got []string
	for _, l := range resctrltest.Layouts() {
		_, f := open(l)
		info, err := f.Info()
		if err != nil {
			t.Fatalf("%s: %v", l.Name, err)
		}
		line := l.Name + ":"
		for _, r := range info.Resources {
			line += fmt.Sprintf(" %s%v", r.Name, r.Domains)
			if r.Cache != nil {
				line += fmt.Sprintf(" %s min %d sparse %t", r.Cache.Mask, r.Cache.MinBits, r.Cache.Sparse)
			}
			if r.Bandwidth != nil {
				line += fmt.Sprintf(" %d..%d %s", r.Bandwidth.Min, r.Bandwidth.Max, r.Bandwidth.Unit)
			}
			line += ","
		}
		for _, m := range info.Monitors {
			line += fmt.Sprintf(" %d events %s %v of %v", len(m.Features), m.AssignMode, m.Available, m.Counters)
		}
		got = append(got, fmt.Sprintf("%s %d CLOSIDs", line, info.NumCLOSIDs()))
	}
	want := []string{
		"intel: L3[0 1] 7ff min 1 sparse false, MB[0 1] 10..100 percent, 3 events  [] of [] 8 CLOSIDs",
		"intel-l3: L3[0] fffff min 2 sparse false, 4 CLOSIDs",
		"intel-cdp: L3CODE[0 1] 7ff min 1 sparse false, L3DATA[0 1] 7ff min 1 sparse false, MB[0 1] 10..100 percent, 3 events  [] of [] 8 CLOSIDs",
		"intel-mbps: L3[0 1] 7ff min 1 sparse false, MB[0 1] 0..4294967295 MBps, 3 events  [] of [] 8 CLOSIDs",
		"intel-l2: L2[0 1 2 3] ff min 1 sparse true, L3[0 1] fffff min 1 sparse true, MB[0 1] 10..100 percent, 4 CLOSIDs",
		"l2-only: L2[0 1 2 3] ff min 1 sparse false, 4 CLOSIDs",
		"amd: L3[0 1 2 3] ffff min 0 sparse true, MB[0 1 2 3] 0..2048 1/8GBps, SMBA[0 1 2 3] 0..2048 1/8GBps, 3 events  [] of [] 16 CLOSIDs",
		"amd-sparse: L3[0 2 8 11] ffff min 0 sparse true, MB[0 2 8 11] 0..2048 1/8GBps, SMBA[0 2 8 11] 0..2048 1/8GBps, 3 events mbm_event [{0 4} {2 4} {8 4} {11 4}] of [{0 6} {2 6} {8 6} {11 6}] 16 CLOSIDs",
		"no-monitor: L3[0 1] 7ff min 1 sparse false, MB[0 1] 10..100 percent, 8 CLOSIDs",
		"monitor-only: 3 events  [] of [] 0 CLOSIDs",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSetSchemata(t *testing.T) {
	t.Parallel()
	_, f := open(resctrltest.Intel())
	g := create(t, f, "tideline-be")
	diffs := set(t, g, "L3:0=f\nMB:0=51;1=100\n")
	if diff := cmp.Diff([]resctrl.Difference{{Resource: "MB", Domain: 0, Want: 51, Got: 60}}, diffs); diff != "" {
		t.Errorf("rounded (-want +got):\n%s", diff)
	}
	got, err := g.Schemata()
	if err != nil || got.String() != "MB:0=60;1=100\nL3:0=f;1=7ff\n" {
		t.Errorf("schemata %q, %v", got, err)
	}
	sizes, err := g.Sizes()
	if v, _ := sizes.Value("L3", 0); err != nil || v != 6100804 {
		t.Errorf("size %d, %v", v, err)
	}
}

func TestSetSchemataRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, status string }{
		{"mask of 0", "L3:0=0\n", "Mask out of range"},
		{"beyond cbm_mask", "L3:0=fff\n", "Mask out of range"},
		{"with a hole", "L3:0=5\n", "The mask 5 has non-consecutive 1-bits"},
		{"MB too small", "L3:0=f\nMB:0=9\n", "MB value 9 out of range [10,100]"},
		{"no such resource", "L2:0=1\n", "Unknown or unsupported resource name 'L2'"},
		{"no such domain", "L3:7=1\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, f := open(resctrltest.Intel())
			g := create(t, f, "g1")
			before, _ := g.Schemata()
			_, err := g.SetSchemata(parse(t, tt.text))
			var e *resctrl.Error
			if !errors.Is(err, syscall.EINVAL) || !errors.As(err, &e) || e.Status != tt.status || e.Path != "g1/schemata" {
				t.Errorf("%v, want EINVAL and %q", err, tt.status)
			}
			if after, _ := g.Schemata(); after.String() != before.String() {
				t.Errorf("%q became %q", before, after)
			}
		})
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	_, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	_, err := g.SetSchemata(parse(t, "L3:0=5\n"))
	const want = `write "L3:0=5" to g1/schemata: invalid argument (The mask 5 has non-consecutive 1-bits)`
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	_, err = f.Create(t.Context(), "g1")
	if want := "mkdir g1: file exists"; err == nil || err.Error() != want || !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v, want %s", err, want)
	}
}

// A schemata of more than a page takes several writes, and a failure says what was written.
func TestSetSchemataInParts(t *testing.T) {
	t.Parallel()
	l := resctrltest.Intel()
	l.CPUs = 600
	var domains []resctrltest.Domain
	for i := range l.CPUs {
		domains = append(domains, resctrltest.Domain{ID: i, CPUs: []int{i}})
	}
	l.Caches[0].Domains, l.Bandwidths[0].Domains, l.Monitor = domains, domains, nil
	_, f := open(l)
	g := create(t, f, "g1")
	var s resctrl.Schemata
	for i := range l.CPUs {
		s.Set("L3", i, 0xf)
		s.Set("MB", i, 50)
	}
	if diffs, err := g.SetSchemata(s); err != nil || diffs != nil {
		t.Fatalf("%v, %v", diffs, err)
	}
	for i := range l.CPUs {
		s.Set("L3", i, 0xff)
	}
	s.Set("MB", 599, 5)
	_, err := g.SetSchemata(s)
	var e *resctrl.Error
	if !errors.As(err, &e) || !strings.HasPrefix(e.Applied, "L3:0=ff") || e.Status != "MB value 5 out of range [10,100]" {
		t.Errorf("%v", err)
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	_, f := open(resctrltest.Intel())
	for i := range 7 {
		create(t, f, fmt.Sprintf("g%d", i))
	}
	_, err := f.Create(t.Context(), "g7")
	if !errors.Is(err, resctrl.ErrNoCLOSID) || !errors.Is(err, syscall.ENOSPC) || errors.Is(err, resctrl.ErrNoRMID) {
		t.Errorf("8th group: %v", err)
	}
	groups, err := f.Groups()
	if err != nil || len(groups) != 7 || groups[0].Name() != "g0" {
		t.Errorf("groups %v, %v", groups, err)
	}
	for _, bad := range []string{"", ".", "..", "a/b", "info", "mon_data", "mon_groups", "a\nb", "a\x00b", strings.Repeat("x", 256)} {
		if _, err := f.Create(t.Context(), bad); !errors.Is(err, resctrl.ErrRefused) {
			t.Errorf("create %q: %v", bad, err)
		}
	}
}

func TestRMIDs(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	var last *resctrl.Group
	for i := range 15 {
		g, err := f.Root().CreateMonGroup(t.Context(), fmt.Sprintf("m%d", i))
		if err != nil {
			t.Fatal(err)
		}
		last = g
	}
	if _, err := f.Create(t.Context(), "g1"); !errors.Is(err, resctrl.ErrNoRMID) {
		t.Errorf("17th group: %v", err)
	}
	k.SetLimbo(time.Hour)
	if err := last.Remove(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := f.Create(ctx, "g1"); !errors.Is(err, resctrl.ErrRMIDBusy) || !errors.Is(err, syscall.EBUSY) {
		t.Errorf("while the RMID is in limbo: %v", err)
	}
}

func TestCreateWaitsForLimbo(t *testing.T) {
	t.Parallel()
	l := resctrltest.Intel()
	l.Monitor.RMIDs = 2
	k, f := open(l)
	k.SetLimbo(150 * time.Millisecond)
	if err := create(t, f, "g1").Remove(); err != nil {
		t.Fatal(err)
	}
	create(t, f, "g2")
}

func TestGone(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	if err := k.Rmdir("g1"); err != nil {
		t.Fatal(err)
	}
	_, schemata := g.Schemata()
	_, set := g.SetSchemata(parse(t, "L3:0=1\n"))
	_, tasks := g.Tasks()
	_, cpus := g.CPUs()
	_, mon := g.MonGroups()
	_, counters := g.Counters()
	_, find := f.Group("g1")
	_, mode := g.Mode()
	_, monGroup := g.CreateMonGroup(t.Context(), "m")
	for what, err := range map[string]error{
		"schemata": schemata, "set": set, "tasks": tasks, "cpus": cpus, "mon groups": mon, "counters": counters, "find": find,
		"mode": mode, "set mode": g.SetMode(resctrl.Shareable), "add": g.AddTasks([]int{1, 2}), "set CPUs": g.SetCPUs([]int{1}),
		"remove": g.Remove(), "mon group": monGroup,
	} {
		if !errors.Is(err, resctrl.ErrGone) || !errors.Is(err, fs.ErrNotExist) || errors.Is(err, resctrl.ErrNotMounted) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !errors.Is(&resctrl.Error{Op: "write", Err: syscall.ENODEV}, resctrl.ErrGone) {
		t.Error("ENODEV of an open file is not ErrGone")
	}
}

func TestNotMounted(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	if err := k.Unmount(); err != nil {
		t.Fatal(err)
	}
	_, info := f.Info()
	_, groups := f.Groups()
	_, create := f.Create(t.Context(), "g1")
	_, schemata := f.Root().Schemata()
	_, states := f.States()
	for what, err := range map[string]error{"info": info, "groups": groups, "create": create, "schemata": schemata, "states": states} {
		if !errors.Is(err, resctrl.ErrNotMounted) || errors.Is(err, resctrl.ErrGone) {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil && !strings.Contains(err.Error(), "mount -t resctrl resctrl /sys/fs/resctrl") {
			t.Errorf("%s does not say how to mount: %v", what, err)
		}
	}
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	k.SetReadOnly(true)
	_, create := f.Create(t.Context(), "g2")
	_, set := g.SetSchemata(parse(t, "L3:0=1\n"))
	for what, err := range map[string]error{"create": create, "set": set, "add": g.AddTasks([]int{1}), "remove": g.Remove(), "CPUs": g.SetCPUs(nil)} {
		if !errors.Is(err, resctrl.ErrReadOnly) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := f.Info(); err != nil {
		t.Errorf("read: %v", err)
	}
}

// mkdir and cpus_list leave what an earlier failure said in last_cmd_status.
func TestStatusIsOurs(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	k.SetStatus("Out of RMIDs\n")
	_, err := f.Create(t.Context(), "g1")
	var e *resctrl.Error
	if !errors.As(err, &e) || e.Status != "" {
		t.Errorf("EEXIST got the status of somebody else: %v", err)
	}
	err = g.SetCPUs([]int{99})
	if !errors.As(err, &e) || e.Status != "Bad CPU list/mask" || !errors.Is(err, syscall.ERANGE) {
		t.Errorf("%v", err)
	}
}

func TestCPUs(t *testing.T) {
	t.Parallel()
	_, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	if err := g.SetCPUs([]int{3, 1, 2, 2}); err != nil {
		t.Fatal(err)
	}
	own, err1 := g.CPUs()
	rest, err2 := f.Root().CPUs()
	if err := errors.Join(err1, err2); err != nil || !slices.Equal(own, []int{1, 2, 3}) || !slices.Equal(rest, []int{0}) {
		t.Errorf("group %v, root %v, %v", own, rest, err)
	}
	if err := g.SetCPUs(nil); err != nil {
		t.Fatal(err)
	}
	if own, err := g.CPUs(); err != nil || len(own) != 0 {
		t.Errorf("after giving all back: %v, %v", own, err)
	}
	if err := g.SetCPUs([]int{-1}); !errors.Is(err, resctrl.ErrRefused) {
		t.Errorf("CPU -1: %v", err)
	}
}

func TestSetExclusive(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	set(t, g, "L3:0=f;1=f\n")
	if err := g.SetMode(resctrl.Exclusive); !errors.Is(err, resctrl.ErrOverlap) {
		t.Fatalf("with the root group on the same ways: %v", err)
	}
	before, err := g.SetExclusive()
	if err != nil {
		t.Fatal(err)
	}
	if m, err := g.Mode(); err != nil || m != resctrl.Exclusive {
		t.Errorf("mode %s, %v", m, err)
	}
	if root, _ := f.Root().Schemata(); root.String() != "MB:0=100;1=100\nL3:0=7f0;1=7f0\n" {
		t.Errorf("root %q", root)
	}
	if before.String() != "MB:0=100;1=100\nL3:0=7ff;1=7ff\n" {
		t.Errorf("before %q", before)
	}
	usage, _ := k.ReadFile("info/L3/bit_usage")
	if usage != "0=XXSSSSSEEEE;1=XXSSSSSEEEE\n" {
		t.Errorf("bit_usage %q", usage)
	}
}

// Another group on the same ways: the root group gets back what it had.
func TestSetExclusiveRefused(t *testing.T) {
	t.Parallel()
	_, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	create(t, f, "g2")
	set(t, g, "L3:0=f;1=f\n")
	if _, err := g.SetExclusive(); !errors.Is(err, resctrl.ErrOverlap) {
		t.Errorf("%v", err)
	}
	if root, _ := f.Root().Schemata(); root.String() != "MB:0=100;1=100\nL3:0=7ff;1=7ff\n" {
		t.Errorf("root %q", root)
	}
	set(t, g, "L3:0=7ff;1=7ff\n")
	if _, err := g.SetExclusive(); !errors.Is(err, resctrl.ErrRefused) {
		t.Errorf("with nothing left for the root group: %v", err)
	}
	if _, err := f.Root().SetExclusive(); !errors.Is(err, resctrl.ErrRefused) {
		t.Errorf("the root group: %v", err)
	}
}

func TestRename(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	m, err := f.Root().CreateMonGroup(t.Context(), "pod-a")
	if err != nil {
		t.Fatal(err)
	}
	p := k.Start(1)
	if err := m.AddTasks(p.Threads()); err != nil {
		t.Fatal(err)
	}
	moved, err := m.Rename(g, "pod-b")
	if err != nil || moved.Path() != "g1/mon_groups/pod-b" || !moved.Monitoring() {
		t.Fatalf("%v, %v", moved, err)
	}
	if tasks, err := g.Tasks(); err != nil || !slices.Equal(tasks, p.Threads()) {
		t.Errorf("tasks of the new control group: %v, %v", tasks, err)
	}
	if _, err := g.Rename(g, "x"); !errors.Is(err, resctrl.ErrRefused) {
		t.Errorf("a control group: %v", err)
	}
	if _, err := moved.CreateMonGroup(t.Context(), "x"); !errors.Is(err, resctrl.ErrRefused) {
		t.Errorf("a group in a monitoring group: %v", err)
	}
	l := resctrltest.Intel()
	l.Kernel = "6.1"
	_, f = open(l)
	m, err = f.Root().CreateMonGroup(t.Context(), "pod-a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Rename(f.Root(), "pod-b"); !errors.Is(err, syscall.EPERM) {
		t.Errorf("on 6.1: %v", err)
	}
}

func TestRemoveRoot(t *testing.T) {
	t.Parallel()
	_, f := open(resctrltest.Intel())
	if err := f.Root().Remove(); !errors.Is(err, resctrl.ErrRefused) {
		t.Errorf("%v", err)
	}
	if g, err := f.Group(""); err != nil || g.Path() != "." || g.Name() != "" {
		t.Errorf("%v, %v", g, err)
	}
}

func TestHotplug(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	set(t, g, "L3:0=3;1=3\nMB:0=30;1=40\n")
	k.SetOnline(2, false)
	k.SetOnline(3, false)
	_, err := g.SetSchemata(parse(t, "L3:0=f;1=3\n"))
	var e *resctrl.Error
	if !errors.As(err, &e) || !errors.Is(err, syscall.EINVAL) || e.Status != "" {
		t.Errorf("a domain that is offline: %v", err)
	}
	k.SetOnline(2, true)
	if s, err := g.Schemata(); err != nil || s.String() != "MB:0=30;1=100\nL3:0=3;1=7ff\n" {
		t.Errorf("a domain that came back: %q, %v", s, err)
	}
}

func TestNoMonitoring(t *testing.T) {
	t.Parallel()
	_, f := open(resctrltest.NoMonitor())
	g := create(t, f, "g1")
	mon, err1 := g.MonGroups()
	counters, err2 := g.Counters()
	if err := errors.Join(err1, err2); err != nil || mon != nil || counters != nil {
		t.Errorf("%v, %v, %v", mon, counters, err)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	k.Before(func(op, name string) error {
		if op == "read" && name == "g1/schemata" {
			return syscall.EIO
		}
		return nil
	})
	if _, err := g.SetSchemata(parse(t, "L3:0=1\n")); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "read back") {
		t.Errorf("%v", err)
	}
}
