package cgroup

import (
	"slices"
	"strconv"
	"strings"
)

// Mount is a line of mountinfo about a cgroup or resctrl file system.
type Mount struct {
	Root         string   // the directory of the file system that is mounted, "/" for all of it
	Point        string   // where
	Major, Minor uint32   // device
	Type         string   // "cgroup", "cgroup2" or "resctrl"
	Options      []string // of the file system; on v1 they name the controllers
}

// ParseMountinfo returns the mounts of cgroup and resctrl file systems, in the order of the text. Lines that it can't
// read are passed over: other file systems put odd text there.
//
//	31 30 0:28 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
func ParseMountinfo(text string) []Mount {
	var mounts []Mount
	for line := range strings.SplitSeq(text, "\n") {
		if m, ok := parseMount(line); ok {
			mounts = append(mounts, m)
		}
	}
	return mounts
}

func parseMount(line string) (Mount, bool) {
	head, tail, ok := strings.Cut(line, " - ")
	fields, rest := strings.Fields(head), strings.Fields(tail)
	if !ok || len(fields) < 6 || len(rest) < 3 || !slices.Contains([]string{"cgroup", "cgroup2", "resctrl"}, rest[0]) {
		return Mount{}, false
	}
	majorText, minorText, ok := strings.Cut(fields[2], ":")
	major, err1 := strconv.ParseUint(majorText, 10, 32)
	minor, err2 := strconv.ParseUint(minorText, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return Mount{}, false
	}
	m := Mount{
		Root: unescape(fields[3]), Point: unescape(fields[4]),
		Major: uint32(major), Minor: uint32(minor),
		Type: rest[0], Options: strings.Split(rest[2], ","),
	}
	return m, strings.HasPrefix(m.Point, "/") && strings.HasPrefix(m.Root, "/")
}

// unescape turns \040 and its like back, as the kernel writes space, tab, newline and backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
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
