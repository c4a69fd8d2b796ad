package cgroup_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/policy"
)

const (
	class = cgroup.Path("/kubepods/besteffort")
	pod   = cgroup.Path("/kubepods/besteffort/pod7f")
	ctr   = pod + "/" + cgroup.Path(id)
)

var layouts = []cgrouptest.Layout{cgrouptest.V1, cgrouptest.V2}

// setUp returns a fake with one container, an FS on it, and the journal's directory.
func setUp(t testing.TB, layout cgrouptest.Layout, without ...string) (*cgrouptest.Kernel, *cgroup.FS, string) {
	t.Helper()
	k, err := cgrouptest.New(t.TempDir(), layout, without...)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Make(ctr); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "journal")
	return k, reopen(t, k, state), state
}

func reopen(t testing.TB, k *cgrouptest.Kernel, state string) *cgroup.FS {
	t.Helper()
	cfg := k.Config(state)
	cfg.Clock = func() time.Time { return time.Unix(1_000_000, 0) }
	f, err := cgroup.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func mustWrite(t *testing.T, f *cgroup.FS, p cgroup.Path, k policy.Knob, value string) cgroup.Change {
	t.Helper()
	ch, err := f.Write(p, k, value)
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// snapshot is all files of the fake but those that the writer does not know.
func snapshot(t testing.TB, k *cgrouptest.Kernel) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(filepath.Join(k.Root(), "sys"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		files[strings.TrimPrefix(name, k.Root())] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for i, layout := range layouts {
		if _, f, _ := setUp(t, layout); f.Version() != i+1 {
			t.Errorf("Version of %s = %d", layout, f.Version())
		}
	}
}

var values = []struct {
	knob   policy.Knob
	value  string
	v1, v2 string // what Read gives, "-" for unsupported
}{
	{policy.CPUSetCPUs, "3,0,1", "0-1,3", "0-1,3"},
	{policy.CPUSetMems, "0", "0", "0"},
	{policy.CPUWeight, "512", "512", "59"},
	{policy.CPUWeight, "2", "2", "1"},
	{policy.CPUWeight, "262144", "262144", "10000"},
	{policy.CPUWeight, "102", "102", "17"},
	{policy.CPUMax, "50000 100000", "50000 100000", "50000 100000"},
	{policy.CPUMax, "max 20000", "max 20000", "max 20000"},
	{policy.CPUMaxBurst, "7000", "7000", "7000"},
	{policy.CPUIdle, "1", "1", "1"},
	{policy.MemoryLow, "10000000", "-", "9998336"},
	{policy.MemoryHigh, "max", "-", "max"},
	{policy.MemoryHigh, "4096", "-", "4096"},
	{policy.MemoryMax, "10000000", "9998336", "9998336"},
	{policy.MemoryMax, "9223372036854775807", "max", "max"},
	{policy.IOWeight, "10", "10", "10"},
	{policy.IOMax, "254:0 wiops=5 rbps=max\n8:0 rbps=7000", "8:0 rbps=7000\n254:0 wiops=5", "8:0 rbps=7000\n254:0 wiops=5"},
}

func TestWriteReadExpect(t *testing.T) {
	t.Parallel()
	if os.Getpagesize() != 4096 {
		t.Skip("needs-4k-pages: the table is in them")
	}
	for version, layout := range layouts {
		for _, c := range values {
			t.Run(fmt.Sprintf("%s/%s=%s", layout, c.knob, c.value), func(t *testing.T) {
				t.Parallel()
				_, f, _ := setUp(t, layout)
				want := c.v1
				if layout == cgrouptest.V2 {
					want = c.v2
				}
				before, err := f.Read(ctr, c.knob)
				if want == "-" {
					u, ok := errors.AsType[cgroup.ErrUnsupported](err)
					if !ok || u.Need != "cgroup v2" || u.Feature != string(c.knob) || !errors.Is(err, fs.ErrNotExist) || errors.Is(err, cgroup.ErrGone) {
						t.Errorf("Read: %v", err)
					}
					if _, err := f.Write(ctr, c.knob, c.value); !errors.As(err, new(cgroup.ErrUnsupported)) {
						t.Errorf("Write: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				ch := mustWrite(t, f, ctr, c.knob, c.value)
				if want := (cgroup.Change{Knob: c.knob, Old: before, New: want, Wrote: before != want}); ch != want {
					t.Errorf("Write gave %+v, want %+v", ch, want)
				}
				if got, err := f.Read(ctr, c.knob); got != want || err != nil {
					t.Errorf("Read = %q, %v, want %q", got, err, want)
				}
				if got := cgroup.Expect(version+1, c.knob, c.value); got != want {
					t.Errorf("Expect = %q, want %q", got, want)
				}
				if ch := mustWrite(t, f, ctr, c.knob, c.value); ch.Wrote {
					t.Errorf("second Write wrote: %+v", ch)
				}
			})
		}
	}
	if got := cgroup.Expect(1, policy.CPUWeight, policy.Unset) + cgroup.Expect(2, policy.CPUWeight, policy.Unset); got != "30" {
		t.Errorf("Expect of an unset weight gave %q", got)
	}
}

func TestBadValues(t *testing.T) {
	t.Parallel()
	_, f, state := setUp(t, cgrouptest.V2)
	for _, c := range []struct {
		k     policy.Knob
		value string
	}{
		{policy.CPUSetCPUs, "0-"}, {policy.CPUSetCPUs, "x"}, {policy.CPUSetCPUs, "0-4000000000"}, {policy.CPUSetCPUs, "0\n1"},
		{policy.CPUWeight, "1"}, {policy.CPUWeight, "262145"}, {policy.CPUWeight, ""},
		{policy.CPUMax, "max"}, {policy.CPUMax, "999 100000"}, {policy.CPUMax, "5000 999"}, {policy.CPUMax, "5000 1000001"}, {policy.CPUMax, "-1 100000"}, {policy.CPUMax, "5000 100000 1"},
		{policy.CPUMaxBurst, "-1"}, {policy.CPUIdle, "2"}, {policy.MemoryMax, "1G"}, {policy.MemoryLow, ""}, {policy.MemoryHigh, "-1"},
		{policy.IOWeight, "0"}, {policy.IOWeight, "1001"}, {policy.IOWeight, "default 5"},
		{policy.IOMax, "vda rbps=5"}, {policy.IOMax, "254:0 rbps=0"}, {policy.IOMax, "254:0 x=5"}, {policy.IOMax, "254:0 rbps=5\n254:0 wbps=5"}, {policy.IOMax, "254:0 rbps"},
	} {
		ch, err := f.Write(ctr, c.k, c.value)
		if e, ok := errors.AsType[*cgroup.Error](err); !ok || !errors.Is(err, cgroup.ErrValue) || e.Path != ctr || e.Knob != c.k || e.Value != c.value || ch.Wrote {
			t.Errorf("Write %q to %s: %+v, %v, want ErrValue", c.value, c.k, ch, err)
		}
	}
	if _, err := os.Stat(state); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("journal directory: %v", err)
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	_, f, _ := setUp(t, cgrouptest.V2)
	_, err := f.Write(ctr, policy.CPUMaxBurst, "-1")
	want := `write "-1" to cpu.max.burst of ` + string(ctr) + `: bad value: "-1", want a number from 0 to 9223372036854775807`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// What the kubelet and the scheduler read back is theirs, whoever asks.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		k, f, _ := setUp(t, layout)
		nested, foreign := ctr+"/nested", cgroup.Path("/system.slice/sshd.service")
		for _, p := range []cgroup.Path{nested, foreign} {
			if err := k.Make(p); err != nil {
				t.Fatal(err)
			}
		}
		before := snapshot(t, k)
		for _, p := range []cgroup.Path{class, pod, nested, foreign, "/kubepods", "/", "", "/kubepods/../kubepods/pod7f/x", "kubepods/pod7f/x"} {
			for _, knob := range []policy.Knob{policy.CPUWeight, policy.CPUIdle} {
				for _, value := range []string{"1", "2", policy.Unset} {
					if _, err := f.Write(p, knob, value); !errors.Is(err, cgroup.ErrRefused) {
						t.Errorf("Write %s of %q: %v, want ErrRefused", knob, p, err)
					}
					if _, err := f.WriteAll(p, []policy.Setting{{Knob: knob, Level: policy.LevelContainer, Value: value}}); !errors.Is(err, cgroup.ErrRefused) {
						t.Errorf("WriteAll %s of %q: %v, want ErrRefused", knob, p, err)
					}
				}
			}
		}
		for _, p := range []cgroup.Path{nested, foreign} {
			for _, knob := range policy.Knobs() {
				if _, err := f.Write(p, knob, "1"); !errors.Is(err, cgroup.ErrRefused) {
					t.Errorf("Write %s of %q: %v, want ErrRefused", knob, p, err)
				}
			}
		}
		for _, knob := range []policy.Knob{policy.OOMScoreAdj, policy.IOPriority, "cgroup.procs", "../x"} {
			if _, err := f.Write(ctr, knob, "1"); !errors.Is(err, cgroup.ErrRefused) {
				t.Errorf("Write %s: %v, want ErrRefused", knob, err)
			}
			if _, err := f.Read(ctr, knob); !errors.Is(err, cgroup.ErrRefused) {
				t.Errorf("Read %s: %v, want ErrRefused", knob, err)
			}
		}
		changes, err := f.WriteAll(pod, []policy.Setting{{Knob: policy.IOWeight, Level: policy.LevelContainer, Value: "10"}})
		if !errors.Is(err, cgroup.ErrRefused) || changes[0].Err == nil {
			t.Errorf("setting of a container written to a pod: %v", err)
		}
		if diff := cmp.Diff(before, snapshot(t, k)); diff != "" {
			t.Errorf("files changed:\n%s", diff)
		}
	}
}

func TestUnsupportedAndGone(t *testing.T) {
	t.Parallel()
	for layout, file := range map[cgrouptest.Layout]string{cgrouptest.V1: "cpu.cfs_burst_us", cgrouptest.V2: "cpu.max.burst"} {
		k, f, _ := setUp(t, layout, file, "cpu.idle")
		_, err := f.Write(ctr, policy.CPUMaxBurst, "0")
		if u, _ := errors.AsType[cgroup.ErrUnsupported](err); u.Need != "kernel 5.14 (CONFIG_CFS_BANDWIDTH)" || errors.Is(err, cgroup.ErrGone) {
			t.Errorf("Write of a burst: %v", err)
		}
		mustWrite(t, f, ctr, policy.CPUMax, "5000 10000")
		if err := k.Rmdir(pod); err != nil {
			t.Fatal(err)
		}
		for _, knob := range []policy.Knob{policy.CPUMax, policy.CPUMaxBurst, policy.IOMax} {
			_, rerr := f.Read(ctr, knob)
			_, werr := f.Write(ctr, knob, "0")
			if !errors.Is(rerr, cgroup.ErrGone) || !errors.Is(werr, cgroup.ErrGone) || errors.As(rerr, new(cgroup.ErrUnsupported)) {
				t.Errorf("%s of a removed cgroup: %v; %v", knob, rerr, werr)
			}
		}
		if err := f.Undo(ctr); err != nil {
			t.Error(err)
		}
	}
	_, f, _ := setUp(t, cgrouptest.V2, "io.bfq.weight")
	if ch := mustWrite(t, f, ctr, policy.IOWeight, "10"); ch.New != "10" {
		t.Errorf("io.weight alone: %+v", ch)
	}
	_, f, _ = setUp(t, cgrouptest.V2, "io.bfq.weight", "io.weight")
	if _, err := f.Read(ctr, policy.IOWeight); !errors.As(err, new(cgroup.ErrUnsupported)) {
		t.Errorf("no weight: %v", err)
	}
}

// A controller that is not enabled for a cgroup needs its parent, not another kernel.
func TestControllerNotEnabled(t *testing.T) {
	t.Parallel()
	k, f, _ := setUp(t, cgrouptest.V2)
	at := filepath.Join(k.Root(), "sys/fs/cgroup", string(ctr))
	if err := errors.Join(os.Remove(at+"/io.max"), os.WriteFile(at+"/cgroup.controllers", []byte("cpu memory\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	_, err := f.Read(ctr, policy.IOMax)
	if u, _ := errors.AsType[cgroup.ErrUnsupported](err); u.Need != "controller io in the parent's cgroup.subtree_control" {
		t.Errorf("Read: %v", err)
	}
}

func TestRemovedDuringWrite(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		k, f, _ := setUp(t, layout)
		k.Hook = func(cgroup.Path, string, string) error { return k.Rmdir(ctr) }
		if _, err := f.Write(ctr, policy.CPUMax, "5000 10000"); !errors.Is(err, cgroup.ErrGone) || !errors.Is(err, unix.ENODEV) {
			t.Errorf("%s: %v, want ErrGone", layout, err)
		}
	}
}

// The journal holds the old value at the moment the kernel is written, keeps the first one, and survives a restart.
func TestJournalBeforeWrite(t *testing.T) {
	t.Parallel()
	k, f, state := setUp(t, cgrouptest.V2)
	seen := 0
	k.Hook = func(p cgroup.Path, file, data string) error {
		entries, err := f.Journal()
		if err != nil || len(entries) != 1 || entries[0].Old != "max" || entries[0].New != data || entries[0].File != file {
			t.Errorf("journal at write: %+v, %v", entries, err)
		}
		seen++
		return nil
	}
	mustWrite(t, f, ctr, policy.MemoryHigh, "8192")
	mustWrite(t, f, ctr, policy.MemoryHigh, "4096")
	if seen != 2 {
		t.Errorf("%d writes", seen)
	}
	k.Hook = nil
	f = reopen(t, k, state)
	entries, err := f.Journal()
	want := []cgroup.Entry{{Path: ctr, Knob: policy.MemoryHigh, Controller: "memory", File: "memory.high", Old: "max", New: "4096", When: time.Unix(1_000_000, 0).UTC(), ID: entries[0].ID}}
	if diff := cmp.Diff(want, entries); diff != "" || err != nil {
		t.Errorf("journal, -want +got:\n%s%v", diff, err)
	}
	if err := f.Undo(ctr); err != nil {
		t.Error(err)
	}
	if got, _ := k.Get(ctr, "memory.high"); got != "max" {
		t.Errorf("memory.high = %q", got)
	}
	if files, err := os.ReadDir(state); err != nil || len(files) != 0 {
		t.Errorf("journal directory: %v, %v", files, err)
	}
}

// Several settings are journalled before the first of them is written, in one go.
func TestJournalBeforeWrites(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			k, f, state := setUp(t, layout)
			settings := []policy.Setting{{Knob: policy.MemoryLow, Value: "4096"}, {Knob: policy.MemoryHigh, Value: "8192"}, {Knob: policy.CPUIdle, Value: "1"}}
			if layout == cgrouptest.V1 {
				settings = []policy.Setting{{Knob: policy.MemoryMax, Value: "8192"}, {Knob: policy.CPUMax, Value: "50000 100000"}, {Knob: policy.CPUIdle, Value: "1"}}
			}
			var files []os.FileInfo
			k.Hook = func(cgroup.Path, string, string) error {
				entries, err := f.Journal()
				for _, s := range settings {
					if !slices.ContainsFunc(entries, func(e cgroup.Entry) bool { return e.Knob == s.Knob && e.Old != "" }) || err != nil {
						t.Errorf("%s is not in the journal at a write: %+v, %v", s.Knob, entries, err)
					}
				}
				file, err := os.Stat(journalFile(t, state))
				if err != nil {
					t.Error(err)
				}
				files = append(files, file)
				return nil
			}
			before := snapshot(t, k)
			if _, err := f.WriteAll(ctr, settings); err != nil {
				t.Fatal(err)
			}
			if len(files) < len(settings) || !os.SameFile(files[0], files[len(files)-1]) {
				t.Errorf("%d writes, and the journal was written anew between them", len(files))
			}
			k.Hook = nil
			if err := f.Undo(ctr); err != nil {
				t.Error(err)
			}
			if d := cmp.Diff(before, snapshot(t, k)); d != "" {
				t.Errorf("after the undo, -before +after:\n%s", d)
			}
		})
	}
}

func TestJournalThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	k, _, _ := setUp(t, cgrouptest.V2)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := reopen(t, k, file+"/journal")
	if ch, err := f.Write(ctr, policy.MemoryHigh, "8192"); err == nil || ch.Wrote || len(k.Writes()) != 0 {
		t.Errorf("Write without a journal: %+v, %v", ch, err)
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	all := func(values ...string) []policy.Setting {
		var settings []policy.Setting
		for i := 0; i < len(values); i += 2 {
			settings = append(settings, policy.Setting{Knob: policy.Knob(values[i]), Level: policy.LevelContainer, Value: values[i+1]})
		}
		return settings
	}
	for _, c := range []struct {
		name     string
		layout   cgrouptest.Layout
		before   []policy.Setting
		settings []policy.Setting
		want     []string
	}{
		{"idle takes the weight's place", cgrouptest.V2, nil, all("cpu.weight", "unset", "cpu.idle", "1"), []string{"cpu.idle 1"}},
		{"weight after idle", cgrouptest.V2, all("cpu.idle", "1"), all("cpu.weight", "2048", "cpu.idle", "0"), []string{"cpu.idle 0", "cpu.weight 174"}},
		{"burst after a higher quota", cgrouptest.V2, all("cpu.max", "5000 10000"), all("cpu.max.burst", "8000", "cpu.max", "9000 10000"), []string{"cpu.max 9000 10000", "cpu.max.burst 8000"}},
		{"burst before a lower quota", cgrouptest.V2, all("cpu.max", "9000 10000", "cpu.max.burst", "9000"), all("cpu.max", "5000 10000", "cpu.max.burst", "4000"), []string{"cpu.max.burst 4000", "cpu.max 5000 10000"}},
		{"burst 0 before a lower quota", cgrouptest.V2, all("cpu.max", "9000 10000", "cpu.max.burst", "9000"), all("cpu.max", "5000 10000"), []string{"cpu.max.burst 0", "cpu.max 5000 10000"}},
		{"burst 0 on v1", cgrouptest.V1, all("cpu.max", "9000 10000", "cpu.max.burst", "9000"), all("cpu.max", "5000 10000"), []string{"cpu.cfs_burst_us 0", "cpu.cfs_quota_us 5000"}},
		{"smaller pair in between", cgrouptest.V1, all("cpu.max", "50000 100000"), all("cpu.max", "20000 40000"), []string{"cpu.cfs_quota_us 20000", "cpu.cfs_period_us 40000"}},
		{"smaller pair in between, back", cgrouptest.V1, all("cpu.max", "20000 40000"), all("cpu.max", "50000 100000"), []string{"cpu.cfs_period_us 100000", "cpu.cfs_quota_us 50000"}},
		{"memory and swap rise", cgrouptest.V1, nil, all("memory.max", "8192"), []string{"memory.limit_in_bytes 8192"}},
		{"high before max", cgrouptest.V2, nil, all("memory.max", "8192", "memory.high", "4096", "memory.low", "4096"), []string{"memory.high 4096", "memory.max 8192", "memory.low 4096"}},
		{"both weights", cgrouptest.V2, nil, all("io.weight", "10"), []string{"io.bfq.weight 10", "io.weight default 10"}},
		{"one write a device", cgrouptest.V2, all("io.max", "8:0 rbps=5000"), all("io.max", "254:0 rbps=9"), []string{"io.max 8:0 rbps=max wbps=max riops=max wiops=max", "io.max 254:0 rbps=9 wbps=max riops=max wiops=max"}},
		{"one write a limit on v1", cgrouptest.V1, all("io.max", "8:0 rbps=5000 wiops=3"), all("io.max", "8:0 rbps=5000 wiops=4 riops=2"), []string{"blkio.throttle.read_iops_device 8:0 2", "blkio.throttle.write_iops_device 8:0 4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k, f, _ := setUp(t, c.layout)
			if _, err := f.WriteAll(ctr, c.before); err != nil {
				t.Fatal(err)
			}
			skip := len(k.Writes())
			if _, err := f.WriteAll(ctr, c.settings); err != nil {
				t.Error(err)
			}
			var got []string
			for _, w := range k.Writes()[skip:] {
				if w.Err != nil {
					t.Errorf("the kernel refused %q: %v", w.Data, w.Err)
				}
				got = append(got, w.File+" "+w.Data)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("writes, -want +got:\n%s", diff)
			}
			initial, _, _ := setUp(t, c.layout)
			if _, err := f.UndoAll(context.Background()); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(snapshot(t, initial), snapshot(t, k)); diff != "" {
				t.Errorf("after UndoAll:\n%s", diff)
			}
		})
	}
}

// A v1 container between its pod's quota and a nested group's can pass neither way, only by way of no quota.
func TestCPUMaxBetweenParentAndChild(t *testing.T) {
	t.Parallel()
	k, f, _ := setUp(t, cgrouptest.V1)
	nested := ctr + "/nested"
	if err := k.Make(nested); err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		p           cgroup.Path
		file, value string
	}{{pod, "cpu.cfs_quota_us", "55000"}, {ctr, "cpu.cfs_quota_us", "50000"}, {nested, "cpu.cfs_quota_us", "45000"}} {
		if err := k.Set(s.p, s.file, s.value); err != nil {
			t.Fatal(err)
		}
	}
	mustWrite(t, f, ctr, policy.CPUMax, "20000 40000")
	if err := f.Undo(ctr); err != nil {
		t.Error(err)
	}
	// Above the pod's quota nothing helps, and the old pair stands again.
	if _, err := f.Write(ctr, policy.CPUMax, "30000 40000"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Write above the pod's quota: %v", err)
	}
	if got, err := f.Read(ctr, policy.CPUMax); got != "50000 100000" || err != nil {
		t.Errorf("cpu.max = %q, %v", got, err)
	}
}

func TestMemoryAndSwap(t *testing.T) {
	t.Parallel()
	const m = "memory.limit_in_bytes"
	const s = "memory.memsw.limit_in_bytes"
	for _, c := range []struct {
		name, limit, memsw, value, wantLimit, wantMemsw string
	}{
		{"no swap, lower", "81920", "81920", "40960", "40960", "40960"},
		{"no swap, higher", "40960", "40960", "81920", "81920", "81920"},
		{"some swap, lower", "40960", "81920", "20480", "20480", "81920"},
		{"some swap, above it", "40960", "81920", "163840", "163840", "163840"},
		{"no swap, no limit", "40960", "40960", "max", "9223372036854771712", "9223372036854771712"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k, f, _ := setUp(t, cgrouptest.V1)
			if err := errors.Join(k.Set(ctr, m, c.limit), k.Set(ctr, s, c.memsw)); err != nil {
				t.Fatal(err)
			}
			mustWrite(t, f, ctr, policy.MemoryMax, c.value)
			limit, _ := k.Get(ctr, m)
			memsw, _ := k.Get(ctr, s)
			if limit != c.wantLimit || memsw != c.wantMemsw {
				t.Errorf("limit %s, memsw %s, want %s, %s", limit, memsw, c.wantLimit, c.wantMemsw)
			}
			if err := f.Undo(ctr); err != nil {
				t.Error(err)
			}
			limit, _ = k.Get(ctr, m)
			memsw, _ = k.Get(ctr, s)
			if limit != c.limit || memsw != c.memsw {
				t.Errorf("after Undo: limit %s, memsw %s", limit, memsw)
			}
		})
	}
	_, f, _ := setUp(t, cgrouptest.V1, s)
	if ch := mustWrite(t, f, ctr, policy.MemoryMax, "40960"); ch.New != "40960" {
		t.Errorf("without swap accounting: %+v", ch)
	}
}

func TestIdleKeepsWeight(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		k, f, _ := setUp(t, layout)
		weight, was := "cpu.shares", "512"
		if layout == cgrouptest.V2 {
			weight, was = "cpu.weight", "59"
		}
		if err := k.Set(ctr, weight, was); err != nil {
			t.Fatal(err)
		}
		check := func(when string) {
			t.Helper()
			if got, _ := k.Get(ctr, weight); got != was {
				t.Errorf("%s, %s: %s = %s, want %s", layout, when, weight, got, was)
			}
		}
		mustWrite(t, f, ctr, policy.CPUIdle, "1")
		mustWrite(t, f, ctr, policy.CPUIdle, "0")
		check("idle written back")
		mustWrite(t, f, ctr, policy.CPUIdle, "1")
		if err := f.Undo(ctr); err != nil {
			t.Error(err)
		}
		check("idle undone")
		mustWrite(t, f, ctr, policy.CPUWeight, policy.Unset)
		if err := f.Undo(ctr); err != nil {
			t.Error(err)
		}
		check("default weight undone")
	}
}

// Kernels from 6.12 on show weight 1 under idle; a weight of 1 without idle is a weight.
func TestIdleWeightOfNewKernels(t *testing.T) {
	t.Parallel()
	k, f, _ := setUp(t, cgrouptest.V2)
	k.IdleWeight = "1"
	mustWrite(t, f, ctr, policy.CPUIdle, "1")
	if got, err := f.Read(ctr, policy.CPUWeight); got != cgroup.Expect(2, policy.CPUWeight, policy.Unset) || err != nil {
		t.Errorf("weight under idle = %q, %v", got, err)
	}
	mustWrite(t, f, ctr, policy.CPUIdle, "0")
	mustWrite(t, f, ctr, policy.CPUWeight, "2")
	if got, err := f.Read(ctr, policy.CPUWeight); got != "1" || err != nil {
		t.Errorf("least weight = %q, %v", got, err)
	}
}

func TestRemadeCgroup(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		k, f, _ := setUp(t, layout)
		mustWrite(t, f, ctr, policy.CPUMax, "5000 10000")
		remake := func() {
			t.Helper()
			if err := errors.Join(k.Rmdir(ctr), k.Make(ctr)); err != nil {
				t.Fatal(err)
			}
		}
		remake()
		skip := len(k.Writes())
		r, err := f.UndoAll(context.Background())
		if err != nil || len(r.Gone) != 1 || len(r.Restored) != 0 || len(k.Writes()) != skip {
			t.Errorf("%s: %+v, %v, writes %v", layout, r, err, k.Writes()[skip:])
		}
		// A write to the new one replaces what the journal had of the old one.
		mustWrite(t, f, ctr, policy.CPUMax, "5000 10000")
		remake()
		if err := k.Set(ctr, "cpu."+map[cgrouptest.Layout]string{cgrouptest.V1: "cfs_quota_us", cgrouptest.V2: "max"}[layout], "70000"); err != nil {
			t.Fatal(err)
		}
		mustWrite(t, f, ctr, policy.CPUMax, "5000 10000")
		if err := f.Undo(ctr); err != nil {
			t.Error(err)
		}
		if got, _ := f.Read(ctr, policy.CPUMax); got != "70000 100000" {
			t.Errorf("%s: cpu.max = %q", layout, got)
		}
	}
}

