package rdt

import (
	"errors"
	"fmt"
	"slices"
)

// Patch returns a copy of an uncompressed ELF kernel whose resctrl sees the hardware that o describes. It returns an error
// that names everything that the kernel lacks.
func Patch(vmlinux []byte, o Options) ([]byte, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	k, err := newKernel(slices.Clone(vmlinux))
	if err != nil {
		return nil, fmt.Errorf("patch kernel: %w", err)
	}
	if err := k.wake(o); err != nil {
		return nil, fmt.Errorf("patch kernel: %w", err)
	}
	return k.b, nil
}

type kernel struct {
	*image
	symbols *symbols
	types   *types

	code  code
	flags [32]uint32 // the words of the CPU's features that are set besides
	errs  []error
}

func newKernel(vmlinux []byte) (*kernel, error) {
	m, err := newImage(vmlinux)
	if err != nil {
		return nil, err
	}
	text, _, err := m.section(".text")
	if err != nil {
		return nil, err
	}
	_, rodata, err := m.section(".rodata")
	if err != nil {
		return nil, err
	}
	s, err := parseKallsyms(rodata, text.Addr)
	if err != nil {
		return nil, err
	}
	_, btf, err := m.section(".BTF")
	if err != nil {
		return nil, err
	}
	t, err := parseBTF(btf)
	if err != nil {
		return nil, err
	}
	return &kernel{image: m, symbols: s, types: t}, nil
}

// Problems are collected, so that a new kernel tells all that has changed at once.
func (k *kernel) fail(err error) {
	if err != nil {
		k.errs = append(k.errs, err)
	}
}

func (k *kernel) symbol(name string) uint64 {
	a, err := k.symbols.address(name)
	k.fail(err)
	return a
}

func (k *kernel) field(structure string, path ...string) field {
	f, err := k.types.field(structure, path...)
	k.fail(err)
	return f
}

func (k *kernel) store(address uint64, f field, value int) {
	if f.size == 0 {
		return // the failure has been noted
	}
	k.fail(k.code.store(address+f.offset, f.size, uint32(value)))
}

// wake adds code in the unused end of .text and has the late initcall of resctrl lead to it. Only the page with the last
// code stays executable after boot in some kernels, so the function that is called later comes first.
func (k *kernel) wake(o Options) error {
	address, free, err := k.room()
	if err != nil {
		return err
	}
	k.code.start = address
	if o.Monitor != nil {
		k.redirectCounters(o.Monitor)
	}
	k.code.align(16)
	entry := k.code.here()
	k.resources(o)
	k.monitor(o.Monitor)
	k.features()
	late := k.symbol("resctrl_late_init")
	k.code.jump(late)
	k.redirectInitcall(late, entry)
	if len(k.errs) > 0 {
		return errors.Join(k.errs...)
	}
	if len(k.code.b) > len(free) {
		return fmt.Errorf("%d bytes of code for %d free ones behind .text", len(k.code.b), len(free))
	}
	copy(free, k.code.b)
	return nil
}

// redirectCounters makes the kernel's function that reads a counter jump to ours, behind its call of the tracer, which the
// kernel rewrites at boot.
func (k *kernel) redirectCounters(m *Monitor) {
	name := "__rmid_read_phys"
	if _, ok := k.symbols.addresses[name]; !ok {
		name = "__rmid_read" // up to 6.10
	}
	at := k.symbol(name)
	tracer := k.symbol("__fentry__")
	b, err := k.at(at, 16)
	if err != nil {
		k.fail(fmt.Errorf("%s: %w", name, err))
		return
	}
	skip := 0
	if endbr64 := []byte{0xf3, 0x0f, 0x1e, 0xfa}; slices.Equal(b[:4], endbr64) {
		skip = 4
	}
	if to := at + uint64(skip) + 5 + uint64(int64(int32(le.Uint32(b[skip+1:])))); b[skip] != 0xe8 || to != tracer {
		k.fail(fmt.Errorf("%s: begins with % x: want a call of __fentry__", name, b[:skip+5]))
		return
	}
	jump := code{start: at + uint64(skip) + 5}
	jump.jump(k.code.here())
	copy(b[skip+5:], jump.b)
	k.code.counter(m)
}

