package rdt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// places names the numbers that patches store to.
var places = func() map[uint64]string {
	places := map[uint64]string{}
	for i, r := range []string{"L3", "L2", "MB", "SMBA"} {
		for off, f := range map[uint64]string{
			0x120: "num_closid", 0x20: "cbm_len", 0x24: "shareable_bits", 0x28: "sparse", 0x40: "bw_gran", 0x44: "min_bw",
			0x48: "delay_linear", 0x4c: "needs_linear", 0x50: "throttle_mode", 0x60: "data_width", 0x80: "default_ctrl", 0xa0: "alloc", 0xc0: "cdp",
		} {
			places[fakeSymbols["drdt_resources_all"]+uint64(i)*0x140+off] = r + "." + f
		}
	}
	cpu := fakeSymbols["Dboot_cpu_data"]
	for w := range 24 {
		places[cpu+8+uint64(4*w)] = fmt.Sprint("cap", w)
	}
	places[cpu+0x70], places[cpu+0x74], places[cpu+0x78] = "max_rmid", "occ_scale", "mbm_width"
	places[fakeSymbols["drdt_alloc_capable"]] = "alloc_capable"
	places[fakeSymbols["dres_common_files"]+16+8] = "throttle_file"
	return places
}()

// follow reads the code at an address as what it does, up to its jump.
func follow(t *testing.T, m *image, at uint64) []string {
	t.Helper()
	var did []string
	for {
		b, err := m.at(at, 16)
		if err != nil {
			t.Fatal(err)
		}
		address := func(b []byte) string {
			a := uint64(int64(int32(binary.LittleEndian.Uint32(b))))
			if n, ok := places[a]; ok {
				return n
			}
			return fmt.Sprintf("%#x", a)
		}
		value := binary.LittleEndian.Uint32
		switch {
		case bytes.HasPrefix(b, []byte{0xc6, 0x04, 0x25}):
			did = append(did, fmt.Sprintf("%s=%d", address(b[3:]), b[7]))
			at += 8
		case bytes.HasPrefix(b, []byte{0xc7, 0x04, 0x25}):
			did = append(did, fmt.Sprintf("%s=%d", address(b[3:]), value(b[7:])))
			at += 11
		case bytes.HasPrefix(b, []byte{0x81, 0x0c, 0x25}):
			did = append(did, fmt.Sprintf("%s|=%x", address(b[3:]), value(b[7:])))
			at += 11
		case bytes.HasPrefix(b, []byte{0x31, 0xc9, 0x48, 0x8b, 0x04, 0xcd}):
			did = append(did, "each CPU")
			at += 10
		case bytes.HasPrefix(b, []byte{0x81, 0x88}):
			did = append(did, fmt.Sprintf("%#x|=%x", value(b[2:]), value(b[6:])))
			at += 10
		case bytes.HasPrefix(b, []byte{0xff, 0xc1, 0x3b, 0x0c, 0x25}):
			at += 15
		case b[0] == 0xe9:
			to := at + 5 + uint64(int64(int32(value(b[1:]))))
			if to != fakeLate {
				t.Errorf("the code ends with a jump to %#x, want resctrl_late_init", to)
			}
			return did
		default:
			t.Fatalf("unknown code at %#x: % x", at, b)
		}
	}
}