func TestForgetAndRebase(t *testing.T) {
	t.Parallel()
	k, f, _ := setUp(t, cgrouptest.V1)
	if err := f.Rebase(ctr, policy.CPUMax, "80000 100000"); err != nil {
		t.Error(err)
	}
	mustWrite(t, f, ctr, policy.CPUMax, "5000 10000")
	if err := f.Rebase(ctr, policy.CPUMax, "80000 100000"); err != nil {
		t.Error(err)
	}
	if err := f.Rebase(ctr, policy.CPUMax, "x"); !errors.Is(err, cgroup.ErrValue) {
		t.Error(err)
	}
	if err := f.Rebase(pod, policy.CPUIdle, "1"); !errors.Is(err, cgroup.ErrRefused) {
		t.Error(err)
	}
	if err := f.Undo(ctr); err != nil {
		t.Error(err)
	}
	if got, _ := f.Read(ctr, policy.CPUMax); got != "80000 100000" {
		t.Errorf("cpu.max = %q", got)
	}
	mustWrite(t, f, ctr, policy.CPUMax, "5000 10000")
	if err := errors.Join(k.Rmdir(ctr), f.Forget(ctr), f.Forget(ctr)); err != nil {
		t.Error(err)
	}
	if entries, err := f.Journal(); len(entries) != 0 || err != nil {
		t.Errorf("journal: %v, %v", entries, err)
	}
	if err := f.Forget("/../x"); !errors.Is(err, cgroup.ErrRefused) {
		t.Error(err)
	}
}

