package units

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// MaxCPU is the highest CPU number that is read: no kernel can be built for more (CONFIG_NR_CPUS is 8192 at most).
const MaxCPU = 8191

var errCPUList = errors.New("want a CPU list such as 0-3,8 with numbers up to " + strconv.Itoa(MaxCPU))

// ParseCPUs reads a CPU list as the kernel prints it. The empty text is the empty set. Unlike cpuset.Parse it is safe
// with foreign text: "0-4294967295" is refused, not built.
//
//	0-3,8,10-11
func ParseCPUs(s string) (cpuset.CPUSet, error) {
	m, err := ParseCPUMask(s)
	if err != nil {
		return cpuset.New(), err
	}
	return m.Set(), nil
}

// FormatCPUs is the CPU list of a set, as cpuset.CPUSet.String gives it, without its sort.
func FormatCPUs(c cpuset.CPUSet) string {
	m := CPUMaskOf(c)
	return m.String()
}

// CPUMask is a set of the CPUs 0 to MaxCPU. cpuset.CPUSet is the type of the rest of the program; this one serves where
// sets are combined on a hot path, since it needs no memory of the heap. The zero value is the empty set.
type CPUMask [(MaxCPU + 1) / 64]uint64

// CPUMaskOf is c without CPUs that can't be.
func CPUMaskOf(c cpuset.CPUSet) CPUMask {
	var m CPUMask
	// The lists that c gives are copies, and cost more than asking for each.
	for n, found := 0, 0; n <= MaxCPU && found < c.Size(); n++ {
		if c.Contains(n) {
			m[n/64] |= 1 << (n % 64)
			found++
		}
	}
	return m
}

// ParseCPUMask is ParseCPUs for a CPUMask.
func ParseCPUMask(s string) (CPUMask, error) {
	var m CPUMask
	if s == "" {
		return m, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, ok := cpuNumber(first)
		b := a
		if ok && isRange {
			b, ok = cpuNumber(last)
		}
		if !ok || b < a {
			return CPUMask{}, fmt.Errorf("parse %s: %w", Quote(s), errCPUList)
		}
		m.add(a, b)
	}
	return m, nil
}

func cpuNumber(s string) (int, bool) {
	if s == "" || len(s) > 5 {
		return 0, false
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, n <= MaxCPU
}

func (m *CPUMask) add(first, last int) {
	for w := first / 64; w <= last/64; w++ {
		word := ^uint64(0)
		if w == first/64 {
			word &= ^uint64(0) << (first % 64)
		}
		if w == last/64 {
			word &= ^uint64(0) >> (63 - last%64)
		}
		m[w] |= word
	}
}

// Intersect keeps the CPUs that are in o.
func (m *CPUMask) Intersect(o *CPUMask) {
	for w := range m {
		m[w] &= o[w]
	}
}

// Remove takes out the CPUs of o.
func (m *CPUMask) Remove(o *CPUMask) {
	for w := range m {
		m[w] &^= o[w]
	}
}

// Add puts the CPUs of o in.
func (m *CPUMask) Add(o *CPUMask) {
	for w := range m {
		m[w] |= o[w]
	}
}

// Size is how many CPUs m has.
func (m *CPUMask) Size() int {
	n := 0
	for _, word := range m {
		n += bits.OnesCount64(word)
	}
	return n
}

// IsEmpty says whether m has no CPU.
func (m *CPUMask) IsEmpty() bool { return *m == CPUMask{} }

// Set is m as a cpuset.CPUSet.
func (m *CPUMask) Set() cpuset.CPUSet {
	var out []int
	for w, word := range m {
		for ; word != 0; word &= word - 1 {
			out = append(out, w*64+bits.TrailingZeros64(word))
		}
	}
	return cpuset.New(out...)
}

// next is the first CPU from n on that is in m, or that is not; MaxCPU+1 if there is none.
func (m *CPUMask) next(n int, in bool) int {
	for w := n / 64; w < len(m); w++ {
		word := m[w]
		if !in {
			word = ^word
		}
		if w == n/64 {
			word &= ^uint64(0) << (n % 64)
		}
		if word != 0 {
			return w*64 + bits.TrailingZeros64(word)
		}
	}
	return MaxCPU + 1
}

// String is the CPU list: "0-3,8".
func (m *CPUMask) String() string {
	var buf [64]byte
	b := buf[:0]
	for first := m.next(0, true); first <= MaxCPU; {
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(first), 10)
		end := m.next(first, false)
		if last := end - 1; last > first {
			b = append(b, '-')
			b = strconv.AppendInt(b, int64(last), 10)
		}
		first = m.next(end, true)
	}
	return string(b)
}
