package units_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"k8s.io/utils/cpuset"
	"pgregory.net/rapid"

	"github.com/tideline-io/tideline/internal/units"
)

func TestParseCPUMax(t *testing.T) {
	for _, tt := range []struct {
		in      string
		want    units.CPUMax
		text    string
		invalid bool
	}{
		{in: "150000 100000", want: units.CPUMax{Quota: 150000, Period: 100000}, text: "150000 100000"},
		{in: "max 100000\n", want: units.CPUMax{Quota: units.NoQuota, Period: 100000}, text: "max 100000"},
		{in: "max", want: units.CPUMax{Quota: units.NoQuota, Period: 100000}, text: "max 100000"},
		{in: "1000 1000000", want: units.CPUMax{Quota: 1000, Period: 1000000}, text: "1000 1000000"},
		{in: "999 100000", invalid: true},
		{in: "17592186044416 100000", invalid: true},
		{in: "1000 999", invalid: true},
		{in: "1000 1000001", invalid: true},
		{in: "-1 100000", invalid: true},
		{in: "", invalid: true},
		{in: "1 2 3", invalid: true},
		{in: strings.Repeat("1", 100), invalid: true},
	} {
		got, err := units.ParseCPUMax(tt.in)
		if (err != nil) != tt.invalid {
			t.Errorf("ParseCPUMax(%q): %v", tt.in, err)
			continue
		}
		if err == nil && (got != tt.want || got.String() != tt.text) {
			t.Errorf("ParseCPUMax(%q) = %+v (%q), want %+v (%q)", tt.in, got, got, tt.want, tt.text)
		}
	}
}

func TestQuotaFromMilli(t *testing.T) {
	for _, tt := range []struct {
		milli, period, want int64
		invalid             bool
	}{
		{milli: 2000, period: 100000, want: 200000},
		{milli: 1500, period: 50000, want: 75000},
		{milli: 1, period: 100000, want: 1000},
		{milli: 0, period: 100000, want: 1000},
		{milli: 33, period: 10001, want: 1000},
		{milli: 333, period: 10001, want: 3330},
		{milli: units.MaxQuota, period: 1000, want: units.MaxQuota},
		{milli: units.MaxQuota, period: 1001, invalid: true},
		{milli: math.MaxInt64, period: 1000000, invalid: true},
		{milli: math.MaxInt64, period: math.MaxInt64, invalid: true},
		{milli: -1, period: 100000, invalid: true},
		{milli: 1, period: 0, invalid: true},
	} {
		got, err := units.QuotaFromMilli(tt.milli, tt.period)
		if got != tt.want || (err != nil) != tt.invalid {
			t.Errorf("QuotaFromMilli(%d, %d) = %d, %v, want %d", tt.milli, tt.period, got, err, tt.want)
		}
	}
}

func TestWeights(t *testing.T) {
	// From opencontainers/cgroups: before and after pull request 20.
	for _, tt := range []struct{ shares, linear, quadratic uint64 }{
		{0, 0, 0}, {1, 1, 1}, {2, 1, 1}, {51, 2, 11}, {102, 4, 17}, {256, 10, 35}, {512, 20, 59}, {1024, 39, 100}, {2048, 79, 174},
		{4096, 157, 303}, {8192, 313, 532}, {65536, 2500, 3023}, {262144, 10000, 10000}, {math.MaxUint64, 10000, 10000},
	} {
		if got := units.WeightLinear(tt.shares); got != tt.linear {
			t.Errorf("WeightLinear(%d) = %d, want %d", tt.shares, got, tt.linear)
		}
		if got := units.WeightQuadratic(tt.shares); got != tt.quadratic {
			t.Errorf("WeightQuadratic(%d) = %d, want %d", tt.shares, got, tt.quadratic)
		}
	}
	for w := uint64(0); w <= 10001; w++ {
		want := min(w, units.MaxWeight)
		if got := units.WeightLinear(units.SharesFromWeightLinear(w)); got != want {
			t.Fatalf("linear: weight %d comes back as %d", w, got)
		}
		if s := units.SharesFromWeightQuadratic(w); units.WeightQuadratic(s) < want || s > units.MinShares && units.WeightQuadratic(s-1) >= want {
			t.Fatalf("quadratic: %d shares are not the least for weight %d", s, w)
		}
	}
}

