package resctrltest

import "github.com/tideline-io/tideline/resctrl"

// Layout is a machine: what its CPU has and how its resctrl is mounted.
type Layout struct {
	Name       string
	Kernel     string // "6.12", or "6.1": what differs is known of both
	CPUs       int
	Caches     []Cache     // L3 before L2
	Bandwidths []Bandwidth // MB before SMBA
	Monitor    *Monitor
	Options    resctrl.MountOptions
}

// Cache is a cache that can be allocated.
type Cache struct {
	Name      string // "L3", "L2"
	Bits      int
	MinBits   int
	CLOSIDs   int // without CDP
	Shareable resctrl.Mask
	Sparse    bool
	CDP       bool // could be mounted with cdp or cdpl2
	Bytes     uint64
	Domains   []Domain
}

// Domain is one instance of a resource and the CPUs that it serves.
type Domain struct {
	ID   int
	CPUs []int
}

// Bandwidth is a bandwidth that can be allocated.
type Bandwidth struct {
	Name         string // "MB", "SMBA"
	CLOSIDs      int
	Min, Max     uint64
	Gran         uint64
	Linear       bool
	Width        int    // to which the kernel pads values
	ThrottleMode string // "" where there is no such file
	Domains      []Domain
}

// Monitor is what can be monitored of L3.
type Monitor struct {
	RMIDs     int
	Events    []string
	Unit      uint64 // of occupancy and its threshold, in bytes
	Threshold uint64
	Limit     uint64 // of the threshold
	Counters  int    // assignable MBM counters of each domain; 0: each RMID has its own
	Domains   []Domain
}

// domains spreads CPUs evenly.
func domains(cpus int, ids ...int) []Domain {
	list := make([]Domain, len(ids))
	for i, id := range ids {
		list[i].ID = id
		for c := i * cpus / len(ids); c < (i+1)*cpus/len(ids); c++ {
			list[i].CPUs = append(list[i].CPUs, c)
		}
	}
	return list
}

var allEvents = []string{"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"}

// Intel is L3, MB and monitoring on 4 CPUs: the machine on which a kernel's answers were measured, and the one of the
// long table.
func Intel() Layout {
	d := domains(4, 0, 1)
	return Layout{
		Name: "intel", Kernel: "6.12", CPUs: 4,
		Caches: []Cache{{
			Name: "L3", Bits: 11, MinBits: 1, CLOSIDs: 16, Shareable: 0x600, CDP: true, Bytes: 16 << 20, Domains: d,
		}},
		Bandwidths: []Bandwidth{percent(d)},
		Monitor:    &Monitor{RMIDs: 16, Events: allEvents, Unit: 65536, Threshold: 1 << 20, Limit: 16 << 20, Domains: d},
	}
}

func percent(d []Domain) Bandwidth {
	return Bandwidth{Name: "MB", CLOSIDs: 8, Min: 10, Max: 100, Gran: 10, Linear: true, Width: 3, ThrottleMode: "max", Domains: d}
}

// IntelL3 has L3 alone, of 20 ways, 4 CLOSIDs, masks of at least 2 bits and one domain.
func IntelL3() Layout {
	d := domains(8, 0)
	return Layout{
		Name: "intel-l3", Kernel: "6.1", CPUs: 8,
		Caches: []Cache{{Name: "L3", Bits: 20, MinBits: 2, CLOSIDs: 4, Shareable: 0xc0000, Bytes: 20 << 20, Domains: d}},
	}
}

// IntelCDP is Intel mounted with cdp.
func IntelCDP() Layout {
	l := Intel()
	l.Name, l.Options.CDP = "intel-cdp", true
	return l
}

// IntelMBps is Intel mounted with mba_MBps.
func IntelMBps() Layout {
	l := Intel()
	l.Name, l.Options.MBps = "intel-mbps", true
	return l
}

// IntelL2 has L2, L3 and MB, masks with holes, and no monitoring.
func IntelL2() Layout {
	d := domains(4, 0, 1)
	return Layout{
		Name: "intel-l2", Kernel: "6.12", CPUs: 4,
		Caches: []Cache{
			{Name: "L3", Bits: 20, MinBits: 1, CLOSIDs: 8, Shareable: 0xc0000, Sparse: true, CDP: true, Bytes: 16 << 20, Domains: d},
			{Name: "L2", Bits: 8, MinBits: 1, CLOSIDs: 4, Sparse: true, CDP: true, Bytes: 4 << 20, Domains: domains(4, 0, 1, 2, 3)},
		},
		Bandwidths: []Bandwidth{percent(d)},
	}
}

// L2Only is an Atom: L2 of 4 domains, no L3, no MB, no monitoring.
func L2Only() Layout {
	return Layout{
		Name: "l2-only", Kernel: "6.12", CPUs: 8,
		Caches: []Cache{{Name: "L2", Bits: 8, MinBits: 1, CLOSIDs: 4, CDP: true, Bytes: 2 << 20, Domains: domains(8, 0, 1, 2, 3)}},
	}
}

// AMD has masks with holes that may be empty, MB and SMBA in units, and 4 domains.
func AMD() Layout {
	d := domains(4, 0, 1, 2, 3)
	units := Bandwidth{Name: "MB", CLOSIDs: 16, Max: 2048, Gran: 1, Width: 4, Domains: d}
	slow := units
	slow.Name = "SMBA"
	return Layout{
		Name: "amd", Kernel: "6.12", CPUs: 4,
		Caches:     []Cache{{Name: "L3", Bits: 16, CLOSIDs: 16, Sparse: true, CDP: true, Bytes: 16 << 20, Domains: d}},
		Bandwidths: []Bandwidth{units, slow},
		Monitor:    &Monitor{RMIDs: 64, Events: allEvents, Unit: 64, Threshold: 8192, Limit: 512 << 10, Domains: d},
	}
}

// AMDSparse is a larger AMD machine whose cache ids have gaps, with assignable counters.
func AMDSparse() Layout {
	l := AMD()
	l.Name, l.CPUs = "amd-sparse", 32
	d := domains(32, 0, 2, 8, 11)
	l.Caches[0].Domains = d
	for i := range l.Bandwidths {
		l.Bandwidths[i].Domains = d
	}
	l.Monitor.Domains, l.Monitor.Counters = d, 6
	return l
}

// NoMonitor has L3 and MB and nothing to monitor.
func NoMonitor() Layout {
	l := Intel()
	l.Name, l.Monitor = "no-monitor", nil
	return l
}

// MonitorOnly can allocate nothing.
func MonitorOnly() Layout {
	l := Intel()
	l.Name, l.Caches, l.Bandwidths = "monitor-only", nil, nil
	return l
}

// Layouts are all machines of this package.
func Layouts() []Layout {
	return []Layout{Intel(), IntelL3(), IntelCDP(), IntelMBps(), IntelL2(), L2Only(), AMD(), AMDSparse(), NoMonitor(), MonitorOnly()}
}
