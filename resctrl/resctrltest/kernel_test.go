package resctrltest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tideline-io/tideline/resctrl"
)

func read(t *testing.T, k *Kernel, name string) string {
	t.Helper()
	text, err := k.ReadFile(name)
	if err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	return text
}

// check writes and compares the errno and the status.
func check(t *testing.T, k *Kernel, name, data string, want syscall.Errno, status string) {
	t.Helper()
	k.SetStatus("")
	err := k.WriteFile(name, data)
	var got syscall.Errno
	errors.As(err, &got)
	if got != want || err != nil && got == 0 {
		t.Errorf("write %q to %s: %v, want %v", data, name, err, want)
	}
	if s := strings.TrimSuffix(read(t, k, "info/last_cmd_status"), "\n"); s != status {
		t.Errorf("write %q to %s: status %q, want %q", data, name, s, status)
	}
}

func TestMountOptions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		layout  Layout
		options resctrl.MountOptions
		want    error
	}{
		{Intel(), resctrl.MountOptions{CDP: true, MBps: true, Debug: true}, nil},
		{Intel(), resctrl.MountOptions{CDPL2: true}, syscall.EINVAL},
		{IntelL2(), resctrl.MountOptions{CDP: true, CDPL2: true}, nil},
		{IntelL2(), resctrl.MountOptions{MBps: true}, syscall.EINVAL}, // it needs monitoring
		{AMD(), resctrl.MountOptions{MBps: true}, syscall.EINVAL},     // and a linear MB
		{IntelL3(), resctrl.MountOptions{Debug: true}, syscall.EINVAL},
	} {
		k := New(tt.layout)
		if err := k.Mount(tt.options); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s, mounted twice: %v", tt.layout.Name, err)
		}
		if err := k.Mkdir("g1"); err != nil {
			t.Fatal(err)
		}
		p := k.Start(1)
		if err := k.WriteFile("g1/tasks", "1\n"); err != nil {
			t.Fatal(err)
		}
		if err := k.Unmount(); err != nil {
			t.Fatal(err)
		}
		if err := k.Unmount(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s, unmounted twice: %v", tt.layout.Name, err)
		}
		err := k.Mount(tt.options)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s with %q: %v, want %v", tt.layout.Name, tt.options, err, tt.want)
		}
		if err != nil {
			continue
		}
		if tasks := read(t, k, "tasks"); tasks != "1\n2\n3\n4\n" || p.ID() != 4 {
			t.Errorf("after a mount the root group has %q", tasks)
		}
		if _, err := k.ReadFile("g1/tasks"); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("a group outlived the mount: %v", err)
		}
	}
}

func TestDebugFiles(t *testing.T) {
	t.Parallel()
	l := Intel()
	l.Options.Debug = true
	k := New(l)
	if err := errors.Join(k.Mkdir("g1"), k.Mkdir("mon_groups/m1")); err != nil {
		t.Fatal(err)
	}
	got := read(t, k, "g1/ctrl_hw_id") + read(t, k, "g1/mon_hw_id") + read(t, k, "mon_groups/m1/mon_hw_id") + read(t, k, "ctrl_hw_id")
	if got != "1\n1\n2\n0\n" {
		t.Errorf("ids %q", got)
	}
}

func TestMinBits(t *testing.T) {
	t.Parallel()
	k := New(IntelL3())
	if err := k.Mkdir("g1"); err != nil {
		t.Fatal(err)
	}
	check(t, k, "g1/schemata", "L3:0=1\n", syscall.EINVAL, "Need at least 2 bits in the mask")
	check(t, k, "g1/schemata", "L3:0=3\n", 0, "ok")
	check(t, k, "g1/mode", "exclusive\n", syscall.EINVAL, "Schemata overlaps")
	check(t, k, "schemata", "L3:0=ffffc\n", 0, "ok")
	check(t, k, "g1/mode", "exclusive\n", 0, "ok")
	check(t, k, "mode", "pseudo-locksetup\n", syscall.EINVAL, "Cannot pseudo-lock default group")
}

