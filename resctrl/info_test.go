package resctrl

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestParseBitUsage(t *testing.T) {
	t.Parallel()
	got, err := ParseBitUsage("0=XXSSSSSEEEE;11=0H\n")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]BitUsage{{0, "XXSSSSSEEEE"}, {11, "0H"}}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if m := got[0].Mask(BitExclusive); m != 0xf {
		t.Errorf("exclusive %s", m)
	}
	if none, err := ParseBitUsage("\n"); err != nil || none != nil {
		t.Errorf("%v, %v", none, err)
	}
	for _, bad := range []string{"x", "0=", "0=Y", "=S", "0=S;0=S", "0=S;", "-1=S", "0=" + strings.Repeat("S", 65)} {
		var parse *ParseError
		if _, err := ParseBitUsage(bad); !errors.As(err, &parse) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A file with odd text is named.
func TestInfoOddText(t *testing.T) {
	t.Parallel()
	for file, text := range map[string]string{
		"info/L3/cbm_mask": "zz", "info/L3/num_closids": "-4", "info/L3/sparse_masks": "2", "info/L3/bit_usage": "0=?", "info/L3/min_cbm_bits": "",
		"info/MB/bandwidth_gran": "1e3", "info/MB/min_bandwidth": "99999999999", "info/MB/delay_linear": "yes",
		"info/L3_MON/num_rmids": "0x10", "info/L3_MON/num_mbm_cntrs": "0:32", "info/L3_MON/mbm_assign_mode": "[a] [b]",
		"schemata": "L3:0",
	} {
		tree := fstest.MapFS{}
		for name, text := range map[string]string{
			"schemata": "L3:0=f\nMB:0=100\n", "info/L3/cbm_mask": "f", "info/L3/num_closids": "4", "info/MB/num_closids": "4", "info/MB/bandwidth_gran": "10",
			"info/L3_MON/mon_features": "llc_occupancy\n", "info/NPU/num_closids": "2", "info/README": "x", "info/empty/x": "",
		} {
			tree[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if info, err := Open(FromFS(tree)).Info(); err != nil || len(info.Resources) != 3 || info.NumCLOSIDs() != 2 {
			t.Fatalf("%+v, %v", info, err)
		}
		tree[file] = &fstest.MapFile{Data: []byte(text)}
		_, err := Open(FromFS(tree)).Info()
		var parse *ParseError
		if !errors.As(err, &parse) || parse.File != file && !strings.HasSuffix(file, parse.File) {
			t.Errorf("%s with %q: %v", file, text, err)
		}
	}
}

func FuzzParseInfo(f *testing.F) {
	for _, seed := range []string{"7ff\n", "16\n", "0\n", "0=32;1=32\n", "[mbm_event]\ndefault\n", "[", "[]", "", "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = parseMaskFile("f", text)
		_, _ = parseNumber("f", text, 31)
		_, _ = parseFlag("f", text)
		_, _ = parseDomains("f", text, amount)
		if chosen, all, err := parseChoice("f", text); err == nil && chosen != "" && len(all) == 0 {
			t.Fatalf("%q is none of none", chosen)
		}
	})
}

func FuzzParseBitUsage(f *testing.F) {
	f.Add("0=XXSSSSSEEEE;1=XXSSSSSSSSS\n")
	f.Add("0=P;2=H")
	f.Fuzz(func(t *testing.T, text string) {
		usage, err := ParseBitUsage(text)
		if err != nil {
			return
		}
		for _, u := range usage {
			var all Mask
			for _, letter := range []byte("0SEHXP") {
				if all&u.Mask(letter) != 0 {
					t.Fatalf("%q: a bit has two letters", text)
				}
				all |= u.Mask(letter)
			}
			if all != Ways(0, len(u.Letters)) {
				t.Fatalf("%q: bits %s of %d", text, all, len(u.Letters))
			}
		}
	})
}

func FuzzParseCounter(f *testing.F) {
	for _, seed := range []string{"65536\n", "Unavailable\n", "Unassigned\n", "Error\n", "12.75\n", "", "-1", "18446744073709551616"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if c := parseCounter("e", text); c.State == "" || c.State != Counted && c.Value != 0 {
			t.Fatalf("%+v", c)
		}
		parseMonDir(text)
	})
}

func FuzzParseTasks(f *testing.F) {
	for _, seed := range []string{"1\n2\n3\n", "", "0\n", "-1\n", "4194304\n", "1,2\n", "99999999999\n", "\n\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ids, err := parseTasks(text)
		for i, id := range ids {
			if id <= 0 || i > 0 && ids[i-1] > id || err != nil {
				t.Fatalf("%v, %v", ids, err)
			}
		}
	})
}

func FuzzParseCPUs(f *testing.F) {
	for _, seed := range []string{"0-3,8\n", "\n", "0-99999999999", "3-1", "1,1", "65535"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		cpus, err := parseCPUs(text)
		if err != nil {
			return
		}
		again, err := parseCPUs(formatCPUs(cpus))
		if diff := cmp.Diff(cpus, again); diff != "" || err != nil {
			t.Fatalf("%v (-first +again):\n%s", err, diff)
		}
	})
}
