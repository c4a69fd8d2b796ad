package engine

import (
	"testing"
	"time"

	"github.com/tideline-io/tideline/internal/policy"
)

// A value that somebody keeps changing is repaired five times a minute, then left for ten minutes, and then repaired again.
func TestRepairsAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	r := &reconciler{repairs: map[repairKey]*repairs{}, now: func() time.Time { return now }}
	k := repairKey{"id", policy.CPUMax}
	done := map[string]int{}
	for minute := range 12 {
		for range 20 {
			if r.may(k) {
				switch {
				case minute == 0:
					done["first minute"]++
				case minute < 10:
					done["left"]++
				default:
					done["later"]++
				}
			}
			now = now.Add(3 * time.Second)
		}
	}
	if done["first minute"] != maxRepairs || done["left"] != 0 || done["later"] != maxRepairs {
		t.Errorf("%v", done)
	}
	if !r.may(repairKey{"id", policy.CPUIdle}) || !r.may(repairKey{"other", policy.CPUMax}) {
		t.Error("another knob or container is left too")
	}
	now = now.Add(time.Hour)
	for i := range 100 { // a slow writer is repaired for ever
		if !r.may(k) {
			t.Fatalf("repair %d of one a 15 s", i)
		}
		now = now.Add(15 * time.Second)
	}
	r.forget(map[string]bool{"other": true})
	if len(r.repairs) != 1 {
		t.Errorf("%d kept", len(r.repairs))
	}
}
