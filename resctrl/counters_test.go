package resctrl_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tideline-io/tideline/resctrl"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

func show(c resctrl.Counters) string {
	var b strings.Builder
	for _, d := range c {
		fmt.Fprintf(&b, "%s:%d", d.Resource, d.ID)
		if d.Sub {
			b.WriteString(" sub")
		}
		for _, e := range d.Events {
			fmt.Fprintf(&b, " %s=%s", e.Event, e.State)
			if e.State == resctrl.Counted {
				fmt.Fprintf(&b, ":%d", e.Value)
			}
			b.WriteString(e.Text)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestCounters(t *testing.T) {
	t.Parallel()
	k, f := open(resctrltest.Intel())
	g := create(t, f, "g1")
	m, err := g.CreateMonGroup(t.Context(), "m1")
	if err != nil {
		t.Fatal(err)
	}
	k.SetCounter("g1", 0, "llc_occupancy", "100")
	k.SetCounter("g1/mon_groups/m1", 0, "llc_occupancy", "11")
	k.SetCounter("g1", 1, "llc_occupancy", "Unavailable")
	k.SetCounter("g1/mon_groups/m1", 1, "llc_occupancy", "7")
	k.SetCounter("g1/mon_groups/m1", 0, "mbm_total_bytes", "Error")
	k.SetCounter("g1/mon_groups/m1", 0, "mbm_local_bytes", "1.5")
	for _, tt := range []struct {
		group *resctrl.Group
		want  string
	}{
		{g, "L3:0 llc_occupancy=counted:111 mbm_local_bytes=counted:0 mbm_total_bytes=counted:0\n" +
			"L3:1 llc_occupancy=counted:7 mbm_local_bytes=counted:0 mbm_total_bytes=counted:0\n"},
		{m, "L3:0 llc_occupancy=counted:11 mbm_local_bytes=unreadable1.5 mbm_total_bytes=error\n" +
			"L3:1 llc_occupancy=counted:7 mbm_local_bytes=counted:0 mbm_total_bytes=counted:0\n"},
	} {
		c, err := tt.group.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, show(c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.group.Path(), diff)
		}
	}
	c, _ := m.Counters()
	if total, ok := c.Total("llc_occupancy"); !ok || total.Value != 18 || total.State != resctrl.Counted {
		t.Errorf("total %+v", total)
	}
	if total, ok := c.Total("mbm_total_bytes"); !ok || total.Value != 0 || total.State != resctrl.Counted {
		t.Errorf("total of one domain %+v", total)
	}
	if _, ok := c.Total("nothing"); ok {
		t.Error("a total of nothing")
	}
}

// 6 counters a domain, 2 a group: the fourth has none.
func TestAssignableCounters(t *testing.T) {
	t.Parallel()
	_, f := open(resctrltest.AMDSparse())
	var last *resctrl.Group
	for i := range 3 {
		last = create(t, f, fmt.Sprintf("g%d", i))
	}
	c, err := last.Counters()
	if err != nil || len(c) != 4 || c[3].ID != 11 {
		t.Fatalf("%v, %v", c, err)
	}
	if v, _ := c[0].Counter("mbm_total_bytes"); v.State != resctrl.Unassigned {
		t.Errorf("%+v", v)
	}
	if v, _ := c[0].Counter("llc_occupancy"); v.State != resctrl.Counted {
		t.Errorf("%+v", v)
	}
}

// A tree as machines with sub-NUMA clusters have it, and with events and directories of later kernels.
func TestCountersOfSubNUMA(t *testing.T) {
	t.Parallel()
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	f := resctrl.Open(resctrl.FromFS(fstest.MapFS{
		"info/last_cmd_status":               file("ok\n"),
		"tasks":                              file("1\n"),
		"mon_data/mon_L3_00/mbm_total_bytes": file("30\n"),
		"mon_data/mon_L3_00/mon_sub_L3_00/mbm_total_bytes":  file("10\n"),
		"mon_data/mon_L3_00/mon_sub_L3_01/mbm_total_bytes":  file("20\n"),
		"mon_data/mon_PERF_PKG_01/core_energy":              file("12.75\n"),
		"mon_data/unheard_of/x":                             file("1\n"),
		"mon_data/mon_L3_99999999999999999/mbm_total_bytes": file("1\n"),
	}))
	c, err := f.Root().Counters()
	if err != nil {
		t.Fatal(err)
	}
	const want = "L3:0 mbm_total_bytes=counted:30\nL3:0 sub mbm_total_bytes=counted:10\nL3:1 sub mbm_total_bytes=counted:20\n" +
		"PERF_PKG:1 core_energy=unreadable12.75\n"
	if diff := cmp.Diff(want, show(c)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if total, _ := c.Total("mbm_total_bytes"); total.Value != 30 {
		t.Errorf("sub-NUMA clusters were counted twice: %d", total.Value)
	}
	if err := f.Root().AddTasks([]int{1}); !errors.Is(err, resctrl.ErrReadOnly) || !errors.Is(err, syscall.EROFS) {
		t.Errorf("a copy was written: %v", err)
	}
}

func reading(event string, state resctrl.CounterState, value uint64) resctrl.Counters {
	return resctrl.Counters{{Resource: "L3", Events: []resctrl.Counter{{Event: event, State: state, Value: value}}}}
}

func TestRates(t *testing.T) {
	t.Parallel()
	const mbm = "mbm_total_bytes"
	for _, tt := range []struct {
		name          string
		before, after resctrl.Counters
		elapsed       time.Duration
		want          []resctrl.Rate
	}{
		{"grows", reading(mbm, resctrl.Counted, 100), reading(mbm, resctrl.Counted, 400), 2 * time.Second,
			[]resctrl.Rate{{Resource: "L3", Event: mbm, State: resctrl.Counted, PerSecond: 150}}},
		{"reset", reading(mbm, resctrl.Counted, 100), reading(mbm, resctrl.Counted, 40), time.Second,
			[]resctrl.Rate{{Resource: "L3", Event: mbm, State: resctrl.Unavailable, Reset: true}}},
		{"unavailable", reading(mbm, resctrl.Counted, 100), reading(mbm, resctrl.Unavailable, 0), time.Second,
			[]resctrl.Rate{{Resource: "L3", Event: mbm, State: resctrl.Unavailable}}},
		{"was unassigned", reading(mbm, resctrl.Unassigned, 0), reading(mbm, resctrl.Counted, 5), time.Second,
			[]resctrl.Rate{{Resource: "L3", Event: mbm, State: resctrl.Unassigned}}},
		{"new domain", nil, reading(mbm, resctrl.Counted, 5), time.Second,
			[]resctrl.Rate{{Resource: "L3", Event: mbm, State: resctrl.Unavailable}}},
		{"no time", reading(mbm, resctrl.Counted, 1), reading(mbm, resctrl.Counted, 5), 0,
			[]resctrl.Rate{{Resource: "L3", Event: mbm, State: resctrl.Unavailable}}},
		{"occupancy is no rate", reading("llc_occupancy", resctrl.Counted, 1), reading("llc_occupancy", resctrl.Counted, 5), time.Second, nil},
	} {
		if diff := cmp.Diff(tt.want, resctrl.Rates(tt.before, tt.after, tt.elapsed)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestRatesAreNumbers(t *testing.T) {
	t.Parallel()
	state := rapid.SampledFrom([]resctrl.CounterState{resctrl.Counted, resctrl.Unavailable, resctrl.Unassigned, resctrl.Failed, resctrl.Unreadable})
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) resctrl.Counters {
			return reading("mbm_local_bytes", state.Draw(t, name+" state"), rapid.Uint64().Draw(t, name))
		}
		for _, r := range resctrl.Rates(draw("before"), draw("after"), time.Duration(rapid.Int64().Draw(t, "elapsed"))) {
			if math.IsNaN(r.PerSecond) || math.IsInf(r.PerSecond, 0) || r.PerSecond < 0 || r.State != resctrl.Counted && r.PerSecond != 0 {
				t.Fatalf("%+v", r)
			}
		}
	})
}