func TestPatch(t *testing.T) {
	intel := &Bandwidth{CLOSIDs: 8, Max: 100, Min: 10, Step: 10}
	for _, c := range []struct {
		name string
		old  bool
		opts Options
		want string
	}{
		{name: "nothing", want: "each CPU"},
		{
			name: "Intel", opts: Options{L3: &Cache{Bits: 11, CLOSIDs: 16, Shareable: 0x600, CDP: true}, MB: intel, Monitor: &Monitor{RMIDs: 16, Unit: 65536}},
			want: "L3.num_closid=16 L3.cbm_len=11 L3.default_ctrl=2047 L3.shareable_bits=1536 L3.data_width=3 L3.sparse=0 L3.alloc=1 L3.cdp=1" +
				" MB.num_closid=8 MB.default_ctrl=100 MB.alloc=1 MB.needs_linear=1 MB.delay_linear=1 MB.min_bw=10 MB.bw_gran=10 MB.data_width=3 MB.throttle_mode=1" +
				" throttle_file=529 alloc_capable=1 max_rmid=15 occ_scale=65536 mbm_width=38" +
				" cap7|=40050 cap9|=9000 cap11|=f each CPU 0x6024|=40050 0x602c|=9000 0x6034|=f",
		},
		{
			name: "L2 and threads, old kallsyms", old: true,
			opts: Options{Vendor: Intel, L2: &Cache{Bits: 8, CLOSIDs: 4, Sparse: true, CDP: true}, MB: &Bandwidth{CLOSIDs: 4, Max: 100, Min: 10, Step: 10, PerThread: true}},
			want: "L2.num_closid=4 L2.cbm_len=8 L2.default_ctrl=255 L2.shareable_bits=0 L2.data_width=2 L2.sparse=1 L2.alloc=1 L2.cdp=1" +
				" MB.num_closid=4 MB.default_ctrl=100 MB.alloc=1 MB.needs_linear=1 MB.delay_linear=1 MB.min_bw=10 MB.bw_gran=10 MB.data_width=3 MB.throttle_mode=2" +
				" throttle_file=529 alloc_capable=1 cap7|=48020 cap9|=8000 each CPU 0x6024|=48020 0x602c|=8000",
		},
		{
			name: "AMD", opts: Options{
				Vendor: AMD, L3: &Cache{Bits: 32, CLOSIDs: 16}, MB: &Bandwidth{CLOSIDs: 16, Max: 2048}, SMBA: &Bandwidth{CLOSIDs: 16, Max: 2048},
				Monitor: &Monitor{RMIDs: 1, Unit: 64, Events: []Event{LocalBytes}},
			},
			want: "L3.num_closid=16 L3.cbm_len=32 L3.default_ctrl=4294967295 L3.shareable_bits=0 L3.data_width=8 L3.alloc=1" +
				" MB.num_closid=16 MB.default_ctrl=2048 MB.alloc=1 MB.min_bw=0 MB.bw_gran=1 MB.data_width=4" +
				" SMBA.num_closid=16 SMBA.default_ctrl=2048 SMBA.alloc=1 SMBA.min_bw=0 SMBA.bw_gran=1 SMBA.data_width=4" +
				" alloc_capable=1 max_rmid=0 occ_scale=64 mbm_width=38 cap7|=40010 cap9|=9000 cap11|=200009 each CPU 0x6024|=40010 0x602c|=9000 0x6034|=200009",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newFakeKernel()
			k.old = c.old
			vmlinux := k.build()
			before := slices.Clone(vmlinux)
			patched, err := Patch(vmlinux, c.opts)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(vmlinux, before) {
				t.Error("the kernel that was given has changed")
			}
			m, err := newImage(patched)
			if err != nil {
				t.Fatal(err)
			}
			call, err := m.at(fakeData+4, 4)
			if err != nil {
				t.Fatal(err)
			}
			entry := fakeData + 4 + uint64(int64(int32(binary.LittleEndian.Uint32(call))))
			if d := cmp.Diff(strings.Fields(strings.ReplaceAll(c.want, "each CPU", "each_CPU")),
				strings.Fields(strings.ReplaceAll(strings.Join(follow(t, m, entry), " "), "each CPU", "each_CPU"))); d != "" {
				t.Errorf("stores: -want +got\n%s", d)
			}
			reader, err := m.at(fakeReader+5, 5)
			if err != nil {
				t.Fatal(err)
			}
			if redirected := reader[0] == 0xe9; redirected != (c.opts.Monitor != nil) {
				t.Errorf("counters redirected: %t", redirected)
			} else if to := fakeReader + 10 + uint64(int64(int32(binary.LittleEndian.Uint32(reader[1:])))); redirected && to != fakeText+0x200 {
				t.Errorf("counters lead to %#x", to)
			}
		})
	}
}

