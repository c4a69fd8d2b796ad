package units

import (
	"fmt"
	"math"
	"math/bits"
	"sort"
	"strconv"
	"strings"
)

// Bounds of the kernel's CFS bandwidth control, in microseconds (kernel/sched/core.c, tg_set_cfs_bandwidth).
const (
	DefaultPeriod = 100_000
	MinPeriod     = 1_000
	MaxPeriod     = 1_000_000
	MinQuota      = 1_000
	MaxQuota      = 1<<44 - 1 // MAX_BW; quota and burst together may not exceed it
)

// NoQuota is the Quota of a CPUMax without a limit, as CRI and cgroup v1 write it.
const NoQuota = -1

// CPUMax is the content of cpu.max.
type CPUMax struct {
	Quota  int64 // microseconds a period, or NoQuota
	Period int64 // microseconds
}

// ParseCPUMax reads the text of cpu.max. As in the kernel, a missing period is the default one.
//
//	150000 100000
//	max 100000
func ParseCPUMax(s string) (CPUMax, error) {
	if len(s) > 64 {
		return CPUMax{}, fmt.Errorf("parse cpu.max %s: too long", Quote(s))
	}
	f := strings.Fields(s)
	if len(f) == 0 || len(f) > 2 {
		return CPUMax{}, fmt.Errorf("parse cpu.max %s: want \"QUOTA PERIOD\" or \"max PERIOD\"", Quote(s))
	}
	m := CPUMax{Quota: NoQuota, Period: DefaultPeriod}
	if f[0] != "max" {
		q, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil || q < MinQuota || q > MaxQuota {
			return CPUMax{}, fmt.Errorf("parse cpu.max %s: quota: want \"max\" or %d to %d", Quote(s), MinQuota, int64(MaxQuota))
		}
		m.Quota = q
	}
	if len(f) == 2 {
		p, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil || p < MinPeriod || p > MaxPeriod {
			return CPUMax{}, fmt.Errorf("parse cpu.max %s: period: want %d to %d", Quote(s), MinPeriod, MaxPeriod)
		}
		m.Period = p
	}
	return m, nil
}

// String is the text that cpu.max takes. Any Quota of zero or less is "max", a Period of zero or less is DefaultPeriod.
func (m CPUMax) String() string {
	p := m.Period
	if p <= 0 {
		p = DefaultPeriod
	}
	if m.Quota <= 0 {
		return "max " + strconv.FormatInt(p, 10)
	}
	b := make([]byte, 0, 32)
	b = strconv.AppendInt(b, m.Quota, 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, p, 10)
	return string(b)
}

// QuotaFromMilli turns milli-cores into a quota in microseconds for a period, rounded down, at least MinQuota.
// It refuses negative values and what the kernel could not take.
func QuotaFromMilli(milli, period int64) (int64, error) {
	if milli < 0 || period <= 0 {
		return 0, fmt.Errorf("quota of %d milli-cores in a period of %d µs: want no negative value", milli, period)
	}
	hi, lo := bits.Mul64(uint64(milli), uint64(period))
	if hi >= 1000 {
		return 0, fmt.Errorf("quota of %d milli-cores in a period of %d µs: more than the kernel's %d µs", milli, period, int64(MaxQuota))
	}
	q, _ := bits.Div64(hi, lo, 1000)
	if q > MaxQuota {
		return 0, fmt.Errorf("quota of %d milli-cores in a period of %d µs: more than the kernel's %d µs", milli, period, int64(MaxQuota))
	}
	return max(int64(q), MinQuota), nil
}

// Bounds of cpu.shares (v1) and cpu.weight (v2).
const (
	MinShares = 2
	MaxShares = 262144
	MinWeight = 1
	MaxWeight = 10000
)

// WeightLinear is the cpu.weight that runc before 1.3.2, crun before 1.23 and opencontainers/cgroups before 0.0.4 make
// of CPU shares. Zero means unset and stays zero; other values are clamped to the bounds.
func WeightLinear(shares uint64) uint64 {
	if shares == 0 {
		return 0
	}
	shares = min(max(shares, MinShares), MaxShares)
	return 1 + (shares-2)*9999/262142
}

// WeightQuadratic is the cpu.weight that later runtimes make of CPU shares (opencontainers/cgroups pull request 20):
// it maps 2, 1024 and 262144 to 1, 100 and 10000. Zero means unset and stays zero. The expression is kept as
// upstream writes it, since on arm64 the compiler may fuse it and both must round alike.
func WeightQuadratic(shares uint64) uint64 {
	if shares == 0 {
		return 0
	}
	if shares <= MinShares {
		return MinWeight
	}
	if shares >= MaxShares {
		return MaxWeight
	}
	l := math.Log2(float64(shares))
	exponent := (l*l+125*l)/612.0 - 7.0/34.0
	return uint64(math.Ceil(math.Pow(10, exponent)))
}

// SharesFromWeightLinear is the smallest number of shares that WeightLinear maps to at least weight; zero stays zero.
// The way back is lossy: it tells a weight that the runtime made from one that somebody else wrote, no more.
func SharesFromWeightLinear(weight uint64) uint64 { return sharesFrom(weight, WeightLinear) }

// SharesFromWeightQuadratic is SharesFromWeightLinear for WeightQuadratic.
func SharesFromWeightQuadratic(weight uint64) uint64 { return sharesFrom(weight, WeightQuadratic) }

func sharesFrom(weight uint64, f func(uint64) uint64) uint64 {
	if weight == 0 {
		return 0
	}
	weight = min(weight, MaxWeight)
	return MinShares + uint64(sort.Search(MaxShares-MinShares, func(i int) bool { return f(MinShares+uint64(i)) >= weight }))
}
