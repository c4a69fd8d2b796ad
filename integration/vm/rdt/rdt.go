// Package rdt wakes the resctrl code of a Linux kernel on a machine that has no such hardware. It takes a kernel's ELF
// image and returns a copy that fills in what CPUID would have said, before the kernel's own resctrl starts. All that the
// file system answers is then the kernel's work; only the description of the hardware and the values of counters are
// ours. Addresses come from the kernel's kallsyms and offsets from its BTF, so no version is compiled in; a kernel that
// is built otherwise is refused.
//
//	patched, err := rdt.Patch(vmlinux, rdt.Options{L3: &rdt.Cache{Bits: 11, CLOSIDs: 16, CDP: true}})
//
// The copy works under QEMU's TCG alone, which ignores writes to registers that it does not know. It has no effect on any
// cache or bandwidth, no pseudo-locking and no event configuration. The package does no I/O.
package rdt

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"slices"
)

// Options describe the hardware that the kernel shall see. A nil resource is not there. The zero value is a machine
// without any.
type Options struct {
	Vendor Vendor // "": Intel; the CPU model of the machine must agree

	L3, L2 *Cache
	// MB and SMBA are throttled memory bandwidth, and that of slow memory, which AMD alone has.
	MB, SMBA *Bandwidth
	Monitor  *Monitor
}

// Vendor names who made the CPU.
type Vendor string

const (
	Intel Vendor = "intel"
	AMD   Vendor = "amd"
)

// Valid reports whether v is one of the vendors above.
func (v Vendor) Valid() bool { return v == Intel || v == AMD }

// Cache is a cache whose ways can be divided.
type Cache struct {
	Bits      int    // of a mask, 1 to 32
	CLOSIDs   int    // 2 or more
	Shareable uint32 // bits that other hardware uses too; in the highest ways on real machines
	// Sparse allows masks with holes on Intel. On AMD they always are.
	Sparse bool
	CDP    bool // code and data can be divided by themselves
}

// Bandwidth is a throttle: on Intel in percent, on AMD in units of 1/8 GB/s.
type Bandwidth struct {
	CLOSIDs   int
	Max       int // the value of no throttling
	Min, Step int // Intel; the kernel has its own of AMD, 0 and 1
	PerThread bool
}

// Monitor is the counting of occupancy and bandwidth by L3.
type Monitor struct {
	RMIDs  int
	Unit   int     // bytes of one step of the occupancy counter
	Events []Event // nil: all
	// Unavailable and Failing are RMIDs whose counters read so.
	Unavailable, Failing []int
}

// Event is what a counter counts, by the name of its file. A counter's value is made up: occupancy is RMID+1 units,
// bandwidth grows with time times RMID+1, and half of it is local.
type Event string

const (
	Occupancy  Event = "llc_occupancy"
	TotalBytes Event = "mbm_total_bytes"
	LocalBytes Event = "mbm_local_bytes"
)

// events are all of them, in the order of their numbers in the kernel and in CPUID, of which the first is 1.
var events = []Event{Occupancy, TotalBytes, LocalBytes}

// Check reports everything that is wrong with the options.
func (o Options) Check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Vendor != "" && !o.Vendor.Valid() {
		bad("vendor %q: want %s or %s", o.Vendor, Intel, AMD)
	}
	closids := func(name string, n int) {
		if n < 2 || n > 1<<16 {
			bad("%s: %d CLOSIDs: want 2 to %d", name, n, 1<<16)
		}
	}
	cache := func(name string, c *Cache) {
		if c == nil {
			return
		}
		closids(name, c.CLOSIDs)
		if c.Bits < 1 || c.Bits > 32 {
			bad("%s: %d bits: want 1 to 32", name, c.Bits)
		} else if bits.Len32(c.Shareable) > c.Bits {
			bad("%s: shareable bits %x: more than %d", name, c.Shareable, c.Bits)
		}
	}
	bandwidth := func(name string, b *Bandwidth) {
		if b == nil {
			return
		}
		closids(name, b.CLOSIDs)
		if b.Max < 1 || b.Max > 1<<20 {
			bad("%s: maximum %d: want 1 to %d", name, b.Max, 1<<20)
		}
		switch {
		case o.Vendor == AMD && (b.Min != 0 || b.Step != 0 || b.PerThread):
			bad("%s: minimum, step and threads are not AMD's", name)
		case o.Vendor != AMD && (b.Min < 1 || b.Min > b.Max || b.Step < 1 || b.Step > b.Max):
			bad("%s: minimum %d and step %d: want 1 to %d", name, b.Min, b.Step, b.Max)
		}
	}
	cache("L3", o.L3)
	cache("L2", o.L2)
	bandwidth("MB", o.MB)
	bandwidth("SMBA", o.SMBA)
	if o.SMBA != nil && o.Vendor != AMD {
		bad("SMBA: AMD's alone")
	}
	if m := o.Monitor; m != nil {
		if m.RMIDs < 1 || m.RMIDs > 1<<16 {
			bad("monitor: %d RMIDs: want 1 to %d", m.RMIDs, 1<<16)
		}
		if m.Unit < 1 || m.Unit > 1<<20 {
			bad("monitor: unit of %d bytes: want 1 to %d", m.Unit, 1<<20)
		}
		for _, e := range m.Events {
			if !slices.Contains(events, e) {
				bad("monitor: event %q: want one of %v", e, events)
			}
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("check resctrl options: %w", errors.Join(errs...))
	}
	return nil
}

//go:embed *.go
var sources embed.FS

// Sources are the package's own source files. Who keeps patched kernels takes them into the key.
func Sources() string {
	var all []byte
	// What is embedded is always there.
	_ = fs.WalkDir(sources, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := sources.ReadFile(name)
		all = append(append(append(all, name...), 0), b...)
		return err
	})
	return string(all)
}
