package v1alpha1

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/tideline-io/tideline/internal/units"
)

// Tiers returns the tiers, without None, from the most to the least protected, SYSTEM last.
func Tiers() []Tier { return []Tier{LSE, LSR, LS, BE, SYSTEM} }

// Valid says whether t is one of Tiers.
func (t Tier) Valid() bool {
	switch t {
	case LSE, LSR, LS, BE, SYSTEM:
		return true
	}
	return false
}

// Exclusive says whether the containers of t own CPUs: LSE and LSR.
func (t Tier) Exclusive() bool { return t == LSE || t == LSR }

// KubeQoSClasses returns the QoS classes that a rule may name.
func KubeQoSClasses() []KubeQoS { return []KubeQoS{Guaranteed, Burstable, BestEffort} }

// Valid says whether q is one of KubeQoSClasses.
func (q KubeQoS) Valid() bool { return q == Guaranteed || q == Burstable || q == BestEffort }

// Bursts returns the values of Burst.
func Bursts() []Burst { return []Burst{BurstLimit, BurstOff} }

// Valid says whether b is one of Bursts.
func (b Burst) Valid() bool { return b == BurstLimit || b == BurstOff }

// LoopModes returns the values of LoopMode.
func LoopModes() []LoopMode { return []LoopMode{LoopOn, LoopOff, LoopDryRun} }

// Valid says whether m is one of LoopModes.
func (m LoopMode) Valid() bool { return m == LoopOn || m == LoopOff || m == LoopDryRun }

// Untiereds returns the values of Untiered.
func Untiereds() []Untiered { return []Untiered{UntieredPool, UntieredLeave} }

// Valid says whether u is one of Untiereds.
func (u Untiered) Valid() bool { return u == UntieredPool || u == UntieredLeave }

// Placements returns the values of Placement.
func Placements() []Placement { return []Placement{PlacementCores, PlacementCPUs, PlacementNone} }

// NUMAs returns the values of NUMA.
func NUMAs() []NUMA { return []NUMA{NUMAPreferSingle, NUMARequireSingle, NUMASpread} }

// Valid says whether n is one of NUMAs.
func (n NUMA) Valid() bool {
	return n == NUMAPreferSingle || n == NUMARequireSingle || n == NUMASpread
}

// SMTs returns the values of SMT.
func SMTs() []SMT { return []SMT{SMTIdle, SMTUse} }

// Valid says whether s is one of SMTs.
func (s SMT) Valid() bool { return s == SMTIdle || s == SMTUse }

// IOPriorities returns the values of IOPriority.
func IOPriorities() []IOPriority {
	return []IOPriority{IOPriorityNone, IOPriorityLowest, IOPriorityIdle}
}

// Valid says whether p is one of IOPriorities.
func (p IOPriority) Valid() bool {
	return p == IOPriorityNone || p == IOPriorityLowest || p == IOPriorityIdle
}

// OnErrors returns the values of OnError.
func OnErrors() []OnError { return []OnError{Refuse, Pass} }

// Valid says whether o is one of OnErrors.
func (o OnError) Valid() bool { return o == Refuse || o == Pass }

const percentAllowed = `a whole percentage from "0%" to "100%"`

// ParsePercent reads "50%"; nothing but a whole number from 0 to 100, without leading zeros, before the sign.
func ParsePercent(s string) (Percent, error) {
	if n := len(s); n >= 2 && n <= 4 && s[n-1] == '%' {
		if v, err := strconv.ParseUint(s[:n-1], 10, 8); err == nil && v <= 100 && (s[0] != '0' || n == 2) {
			return Percent(v), nil
		}
	}
	return 0, fmt.Errorf("percent %s: want %s", units.Quote(s), percentAllowed)
}

// Valid says whether p is from 0 to 100.
func (p Percent) Valid() bool { return p >= 0 && p <= 100 }

// String is p as it is written: "50%".
func (p Percent) String() string { return strconv.Itoa(int(p)) + "%" }

// MarshalJSON writes "50%".
func (p Percent) MarshalJSON() ([]byte, error) { return []byte(`"` + p.String() + `"`), nil }

// UnmarshalJSON accepts "50%" only: neither numbers nor fractions.
func (p *Percent) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("percent %s: want %s", units.Quote(string(data)), percentAllowed)
	}
	v, err := ParsePercent(s)
	if err != nil {
		return err
	}
	*p = v
	return nil
}
