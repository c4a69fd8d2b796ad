package placement_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/internal/placement"
)

// story is what became of the pods, a line each.
func story(r placement.Rebuilt) string {
	var lines []string
	for _, a := range r.Kept {
		lines = append(lines, fmt.Sprintf("%s kept on %s", a.UID, text(a)))
	}
	for _, m := range r.Moved {
		lines = append(lines, fmt.Sprintf("%s moved to %s: %s", m.From.UID, text(m.To), m.Reason))
	}
	for _, l := range r.Lost {
		s := fmt.Sprintf("%s lost: %s", l.UID, l.Reason)
		if l.Err != nil {
			s += "; " + l.Err.Error()
		}
		lines = append(lines, s)
	}
	return strings.Join(lines, "\n")
}

func TestRebuild(t *testing.T) {
	for _, tt := range []struct {
		name, machine string
		limits        placement.Limits
		records       []string // of pods a, b, c …, the oldest first
		want          []string
	}{
		{name: "nothing has changed", machine: "2 sockets", records: []string{"LSE 2 on 1-2", "LSR 3 on 4-5,12", "LSE 3 use on 6-7,14-15"},
			want: []string{"a kept on 1-2 idle 9-10 mems 0", "b kept on 4-5,12 mems 1", "c kept on 6-7,14-15 mems 1"}},
		{name: "a CPU is offline: the rest stays, another core of the node comes in", machine: "offline", records: []string{"LSE 3 on 5-7", "LSR 2 on 0,8"},
			want: []string{"b kept on 0,8 mems 0", "a moved to 4-5,7 idle 12-13,15 mems 1: CPU 6 is not online"}},
		{name: "only the idle thread is gone: nothing to move", machine: "offline", records: []string{"LSE 2 on 0-1"},
			want: []string{"a kept on 0-1 idle 8 mems 0"}},
		{name: "CPUs became reserved", machine: "2 sockets", limits: placement.Limits{Reserved: set("0,8")}, records: []string{"LSE 2 on 0-1"},
			want: []string{"a moved to 1-2 idle 9-10 mems 0: CPUs 0,8 are reserved"}},
		{name: "an idle thread became reserved, so the core is not whole", machine: "2 sockets", limits: placement.Limits{Reserved: set("8")}, records: []string{"LSE 2 on 0-1"},
			want: []string{"a moved to 1-2 idle 9-10 mems 0: CPU 8 is reserved"}},
		{name: "isolated", machine: "isolated", records: []string{"LSR 2 on 2,10"},
			want: []string{"a moved to 3,11 mems 0: CPUs 2,10 are isolated"}},
		{name: "the kubelet gave a CPU to another", machine: "2 sockets", limits: placement.Limits{Foreign: set("4")}, records: []string{"LSR 2 on 4,12"},
			want: []string{"a moved to 5,12 mems 1: CPU 4 is owned by a pod that is not ours to place"}},
		{name: "two pods on one CPU: the older stays", machine: "2 sockets", records: []string{"LSE 2 on 0-1", "LSR 3 on 1,2,10"},
			want: []string{"a kept on 0-1 idle 8-9 mems 0", `b moved to 2-3,10 mems 0: CPU 1 is owned by pod "a"`}},
		{name: "whoever can stay does so before others are moved", machine: "2 sockets", limits: placement.Limits{Reserved: set("0-1,8-9")}, records: []string{"LSE 2 on 0-1", "LSE 2 on 2-3"},
			want: []string{"b kept on 2-3 idle 10-11 mems 0", "a moved to 4-5 idle 12-13 mems 1: CPUs 0-1,8-9 are reserved"}},
		{name: "no other CPUs", machine: "1 node", limits: placement.Limits{Reserved: set("0")}, records: []string{"LSE 2 on 0-1", "LSE 1 on 2"},
			want: []string{"b kept on 2 idle 6 mems 0", `a moved to 1,3 idle 5,7 mems 0: CPU 0 is reserved`}},
		{name: "no other CPUs, two lose in order of age", machine: "1 node", limits: placement.Limits{Reserved: set("0,1")}, records: []string{"LSE 1 on 0", "LSE 1 on 2", "LSE 1 on 1", "LSR 1 on 7"},
			want: []string{"b kept on 2 idle 6 mems 0", "d kept on 7 mems 0",
				`a lost: CPU 0 is reserved; place pod "a": 1 whole core asked, 0 free`, `c lost: CPU 1 is reserved; place pod "c": 1 whole core asked, 0 free`}},
		{name: "require-single: anew on the other node rather than on two", machine: "2 sockets", limits: placement.Limits{Reserved: set("0")}, records: []string{"LSE 4 require-single on 0-3"},
			want: []string{"a moved to 4-7 idle 12-15 mems 1: CPU 0 is reserved"}},
		{name: "prefer-single stays where its memory is", machine: "2 sockets", limits: placement.Limits{Reserved: set("0")}, records: []string{"LSE 4 on 0-3"},
			want: []string{"a moved to 1-4 idle 9-12 mems 0-1: CPU 0 is reserved"}},
		{name: "a higher minimum moves nobody", machine: "1 node", limits: placement.Limits{MinShared: 6}, records: []string{"LSE 3 on 0-2"},
			want: []string{"a kept on 0-2 idle 4-6 mems 0"}},
		{name: "but whoever is moved has to respect it", machine: "1 node", limits: placement.Limits{MinShared: 4, Reserved: set("0")}, records: []string{"LSE 2 on 0-1"},
			want: []string{`a lost: CPU 0 is reserved; place pod "a": takes 4 of the 7 CPUs that the LS pool has, and the pool keeps 4; allowed: to take at most 3`}},
		{name: "the LS pool is never empty: the youngest gives way", machine: "1 node", limits: placement.Limits{Reserved: set("3,7")}, records: []string{"LSE 2 on 0-1", "LSE 1 on 2"},
			want: []string{"a kept on 0-1 idle 4-5 mems 0", `b lost: with it the LS pool would be empty; place pod "b": takes 2 of the 2 CPUs that the LS pool has, and the pool keeps 1; allowed: to take at most 1`}},
		{name: "a record with too few CPUs is made up", machine: "1 node", records: []string{"LSE 2 on 0", "LSR 1 on 2,6"},
			want: []string{"a moved to 0-1 idle 4-5 mems 0: its record has CPUs 0; allowed: 2, each of another core", "b moved to 2 mems 0: its record has CPUs 2,6; allowed: 1"}},
		{name: "a record without CPUs is placed", machine: "1 node", records: []string{"LSE 1 on ", "LSE 2 use on "},
			want: []string{"a moved to 0 idle 4 mems 0: its record has no CPUs", "b moved to 1,5 mems 0: its record has no CPUs"}},
		{name: "two CPUs of one core are not two cores", machine: "1 node", records: []string{"LSE 2 on 0,4"},
			want: []string{"a moved to 0-1 idle 4-5 mems 0: its record has CPUs 0,4; allowed: 2, each of another core"}},
		{name: "use with a core too many", machine: "1 node", records: []string{"LSE 2 use on 0,1,4,5"},
			want: []string{"a moved to 0,4 mems 0: its record has CPUs 0-1,4-5; allowed: as few cores as have 2"}},
		{name: "a record that can't be", machine: "1 node", records: []string{"LSE 0 on 0"},
			want: []string{`a lost: its record asks for what can't be; place pod "a": cpus: "0"; allowed: 1 to 8192`}},
		{name: "CPUs that no kernel has", machine: "1 node", records: []string{"LSR 1 on 99999"},
			want: []string{"a moved to 0 mems 0: its CPUs are none that a kernel has"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := machine(t, tt.machine, tt.limits)
			records := all(t, tt.records...)
			r := m.Rebuild(records)
			want := strings.Join(tt.want, "\n")
			if diff := cmp.Diff(want, story(r)); diff != "" {
				t.Error(diff)
			}
			slices.Reverse(records)
			if diff := cmp.Diff(want, story(m.Rebuild(records))); diff != "" {
				t.Errorf("the other way round:\n%s", diff)
			}
		})
	}
}