func journalFile(t *testing.T, state string) string {
	t.Helper()
	files, err := filepath.Glob(state + "/*.json")
	if err != nil || len(files) != 1 {
		t.Fatalf("journal files: %v, %v", files, err)
	}
	return files[0]
}

func TestCorruptJournal(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(string) string{
		"empty":         func(string) string { return "" },
		"truncated":     func(s string) string { return s[:len(s)/2] },
		"text":          func(string) string { return "x" },
		"null":          func(string) string { return "null" },
		"other version": func(s string) string { return strings.Replace(s, `"version": 1`, `"version": 2`, 1) },
		"other path":    func(s string) string { return strings.Replace(s, string(ctr), string(ctr)+"x", 1) },
		"bad path":      func(s string) string { return strings.Replace(s, string(ctr), "/..", 1) },
		"other file":    func(s string) string { return strings.Replace(s, `"file": "memory.high"`, `"file": "cgroup.procs"`, 1) },
		"other knob":    func(s string) string { return strings.Replace(s, `"knob": "memory.high"`, `"knob": "cpu.idle"`, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, f, state := setUp(t, cgrouptest.V2)
			other := pod + "/other"
			if err := k.Make(other); err != nil {
				t.Fatal(err)
			}
			mustWrite(t, f, ctr, policy.MemoryHigh, "8192")
			file := journalFile(t, state)
			mustWrite(t, f, other, policy.MemoryHigh, "8192")
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			bad := spoil(string(text))
			if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := f.UndoAll(context.Background())
			if !errors.Is(err, cgroup.ErrCorrupt) || len(r.Restored) != 1 {
				t.Errorf("UndoAll: %+v, %v", r, err)
			}
			if got, _ := k.Get(ctr, "memory.high"); got != "8192" {
				t.Errorf("memory.high of the corrupt one = %s", got)
			}
			if kept, err := os.ReadFile(file + ".corrupt-0"); string(kept) != bad || err != nil {
				t.Errorf("set aside: %q, %v", kept, err)
			}
			if entries, err := f.Journal(); len(entries) != 0 || err != nil {
				t.Errorf("journal afterwards: %v, %v", entries, err)
			}
			mustWrite(t, f, ctr, policy.MemoryHigh, "4096")
		})
	}
}