func TestQuantities(t *testing.T) {
	for _, tt := range []struct {
		in             string
		milli, integer int64
		milliErr       error
		integerErr     error
	}{
		{in: "500m", milli: 500, integer: 1},
		{in: "2", milli: 2000, integer: 2},
		{in: "0", milli: 0, integer: 0},
		{in: "2k", milli: 2000000, integer: 2000},
		{in: "1.5Gi", milli: 1610612736000, integer: 1610612736},
		{in: "1e3", milli: 1000000, integer: 1000},
		{in: "100u", milli: 1, integer: 1},
		{in: "1n", milli: 1, integer: 1},
		{in: "9223372036854775807", milliErr: units.ErrOverflow, integer: math.MaxInt64},
		{in: "9223372036854775808", milliErr: units.ErrOverflow, integerErr: units.ErrOverflow},
		{in: "8E", milliErr: units.ErrOverflow, integer: 8e18},
		{in: "10E", milliErr: units.ErrOverflow, integerErr: units.ErrOverflow},
		{in: "1e99", milliErr: units.ErrOverflow, integerErr: units.ErrOverflow},
		{in: "1e999999999", milliErr: units.ErrNotAQuantity, integerErr: units.ErrNotAQuantity},
		{in: "1e-999999999", milliErr: units.ErrNotAQuantity, integerErr: units.ErrNotAQuantity},
		{in: "-1", milliErr: units.ErrNegative, integerErr: units.ErrNegative},
		{in: "-0.0001m", milliErr: units.ErrNegative, integerErr: units.ErrNegative},
		{in: "NaN", milliErr: units.ErrNotAQuantity, integerErr: units.ErrNotAQuantity},
		{in: "", milliErr: units.ErrNotAQuantity, integerErr: units.ErrNotAQuantity},
		{in: " 1", milliErr: units.ErrNotAQuantity, integerErr: units.ErrNotAQuantity},
		{in: "\xff", milliErr: units.ErrNotAQuantity, integerErr: units.ErrNotAQuantity},
		{in: strings.Repeat("9", 100000), milliErr: units.ErrNotAQuantity, integerErr: units.ErrNotAQuantity},
	} {
		if got, err := units.ParseMilliCPU(tt.in); got != tt.milli || !errors.Is(err, tt.milliErr) {
			t.Errorf("ParseMilliCPU(%.50q) = %d, %v, want %d, %v", tt.in, got, err, tt.milli, tt.milliErr)
		}
		if got, err := units.ParseInteger(tt.in); got != tt.integer || !errors.Is(err, tt.integerErr) {
			t.Errorf("ParseInteger(%.50q) = %d, %v, want %d, %v", tt.in, got, err, tt.integer, tt.integerErr)
		}
	}
}

func TestParseCPUs(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""}, {"0", "0"}, {"0-3,8,10-11", "0-3,8,10-11"}, {"3,2,1,0", "0-3"}, {"8191", "8191"}, {"0-8191", "0-8191"}, {"63-64", "63-64"}, {"007", "7"},
	} {
		got, err := units.ParseCPUs(tt.in)
		if err != nil || got.String() != tt.want {
			t.Errorf("ParseCPUs(%q) = %q, %v, want %q", tt.in, got, err, tt.want)
		}
	}
	for _, in := range []string{"8192", "0-4294967295", "3-1", "-1", "1-", ",", "1,", "0-1-2", "a", " 1", "1\n", "0-31:1/2", "\xff", strings.Repeat("0-8191,", 20000)} {
		if got, err := units.ParseCPUs(in); err == nil {
			t.Errorf("ParseCPUs(%.20q) = %q, want an error", in, got)
		}
	}
}

func TestCPUMaskAgreesWithCPUSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cpus := rapid.SliceOf(rapid.IntRange(0, 300))
		a, b := cpuset.New(cpus.Draw(t, "a")...), cpuset.New(cpus.Draw(t, "b")...)
		if got := units.FormatCPUs(a); got != a.String() {
			t.Fatalf("FormatCPUs = %q, want %q", got, a)
		}
		back, err := units.ParseCPUs(a.String())
		if err != nil || !back.Equals(a) {
			t.Fatalf("ParseCPUs(%q) = %q, %v", a, back, err)
		}
		and, not, o := units.CPUMaskOf(a), units.CPUMaskOf(a), units.CPUMaskOf(b)
		and.Intersect(&o)
		not.Remove(&o)
		if want := a.Intersection(b); !and.Set().Equals(want) || and.IsEmpty() != want.IsEmpty() {
			t.Fatalf("Intersect = %q, want %q", and.String(), want)
		}
		if want := a.Difference(b); !not.Set().Equals(want) {
			t.Fatalf("Remove = %q, want %q", not.String(), want)
		}
	})
}

func TestSmallOnes(t *testing.T) {
	for _, tt := range []struct{ bytes, page, want int64 }{{4097, 4096, 4096}, {4095, 4096, 0}, {70000, 65536, 65536}, {4097, 0, 4096}, {-1, 4096, -1}} {
		if got := units.PageDown(tt.bytes, tt.page); got != tt.want {
			t.Errorf("PageDown(%d, %d) = %d, want %d", tt.bytes, tt.page, got, tt.want)
		}
	}
	for _, tt := range []struct {
		n       int64
		percent int
		want    int64
	}{{1000, 50, 500}, {999, 90, 899}, {math.MaxInt64, 100, math.MaxInt64}, {math.MaxInt64, 0, 0}, {99, 1, 0}} {
		if got := units.PercentOf(tt.n, tt.percent); got != tt.want {
			t.Errorf("PercentOf(%d, %d) = %d, want %d", tt.n, tt.percent, got, tt.want)
		}
	}
	if got, want := units.Quote("a\n\xff"), `"a\n\xff"`; got != want {
		t.Errorf("Quote = %s, want %s", got, want)
	}
	if got := units.Quote(strings.Repeat("x", 100000)); len(got) > 100 || !strings.Contains(got, "100000 bytes") {
		t.Errorf("Quote of a long text = %s", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"0-3,8", "150000 100000", "max 100000", "1.5Gi", "2k", "1e99", "-1", "0-8191"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if m, err := units.ParseCPUMax(s); err == nil {
			if back, err := units.ParseCPUMax(m.String()); err != nil || back != m {
				t.Errorf("cpu.max %q comes back as %+v, %v", s, back, err)
			}
		}
		if c, err := units.ParseCPUs(s); err == nil {
			if back, err := units.ParseCPUs(units.FormatCPUs(c)); err != nil || !back.Equals(c) {
				t.Errorf("CPU list %q comes back as %q, %v", s, back, err)
			}
		}
		if n, err := units.ParseMilliCPU(s); err == nil && n < 0 {
			t.Errorf("ParseMilliCPU(%q) = %d", s, n)
		}
		if n, err := units.ParseInteger(s); err == nil && n < 0 {
			t.Errorf("ParseInteger(%q) = %d", s, n)
		}
	})
}