// redirectInitcall has the initcall of resctrl lead to the entry. The table holds 32-bit relative pointers.
func (k *kernel) redirectInitcall(from, to uint64) {
	found := 0
	start, end := k.symbol("__initcall_start"), k.symbol("__initcall_end")
	if end < start || end-start > 1<<20 {
		k.fail(fmt.Errorf("initcalls from %#x to %#x", start, end))
		return
	}
	for a := start; a < end; a += 4 {
		b, err := k.at(a, 4)
		if err != nil {
			k.fail(fmt.Errorf("initcalls: %w", err))
			return
		}
		if a+uint64(int64(int32(le.Uint32(b)))) == from {
			le.PutUint32(b, uint32(to-a))
			found++
		}
	}
	if found != 1 {
		k.fail(fmt.Errorf("resctrl_late_init: %d initcalls, want 1", found))
	}
}

// Numbers of resources in rdt_resources_all (enum resctrl_res_level).
const (
	numL3 = iota
	numL2
	numMB
	numSMBA
)

// feature is a bit of the CPU's features (arch/x86/include/asm/cpufeatures.h).
type feature struct{ word, bit int }

var (
	featureCATL3 = feature{7, 4}
	featureCATL2 = feature{7, 5}
	featureCDPL3 = feature{7, 6}
	featureCDPL2 = feature{7, 15}
	featureMBA   = feature{7, 18}
	featureCQM   = feature{9, 12}
	featureRDT   = feature{9, 15}
	featureSMBA  = feature{11, 21}
	// featureEvents has occupancy behind it, and total and local bytes.
	featureEvents = feature{11, 0}
)

func (k *kernel) feature(list ...feature) {
	for _, f := range list {
		k.flags[f.word] |= 1 << f.bit
	}
}

// resources does what get_rdt_alloc_resources of the kernel would do with CPUID. It returns at once when it finds
// rdt_alloc_capable set.
func (k *kernel) resources(o Options) {
	if o.L3 == nil && o.L2 == nil && o.MB == nil && o.SMBA == nil {
		return
	}
	amd := o.Vendor == AMD
	k.cache(numL3, o.L3, amd, featureCATL3, featureCDPL3)
	k.cache(numL2, o.L2, amd, featureCATL2, featureCDPL2)
	k.bandwidth(numMB, o.MB, amd, featureMBA)
	k.bandwidth(numSMBA, o.SMBA, amd, featureSMBA)
	k.feature(featureRDT)
	k.fail(k.code.store(k.symbol("rdt_alloc_capable"), 1, 1))
}

// resource returns what sets a member of a resource.
func (k *kernel) resource(number int) func(value int, path ...string) {
	const name = "rdt_hw_resource"
	size, err := k.types.size(name)
	k.fail(err)
	address := k.symbol("rdt_resources_all") + uint64(number)*size
	return func(value int, path ...string) {
		if path[0] != "num_closid" {
			path = append([]string{"r_resctrl"}, path...)
		}
		k.store(address, k.field(name, path...), value)
	}
}

func (k *kernel) cache(number int, c *Cache, amd bool, cat, cdp feature) {
	if c == nil {
		return
	}
	set := k.resource(number)
	set(c.CLOSIDs, "num_closid")
	set(c.Bits, "cache", "cbm_len")
	set(1<<c.Bits-1, "default_ctrl")
	set(int(c.Shareable), "cache", "shareable_bits")
	set((c.Bits+3)/4, "data_width")
	if !amd {
		sparse := "arch_has_sparse_bitmasks"
		if _, err := k.types.field("rdt_hw_resource", "r_resctrl", "cache", sparse); err != nil {
			sparse = "arch_has_sparse_bitmaps" // up to 6.6
		}
		set(number01(c.Sparse), "cache", sparse)
	}
	set(1, "alloc_capable")
	k.feature(cat)
	if c.CDP {
		set(1, "cdp_capable")
		k.feature(cdp)
	}
}

