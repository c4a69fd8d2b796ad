package resctrl

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestMask(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text       string
		want       Mask
		bits       int
		low, high  int
		contiguous bool
		runs       []Mask
	}{
		{"0", 0, 0, -1, -1, true, nil},
		{"7ff", 0x7ff, 11, 0, 10, true, []Mask{0x7ff}},
		{"0x7FF", 0x7ff, 11, 0, 10, true, []Mask{0x7ff}},
		{"000000000000000000000600", 0x600, 2, 9, 10, true, []Mask{0x600}},
		{"f0f", 0xf0f, 8, 0, 11, false, []Mask{0xf, 0xf00}},
		{"8000000000000001", 1<<63 | 1, 2, 0, 63, false, []Mask{1, 1 << 63}},
		{"ffffffffffffffff", ^Mask(0), 64, 0, 63, true, []Mask{^Mask(0)}},
	} {
		m, err := ParseMask(tt.text)
		if err != nil || m != tt.want || m.Bits() != tt.bits || m.Lowest() != tt.low || m.Highest() != tt.high || m.Contiguous() != tt.contiguous {
			t.Errorf("ParseMask(%q) = %v (%d bits, %d to %d, contiguous %t), %v", tt.text, m, m.Bits(), m.Lowest(), m.Highest(), m.Contiguous(), err)
		}
		if diff := cmp.Diff(tt.runs, m.Runs()); diff != "" {
			t.Errorf("runs of %s (-want +got):\n%s", m, diff)
		}
	}
	for _, bad := range []string{"", "0x", "zz", "-1", "+f", "1_0", " f", "10000000000000000", "f\n", "0x0x1"} {
		var parse *ParseError
		if m, err := ParseMask(bad); !errors.As(err, &parse) || parse.Part != bad {
			t.Errorf("ParseMask(%q) = %v, %v", bad, m, err)
		}
	}
	if got := Ways(60, 10); got != 0xf<<60 {
		t.Errorf("Ways(60, 10) = %s", got)
	}
	if got := Ways(3, 0) | Ways(-1, 4) | Ways(64, 1); got != 0 {
		t.Errorf("no ways = %s", got)
	}
}

func TestParseSchemata(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		want       Schemata
		canonical  string
	}{
		{"intel", "    MB:0= 50;1=100\n    L3:0=7ff;1=00f\n", Schemata{
			{Resource: "MB", Domains: []Domain{{0, 50}, {1, 100}}},
			{Resource: "L3", Domains: []Domain{{0, 0x7ff}, {1, 0xf}}},
		}, "MB:0=50;1=100\nL3:0=7ff;1=f\n"},
		{"cdp", "L3DATA:0=fffff\nL3CODE:0=fffff\nL2CODE:3=ff\n", Schemata{
			{Resource: "L3DATA", Domains: []Domain{{0, 0xfffff}}},
			{Resource: "L3CODE", Domains: []Domain{{0, 0xfffff}}},
			{Resource: "L2CODE", Domains: []Domain{{3, 0xff}}},
		}, "L3DATA:0=fffff\nL3CODE:0=fffff\nL2CODE:3=ff\n"},
		{"amd, ids with gaps and out of order", "  SMBA:0=2048;11= 100\n    L3:8=0;2=5;\n", Schemata{
			{Resource: "SMBA", Domains: []Domain{{0, 2048}, {11, 100}}},
			{Resource: "L3", Domains: []Domain{{2, 5}, {8, 0}}},
		}, "SMBA:0=2048;11=100\nL3:2=5;8=0\n"},
		{"MB/s", "MB:0=4294967295;1=2000\n", Schemata{{Resource: "MB", Domains: []Domain{{0, 1<<32 - 1}, {1, 2000}}}}, "MB:0=4294967295;1=2000\n"},
		{"unknown resources are kept", "  NPU:0=fast,2;1=slow\nL3:0=1\nX_Y: \n", Schemata{
			{Resource: "NPU", Text: "0=fast,2;1=slow"},
			{Resource: "L3", Domains: []Domain{{0, 1}}},
			{Resource: "X_Y"},
		}, "NPU:0=fast,2;1=slow\nL3:0=1\nX_Y:\n"},
		{"pseudo-locksetup", "    L3:uninitialized\n", Schemata{{Resource: "L3", Text: "uninitialized"}}, "L3:uninitialized\n"},
		{"empty", "", nil, ""},
		{"blank lines, no last newline", "\n\nL3:0=f", Schemata{{Resource: "L3", Domains: []Domain{{0, 0xf}}}}, "L3:0=f\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseSchemata(tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got.String() != tt.canonical {
				t.Errorf("String() = %q, want %q", got.String(), tt.canonical)
			}
		})
	}
}

func TestParseSchemataRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, part string }{
		{"L3", "L3"},
		{":0=1", ""},
		{"L3:", "L3:"},
		{"L3:;", ""},
		{"L3:0", "0"},
		{"L3:0=zz", "0=zz"},
		{"L3:0=", "0="},
		{"L3:a=1", "a=1"},
		{"L3:-1=1", "-1=1"},
		{"L3:99999999999=1", "99999999999=1"},
		{"L3:0=1;0=1", "0=1"},
		{"L3:0=1;;1=1", ""},
		{"L3:0=10000000000000000", "0=10000000000000000"},
		{"L3:0=1\nL3:1=1", "L3"},
		{"MB:0=0x10", "0=0x10"},
		{"MB:0=5%", "0=5%"},
		{"MB:0=-1", "0=-1"},
		{"L 3:0=1", "L 3"},
		{"L3\x00:0=1", "L3\x00"},
		{"é:1", "é"},
	} {
		_, err := ParseSchemata(tt.text)
		var parse *ParseError
		if !errors.As(err, &parse) || parse.Part != tt.part || parse.Want == "" {
			t.Errorf("ParseSchemata(%q): %v, want the part %q", tt.text, err, tt.part)
		}
	}
	_, err := ParseSchemata("L3:0=" + strings.Repeat("z", 1<<20))
	if err == nil || len(err.Error()) > 200 {
		t.Errorf("a long line gives a message of %d bytes", len(err.Error()))
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	got := Schemata{{Resource: "MB", Domains: []Domain{{0, 60}}}, {Resource: "L3", Domains: []Domain{{0, 0xf}, {1, 0xf}}}}
	want := Schemata{{Resource: "MB", Domains: []Domain{{0, 51}}}, {Resource: "L3", Domains: []Domain{{1, 0xf}, {3, 1}}}}
	var lines []string
	for _, d := range got.Differences(want) {
		lines = append(lines, d.String())
	}
	if diff := cmp.Diff([]string{"MB:0=60, wanted 51", "L3:3=1 is missing"}, lines); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSchemataSet(t *testing.T) {
	t.Parallel()
	var s Schemata
	s.Set("L3", 8, 3)
	s.Set("L3", 0, 1)
	c := s.Clone()
	c.Set("L3", 8, 7)
	c.Set("MB", 0, 50)
	if s.String() != "L3:0=1;8=3\n" || c.String() != "L3:0=1;8=7\nMB:0=50\n" {
		t.Errorf("%q and its changed copy %q", s, c)
	}
	if v, ok := c.Value("L3", 1); ok {
		t.Errorf("a domain that isn't there has %d", v)
	}
}

func TestSplit(t *testing.T) {
	t.Parallel()
	var s Schemata
	for i := range 1000 {
		s.Set("L3", i*3, 0xfffff)
		s.Set("MB", i*3, 100)
	}
	whole := Schemata{}
	for _, text := range split(s) {
		if len(text) > maxWrite || !strings.HasSuffix(text, "\n") {
			t.Fatalf("a write of %d bytes", len(text))
		}
		for line := range strings.Lines(text) {
			part, err := ParseSchemata(line)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range part[0].Domains {
				whole.Set(part[0].Resource, d.ID, d.Value)
			}
		}
	}
	if diffs := whole.Differences(s); diffs != nil {
		t.Errorf("%d values were lost, the first %s", len(diffs), diffs[0])
	}
}

func TestSchemataRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s Schemata
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"L2", "L3", "L3CODE", "L3DATA", "MB", "SMBA"}), 0, 6, rapid.ID).Draw(t, "names") {
			for id, v := range rapid.MapOfN(rapid.IntRange(0, 1<<31-1), rapid.Uint64(), 1, 5).Draw(t, name) {
				s.Set(name, id, v)
			}
		}
		got, err := ParseSchemata(s.String())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s, got); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	})
}

func FuzzParseSchemata(f *testing.F) {
	for _, seed := range []string{
		"    MB:0= 50;1=100\n    L3:0=7ff;1=7ff\n", "L3DATA:0=00c;1=00c\nL3CODE:0=003;1=7ff\n", "  SMBA:0= 100;1=2048\n",
		"MB:0=4294967295;1=2000\n", "L3:0=3;1=c;\n", "NPU:x=y\n", "L3: 0 = 3 ; 1 = c\n", "L3:0=\n", ":", "L3:;;", "\x00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSchemata(text)
		if err != nil {
			var parse *ParseError
			if !errors.As(err, &parse) {
				t.Fatalf("%v is no ParseError", err)
			}
			return
		}
		again, err := ParseSchemata(s.String())
		if err != nil {
			t.Fatalf("%q does not read back: %v", s, err)
		}
		if diff := cmp.Diff(s, again); diff != "" {
			t.Fatalf("-first +again:\n%s", diff)
		}
		_, _ = parseSizes(text)
	})
}

func FuzzParseMask(f *testing.F) {
	for _, seed := range []string{"7ff", "0x3F", "0", "ffffffffffffffff", "-1", "zz", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMask(text)
		if err != nil {
			return
		}
		if again, err := ParseMask(m.String()); err != nil || again != m {
			t.Fatalf("%s reads back as %s, %v", m, again, err)
		}
		var sum Mask
		for _, run := range m.Runs() {
			if !run.Contiguous() || run&sum != 0 {
				t.Fatalf("run %s of %s", run, m)
			}
			sum |= run
		}
		if sum != m || m.Longest()&^m != 0 {
			t.Fatalf("runs of %s make %s", m, sum)
		}
	})
}
