package placement_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/internal/placement"
)

// What the bars are about: a machine with 512 CPUs and 16 L3s.
const (
	benchPods  = 250
	barPlace   = time.Millisecond
	barRebuild = 10 * time.Millisecond
)

var benchShape = shape{2, 1, 8, 16, 2}

// benchNode is that machine with its pods, in a quarter of which LSE, and with room for some more.
func benchNode(t testing.TB) (*placement.Machine, []placement.Assignment) {
	t.Helper()
	m, err := placement.New(benchShape.build(), placement.Limits{MinShared: 8})
	if err != nil {
		t.Fatal(err)
	}
	var have []placement.Assignment
	for i := range benchPods {
		r := request(t, fmt.Sprintf("%08x-0000-4000-8000-000000000000", i), []string{"LSE 1", "LSR 1", "LSR 2", "LSR 1 spread"}[i%4])
		r.Since = int64(i)
		a, err := m.Place(have, r)
		if err != nil {
			t.Fatal(err)
		}
		have = append(have, a)
	}
	return m, have
}

// measure is one thing to measure, with the bar for it.
type measure struct {
	name string
	bar  time.Duration
	run  func() error
}

func measures(t testing.TB) (place, rebuild []measure) {
	m, have := benchNode(t)
	try := func(what string) func() error {
		r := request(t, "new", what)
		return func() error { _, err := m.Place(have, r); return err }
	}
	small := m.Free(have)[0].Cores - 2
	refused := try("LSE 200")
	place = []measure{
		{"place LSE with 4 CPUs", barPlace, try("LSE 4")},
		{"place LSR with 3 CPUs", barPlace, try("LSR 3")},
		{fmt.Sprintf("place LSE over several L3s, %d CPUs", small), barPlace, try(fmt.Sprintf("LSE %d", small))},
		{fmt.Sprintf("place LSE over both nodes, %d CPUs", small+4), barPlace, try(fmt.Sprintf("LSE %d", small+4))},
		{"place LSR with 8 CPUs, spread", barPlace, try("LSR 8 spread")},
		{"refuse LSE with 200 CPUs", barPlace, func() error {
			if refused() == nil {
				return fmt.Errorf("there was room")
			}
			return nil
		}},
		{"resize LSR from 2 CPUs to 6", barPlace, func() error { _, err := m.Resize(have, have[2].UID, 6); return err }},
		{"the pools", barPlace, func() error {
			if p := m.Pools(have); p.Short != "" {
				return fmt.Errorf("%s", p.Short)
			}
			return nil
		}},
	}
	topology := benchShape.build()
	expect := func(m *placement.Machine, records []placement.Assignment, kept, moved, lost int) func() error {
		return func() error {
			r := m.Rebuild(records)
			if got := [3]int{len(r.Kept), len(r.Moved), len(r.Lost)}; got != [3]int{kept, moved, lost} {
				return fmt.Errorf("kept, moved, lost: %v", got)
			}
			return nil
		}
	}
	homeless := slices.Clone(have)
	for i := range homeless {
		homeless[i].CPUs = cpuset.New()
	}
	fewer := offline(topology, "0-15,256-271")
	hurt := 0
	for _, a := range have {
		if !a.CPUs.Intersection(fewer.Offline).IsEmpty() {
			hurt++
		}
	}
	without, err := placement.New(fewer, placement.Limits{MinShared: 8})
	if err != nil {
		t.Fatal(err)
	}
	rebuild = []measure{
		{"make the machine ready", barRebuild, func() error { _, err := placement.New(topology, placement.Limits{}); return err }},
		{"rebuild, all as it was", barRebuild, expect(m, have, benchPods, 0, 0)},
		{fmt.Sprintf("rebuild, an L3 with %d pods is offline", hurt), barRebuild, expect(without, have, benchPods-hurt, hurt, 0)},
		{"rebuild, every pod is moved", barRebuild, expect(m, homeless, 0, benchPods, 0)},
	}
	return place, rebuild
}

func BenchmarkPlace(b *testing.B) {
	place, _ := measures(b)
	bench(b, place)
}

func BenchmarkRebuild(b *testing.B) {
	_, rebuild := measures(b)
	bench(b, rebuild)
}

func bench(b *testing.B, measures []measure) {
	for _, x := range measures {
		b.Run(strings.ReplaceAll(x.name, " ", "-"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := x.run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkTable prints each measure with its bar; `make bench-placement` runs it, once. The bar is for the time on a CPU:
// nothing here waits, so what the clock shows above it is the machine's other work. It fails only where it can't measure.
func BenchmarkTable(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	place, rebuild := measures(b)
	for range b.N {
		t := table{out: tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)}
		fmt.Fprintf(t.out, "\n512 CPUs, 16 L3s, %d pods\tp50\tp99\tby the clock\tp99\tbar of p99\t\t\n", benchPods)
		for _, x := range place {
			t.row(b, x, 2000)
		}
		for _, x := range rebuild {
			t.row(b, x, 300)
		}
		_ = t.out.Flush()
		fmt.Printf("\nbench-placement: %d of %d bars passed", t.all-len(t.missed), t.all)
		if len(t.missed) > 0 {
			fmt.Printf("; missed: %s", strings.Join(t.missed, "; "))
		}
		fmt.Println()
	}
}

type table struct {
	out    *tabwriter.Writer
	all    int
	missed []string
}

func (t *table) row(b *testing.B, x measure, rounds int) {
	own, clock := make([]time.Duration, rounds), make([]time.Duration, rounds)
	for i := range rounds {
		began, busy := time.Now(), onCPU(b)
		err := x.run()
		own[i], clock[i] = onCPU(b)-busy, time.Since(began)
		if err != nil {
			b.Fatalf("%s: %v", x.name, err)
		}
	}
	at := func(took []time.Duration, q float64) time.Duration {
		return slices.Sorted(slices.Values(took))[int(q*float64(rounds))].Round(100 * time.Nanosecond)
	}
	t.all++
	verdict, p99 := "pass", at(own, 0.99)
	if p99 > x.bar {
		verdict = "miss"
		t.missed = append(t.missed, x.name)
	}
	fmt.Fprintf(t.out, "%s\t%v\t%v\t%v\t%v\t%v\t%s\t\n", x.name, at(own, 0.5), p99, at(clock, 0.5), at(clock, 0.99), x.bar, verdict)
}

// onCPU is how long this thread has run.
func onCPU(t testing.TB) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
