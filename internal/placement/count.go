package placement

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/units"
)

// MilliCPU is what a container asks for, in milli-cores: by its quota, and by its shares where it has none; 0 for
// nothing. A quota or a period of zero or less is none, as in CRI.
//
// The kubelet rounds down, so this rounds up, and gives back the number of the pod's spec: exactly for any period that
// the kernel takes, since a milli-core is a microsecond or more of it, and for shares, of which a milli-core is more than
// one. Where the kubelet has clamped, the number is lost: a quota is at least 1 ms a period, so 5m reads as 10m; 2 shares
// are what it sends for nothing, so 1m and 2m read as nothing; and 262144 is the most, so more than 256 CPUs read as 256.
func MilliCPU(quota, period, shares int64) int64 {
	switch {
	case quota > 0 && period > 0:
		return scale(quota, period)
	case quota > 0:
		return scale(quota, units.DefaultPeriod)
	case shares > units.MinShares:
		return scale(shares, 1024)
	}
	return 0
}

// scale is n * 1000 / of, rounded up.
func scale(n, of int64) int64 {
	hi, lo := bits.Mul64(uint64(n), 1000)
	if hi >= uint64(of) {
		return math.MaxInt64
	}
	q, rem := bits.Div64(hi, lo, uint64(of))
	if rem > 0 {
		q++
	}
	return int64(min(q, math.MaxInt64))
}

// Role is what a container is to its pod.
type Role string

// Roles.
const (
	App     Role = "app"
	Init    Role = "init"    // runs to its end before the next one starts
	Sidecar Role = "sidecar" // an init container that is restarted: it runs on beside all that come after it
)

// Container is what a container of a pod asks for.
type Container struct {
	Role     Role
	MilliCPU int64
}

// PodMilliCPU is what a pod needs, by the rule of Kubernetes: its app containers and sidecars together, or the most that
// one init container needs beside the sidecars before it, if that is more. Containers are in the order of the pod's spec.
// A pod with resources of its own (spec.resources) asks for those and not for this.
func PodMilliCPU(containers []Container) int64 {
	var running, sidecars, most int64
	for _, c := range containers {
		n := max(c.MilliCPU, 0)
		switch c.Role {
		case Init:
			most = max(most, add(sidecars, n))
		case Sidecar:
			sidecars = add(sidecars, n)
			running = add(running, n)
		default:
			running = add(running, n)
		}
	}
	return max(running, most)
}

func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// CountError is a number of CPUs that an exclusive tier can't have.
type CountError struct {
	Tier     v1alpha1.Tier
	MilliCPU int64
}

func (e *CountError) Error() string {
	if e.MilliCPU <= 0 {
		return fmt.Sprintf("tier %s: cpu: the pod asks for none; allowed: whole CPUs, from 1", e.Tier)
	}
	down := e.MilliCPU / 1000
	if down >= units.MaxCPU+1 {
		return fmt.Sprintf("tier %s: cpu: %s; allowed: whole CPUs, 1 to %d", e.Tier, cpu(e.MilliCPU), units.MaxCPU+1)
	}
	if down == 0 {
		return fmt.Sprintf("tier %s: cpu: %s; allowed: whole CPUs, the nearest is 1", e.Tier, cpu(e.MilliCPU))
	}
	return fmt.Sprintf("tier %s: cpu: %s; allowed: whole CPUs, the nearest are %d and %d", e.Tier, cpu(e.MilliCPU), down, down+1)
}

// cpu is a quantity of CPUs as people write it.
func cpu(milli int64) string {
	if milli%1000 == 0 {
		return fmt.Sprintf("%d", milli/1000)
	}
	return fmt.Sprintf("%dm", milli)
}

// Count is the whole CPUs of a pod of an exclusive tier. The sum of the pod has to be whole, not each container's part.
// The error is a *CountError.
func Count(t v1alpha1.Tier, milli int64) (int, error) {
	if milli <= 0 || milli%1000 != 0 || milli/1000 > units.MaxCPU+1 {
		return 0, &CountError{Tier: t, MilliCPU: milli}
	}
	return int(milli / 1000), nil
}