func TestCorruptJournalFailsOneWrite(t *testing.T) {
	t.Parallel()
	k, f, state := setUp(t, cgrouptest.V2)
	mustWrite(t, f, ctr, policy.MemoryHigh, "8192")
	if err := os.WriteFile(journalFile(t, state), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	skip := len(k.Writes())
	if _, err := f.Write(ctr, policy.MemoryMax, "8192"); !errors.Is(err, cgroup.ErrCorrupt) || len(k.Writes()) != skip {
		t.Errorf("first write: %v", err)
	}
	mustWrite(t, f, ctr, policy.MemoryMax, "8192")

	if err := os.WriteFile(journalFile(t, state), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := f.WriteAll(ctr, []policy.Setting{{Knob: policy.MemoryMax, Value: "4096"}, {Knob: policy.MemoryLow, Value: "4096"}})
	if !errors.Is(err, cgroup.ErrCorrupt) {
		t.Errorf("several at once: %v", err)
	}
	for _, file := range []string{"memory.max", "memory.low"} {
		if got, _ := k.Get(ctr, file); got != "4096" {
			t.Errorf("several at once: %s = %s", file, got)
		}
	}
}

// Journals of an earlier boot name cgroups that are gone, whatever their inode numbers say.
func TestOtherBoot(t *testing.T) {
	t.Parallel()
	k, f, state := setUp(t, cgrouptest.V2)
	mustWrite(t, f, ctr, policy.MemoryHigh, "8192")
	if err := k.SetProc("sys/kernel/random/boot_id", "another\n"); err != nil {
		t.Fatal(err)
	}
	f = reopen(t, k, state)
	if entries, err := f.Journal(); len(entries) != 0 || err != nil {
		t.Errorf("journal: %v, %v", entries, err)
	}
	if err := f.Undo(ctr); err != nil {
		t.Error(err)
	}
	if got, _ := k.Get(ctr, "memory.high"); got != "8192" {
		t.Errorf("memory.high = %s", got)
	}
}

func TestLongPathInJournal(t *testing.T) {
	t.Parallel()
	k, f, state := setUp(t, cgrouptest.V2)
	long := cgroup.Path("/" + strings.Repeat("a", 200) + "/kubepods/pod7f/" + id)
	if err := k.Make(long); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, f, long, policy.MemoryHigh, "8192")
	if name := filepath.Base(journalFile(t, state)); len(name) > 255 {
		t.Errorf("file name of %d bytes", len(name))
	}
	if entries, err := f.Journal(); err != nil || len(entries) != 1 || entries[0].Path != long {
		t.Errorf("journal: %v, %v", entries, err)
	}
	if err := f.Undo(long); err != nil {
		t.Error(err)
	}
}

// On v1 a pod's cpuset can't go below its container's, nor a container's above its pod's.
func TestUndoAllOrder(t *testing.T) {
	t.Parallel()
	k, f, state := setUp(t, cgrouptest.V1)
	for _, p := range []cgroup.Path{ctr, pod} {
		if err := k.Set(p, "cpuset.cpus", "0-2"); err != nil {
			t.Fatal(err)
		}
	}
	before := snapshot(t, k)
	// Narrowed: on the way back the pod has to go first.
	mustWrite(t, f, ctr, policy.CPUSetCPUs, "0")
	mustWrite(t, f, pod, policy.CPUSetCPUs, "0")
	f = reopen(t, k, state)
	r, err := f.UndoAll(context.Background())
	if err != nil || len(r.Restored) != 2 || len(r.Failed) != 0 {
		t.Errorf("narrowed: %+v, %v", r, err)
	}
	// Widened: on the way back the container has to go first.
	mustWrite(t, f, pod, policy.CPUSetCPUs, "0-3")
	mustWrite(t, f, ctr, policy.CPUSetCPUs, "3")
	if r, err := f.UndoAll(context.Background()); err != nil || len(r.Restored) != 2 {
		t.Errorf("widened: %+v, %v", r, err)
	}
	if diff := cmp.Diff(before, snapshot(t, k)); diff != "" {
		t.Errorf("after UndoAll:\n%s", diff)
	}

	// What can't be undone stays in the journal, and the rest is undone.
	mustWrite(t, f, ctr, policy.CPUSetCPUs, "0")
	mustWrite(t, f, ctr, policy.IOWeight, "10")
	if err := k.Set(pod, "cpuset.cpus", "0"); err != nil {
		t.Fatal(err)
	}
	r, err = f.UndoAll(context.Background())
	if !errors.Is(err, unix.EACCES) || len(r.Restored) != 1 || len(r.Failed) != 1 {
		t.Errorf("blocked: %+v, %v", r, err)
	}
	if entries, _ := f.Journal(); len(entries) != 1 || entries[0].Knob != policy.CPUSetCPUs {
		t.Errorf("journal: %+v", entries)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if r, err := f.UndoAll(ctx); !errors.Is(err, context.Canceled) || len(r.Failed) != 1 {
		t.Errorf("cancelled: %+v, %v", r, err)
	}
}

// Somebody set a burst above the quota that we bring back.
func TestUndoUnderForeignBurst(t *testing.T) {
	t.Parallel()
	k, f, _ := setUp(t, cgrouptest.V2)
	if err := k.Set(ctr, "cpu.max", "5000 10000"); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, f, ctr, policy.CPUMax, "max 10000")
	if err := k.Set(ctr, "cpu.max.burst", "9000"); err != nil {
		t.Fatal(err)
	}
	if err := f.Undo(ctr); err != nil {
		t.Error(err)
	}
	if got, _ := k.Get(ctr, "cpu.max.burst"); got != "5000" {
		t.Errorf("burst = %s", got)
	}
}

func TestUndoOfUnpluggedDevice(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		k, f, _ := setUp(t, layout)
		mustWrite(t, f, ctr, policy.IOMax, "8:0 rbps=5000\n254:0 rbps=5000")
		if err := f.Forget(ctr); err != nil {
			t.Fatal(err)
		}
		mustWrite(t, f, ctr, policy.IOMax, "254:0 rbps=9000")
		if err := k.Unplug("8:0"); err != nil {
			t.Fatal(err)
		}
		if err := f.Undo(ctr); err != nil {
			t.Error(err)
		}
		if got, err := f.Read(ctr, policy.IOMax); got != "254:0 rbps=5000" || err != nil {
			t.Errorf("%s: io.max = %q, %v", layout, got, err)
		}
	}
}