func TestAssignments(t *testing.T) {
	t.Parallel()
	k := New(AMDSparse()) // 6 counters a domain
	for _, g := range []string{"a", "b", "c"} {
		if err := k.Mkdir(g); err != nil {
			t.Fatal(err)
		}
	}
	const none, all = "mbm_total_bytes:0=_;2=_;8=_;11=_\n", "mbm_total_bytes:0=e;2=e;8=e;11=e\n"
	if got := read(t, k, "c/mbm_L3_assignments"); !strings.HasPrefix(got, none) {
		t.Errorf("the fourth group has %q", got)
	}
	check(t, k, "c/mbm_L3_assignments", "mbm_total_bytes:*=e\n", syscall.ENOSPC, "Out of MBM assignable counters")
	check(t, k, "a/mbm_L3_assignments", "mbm_total_bytes:*=_\n", 0, "ok")
	if got := read(t, k, "info/L3_MON/available_mbm_cntrs"); got != "0=1;2=1;8=1;11=1\n" {
		t.Errorf("free counters %q", got)
	}
	check(t, k, "c/mbm_L3_assignments", "mbm_total_bytes:*=e\n", 0, "ok")
	if got := read(t, k, "c/mbm_L3_assignments"); !strings.HasPrefix(got, all) {
		t.Errorf("after assigning %q", got)
	}
	if got := read(t, k, "a/mon_data/mon_L3_08/mbm_total_bytes"); got != "Unassigned\n" {
		t.Errorf("without a counter %q", got)
	}
	check(t, k, "info/L3_MON/mbm_assign_mode", "default\n", 0, "ok")
	if got := read(t, k, "a/mon_data/mon_L3_08/mbm_total_bytes"); got != "0\n" {
		t.Errorf("in mode default %q", got)
	}
	check(t, k, "info/L3_MON/mbm_assign_mode", "x\n", syscall.EINVAL, "ok")
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	k := New(Intel())
	if err := k.Mkdir("g1"); err != nil {
		t.Fatal(err)
	}
	p := k.Start(2)
	first, second := p.Threads()[0], p.Threads()[1]
	check(t, k, "g1/tasks", "5\n", 0, "ok") // the second thread
	inside, outside := p.Clone(second), p.Clone(first)
	child := p.Fork()
	if got := read(t, k, "g1/tasks"); got != "5\n6\n" {
		t.Errorf("g1 has %q; threads %d and %d were made by the second and the first, and process %d", got, inside, outside, child.ID())
	}
	p.Exit(second)
	if got := p.Threads(); !slices.Equal(got, []int{first, inside, outside}) {
		t.Errorf("threads %v", got)
	}
	if got := p.Clone(second); got != 0 {
		t.Errorf("a thread that has ended made %d", got)
	}
	p.Exit()
	if got := read(t, k, "g1/tasks"); got != "" || len(child.Threads()) != 1 {
		t.Errorf("after the end g1 has %q", got)
	}
	check(t, k, "g1/tasks", "5\n", syscall.ESRCH, "No task 5\nError while processing task 5")
}

func TestHotplug(t *testing.T) {
	t.Parallel()
	k := New(Intel())
	if err := k.Mkdir("g1"); err != nil {
		t.Fatal(err)
	}
	check(t, k, "g1/cpus_list", "2-3\n", 0, "ok")
	check(t, k, "g1/schemata", "L3:0=3;1=3\n", 0, "ok")
	k.SetOnline(2, false)
	k.SetOnline(3, false)
	got := read(t, k, "g1/schemata") + read(t, k, "g1/cpus_list") + read(t, k, "info/L3/bit_usage")
	if got != "    MB:0=100\n    L3:0=003\n\n0=XXSSSSSSSSS\n" {
		t.Errorf("offline: %q", got)
	}
	check(t, k, "g1/cpus_list", "2\n", syscall.EINVAL, "Can only assign online CPUs")
	check(t, k, "g1/schemata", "L3:1=3\n", syscall.EINVAL, "ok")
	k.SetOnline(2, true)
	got = read(t, k, "g1/schemata") + read(t, k, "g1/cpus_list") + read(t, k, "cpus_list")
	if got != "    MB:0=100;1=100\n    L3:0=003;1=7ff\n\n0-2\n" {
		t.Errorf("online again: %q", got)
	}
}

// A write of more than a page is refused, and nothing of it is done.
func TestLongWrite(t *testing.T) {
	t.Parallel()
	k := New(Intel())
	p := k.Start(1200)
	var b strings.Builder
	for _, id := range p.Threads() {
		fmt.Fprintf(&b, "%d,", id)
	}
	if err := k.Mkdir("g1"); err != nil {
		t.Fatal(err)
	}
	if err := k.WriteFile("g1/tasks", b.String()); !errors.Is(err, syscall.E2BIG) {
		t.Errorf("%d bytes: %v, want %v", b.Len(), err, syscall.E2BIG)
	}
	if got := read(t, k, "g1/tasks"); got != "" {
		t.Errorf("tasks moved: %q", got)
	}
}

func TestLargeCPUMask(t *testing.T) {
	t.Parallel()
	l := AMDSparse()
	l.CPUs = 40
	k := New(l)
	if got := read(t, k, "cpus"); got != "ff,ffffffff\n" {
		t.Errorf("cpus %q", got)
	}
}

// A table that a kernel answers otherwise is reported, row by row.
func TestRunTableReports(t *testing.T) {
	t.Parallel()
	l := AMD()
	k := New(l)
	k.Before(func(op, name string) error {
		if op == "read" && name == "info/MB/delay_linear" {
			return syscall.EIO
		}
		return nil
	})
	results, err := RunTable(k, l, []int{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	var bad []string
	for _, r := range results {
		if !r.OK() {
			bad = append(bad, r.String())
		}
	}
	if len(bad) != 1 || !strings.Contains(bad[0], "FAIL tree") || !strings.Contains(bad[0], "answers EIO, want ok") {
		t.Errorf("%q", bad)
	}
	if _, err := RunTable(k, NoMonitor(), []int{1, 2}); err == nil {
		t.Error("a layout without a table ran")
	}
	if _, err := RunTable(k, l, []int{1}); err == nil {
		t.Error("one task was enough")
	}
	if err := k.Mkdir("g1"); err != nil {
		t.Fatal(err)
	}
	if _, err := RunTable(k, l, []int{1, 2}); err == nil {
		t.Error("a group was there and the table ran")
	}
}
