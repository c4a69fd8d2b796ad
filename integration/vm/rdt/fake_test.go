package rdt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fakeKernel is an ELF file with as much of a kernel as the patcher looks at.
type fakeKernel struct {
	old       bool              // kallsyms as up to 6.3
	code      int               // bytes of code in .text, which has 4096
	symbols   map[string]uint64 // added to those of fakeSymbols; 0: taken away
	members   string            // of struct rdt_resource, a comma behind each
	initcalls []uint64
	reader    []byte // first bytes of __rmid_read_phys
	file      string // in res_common_files
}

const (
	fakeText   = 0xffffffff81000000
	fakeRodata = 0xffffffff81001000
	fakeData   = 0xffffffff82000000
	fakeReader = fakeText + 0x100
	fakeLate   = fakeText + 0x40
)

func newFakeKernel() fakeKernel {
	return fakeKernel{
		code:      0x200,
		members:   "num,cache,membw,data_width,default_ctrl,alloc_capable,cdp_capable,",
		initcalls: []uint64{fakeText + 0x20, fakeLate},
		reader:    call(fakeReader, fakeText+0x10),
		file:      "thread_throttle_mode",
	}
}

// call is the instruction for two addresses.
func call(at, to uint64) []byte {
	return binary.LittleEndian.AppendUint32([]byte{0xe8}, uint32(to-at-5))
}

// fakeSymbols has a type letter before each name.
var fakeSymbols = map[string]uint64{
	"T_text":              fakeText,
	"T__fentry__":         fakeText + 0x10,
	"t__rmid_read_phys":   fakeReader,
	"tresctrl_late_init":  fakeLate,
	"D__initcall_start":   fakeData,
	"D__initcall_end":     fakeData, // less 4 for each initcall
	"drdt_resources_all":  fakeData + 0x1000,
	"drdt_alloc_capable":  fakeData + 0x1800,
	"Dboot_cpu_data":      fakeData + 0x1900,
	"dres_common_files":   fakeData + 0x200,
	"D__per_cpu_offset":   fakeData + 0x1a00,
	"Dnr_cpu_ids":         fakeData + 0x1a08,
	"Acpu_info":           0x6000, // per CPU
	"trdt_twice":          fakeText + 0x50,
	"trdt_twice ":         fakeText + 0x60, // the space is cut: a second symbol of that name
	"D__end_of_the_table": fakeData + 0x1b00,
}

func (k fakeKernel) build() []byte {
	text := make([]byte, 4096)
	for i := range k.code {
		text[i] = 0xf4
	}
	copy(text[fakeReader-fakeText:], k.reader)

	syms := maps.Clone(fakeSymbols)
	syms["D__initcall_end"] += uint64(4 * len(k.initcalls))
	for name, a := range k.symbols {
		syms[name] = a
		if a == 0 {
			delete(syms, name)
		}
	}
	rodata := bytes.Repeat([]byte{0x5a}, 256)
	copy(rodata, "first_file\x00")
	copy(rodata[64:], k.file+"\x00")
	rodata = append(rodata, encodeKallsyms(syms, k.old)...)
	rodata = append(rodata, bytes.Repeat([]byte{0xa5}, 64)...)

	data := make([]byte, 0x2000)
	for i, f := range k.initcalls {
		binary.LittleEndian.PutUint32(data[4*i:], uint32(f-(fakeData+uint64(4*i))))
	}
	binary.LittleEndian.PutUint64(data[0x200:], fakeRodata)
	binary.LittleEndian.PutUint64(data[0x210:], fakeRodata+64)

	return encodeELF([]fakeSection{
		{".text", fakeText, text}, {".rodata", fakeRodata, rodata}, {".BTF", 0, k.btf()}, {".data", fakeData, data},
	})
}

func (k fakeKernel) btf() []byte {
	var b btfWriter
	u32 := b.add("unsigned int", kindInt<<24, 4, 32)
	number := b.add("u32", kindTypedef<<24, u32)
	yes := b.add("bool", kindInt<<24, 1, 8)
	mode := b.add("membw_throttle_mode", kindEnum<<24, 4)
	pointer := b.add("", kindPointer<<24, u32)
	long := b.add("unsigned long", kindInt<<24, 8, 64)
	array := b.add("", kindArray<<24, 0, u32, u32, 24)
	b.structure("rftype", 16, "name", pointer, 0, "fflags", long, 8)
	b.structure("cpuinfo_x86", 0x80, "x86_capability", array, 8, "x86_cache_max_rmid", u32, 0x70, "x86_cache_occ_scale", u32, 0x74, "x86_cache_mbm_width_offset", u32, 0x78)
	cache := b.structure("resctrl_cache", 16, "cbm_len", u32, 0, "shareable_bits", number, 4, "arch_has_sparse_bitmasks", yes, 8)
	inner := b.structure("", 8, "bw_gran", u32, 0, "min_bw", u32, 4)
	membw := b.structure("resctrl_membw", 20, "", inner, 0, "delay_linear", u32, 8, "arch_needs_linear", yes, 12, "throttle_mode", mode, 16)
	var members []any
	for i, name := range strings.Split(strings.TrimSuffix(k.members, ","), ",") {
		id := u32
		switch name {
		case "cache":
			id = cache
		case "membw":
			id = membw
		case "alloc_capable", "cdp_capable":
			id = yes
		}
		members = append(members, name, id, 32*i)
	}
	resource := b.structure("rdt_resource", 0x100, members...)
	b.structure("rdt_hw_resource", 0x140, "r_resctrl", resource, 0, "num_closid", number, 0x120)
	return b.end()
}

