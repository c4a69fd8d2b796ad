package plugin

import (
	"testing"

	"github.com/tideline-io/tideline/internal/policy"
)

// Where the kernel counts no swap, a memory limit of NRI's would fail the start of every container that has one.
func TestNoSwap(t *testing.T) {
	t.Parallel()
	settings := []policy.Setting{{Knob: policy.CPUMax, Value: "1000 100000"}, {Knob: policy.MemoryMax, Value: "4096"}}
	for _, noSwap := range []bool{false, true} {
		p := New(Config{NoSwap: noSwap}, 1)
		if p.Carries(policy.MemoryMax) == noSwap || !p.Carries(policy.CPUMax) {
			t.Errorf("no swap %t: carries memory.max %t", noSwap, p.Carries(policy.MemoryMax))
		}
		if n := len(p.carried(settings)); (n == 1) != noSwap || len(settings) != 2 {
			t.Errorf("no swap %t: %d settings are carried", noSwap, n)
		}
	}
}
