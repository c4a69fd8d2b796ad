package resctrl

import (
	"slices"
	"testing"

	"github.com/tideline-io/tideline/integration/vm/rdt"
	"github.com/tideline-io/tideline/resctrl"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

// layout is one machine. It boots once, and mounts its resctrl once for each of the fake's machines, which differ in
// nothing else.
type layout struct {
	fakes                []resctrltest.Layout
	cpus, nodes, threads int // threads of a core
}

func (l layout) name() string { return l.fakes[0].Name }

// machine is one for a test that asks for guestLayout.
func (l layout) machine(run string) machine {
	return machine{hardware: hardware(l.fakes[0]), cpus: l.cpus, nodes: l.nodes, threads: l.threads, run: run, env: []string{layoutEnv + "=" + l.name()}}
}

// layouts are the machines that the fake is compared on. On Intel an L3 is a node's and an L2 a core's; on AMD an L3 is a
// core's.
func layouts() []layout {
	return []layout{
		{fakes: []resctrltest.Layout{
			resctrltest.Intel(), resctrltest.IntelCDP(), resctrltest.IntelMBps(), with(resctrltest.Intel(), resctrl.MountOptions{Debug: true}),
		}, cpus: 4, nodes: 2, threads: 1},
		{fakes: []resctrltest.Layout{
			resctrltest.IntelL2(), with(resctrltest.IntelL2(), resctrl.MountOptions{CDPL2: true}), with(resctrltest.IntelL2(), resctrl.MountOptions{CDP: true, CDPL2: true}),
		}, cpus: 4, nodes: 2, threads: 1},
		{fakes: []resctrltest.Layout{resctrltest.AMD(), with(resctrltest.AMD(), resctrl.MountOptions{CDP: true})}, cpus: 4, nodes: 2, threads: 1},
		{fakes: []resctrltest.Layout{gaps()}, cpus: 6, nodes: 2, threads: 1},
		{fakes: []resctrltest.Layout{intelL3()}, cpus: 8, nodes: 1, threads: 1},
		{fakes: []resctrltest.Layout{l2Only()}, cpus: 8, nodes: 2, threads: 2},
		{fakes: []resctrltest.Layout{resctrltest.NoMonitor()}, cpus: 4, nodes: 2, threads: 1},
		{fakes: []resctrltest.Layout{resctrltest.MonitorOnly()}, cpus: 4, nodes: 2, threads: 1},
	}
}

// with is a machine that is mounted with other options. There is no table for it.
func with(l resctrltest.Layout, o resctrl.MountOptions) resctrltest.Layout {
	l.Name, l.Options = l.Name+" "+o.String(), o
	return l
}

// gaps is AMD with holes between cache ids, without the counters of AMDSparse, which no kernel here has: three cores of a
// socket take the ids of four.
func gaps() resctrltest.Layout {
	l := resctrltest.AMD()
	l.Name, l.CPUs = "amd-gaps", 6
	var d []resctrltest.Domain
	for cpu, id := range []int{0, 1, 2, 4, 5, 6} {
		d = append(d, resctrltest.Domain{ID: id, CPUs: []int{cpu}})
	}
	l.Caches[0].Domains, l.Monitor.Domains = d, d
	for i := range l.Bandwidths {
		l.Bandwidths[i].Domains = d
	}
	return l
}

// intelL3 and l2Only are those machines under 6.12 and with the sizes of QEMU's caches; a kernel can't be told that masks
// need more than one bit.
func intelL3() resctrltest.Layout {
	l := resctrltest.IntelL3()
	l.Kernel, l.Caches[0].MinBits, l.Caches[0].Bytes = "6.12", 1, 16<<20
	return l
}

func l2Only() resctrltest.Layout {
	l := resctrltest.L2Only()
	l.Caches[0].Bytes = 4 << 20
	return l
}

// hardware is what a kernel has to be told to be the machine of a fake.
func hardware(l resctrltest.Layout) rdt.Options {
	var o rdt.Options
	for _, c := range l.Caches {
		cache := &rdt.Cache{Bits: c.Bits, CLOSIDs: c.CLOSIDs, Shareable: uint32(c.Shareable), Sparse: c.Sparse, CDP: c.CDP}
		if c.Name == "L2" {
			o.L2 = cache
		} else {
			o.L3 = cache
		}
		if c.MinBits == 0 {
			o.Vendor = rdt.AMD
		}
	}
	for _, b := range l.Bandwidths {
		bw := &rdt.Bandwidth{CLOSIDs: b.CLOSIDs, Max: int(b.Max), Min: int(b.Min), Step: int(b.Gran), PerThread: b.ThrottleMode == "per-thread"}
		if o.Vendor == rdt.AMD {
			bw.Step = 0
		}
		if b.Name == "SMBA" {
			o.SMBA = bw
		} else {
			o.MB = bw
		}
	}
	if m := l.Monitor; m != nil {
		o.Monitor = &rdt.Monitor{RMIDs: m.RMIDs, Unit: int(m.Unit)}
		for _, e := range m.Events {
			o.Monitor.Events = append(o.Monitor.Events, rdt.Event(e))
		}
	}
	return o
}

// TestLayouts checks that each layout can be a kernel's.
func TestLayouts(t *testing.T) {
	var names []string
	for _, l := range layouts() {
		if slices.Contains(names, l.name()) {
			t.Errorf("two layouts are %s", l.name())
		}
		names = append(names, l.name())
		want := hardware(l.fakes[0])
		if err := want.Check(); err != nil {
			t.Errorf("%s: %v", l.name(), err)
		}
		for _, f := range l.fakes {
			if f.CPUs != l.cpus {
				t.Errorf("%s: %d CPUs in the machine, want %d", f.Name, l.cpus, f.CPUs)
			}
		}
	}
}