func TestPatchCounters(t *testing.T) {
	patched, err := Patch(newFakeKernel().build(), Options{Monitor: &Monitor{RMIDs: 8, Unit: 1, Unavailable: []int{3}, Failing: []int{0x102}}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := newImage(patched)
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.at(fakeText+0x200, 28)
	// cmp edi, N; jne +6; mov eax, ERROR; ret
	want := []byte{0x81, 0xff, 3, 0, 0, 0, 0x75, 6, 0xb8, 0xea, 0xff, 0xff, 0xff, 0xc3, 0x81, 0xff, 2, 1, 0, 0, 0x75, 6, 0xb8, 0xfb, 0xff, 0xff, 0xff, 0xc3}
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got % x, %v, want % x", got, err, want)
	}
}

// TestCounterJump checks that the one jump of the counter's code whose distance is counted by hand arrives.
func TestCounterJump(t *testing.T) {
	var c code
	c.counter(&Monitor{})
	je := bytes.Index(c.b, []byte{0x74})
	if to := c.b[je+2+int(c.b[je+1]):]; !bytes.HasPrefix(to, []byte{0x49, 0x89, 0x08}) {
		t.Errorf("occupancy continues with % x, want mov [r8], rcx", to)
	}
}

func TestPatchRefuses(t *testing.T) {
	all := Options{L3: &Cache{Bits: 11, CLOSIDs: 16, CDP: true}, MB: &Bandwidth{CLOSIDs: 8, Max: 100, Min: 10, Step: 10}, Monitor: &Monitor{RMIDs: 16, Unit: 65536}}
	for _, c := range []struct {
		name   string
		change func(*fakeKernel)
		want   []string
	}{
		{"all that is missing at once", func(k *fakeKernel) {
			k.symbols = map[string]uint64{"tresctrl_late_init": 0, "Dnr_cpu_ids": 0, "Acpu_info": 0}
			k.members = "cache,membw,data_width,alloc_capable,cdp_capable,"
		}, []string{
			"patch kernel: struct rdt_hw_resource.r_resctrl: no member in BTF: default_ctrl",
			"struct rdt_hw_resource.r_resctrl: no member in BTF: default_ctrl",
			"no per-CPU symbol cpu_info", "no symbol nr_cpu_ids", "no symbol resctrl_late_init",
			"resctrl_late_init: 0 initcalls, want 1",
		}},
		{"two of a name", func(k *fakeKernel) {
			k.symbols = map[string]uint64{"drdt_alloc_capable ": fakeData}
		}, []string{"patch kernel: symbol rdt_alloc_capable: there are 2 of it"}},
		{"two initcalls", func(k *fakeKernel) { k.initcalls = append(k.initcalls, fakeLate) },
			[]string{"patch kernel: resctrl_late_init: 2 initcalls, want 1"}},
		{"no tracer", func(k *fakeKernel) { k.reader = []byte{0x53, 0x89, 0xf6, 0x90, 0x90} },
			[]string{"patch kernel: __rmid_read_phys: begins with 53 89 f6 90 90: want a call of __fentry__"}},
		{"another call", func(k *fakeKernel) { k.reader = call(fakeReader, fakeLate) },
			[]string{"patch kernel: __rmid_read_phys: begins with e8 3b ff ff ff: want a call of __fentry__"}},
		{"no such file", func(k *fakeKernel) { k.file = "throttle" },
			[]string{"patch kernel: res_common_files: no thread_throttle_mode"}},
		{"full", func(k *fakeKernel) { k.code = 3900 },
			[]string{"patch kernel: 365 bytes of code for 192 free ones behind .text"}},
		{"no _text", func(k *fakeKernel) { k.symbols = map[string]uint64{"T_text": 0} },
			[]string{"patch kernel: decode kallsyms: no table of names that gives _text its address"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newFakeKernel()
			c.change(&k)
			_, err := Patch(k.build(), all)
			if got, want := fmt.Sprint(err), strings.Join(c.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
	for name, b := range map[string][]byte{"empty": nil, "cut": newFakeKernel().build()[:5000], "no kernel": encodeELF(nil)} {
		if _, err := Patch(b, all); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestEndbr(t *testing.T) {
	k := newFakeKernel()
	k.reader = append([]byte{0xf3, 0x0f, 0x1e, 0xfa}, call(fakeReader+4, fakeText+0x10)...)
	patched, err := Patch(k.build(), Options{Monitor: &Monitor{RMIDs: 16, Unit: 65536}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := newImage(patched)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := m.at(fakeReader, 10); err != nil || !bytes.Equal(b[:9], k.reader) || b[9] != 0xe9 {
		t.Errorf("got % x, %v", b, err)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		opts Options
		want []string
	}{
		{"nothing", Options{}, nil},
		{"all wrong", Options{
			Vendor: "arm", L3: &Cache{Bits: 33, CLOSIDs: 1}, L2: &Cache{Bits: 4, CLOSIDs: 4, Shareable: 0x10},
			MB: &Bandwidth{CLOSIDs: 8, Max: 0, Min: 10, Step: 10}, SMBA: &Bandwidth{CLOSIDs: 8, Max: 100, Min: 10, Step: 10},
			Monitor: &Monitor{Events: []Event{"llc_occupancy", "x"}},
		}, []string{
			`check resctrl options: vendor "arm": want intel or amd`,
			"L3: 1 CLOSIDs: want 2 to 65536", "L3: 33 bits: want 1 to 32", "L2: shareable bits 10: more than 4",
			"MB: maximum 0: want 1 to 1048576", "MB: minimum 10 and step 10: want 1 to 0", "SMBA: AMD's alone",
			"monitor: 0 RMIDs: want 1 to 65536", "monitor: unit of 0 bytes: want 1 to 1048576",
			`monitor: event "x": want one of [llc_occupancy mbm_total_bytes mbm_local_bytes]`,
		}},
		{"AMD", Options{Vendor: AMD, MB: &Bandwidth{CLOSIDs: 8, Max: 2048, Step: 1}}, []string{"check resctrl options: MB: minimum, step and threads are not AMD's"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.opts.Check()
			if c.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if got, want := fmt.Sprint(err), strings.Join(c.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if _, err := Patch(nil, c.opts); err == nil {
				t.Error("patched all the same")
			}
		})
	}
}

func TestKallsyms(t *testing.T) {
	symbols := map[string]uint64{"T_text": fakeText, "Acpu_info": 0x6000, "trdt_twice": fakeText + 1, "trdt_twice ": fakeText + 2, "t" + strings.Repeat("long", 50): fakeText + 3}
	for i := range 1000 { // more than two markers
		symbols[fmt.Sprint("tf", i)] = fakeText + 0x1000 + uint64(i)
	}
	for _, old := range []bool{true, false} {
		d := append(bytes.Repeat([]byte{0}, 1024), encodeKallsyms(symbols, old)...)
		s, err := parseKallsyms(append(d, bytes.Repeat([]byte{0}, 1024)...), fakeText)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]uint64{"_text": fakeText, strings.Repeat("long", 50): fakeText + 3, "f0": fakeText + 0x1000, "f999": fakeText + 0x13e7} {
			if got, err := s.address(name); err != nil || got != want {
				t.Errorf("old %t: %s: got %#x, %v, want %#x", old, name, got, err, want)
			}
		}
		if s.perCPU["cpu_info"] != 0x6000 || len(s.addresses["rdt_twice"]) != 2 {
			t.Errorf("old %t: got %v, %v", old, s.perCPU, s.addresses["rdt_twice"])
		}
	}
}

func FuzzKallsyms(f *testing.F) {
	for _, old := range []bool{true, false} {
		f.Add(encodeKallsyms(fakeSymbols, old))
	}
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseKallsyms(b, fakeText) })
}

func TestBTF(t *testing.T) {
	types, err := parseBTF(newFakeKernel().btf())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		want field
		err  string
	}{
		{path: "rftype name", want: field{0, 8}},
		{path: "rdt_hw_resource r_resctrl membw min_bw", want: field{0x44, 4}}, // in an unnamed struct
		{path: "rdt_hw_resource num_closid", want: field{0x120, 4}},            // behind a typedef
		{path: "cpuinfo_x86 x86_capability", want: field{8, 0}},
		{path: "rdt_hw_resource r_resctrl cache x", err: "struct rdt_hw_resource.r_resctrl.cache: no member in BTF: x"},
		{path: "rftype name x", err: "struct rftype.name: no member in BTF: x"},
		{path: "nothing x", err: "no struct nothing in BTF"},
	} {
		path := strings.Fields(c.path)
		got, err := types.field(path[0], path[1:]...)
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%s: got %v, want %s", c.path, err, c.err)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v, want %+v", c.path, got, err, c.want)
		}
	}
	if _, err := types.field("rftype", "x"); !errors.Is(err, errNoMember) {
		t.Errorf("got %v", err)
	}
}

func TestBTFBitField(t *testing.T) {
	var b btfWriter
	u32 := b.add("unsigned int", kindInt<<24, 4, 32)
	b.add("s", kindStruct<<24|2|1<<31, 4, b.text("whole"), u32, 32, b.text("bits"), u32, 64|3<<24)
	types, err := parseBTF(b.end())
	if err != nil {
		t.Fatal(err)
	}
	if f, err := types.field("s", "whole"); err != nil || f != (field{4, 4}) {
		t.Errorf("got %+v, %v", f, err)
	}
	if _, err := types.field("s", "bits"); err == nil || err.Error() != "struct s: member bits is a bit field" {
		t.Errorf("got %v", err)
	}
}

func FuzzBTF(f *testing.F) {
	f.Add(newFakeKernel().btf())
	f.Fuzz(func(t *testing.T, b []byte) {
		types, err := parseBTF(b)
		if err != nil {
			return
		}
		_, _ = types.field("rdt_hw_resource", "r_resctrl", "membw", "min_bw")
	})
}

func FuzzPatch(f *testing.F) {
	f.Add(newFakeKernel().build())
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = Patch(b, Options{L3: &Cache{Bits: 11, CLOSIDs: 16}, MB: &Bandwidth{CLOSIDs: 8, Max: 100, Min: 10, Step: 10}, Monitor: &Monitor{RMIDs: 1, Unit: 1}})
	})
}

func TestStore(t *testing.T) {
	for _, c := range []struct {
		size  int
		value uint32
		want  string
		err   string
	}{
		{size: 1, value: 255, want: "c6 04 25 78 56 34 82 ff"},
		{size: 2, value: 0x1234, want: "66 c7 04 25 78 56 34 82 34 12"},
		{size: 4, value: 0x12345678, want: "c7 04 25 78 56 34 82 78 56 34 12"},
		{size: 1, value: 256, err: "value 256 does not fit into 1 bytes"},
		{size: 8, value: 1, err: "a number of 8 bytes: want 1, 2 or 4"},
	} {
		var b code
		err := b.store(0xffffffff82345678, c.size, c.value)
		if got := fmt.Sprintf("% x", b.b); got != c.want || c.err != "" && (err == nil || err.Error() != c.err) || c.err == "" && err != nil {
			t.Errorf("%d in %d bytes: got %s, %v, want %s%s", c.value, c.size, got, err, c.want, c.err)
		}
	}
}