func TestRebuildOfTwoRecordsOfAPod(t *testing.T) {
	m := machine(t, "2 sockets", placement.Limits{})
	a, b := has(t, "a", "LSR 1 on 3"), has(t, "a", "LSR 2 on 0,8")
	for _, records := range [][]placement.Assignment{{a, b}, {b, a}} {
		want := "a kept on 3 mems 0\na lost: it is a second record of the pod"
		if got := story(m.Rebuild(records)); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

// A thread that comes back beside an LSE pod's core is the pod's.
func TestCPUComesOnline(t *testing.T) {
	before, after := machine(t, "offline", placement.Limits{}), machine(t, "2 sockets", placement.Limits{})
	a, err := before.Place(nil, request(t, "a", "LSE 4"))
	if err != nil || text(a) != "0-3 idle 8,10-11 mems 0" {
		t.Fatal(text(a), err)
	}
	r := after.Rebuild([]placement.Assignment{a})
	if got := story(r); got != "a kept on 0-3 idle 8-11 mems 0" {
		t.Error(got)
	}
	if got := after.Pools(r.Assignments()).BE.String(); got != "4-7,12-15" {
		t.Errorf("BE: %s", got)
	}
}

func TestPools(t *testing.T) {
	for _, tt := range []struct {
		name, machine         string
		limits                placement.Limits
		have                  []string
		ls, be, system, short string
	}{
		{name: "nobody owns any", machine: "2 sockets", ls: "0-15", be: "0-15", system: "0-15"},
		{name: "LSE is nobody's, its idle threads too; LSR is batch's while idle", machine: "2 sockets", have: []string{"LSE 2 on 0-1", "LSR 3 on 4-5,12"},
			ls: "2-3,6-7,10-11,13-15", be: "2-7,10-15", system: "2-7,10-15"},
		{name: "reserved CPUs are the system's alone", machine: "2 sockets", limits: placement.Limits{Reserved: set("0,8")}, have: []string{"LSE 1 on 1"},
			ls: "2-7,10-15", be: "2-7,10-15", system: "0,2-8,10-15"},
		{name: "foreign and isolated ones are in none", machine: "isolated", limits: placement.Limits{Foreign: set("0,8")},
			ls: "1,3-6,9,11-15", be: "1,3-6,9,11-15", system: "1,3-6,9,11-15"},
		{name: "all is reserved", machine: "2 CPUs", limits: placement.Limits{Reserved: set("0-1")}, ls: "0-1", be: "0-1", system: "0-1",
			short: "every CPU that is neither reserved nor isolated is owned, so the LS pool is the reserved CPUs 0-1"},
		{name: "all but the reserved is foreign", machine: "2 CPUs", limits: placement.Limits{Reserved: set("0"), Foreign: set("1")}, ls: "0", be: "0", system: "0",
			short: "every CPU that is neither reserved nor isolated is owned, so the LS pool is the reserved CPUs 0"},
		{name: "all but the isolated is foreign", machine: "isolated", limits: placement.Limits{Foreign: set("0-1,3-6,8-9,11-15")}, ls: "2,7,10", be: "2,7,10", system: "2,7,10",
			short: "every CPU that is not isolated is owned, so the LS pool is the isolated CPUs 2,7,10"},
		{name: "all is foreign", machine: "2 CPUs", limits: placement.Limits{Foreign: set("0-1")}, ls: "0-1", be: "0-1", system: "0-1",
			short: "every CPU is owned, so the LS pool is all of them"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := machine(t, tt.machine, tt.limits).Pools(all(t, tt.have...))
			got := []string{p.LS.String(), p.BE.String(), p.System.String(), p.Short}
			if diff := cmp.Diff([]string{tt.ls, tt.be, tt.system, tt.short}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFree(t *testing.T) {
	m := machine(t, "2 sockets", placement.Limits{Reserved: set("0")})
	want := []placement.Room{{Node: 0, CPUs: 5, Cores: 2, Threads: 4}, {Node: 1, CPUs: 7, Cores: 3, Threads: 6}}
	if diff := cmp.Diff(want, m.Free(all(t, "LSE 1 on 1", "LSR 1 on 4"))); diff != "" {
		t.Error(diff)
	}
}

func TestMilliCPU(t *testing.T) {
	for _, tt := range []struct {
		name                  string
		quota, period, shares int64
		want                  int64
	}{
		{"quota", 200000, 100000, 512, 2000},
		{"the default period", 150000, 0, 0, 1500},
		{"a short period", 4000, 1000, 0, 4000},
		{"a kubelet that rounded down: 1500m of 1111 µs", 1666, 1111, 0, 1500},
		{"shares", -1, 100000, 2048, 2000},
		{"shares that were rounded down: 100m", 0, 0, 102, 100},
		{"one share more is a fraction", 0, 0, 2049, 2001},
		{"nothing asked", 0, 0, 2, 0},
		{"nothing sent", 0, 0, 0, 0},
		{"the most shares", -1, 0, 262144, 256000},
		{"hostile", 1 << 62, 1, 0, 1<<63 - 1},
		{"negative", -5, -5, -5, 0},
	} {
		if got := placement.MilliCPU(tt.quota, tt.period, tt.shares); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
	// What the kubelet makes of a request or a limit comes back as it was.
	for milli := int64(10); milli < 256000; milli += 37 {
		if got := placement.MilliCPU(0, 0, milli*1024/1000); got != milli {
			t.Fatalf("%dm is %d shares, which are %dm", milli, milli*1024/1000, got)
		}
		for _, period := range []int64{1000, 5000, 33333, 100000, 1000000} {
			if quota := milli * period / 1000; quota >= 1000 && placement.MilliCPU(quota, period, 0) != milli {
				t.Fatalf("%dm is %d of %d µs, which is %dm", milli, quota, period, placement.MilliCPU(quota, period, 0))
			}
		}
	}
}

func TestPodMilliCPU(t *testing.T) {
	app, initial, sidecar := placement.App, placement.Init, placement.Sidecar
	for _, tt := range []struct {
		name string
		pod  []placement.Container
		want int64
	}{
		{"nothing", nil, 0},
		{"apps together", []placement.Container{{app, 1500}, {app, 500}}, 2000},
		{"an init container that is smaller", []placement.Container{{initial, 1000}, {app, 2000}}, 2000},
		{"an init container that is bigger", []placement.Container{{initial, 3000}, {initial, 1000}, {app, 2000}}, 3000},
		{"a sidecar stays", []placement.Container{{sidecar, 1000}, {app, 2000}}, 3000},
		{"a sidecar runs beside the init containers after it", []placement.Container{{initial, 2500}, {sidecar, 1000}, {initial, 2500}, {app, 1000}}, 3500},
		{"hostile", []placement.Container{{app, 1<<63 - 1}, {app, 1<<63 - 1}, {app, -1}}, 1<<63 - 1},
	} {
		if got := placement.PodMilliCPU(tt.pod); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestCount(t *testing.T) {
	for _, tt := range []struct {
		milli int64
		want  int
		err   string
	}{
		{1000, 1, ""},
		{64000, 64, ""},
		{0, 0, "tier LSE: cpu: the pod asks for none; allowed: whole CPUs, from 1"},
		{500, 0, "tier LSE: cpu: 500m; allowed: whole CPUs, the nearest is 1"},
		{1500, 0, "tier LSE: cpu: 1500m; allowed: whole CPUs, the nearest are 1 and 2"},
		{8193000, 0, "tier LSE: cpu: 8193; allowed: whole CPUs, 1 to 8192"},
	} {
		got, err := placement.Count("LSE", tt.milli)
		text := ""
		if err != nil {
			text = err.Error()
			var e *placement.CountError
			if !errors.As(err, &e) || e.MilliCPU != tt.milli {
				t.Errorf("%T", err)
			}
		}
		if got != tt.want || text != tt.err {
			t.Errorf("%dm: %d, %q, want %d, %q", tt.milli, got, text, tt.want, tt.err)
		}
	}
}
