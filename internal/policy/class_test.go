package policy_test

import (
	"testing"

	"github.com/tideline-io/tideline/internal/policy"
)

func TestNeutral(t *testing.T) {
	all := policy.Resources{CPUSetCPUs: "2-3", CPUSetMems: "1", CPUShares: new(int64(512)), OOMScoreAdj: new(int64(-997))}
	for _, c := range []struct {
		knob  policy.Knob
		asked policy.Resources
		want  string
	}{
		{policy.CPUSetCPUs, policy.Resources{}, "0-7"},
		{policy.CPUSetCPUs, all, "2-3"},
		{policy.CPUSetMems, policy.Resources{}, ""}, // they are set when a container is created, and then stay
		{policy.CPUSetMems, all, "1"},
		{policy.CPUWeight, policy.Resources{}, ""},
		{policy.CPUWeight, all, "512"},
		{policy.CPUMax, policy.Resources{}, "max 100000"},
		{policy.CPUIdle, policy.Resources{}, "0"},
		{policy.MemoryHigh, policy.Resources{}, "max"},
		{policy.OOMScoreAdj, all, ""}, // of processes
	} {
		if got := policy.Neutral(v2(), policy.Setting{Knob: c.knob, Value: "x"}, c.asked); got != c.want {
			t.Errorf("%s: %q, want %q", c.knob, got, c.want)
		}
	}
}
