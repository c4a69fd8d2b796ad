package resctrl

import (
	"math/bits"
	"strconv"
	"strings"
)

// Mask is a cache bit mask (CBM): bit n stands for a way, or a group of ways, of a cache.
type Mask uint64

// ParseMask reads the kernel's hexadecimal: "7ff", "0x7FF", "0007ff".
func ParseMask(s string) (Mask, error) {
	digits := strings.TrimPrefix(strings.TrimPrefix(s, "0x"), "0X")
	n, err := strconv.ParseUint(digits, 16, 64)
	if err != nil {
		return 0, &ParseError{File: "mask", Part: s, Want: "hexadecimal digits of at most 64 bits"}
	}
	return Mask(n), nil
}

// Ways is a mask of count neighbouring bits from bit first on. Bits above 63 fall off.
func Ways(first, count int) Mask {
	switch {
	case count <= 0 || first < 0 || first > 63:
		return 0
	case count > 63:
		return ^Mask(0) << first
	}
	return (1<<count - 1) << first
}

// String is lower-case hexadecimal as the kernel takes it, without 0x and padding.
func (m Mask) String() string { return strconv.FormatUint(uint64(m), 16) }

// MarshalText is String, for JSON and YAML.
func (m Mask) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText is ParseMask.
func (m *Mask) UnmarshalText(text []byte) error {
	n, err := ParseMask(string(text))
	if err == nil {
		*m = n
	}
	return err
}

// Bits counts the bits that are set.
func (m Mask) Bits() int { return bits.OnesCount64(uint64(m)) }

// Has tells whether a bit is set.
func (m Mask) Has(bit int) bool { return bit >= 0 && bit < 64 && m>>bit&1 == 1 }

// Lowest is the lowest bit that is set, -1 of an empty mask.
func (m Mask) Lowest() int {
	if m == 0 {
		return -1
	}
	return bits.TrailingZeros64(uint64(m))
}

// Highest is the highest bit that is set, -1 of an empty mask.
func (m Mask) Highest() int { return bits.Len64(uint64(m)) - 1 }

// Contiguous tells whether the mask has no hole. The empty mask has none.
func (m Mask) Contiguous() bool { return m == 0 || m.Bits() == m.Highest()-m.Lowest()+1 }

// Runs are the contiguous parts of a mask, from the lowest.
func (m Mask) Runs() []Mask {
	var runs []Mask
	for m != 0 {
		first := m.Lowest()
		run := Ways(first, bits.TrailingZeros64(^(uint64(m) >> first)))
		runs = append(runs, run)
		m &^= run
	}
	return runs
}

// Longest is the longest contiguous part of a mask, the lowest of equals.
func (m Mask) Longest() Mask {
	var best Mask
	for _, run := range m.Runs() {
		if run.Bits() > best.Bits() {
			best = run
		}
	}
	return best
}
