package resctrl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// DefaultPoint is where resctrl is mounted on every system. The kernel makes the directory if it finds something to
// control or monitor.
const DefaultPoint = "/sys/fs/resctrl"

// MountOptions are chosen once, by whoever mounts. Changing them needs an unmount, which removes all groups.
type MountOptions struct {
	CDP   bool `json:"cdp,omitempty"`   // code and data have masks of their own in L3
	CDPL2 bool `json:"cdpl2,omitempty"` // and in L2
	MBps  bool `json:"mbps,omitempty"`  // mba_MBps: MB counts MB/s, kept by a loop in the kernel
	Debug bool `json:"debug,omitempty"` // kernel 6.7 and newer: files that show CLOSIDs and RMIDs
}

// String is the options as mount takes them, "" for none.
func (o MountOptions) String() string {
	var names []string
	for _, opt := range []struct {
		name string
		on   bool
	}{{"cdp", o.CDP}, {"cdpl2", o.CDPL2}, {"mba_MBps", o.MBps}, {"debug", o.Debug}} {
		if opt.on {
			names = append(names, opt.name)
		}
	}
	return strings.Join(names, ",")
}

// MountPoint is a mounted resctrl.
type MountPoint struct {
	Point    string       `json:"point"`
	Options  MountOptions `json:"options"`
	ReadOnly bool         `json:"readOnly,omitempty"`
	Other    []string     `json:"other,omitempty"` // options that this package does not know
}

// OptionsError means that resctrl is mounted with other options than wanted, by somebody who may rely on them.
type OptionsError struct {
	Point      string
	Have, Want MountOptions
}

func (e *OptionsError) Error() string {
	show := func(o MountOptions) string {
		if o == (MountOptions{}) {
			return "no options"
		}
		return "options " + o.String()
	}
	return fmt.Sprintf("resctrl is mounted at %s with %s, not with %s: unmount it first, which removes all groups",
		e.Point, show(e.Have), show(e.Want))
}

// Check tells whether this is the mount that is wanted: a *OptionsError, or ErrReadOnly. Debug doesn't matter.
func (m MountPoint) Check(want MountOptions) error {
	have := m.Options
	have.Debug = want.Debug
	if have != want {
		return &OptionsError{Point: m.Point, Have: m.Options, Want: want}
	}
	if m.ReadOnly {
		return fmt.Errorf("%s: %w", m.Point, ErrReadOnly)
	}
	return nil
}

// FindMount looks for resctrl in the text of /proc/self/mountinfo. The last line wins, as it hides those before it.
// ErrNotMounted means that there is none.
//
//	36 25 0:31 / /sys/fs/resctrl rw,relatime shared:9 - resctrl resctrl rw,cdp
func FindMount(mountinfo string) (MountPoint, error) {
	found := MountPoint{}
	for line := range strings.SplitSeq(mountinfo, "\n") {
		head, tail, ok := strings.Cut(line, " - ")
		fields, rest := strings.Fields(head), strings.Fields(tail)
		if !ok || len(fields) < 6 || len(rest) < 3 || rest[0] != "resctrl" {
			continue
		}
		// A bind mount of one group, or a point that isn't absolute, is not the file system.
		if fields[3] != "/" || !strings.HasPrefix(fields[4], "/") {
			continue
		}
		found = MountPoint{Point: unescape(fields[4])}
		// The first list is of the mount point, the second of the file system: either makes it read-only.
		for _, opt := range slices.Concat(strings.Split(fields[5], ","), strings.Split(rest[2], ",")) {
			switch opt {
			case "ro":
				found.ReadOnly = true
			case "cdp":
				found.Options.CDP = true
			case "cdpl2":
				found.Options.CDPL2 = true
			case "mba_MBps":
				found.Options.MBps = true
			case "debug":
				found.Options.Debug = true
			case "rw", "relatime", "noatime", "nosuid", "nodev", "noexec", "seclabel":
			default:
				if !slices.Contains(found.Other, opt) {
					found.Other = append(found.Other, opt)
				}
			}
		}
	}
	if found.Point == "" {
		return MountPoint{}, ErrNotMounted
	}
	return found, nil
}

// unescape turns \040 and its like back, as the kernel writes space, tab, newline and backslash.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Locate finds the mounted resctrl of the machine whose files are below root, "/" for this one. The point is given
// without root. ErrNotSupported and ErrNotMounted tell why there is none; any other error means that it is unknown.
func Locate(root string) (MountPoint, error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return MountPoint{}, fmt.Errorf("find resctrl: %w", err)
	}
	m, err := FindMount(string(text))
	if err == nil {
		return m, nil
	}
	// The kernel makes the mount point and registers the file system together, if it has something to offer.
	if _, err := os.Stat(filepath.Join(root, DefaultPoint)); errors.Is(err, fs.ErrNotExist) {
		return MountPoint{}, ErrNotSupported
	}
	return MountPoint{}, ErrNotMounted
}