// btfWriter writes what parseBTF reads.
type btfWriter struct {
	types, strings []byte
	n              uint32
}

func (b *btfWriter) text(s string) uint32 {
	if s == "" && len(b.strings) > 0 {
		return 0
	}
	if len(b.strings) == 0 {
		b.strings = []byte{0}
	}
	at := uint32(len(b.strings))
	b.strings = append(append(b.strings, s...), 0)
	return at
}

func (b *btfWriter) add(name string, info uint32, rest ...uint32) uint32 {
	for _, v := range append([]uint32{b.text(name), info}, rest...) {
		b.types = binary.LittleEndian.AppendUint32(b.types, v)
	}
	b.n++
	return b.n
}

// structure takes three values for each member: name, type and offset in bytes.
func (b *btfWriter) structure(name string, size uint32, members ...any) uint32 {
	rest := []uint32{size}
	for m := range slices.Chunk(members, 3) {
		rest = append(rest, b.text(m[0].(string)), m[1].(uint32), uint32(8*m[2].(int)))
	}
	return b.add(name, kindStruct<<24|uint32(len(members)/3), rest...)
}

func (b *btfWriter) end() []byte {
	out := []byte{0x9f, 0xeb, 1, 0}
	for _, v := range []int{24, 0, len(b.types), len(b.types), len(b.strings)} {
		out = binary.LittleEndian.AppendUint32(out, uint32(v))
	}
	return append(append(out, b.types...), b.strings...)
}

// encodeKallsyms writes symbols as scripts/kallsyms.c does. Names have their type as first letter, and end with a space to
// be a second one of the same name. The token 200 is "rdt_", the others are letters or unused.
func encodeKallsyms(symbols map[string]uint64, old bool) []byte {
	var out []byte
	pad := func() {
		for len(out)%8 != 0 {
			out = append(out, 0)
		}
	}
	names := slices.Sorted(maps.Keys(symbols))
	const base = fakeText
	offsets := func() {
		for _, n := range names {
			o := uint32(symbols[n])
			if symbols[n] >= base {
				o = uint32(-1 - int64(symbols[n]-base))
			}
			out = binary.LittleEndian.AppendUint32(out, o)
		}
		pad()
		out = binary.LittleEndian.AppendUint64(out, base)
	}
	if old {
		offsets()
	}
	out = binary.LittleEndian.AppendUint32(out, uint32(len(names)))
	pad()
	start := len(out)
	var markers []int
	for i, n := range names {
		if i%256 == 0 {
			markers = append(markers, len(out)-start)
		}
		n = strings.ReplaceAll(strings.TrimSuffix(n, " "), "rdt_", "\xc8")
		if len(n) > 127 {
			out = append(out, byte(len(n))|0x80, byte(len(n)>>7))
		} else {
			out = append(out, byte(len(n)))
		}
		out = append(out, n...)
	}
	pad()
	for _, m := range markers {
		out = binary.LittleEndian.AppendUint32(out, uint32(m))
	}
	pad()
	table := len(out)
	var index []int
	for i := range 256 {
		index = append(index, len(out)-table)
		switch {
		case i == 200:
			out = append(out, "rdt_"...)
		case i > ' ' && i < 127:
			out = append(out, byte(i))
		default:
			out = append(out, fmt.Sprintf("unused%d", i)...)
		}
		out = append(out, 0)
	}
	pad()
	for _, i := range index {
		out = binary.LittleEndian.AppendUint16(out, uint16(i))
	}
	if !old {
		offsets()
	}
	return out
}

// fakeSection is loaded if it has an address.
type fakeSection struct {
	name    string
	address uint64
	data    []byte
}

func encodeELF(sections []fakeSection) []byte {
	le := binary.LittleEndian
	const head, progHead, sectionHead = 64, 56, 64
	names := "\x00"
	out := make([]byte, head+progHead*len(sections))
	heads := make([]byte, sectionHead)
	add := func(name string, kind uint32, address uint64, data []byte) {
		h := make([]byte, sectionHead)
		le.PutUint32(h, uint32(len(names)))
		names += name + "\x00"
		le.PutUint32(h[4:], kind)
		le.PutUint64(h[16:], address)
		le.PutUint64(h[24:], uint64(len(out)))
		le.PutUint64(h[32:], uint64(len(data)))
		heads = append(heads, h...)
		out = append(out, data...)
	}
	for i, s := range sections {
		p := out[head+progHead*i:]
		if s.address != 0 {
			le.PutUint32(p, 1) // PT_LOAD
		}
		le.PutUint64(p[8:], uint64(len(out)))
		le.PutUint64(p[16:], s.address)
		le.PutUint64(p[32:], uint64(len(s.data)))
		le.PutUint64(p[40:], uint64(len(s.data)))
		add(s.name, 1, s.address, s.data)
	}
	add(".shstrtab", 3, 0, []byte(names+".shstrtab\x00"))
	copy(out, "\x7fELF\x02\x01\x01")
	le.PutUint16(out[16:], 2)
	le.PutUint16(out[18:], 62)
	le.PutUint32(out[20:], 1)
	le.PutUint64(out[32:], head)
	le.PutUint64(out[40:], uint64(len(out)))
	le.PutUint16(out[52:], head)
	le.PutUint16(out[54:], progHead)
	le.PutUint16(out[56:], uint16(len(sections)))
	le.PutUint16(out[58:], sectionHead)
	le.PutUint16(out[60:], uint16(len(sections)+2))
	le.PutUint16(out[62:], uint16(len(sections)+1))
	return append(out, heads...)
}