func number01(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (k *kernel) bandwidth(number int, b *Bandwidth, amd bool, mba feature) {
	if b == nil {
		return
	}
	set := k.resource(number)
	set(b.CLOSIDs, "num_closid")
	set(b.Max, "default_ctrl")
	set(1, "alloc_capable")
	k.feature(mba)
	if amd {
		set(0, "membw", "min_bw")
		set(1, "membw", "bw_gran")
		set(4, "data_width")
		return
	}
	set(1, "membw", "arch_needs_linear")
	set(1, "membw", "delay_linear")
	set(b.Min, "membw", "min_bw")
	set(b.Step, "membw", "bw_gran")
	set(3, "data_width")
	const most, perThread = 1, 2 // enum membw_throttle_mode
	mode := most
	if b.PerThread {
		mode = perThread
	}
	set(mode, "membw", "throttle_mode")
	k.showThrottleMode()
}

// showThrottleMode does what thread_throttle_mode_init of the kernel does: it shows a file of that name in info/MB.
func (k *kernel) showThrottleMode() {
	const file = "thread_throttle_mode"
	const info, control, memory = 1 << 0, 1 << 4, 1 << 9 // RFTYPE_INFO, RFTYPE_CTRL, RFTYPE_RES_MB
	table := k.symbol("res_common_files")
	size, err := k.types.size("rftype")
	k.fail(err)
	name, flags := k.field("rftype", "name"), k.field("rftype", "fflags")
	if size == 0 || name.size != 8 {
		return
	}
	const most = 200 // of files
	for i := range uint64(most) {
		entry := table + i*size
		b, err := k.at(entry+name.offset, 8)
		if err != nil {
			break
		}
		text, err := k.text(le.Uint64(b))
		if err != nil {
			break // behind the table
		}
		if text == file {
			flags.size = min(flags.size, 4) // the low half of a long has all that is used
			k.store(entry, flags, info|control|memory)
			return
		}
	}
	k.fail(fmt.Errorf("res_common_files: no %s", file))
}

// monitor fills in what the kernel's own get_rdt_mon_resources reads.
func (k *kernel) monitor(m *Monitor) {
	if m == nil {
		return
	}
	k.feature(featureCQM, featureEvents)
	for i, e := range events {
		if len(m.Events) == 0 || slices.Contains(m.Events, e) {
			k.feature(feature{featureEvents.word, featureEvents.bit + 1 + i})
		}
	}
	cpu := k.symbol("boot_cpu_data")
	k.store(cpu, k.field("cpuinfo_x86", "x86_cache_max_rmid"), m.RMIDs-1)
	k.store(cpu, k.field("cpuinfo_x86", "x86_cache_occ_scale"), m.Unit)
	// 24 bits and 38 are 62, the width of a counter's number: it never overflows.
	k.store(cpu, k.field("cpuinfo_x86", "x86_cache_mbm_width_offset"), 38)
}

// features sets the flags for the kernel and for /proc/cpuinfo, which shows those of each CPU.
func (k *kernel) features() {
	boot, capability := k.symbol("boot_cpu_data"), k.field("cpuinfo_x86", "x86_capability").offset
	info, ok := k.symbols.perCPU["cpu_info"]
	if !ok {
		k.fail(errors.New("no per-CPU symbol cpu_info"))
	}
	var each [][2]uint32
	for word, v := range k.flags {
		if v == 0 {
			continue
		}
		at := capability + uint64(4*word)
		k.code.or(boot+at, v)
		each = append(each, [2]uint32{uint32(info + at), v})
	}
	k.code.eachCPU(k.symbol("__per_cpu_offset"), k.symbol("nr_cpu_ids"), each)
}
