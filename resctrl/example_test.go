package resctrl_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tideline-io/tideline/resctrl"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

// A batch job gets the four lowest ways of each L3 and half of the bandwidth. On a real machine the FS is
// resctrl.Open(resctrl.OS(resctrl.DefaultPoint)).
func Example() {
	kernel := resctrltest.New(resctrltest.Intel())
	fs := resctrl.Open(kernel)
	job := kernel.Start(3)

	group, err := fs.Create(context.Background(), "batch")
	if err != nil {
		fmt.Println(err)
		return
	}
	info, err := fs.Info()
	if err != nil {
		fmt.Println(err)
		return
	}
	var want resctrl.Schemata
	for _, r := range info.Resources {
		for _, id := range r.Domains {
			switch r.Name {
			case "L3":
				want.Set("L3", id, uint64(resctrl.Ways(0, 4)))
			case "MB":
				want.Set("MB", id, 50)
			}
		}
	}
	if _, err := group.SetSchemata(want); err != nil {
		fmt.Println(err)
		return
	}
	if err := group.AddTasks(job.Threads()); err != nil {
		fmt.Println(err)
		return
	}
	got, _ := group.Schemata()
	tasks, _ := group.Tasks()
	fmt.Print(got)
	fmt.Println(len(tasks), "threads")
	// Output:
	// MB:0=50;1=50
	// L3:0=f;1=f
	// 3 threads
}

func ExampleFS_Info() {
	info, err := resctrl.Open(resctrltest.New(resctrltest.AMDSparse())).Info()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(info.NumCLOSIDs(), "CLOSIDs,", info.NumRMIDs(), "RMIDs")
	for _, r := range info.Resources {
		switch {
		case r.Cache != nil:
			fmt.Println(r.Name, "in domains", r.Domains, "masks within", r.Cache.Mask, "holes allowed:", r.Cache.Sparse)
		case r.Bandwidth != nil:
			fmt.Println(r.Name, "in domains", r.Domains, "up to", r.Bandwidth.Max, "in", r.Bandwidth.Unit)
		}
	}
	// Output:
	// 16 CLOSIDs, 64 RMIDs
	// L3 in domains [0 2 8 11] masks within ffff holes allowed: true
	// MB in domains [0 2 8 11] up to 2048 in 1/8GBps
	// SMBA in domains [0 2 8 11] up to 2048 in 1/8GBps
}

func ExampleError() {
	fs := resctrl.Open(resctrltest.New(resctrltest.Intel()))
	for i := range 8 {
		_, err := fs.Create(context.Background(), fmt.Sprintf("group%d", i))
		if errors.Is(err, resctrl.ErrNoCLOSID) {
			var e *resctrl.Error
			errors.As(err, &e)
			fmt.Println(err)
			fmt.Println("the kernel says:", e.Status)
		}
	}
	// Output:
	// mkdir group7: no space left on device (Out of CLOSIDs)
	// the kernel says: Out of CLOSIDs
}

// The kernel rounds bandwidth up to steps.
func ExampleGroup_SetSchemata() {
	fs := resctrl.Open(resctrltest.New(resctrltest.Intel()))
	group, err := fs.Create(context.Background(), "batch")
	if err != nil {
		fmt.Println(err)
		return
	}
	rounded, err := group.SetSchemata(resctrl.Schemata{{Resource: "MB", Domains: []resctrl.Domain{{ID: 0, Value: 33}}}})
	fmt.Println(rounded, err)
	_, err = group.SetSchemata(resctrl.Schemata{{Resource: "L3", Domains: []resctrl.Domain{{ID: 0, Value: 0x5}}}})
	fmt.Println(err)
	// Output:
	// [MB:0=40, wanted 33] <nil>
	// write "L3:0=5" to batch/schemata: invalid argument (The mask 5 has non-consecutive 1-bits)
}

// A process that makes a thread while its threads are being moved.
func ExampleMoveThreads() {
	kernel := resctrltest.New(resctrltest.Intel())
	fs := resctrl.Open(kernel)
	process := kernel.Start(2)
	group, err := fs.Create(context.Background(), "batch")
	if err != nil {
		fmt.Println(err)
		return
	}
	first := true
	threads := func() ([]int, error) { // cgroup.threads of a container, say
		list := process.Threads()
		if first {
			first = false
			process.Clone(list[0])
		}
		return list, nil
	}
	moved, err := resctrl.MoveThreads(context.Background(), group, threads, 5)
	fmt.Println(moved.Threads, "moved, looked", moved.Rounds, "times,", len(moved.Left), "left,", err)
	// Output:
	// 3 moved, looked 3 times, 0 left, <nil>
}

func ExampleRates() {
	kernel := resctrltest.New(resctrltest.Intel())
	group := resctrl.Open(kernel).Root()

	before, err := group.Counters()
	if err != nil {
		fmt.Println(err)
		return
	}
	kernel.SetCounter(".", 0, "mbm_total_bytes", "3000000")
	kernel.SetCounter(".", 1, "mbm_total_bytes", "Unavailable")
	after, err := group.Counters()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range resctrl.Rates(before, after, 2*time.Second) {
		if r.Event == "mbm_total_bytes" {
			fmt.Println(r.Resource, r.ID, r.State, r.PerSecond)
		}
	}
	// Output:
	// L3 0 counted 1.5e+06
	// L3 1 unavailable 0
}

func ExamplePlan() {
	fs := resctrl.Open(resctrltest.New(resctrltest.Intel()))
	info, err := fs.Info()
	if err != nil {
		fmt.Println(err)
		return
	}
	groups, err := fs.States()
	if err != nil {
		fmt.Println(err)
		return
	}
	plan, err := resctrl.Plan(info, groups, []resctrl.Class{
		{Name: "LS"},
		{Name: "BE", L3: resctrl.CacheShare{Percent: 30}, MB: resctrl.BandwidthShare{Percent: 45}, Batch: true},
	}, resctrl.PlanOptions{Prefix: "tideline-"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range plan.Classes {
		fmt.Printf("%s: group %q\n", c.Name, c.Group)
		for _, r := range c.Reasons {
			fmt.Println(" ", r)
		}
	}
	for _, s := range plan.Steps {
		fmt.Println(s)
		fmt.Print(s.Schemata)
	}
	fmt.Println(resctrl.Apply(context.Background(), fs, plan))
	// Output:
	// LS: group ""
	// BE: group "tideline-be"
	//   L3: 30 % of 11 ways is 3.3, rounded up to 4
	//   MB: 45 is rounded up to 50: it goes in steps of 10
	// create tideline-be: for BE
	// L3:0=f;1=f
	// MB:0=50;1=50
	// <nil>
}