func TestMismatch(t *testing.T) {
	t.Parallel()
	k, f, _ := setUp(t, cgrouptest.V2)
	mustWrite(t, f, ctr, policy.MemoryHigh, "8192")
	cfg := k.Config(t.TempDir())
	cfg.Kernel = swallow{k}
	f, err := cgroup.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if ch, err := f.Write(ctr, policy.MemoryHigh, "4096"); !errors.Is(err, cgroup.ErrMismatch) || ch.Wrote {
		t.Errorf("Write: %+v, %v", ch, err)
	}
}

// swallow is a kernel that takes every write and does nothing.
type swallow struct{ *cgrouptest.Kernel }

func (s swallow) OpenDir(m cgroup.Mount, p string) (cgroup.Dir, error) {
	d, err := s.Kernel.OpenDir(m, p)
	return deaf{d}, err
}

type deaf struct{ cgroup.Dir }

func (deaf) WriteFile(string, string) error { return nil }

// The real file operations, on the fake's files: they take what the files hold and follow nothing.
func TestRealFiles(t *testing.T) {
	t.Parallel()
	k, _, _ := setUp(t, cgrouptest.V2)
	open := func() *cgroup.FS {
		f, err := cgroup.Open(cgroup.Config{Root: k.Root(), StateDir: filepath.Join(t.TempDir(), "journal")})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := open()
	top := filepath.Join(k.Root(), "sys/fs/cgroup")
	if got, err := f.Read(ctr, policy.MemoryHigh); got != "max" || err != nil {
		t.Errorf("Read = %q, %v", got, err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := errors.Join(os.Mkdir(outside, 0o755), os.WriteFile(outside+"/memory.high", []byte("max\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(top, string(pod))
	links := map[string]string{"abs": outside, "rel": "../pod7f/" + id, "up": "../../../../../../outside", "file": ""}
	for name, target := range links {
		if target != "" {
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := errors.Join(os.Mkdir(filepath.Join(dir, name), 0o755), os.Symlink(outside+"/memory.high", filepath.Join(dir, name, "memory.high"))); err != nil {
			t.Fatal(err)
		}
	}
	for name := range links {
		p := pod + "/" + cgroup.Path(name)
		if _, err := f.Read(p, policy.MemoryHigh); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Read through link %s: %v", name, err)
		}
		if _, err := f.Write(p, policy.MemoryHigh, "8192"); err == nil {
			t.Errorf("Write through link %s", name)
		}
	}
	if text, _ := os.ReadFile(outside + "/memory.high"); string(text) != "max\n" {
		t.Errorf("outside file has %q", text)
	}
	// Nothing is created.
	if err := os.Remove(filepath.Join(top, string(ctr), "memory.high")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(ctr, policy.MemoryHigh, "8192"); !errors.As(err, new(cgroup.ErrUnsupported)) {
		t.Errorf("Write of a missing file: %v", err)
	}
	if _, err := f.Write(pod+"/none", policy.MemoryHigh, "8192"); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("Write of a missing cgroup: %v", err)
	}
	if _, err := os.Stat(filepath.Join(top, string(ctr), "memory.high")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("memory.high: %v", err)
	}
	// A file in the place of the cgroup.
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(pod+"/plain", policy.MemoryHigh); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("Read of a plain file: %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	t.Parallel()
	if _, err := cgroup.Open(cgroup.Config{Root: t.TempDir()}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no mountinfo: %v", err)
	}
	for name, change := range map[string]func(string) string{
		"no cgroup mount":          func(string) string { return "22 1 254:0 / / rw - ext4 /dev/vda rw\n" },
		"mounted from a directory": func(s string) string { return strings.ReplaceAll(s, " / /sys", " /docker/x /sys") },
		"another file system":      func(s string) string { return strings.ReplaceAll(s, " 22 ", " 22 99") },
	} {
		for _, layout := range layouts {
			k, _, _ := setUp(t, layout)
			text, err := os.ReadFile(filepath.Join(k.Root(), "proc/self/mountinfo"))
			if err != nil {
				t.Fatal(err)
			}
			if err := k.SetProc("self/mountinfo", change(string(text))); err != nil {
				t.Fatal(err)
			}
			if _, err := cgroup.Open(cgroup.Config{Root: k.Root()}); err == nil {
				t.Errorf("%s, %s: no error", name, layout)
			}
		}
	}
}

// Whatever is written in whatever order, and however often the writer is restarted, UndoAll brings the first state back.
func TestUndoProperty(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) {
				dir, err := os.MkdirTemp("", "cgroup")
				if err != nil {
					r.Fatal(err)
				}
				defer os.RemoveAll(dir)
				if err := os.Mkdir(dir+"/root", 0o755); err != nil {
					r.Fatal(err)
				}
				k, err := cgrouptest.New(dir+"/root", layout)
				if err != nil {
					r.Fatal(err)
				}
				if err := k.Make(ctr); err != nil {
					r.Fatal(err)
				}
				// The state to come back to is any that the kernel takes.
				set := func(p cgroup.Path, v1, v2, value string) {
					file := map[cgrouptest.Layout]string{cgrouptest.V1: v1, cgrouptest.V2: v2}[layout]
					if err := k.Set(p, file, value); err != nil {
						r.Logf("set %s %s: %v", file, value, err)
					}
				}
				quota := rapid.SampledFrom([]string{"20000", "50000", "90000"})
				set(pod, "cpu.cfs_quota_us", "cpu.max", quota.Draw(r, "pod quota"))
				set(ctr, "cpu.cfs_quota_us", "cpu.max", quota.Draw(r, "quota"))
				set(ctr, "cpu.cfs_burst_us", "cpu.max.burst", rapid.SampledFrom([]string{"0", "10000", "40000"}).Draw(r, "burst"))
				set(ctr, "cpu.shares", "cpu.weight", rapid.SampledFrom([]string{"50", "100", "2000"}).Draw(r, "weight"))
				set(ctr, "cpu.idle", "cpu.idle", rapid.SampledFrom([]string{"0", "0", "1"}).Draw(r, "idle"))
				set(ctr, "memory.memsw.limit_in_bytes", "memory.high", rapid.SampledFrom([]string{"81920", "40960"}).Draw(r, "memsw"))
				set(ctr, "memory.limit_in_bytes", "memory.max", rapid.SampledFrom([]string{"40960", "20480"}).Draw(r, "memory"))
				before := snapshot(t, k)

				f := reopen(t, k, dir+"/journal")
				for range rapid.IntRange(1, 12).Draw(r, "writes") {
					c := rapid.SampledFrom(values).Draw(r, "value")
					p := rapid.SampledFrom([]cgroup.Path{ctr, ctr, pod, class}).Draw(r, "path")
					if _, err := f.Write(p, c.knob, c.value); err != nil {
						r.Logf("%v", err)
					}
					if rapid.Bool().Draw(r, "restart") {
						f = reopen(t, k, dir+"/journal")
					}
				}
				rep, err := f.UndoAll(context.Background())
				if err != nil {
					r.Errorf("UndoAll: %v, %+v", err, rep)
				}
				if diff := cmp.Diff(before, snapshot(t, k)); diff != "" {
					r.Errorf("after UndoAll, -before +after:\n%s", diff)
				}
				if entries, err := f.Journal(); len(entries) != 0 || err != nil {
					r.Errorf("journal: %v, %v", entries, err)
				}
			})
		})
	}
}

// Calls on different cgroups don't wait for each other: a write that blocks in reclaim holds up nobody else.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	k, f, _ := setUp(t, cgrouptest.V2)
	other := pod + "/other"
	if err := k.Make(other); err != nil {
		t.Fatal(err)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	k.Hook = func(p cgroup.Path, file, _ string) error {
		if p == ctr && file == "memory.max" {
			once.Do(func() { close(entered); <-release })
		}
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := f.Write(ctr, policy.MemoryMax, "8192"); err != nil {
			t.Error(err)
		}
	})
	<-entered
	mustWrite(t, f, other, policy.MemoryMax, "4096")
	close(release)
	for i := range 8 {
		wg.Go(func() {
			for j := range 20 {
				p := []cgroup.Path{ctr, other}[j%2]
				_, err := f.WriteAll(p, []policy.Setting{{Knob: policy.CPUIdle, Value: fmt.Sprint(i % 2)}, {Knob: policy.IOWeight, Value: fmt.Sprint(10 + j)}})
				if _, jerr := f.Journal(); err != nil || jerr != nil {
					t.Error(err, jerr)
				}
			}
		})
	}
	wg.Wait()
	if _, err := f.UndoAll(context.Background()); err != nil {
		t.Error(err)
	}
	for _, p := range []cgroup.Path{ctr, other} {
		if got, _ := k.Get(p, "io.weight"); got != "default 100" {
			t.Errorf("io.weight of %s = %s", p, got)
		}
	}
}

func TestNeedAndFiles(t *testing.T) {
	t.Parallel()
	for _, k := range policy.Knobs() {
		for version := 1; version <= 2; version++ {
			if cgroup.Need(version, k) == "an unknown knob" {
				t.Errorf("Need of %s", k)
			}
			files := cgroup.Files(version, k)
			none := k.OfProcess() || version == 1 && slices.Contains([]policy.Knob{policy.MemoryLow, policy.MemoryHigh}, k)
			if (len(files) == 0) != none {
				t.Errorf("Files of %s on v%d: %v", k, version, files)
			}
			for _, file := range files {
				if !strings.HasPrefix(file, cgroup.Controller(version, k)+".") {
					t.Errorf("%s is not of controller %s", file, cgroup.Controller(version, k))
				}
			}
		}
	}
}

// A cgroup with tasks takes no empty cpuset back on v2: it gets what its parent has.
func TestUndoOfAnEmptyCpuset(t *testing.T) {
	t.Parallel()
	k, f, _ := setUp(t, cgrouptest.V2)
	at := cgroup.Path("/kubepods/pod7f/" + id)
	for _, populated := range []bool{false, true} {
		if err := k.Make(at); err != nil {
			t.Fatal(err)
		}
		if populated {
			if err := k.AddProcess(9, at); err != nil {
				t.Fatal(err)
			}
		}
		for knob, set := range map[policy.Knob]string{policy.CPUSetCPUs: "1-2", policy.CPUSetMems: "0"} {
			if _, err := f.Write(at, knob, set); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Undo(at); err != nil {
			t.Fatal(err)
		}
		want := map[policy.Knob]string{policy.CPUSetCPUs: "", policy.CPUSetMems: ""}
		if populated {
			want = map[policy.Knob]string{policy.CPUSetCPUs: "0-3", policy.CPUSetMems: "0"}
		}
		for knob, set := range want {
			if got, err := f.Read(at, knob); got != set || err != nil {
				t.Errorf("with tasks: %t: %s is %q, %v, want %q", populated, knob, got, err, set)
			}
		}
		if left, err := f.Journal(); len(left) > 0 || err != nil {
			t.Errorf("journalled still: %v, %v", left, err)
		}
	}
}

// What Linux v1 refuses of a cpuset is an error that names value, file, cgroup and reason, and changes nothing.
func TestRefusedCpuset(t *testing.T) {
	t.Parallel()
	k, f, _ := setUp(t, cgrouptest.V1)
	nested := ctr + "/nested"
	for _, err := range []error{k.Make(nested), k.AddProcess(9, ctr)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for knob, set := range map[policy.Knob]string{policy.CPUSetCPUs: "1", policy.CPUSetMems: ""} {
		before, err := f.Read(ctr, knob)
		if err != nil {
			t.Fatal(err)
		}
		cause := unix.EBUSY // nested has more than that
		if set == "" {
			cause = unix.ENOSPC // there are tasks
		}
		_, err = f.Write(ctr, knob, set)
		want := fmt.Sprintf("write %q to %s of %s: ", set, knob, ctr)
		if !errors.Is(err, cause) || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), cause.Error()) {
			t.Errorf("%v, want %s…%v", err, want, cause)
		}
		if now, err := f.Read(ctr, knob); now != before || err != nil {
			t.Errorf("%s is %q, %v, was %q", knob, now, err, before)
		}
	}
	if err := f.Undo(ctr); err != nil {
		t.Errorf("undo of what was never written: %v", err)
	}
}

func TestThreads(t *testing.T) {
	t.Parallel()
	const ctr = cgroup.Path("/kubepods/podX/0123")
	for _, layout := range []cgrouptest.Layout{cgrouptest.V1, cgrouptest.V2} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			k, err := cgrouptest.New(t.TempDir(), layout)
			if err != nil {
				t.Fatal(err)
			}
			f, err := cgroup.Open(k.Config(t.TempDir()))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Threads(ctr); !errors.Is(err, cgroup.ErrGone) {
				t.Errorf("of none: %v", err)
			}
			for at, ids := range map[cgroup.Path][]int{ctr: {7, 8}, ctr + "/a": {9}, ctr + "/a/b": nil, ctr + "/c": {10, 11}, "/kubepods/podX/0123a": {99}} {
				if err := errors.Join(k.Mkdir(at), k.SetThreads(at, ids...)); err != nil {
					t.Fatal(err)
				}
			}
			got, err := f.Threads(ctr)
			slices.Sort(got)
			if err != nil || !slices.Equal(got, []int{7, 8, 9, 10, 11}) {
				t.Errorf("%v, %v", got, err)
			}
			if err := k.SetThreads(ctr+"/a", 0, 9); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Threads(ctr); err == nil || !strings.Contains(err.Error(), "PID namespace") {
				t.Errorf("of another PID namespace: %v", err)
			}
			if _, err := f.Threads("/system.slice/sshd.service"); !errors.Is(err, cgroup.ErrRefused) {
				t.Errorf("of a service: %v", err)
			}
		})
	}
}
