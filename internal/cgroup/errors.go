package cgroup

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/tideline-io/tideline/internal/policy"
)

// ErrGone means that the cgroup does not exist, or stopped existing during the call. The caller may call Forget. It
// is an fs.ErrNotExist.
var ErrGone = fmt.Errorf("cgroup is gone: %w", fs.ErrNotExist)

// ErrRefused means that this package does not write that knob of that cgroup, whatever the kernel would say. It is
// the caller's mistake.
var ErrRefused = errors.New("refused")

// ErrValue means that a value is not in the knob's format; nothing was written.
var ErrValue = errors.New("bad value")

// ErrMismatch means that the kernel accepted a write and shows something else.
var ErrMismatch = errors.New("kernel shows another value")

// ErrCorrupt means that a journal file could not be understood and was set aside under the name the error gives. What
// it recorded can't be undone any more.
var ErrCorrupt = errors.New("journal file is corrupt")

// ErrUnsupported means that the cgroup exists and the kernel offers no file for the knob there. It is an
// fs.ErrNotExist; callers take it out with errors.As.
type ErrUnsupported struct {
	Feature string // the knob
	Need    string // what would offer it: "cgroup v2", "kernel 5.14 (CONFIG_CFS_BANDWIDTH)"
}

func (e ErrUnsupported) Error() string { return e.Feature + " is unsupported: needs " + e.Need }

// Unwrap makes it an fs.ErrNotExist.
func (e ErrUnsupported) Unwrap() error { return fs.ErrNotExist }

// Error is a failure on one knob of one cgroup.
type Error struct {
	Op    string // "read", "write", "undo", "journal"
	Path  Path
	Knob  policy.Knob
	Value string // what was to be written
	Err   error
}

func (e *Error) Error() string {
	if e.Op == "read" {
		return fmt.Sprintf("read %s of %s: %v", e.Knob, e.Path, e.Err)
	}
	return fmt.Sprintf("%s %q to %s of %s: %v", e.Op, e.Value, e.Knob, e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Need says what a kernel has to offer for a knob, for people.
func Need(version int, k policy.Knob) string {
	switch k {
	case policy.CPUSetCPUs, policy.CPUSetMems:
		return "controller cpuset (CONFIG_CPUSETS)"
	case policy.CPUWeight:
		return "controller cpu (CONFIG_FAIR_GROUP_SCHED)"
	case policy.CPUMax:
		return "controller cpu (CONFIG_CFS_BANDWIDTH)"
	case policy.CPUMaxBurst:
		return "kernel 5.14 (CONFIG_CFS_BANDWIDTH)"
	case policy.CPUIdle:
		return "kernel 5.15 (CONFIG_FAIR_GROUP_SCHED)"
	case policy.MemoryLow, policy.MemoryHigh:
		if version == 1 {
			return "cgroup v2"
		}
		return "controller memory (CONFIG_MEMCG)"
	case policy.MemoryMax:
		return "controller memory (CONFIG_MEMCG)"
	case policy.IOWeight:
		if version == 1 {
			return "CONFIG_BFQ_GROUP_IOSCHED"
		}
		return "CONFIG_BFQ_GROUP_IOSCHED with module bfq, or CONFIG_BLK_CGROUP_IOCOST"
	case policy.IOMax:
		return "CONFIG_BLK_DEV_THROTTLING"
	case policy.OOMScoreAdj, policy.IOPriority:
		return "the runtime, at creation"
	case policy.Resctrl:
		return "resctrl mounted on a CPU that has it (tideline resctrl --mount)"
	}
	return "an unknown knob"
}
