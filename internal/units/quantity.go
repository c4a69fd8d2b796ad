package units

import (
	"errors"
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Reasons why a quantity is refused; wrapped with the quoted text.
var (
	ErrNotAQuantity = errors.New("not a quantity such as 500m, 2, 1.5Gi or 2e3")
	ErrNegative     = errors.New("negative")
	ErrOverflow     = errors.New("too large")
)

// maxQuantity is the longest text that is parsed: no sane quantity needs more, and big decimals cost time.
const maxQuantity = 48

// ParseMilliCPU reads a quantity of cores as milli-cores, rounded up.
func ParseMilliCPU(s string) (int64, error) {
	q, err := parseQuantity(s, math.MaxInt64/1000)
	if err != nil {
		return 0, err
	}
	return q.MilliValue(), nil
}

// ParseInteger reads a quantity as a whole number (bytes, or the milli-cores of batch-cpu), rounded up.
func ParseInteger(s string) (int64, error) {
	q, err := parseQuantity(s, math.MaxInt64)
	if err != nil {
		return 0, err
	}
	return q.Value(), nil
}

func parseQuantity(s string, most int64) (resource.Quantity, error) {
	if len(s) > maxQuantity || hugeExponent(s) {
		return resource.Quantity{}, fmt.Errorf("quantity %s: %w", Quote(s), ErrNotAQuantity)
	}
	q, err := resource.ParseQuantity(s)
	switch {
	case err != nil: // its text repeats a regular expression; ours names the forms that people write
		return q, fmt.Errorf("quantity %s: %w", Quote(s), ErrNotAQuantity)
	case q.Sign() < 0:
		return q, fmt.Errorf("quantity %s: %w", Quote(s), ErrNegative)
	case q.CmpInt64(most) > 0:
		return q, fmt.Errorf("quantity %s: %w", Quote(s), ErrOverflow)
	}
	return q, nil
}

// hugeExponent finds exponents of more than two digits: resource.Quantity would compute 10^exponent to compare them.
func hugeExponent(s string) bool {
	for i := range len(s) {
		if s[i] == 'e' || s[i] == 'E' {
			rest := s[i+1:]
			if rest != "" && (rest[0] == '+' || rest[0] == '-') {
				rest = rest[1:]
			}
			return len(rest) > 2
		}
	}
	return false
}
