package policy

import (
	"strconv"

	"github.com/tideline-io/tideline/internal/units"
)

// Value is what was asked of a container's knob, in the knob's format; "" for nothing. A memory.low of 0 counts as
// nothing: the kubelet sends it to every container since 1.37.
func (r *Resources) Value(k Knob) string {
	switch k {
	case CPUSetCPUs:
		return r.CPUSetCPUs
	case CPUSetMems:
		return r.CPUSetMems
	case CPUWeight:
		return integer(r.CPUShares)
	case CPUMax:
		if r.CPUQuota == nil {
			return ""
		}
		quota, period := r.quota()
		return units.CPUMax{Quota: quota, Period: period}.String()
	case MemoryMax:
		if r.MemoryLimit != nil && *r.MemoryLimit < 0 {
			return "max"
		}
		return integer(r.MemoryLimit)
	case OOMScoreAdj:
		return integer(r.OOMScoreAdj)
	case MemoryLow:
		if r.Unified[string(k)] == "0" {
			return ""
		}
	}
	return r.Unified[string(k)]
}

func integer(p *int64) string {
	if p == nil {
		return ""
	}
	return strconv.FormatInt(*p, 10)
}
