package resctrl

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
)

// ErrNotSupported means that this kernel on this machine has no resctrl: the CPU has none of its features, the kernel was
// built without it (CONFIG_X86_CPU_RESCTRL, CONFIG_ARM64_MPAM), or the boot options turned it off (rdt=!cat,...).
var ErrNotSupported = errors.New("resctrl is not supported by this kernel on this machine")

// ErrNotMounted means that the kernel has resctrl and nobody has mounted it.
var ErrNotMounted = errors.New("resctrl is not mounted (mount -t resctrl resctrl /sys/fs/resctrl)")

// ErrMounted means that it is mounted already; a second mount is not possible.
var ErrMounted = errors.New("resctrl is mounted already")

// ErrReadOnly means that resctrl is mounted read-only here, as in most containers: nothing can be changed.
var ErrReadOnly = errors.New("resctrl is mounted read-only")

// ErrNoCLOSID means ENOSPC at the creation of a control group: all CLOSIDs are in use. Their number is the smallest
// num_closids of all resources, half of it under CDP, and the root group has one. Waiting does not help; removing a group does.
var ErrNoCLOSID = errors.New("no CLOSID is left")

// ErrNoRMID means ENOSPC at the creation of a control or monitoring group: all RMIDs are in use by groups. Each group of
// either kind has one. Waiting does not help; removing a group does, after a while (ErrRMIDBusy).
var ErrNoRMID = errors.New("no RMID is left")

// ErrNoWays means ENOSPC at the creation of a control group: exclusive groups have so many ways that the kernel finds none
// to give to a new group. It looks at the lowest run of free ways only, so that even one free way between two exclusive
// groups can be in its way, where masks need two.
var ErrNoWays = errors.New("no cache ways are left")

// ErrRMIDBusy means EBUSY at the creation of a group: no RMID is free, and some are in limbo, freed by a removed group
// and still tagged to lines in a cache. They come back after about a second, or as soon as their occupancy is below
// info/L3_MON/max_threshold_occupancy. FS.Create waits for that.
var ErrRMIDBusy = errors.New("freed RMIDs are still busy")

// ErrGone means that the group does not exist, or stopped existing during the call. It is an fs.ErrNotExist.
var ErrGone = fmt.Errorf("group is gone: %w", fs.ErrNotExist)

// ErrOverlap means that cache ways of the write belong to an exclusive group, or that an exclusive group asks for ways
// that others or the hardware (shareable_bits) use. Nothing was changed.
var ErrOverlap = errors.New("cache ways overlap")

// ErrRefused means that this package does not do that, whatever the kernel would say. It is the caller's mistake.
var ErrRefused = errors.New("refused")

// ErrUnsettled means that threads of MoveThreads were still outside of the group when its rounds were spent.
var ErrUnsettled = errors.New("threads are left outside of the group")

// Error is a failure of one operation on one file or directory. errors.Is finds the errno (syscall.ENOSPC), what it
// stands for in io/fs (fs.ErrExist) and the sentinels of this package (ErrNoCLOSID).
type Error struct {
	Op     string // "read", "write", "mkdir", "rmdir", "rename"
	Path   string // below the mount point
	Data   string // what was to be written, or the new name
	Err    error  // a syscall.Errno, mostly
	Status string // what the kernel left in info/last_cmd_status, "" where it said nothing

	// Applied is text that the kernel had accepted before, where one change took several writes.
	Applied string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op + " ")
	switch e.Op {
	case "rename":
		fmt.Fprintf(&b, "%s to %s", e.Path, e.Data)
	case "write":
		fmt.Fprintf(&b, "%s to %s", quote(e.Data), e.Path)
	default:
		b.WriteString(e.Path)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Status != "" {
		fmt.Fprintf(&b, " (%s)", strings.ReplaceAll(e.Status, "\n", "; "))
	}
	if e.Applied != "" {
		fmt.Fprintf(&b, "; %s was applied before", quote(e.Applied))
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is tells what an errno means for this operation.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrNoCLOSID:
		return e.Op == "mkdir" && errors.Is(e.Err, syscall.ENOSPC) && strings.Contains(e.Status, "CLOSID")
	case ErrNoRMID:
		return e.Op == "mkdir" && errors.Is(e.Err, syscall.ENOSPC) && strings.Contains(e.Status, "RMID")
	case ErrNoWays:
		return e.Op == "mkdir" && errors.Is(e.Err, syscall.ENOSPC) && strings.Contains(e.Status, "No space on")
	case ErrRMIDBusy:
		return e.Op == "mkdir" && errors.Is(e.Err, syscall.EBUSY)
	case ErrGone:
		return isGone(e.Err) && !errors.Is(e.Err, ErrNotMounted) && !errors.Is(e.Err, ErrNotSupported)
	case ErrOverlap:
		return errors.Is(e.Err, syscall.EINVAL) && strings.Contains(strings.ToLower(e.Status), "overlaps")
	case ErrReadOnly:
		return errors.Is(e.Err, syscall.EROFS)
	case fs.ErrNotExist:
		return isGone(e.Err)
	}
	return false
}

// isGone knows the answers of a removed group: ENODEV comes from a file that was open meanwhile.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

// ParseError is text that is not in the format of its file. Nothing was changed.
type ParseError struct {
	File string // "schemata", "info/L3/cbm_mask"
	Part string // what can't be read
	Want string // what is allowed there
}

func (e *ParseError) Error() string {
	return fmt.Sprintf("parse %s: %s: want %s", e.File, quote(e.Part), e.Want)
}

// TasksError says which tasks of a list could not be moved. The others were.
type TasksError struct {
	Group  string
	Moved  []int
	Failed []TaskError // in the order of the list
}

// TaskError is one task that could not be moved. ESRCH: it has ended, or never was. EPERM: it belongs to somebody else,
// and so does this process. ErrGone: the group was removed, and this task was not tried. ErrRefused: no task can have that id.
type TaskError struct {
	ID  int
	Err error
}

func (e *TasksError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "move tasks to %s: %d moved, %d not: ", e.Group, len(e.Moved), len(e.Failed))
	const shown = 3
	for i, f := range e.Failed {
		if i == shown {
			fmt.Fprintf(&b, "; and %d more", len(e.Failed)-shown)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%d: %v", f.ID, f.Err)
	}
	return b.String()
}

// Unwrap returns each task's error once per kind of cause, so that errors.Is answers quickly on long lists.
func (e *TasksError) Unwrap() []error {
	var errs []error
	seen := map[error]bool{}
	for _, f := range e.Failed {
		cause := f.Err
		for errors.Unwrap(cause) != nil {
			cause = errors.Unwrap(cause)
		}
		if !seen[cause] {
			seen[cause] = true
			errs = append(errs, f.Err)
		}
	}
	return errs
}

// quote shows text of unknown origin and length.
func quote(s string) string {
	const shown = 80
	if len(s) > shown {
		return strconv.Quote(s[:shown]) + fmt.Sprintf("... (%d bytes)", len(s))
	}
	return strconv.Quote(s)
}
