package resctrl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Group is a control group (CTRL_MON) or one of its monitoring groups (MON). It is a name, not an open directory: when the
// group is removed, and even when another is made under its name, calls on it say what the kernel says then. Every method
// reads or writes the kernel, but Name and Path.
type Group struct {
	fs   *FS
	path string
}

// Name is the name of the group, "" of the root.
func (g *Group) Name() string {
	if g.path == "." {
		return ""
	}
	return path.Base(g.path)
}

// Path is where the group is below the mount point: ".", "NAME", "NAME/mon_groups/NAME".
func (g *Group) Path() string { return g.path }

// Monitoring tells a monitoring group, which has tasks, CPUs and counters but no settings of its own.
func (g *Group) Monitoring() bool { return strings.Contains("/"+g.path, "/mon_groups/") }

func (g *Group) file(name string) string { return path.Join(g.path, name) }

// Schemata reads the settings.
func (g *Group) Schemata() (Schemata, error) {
	text, err := g.fs.read(g.file("schemata"))
	if err != nil {
		return nil, err
	}
	return ParseSchemata(text)
}

// maxWrite is less than what the kernel takes of one write; more is E2BIG.
const maxWrite = 4095

// SetSchemata changes the settings that s names, reads them back and returns what the kernel made of them: bandwidth is
// rounded up to a multiple of its granularity. One write takes it all or nothing, but two cases: MB under mba_MBps is
// taken line by line, and more than 4095 bytes take several writes; Error.Applied has what was written before a failure.
func (g *Group) SetSchemata(s Schemata) ([]Difference, error) {
	var applied []string
	for _, text := range split(s) {
		if err := g.fs.write(g.file("schemata"), text); err != nil {
			if e, ok := errors.AsType[*Error](err); ok {
				e.Applied = strings.TrimSuffix(strings.Join(applied, ""), "\n")
			}
			return nil, err
		}
		applied = append(applied, text)
	}
	got, err := g.Schemata()
	if err != nil {
		return nil, fmt.Errorf("read back: %w", err)
	}
	return got.Differences(s), nil
}

// split makes texts of at most maxWrite bytes, each of whole lines.
func split(s Schemata) []string {
	var texts []string
	var b strings.Builder
	add := func(line string) {
		if b.Len() > 0 && b.Len()+len(line) > maxWrite {
			texts = append(texts, b.String())
			b.Reset()
		}
		b.WriteString(line)
	}
	for _, l := range s {
		// 100 domains of 21 digits each stay below the limit.
		for domains := range slices.Chunk(l.Domains, 100) {
			add(Line{Resource: l.Resource, Domains: domains}.String() + "\n")
		}
		if l.Domains == nil {
			add(l.String() + "\n")
		}
	}
	if b.Len() > 0 {
		texts = append(texts, b.String())
	}
	return texts
}

// Sizes reads what the settings come to: bytes of caches, the amounts of the others.
func (g *Group) Sizes() (Schemata, error) {
	text, err := g.fs.read(g.file("size"))
	if err != nil {
		return nil, err
	}
	return parseSizes(text)
}

// Mode is who may use a group's cache ways.
type Mode string

const (
	Shareable     Mode = "shareable"        // others may use them too
	Exclusive     Mode = "exclusive"        // nobody else may
	PseudoLockSet Mode = "pseudo-locksetup" // being prepared for a lock
	PseudoLocked  Mode = "pseudo-locked"    // its memory is locked in the cache
)

// Valid tells a mode that can be set.
func (m Mode) Valid() bool { return m == Shareable || m == Exclusive || m == PseudoLockSet }

// Mode reads the mode.
func (g *Group) Mode() (Mode, error) {
	text, err := g.fs.read(g.file("mode"))
	return Mode(strings.TrimSpace(text)), err
}

// SetMode changes the mode. ErrOverlap from Exclusive: another group, the root group mostly, has some of the ways, or other
// hardware does (CacheInfo.Shareable). Nothing has changed then. See SetExclusive.
func (g *Group) SetMode(m Mode) error { return g.fs.write(g.file("mode"), string(m)+"\n") }

// SetExclusive takes the group's ways away from the root group, which has all of them at first, and then makes the group
// exclusive. If that is refused (other groups overlap) the root group gets back what it had. Where masks must have no
// hole the root group keeps its longest part. What the root group had is returned, so that it can be undone later.
func (g *Group) SetExclusive() (rootBefore Schemata, err error) {
	if g.path == "." {
		return nil, fmt.Errorf("make the root group exclusive: %w", ErrRefused)
	}
	info, err := g.fs.Info()
	if err != nil {
		return nil, err
	}
	own, err := g.Schemata()
	if err != nil {
		return nil, err
	}
	root := g.fs.Root()
	before, err := root.Schemata()
	if err != nil {
		return nil, err
	}
	var rest Schemata
	for _, l := range before {
		r, ok := info.Resource(l.Resource)
		if !ok || r.Cache == nil {
			continue
		}
		for _, d := range l.Domains {
			left := d.Mask() &^ own.ways(l.Resource, d.ID)
			if !r.Cache.Sparse {
				left = left.Longest()
			}
			if left == 0 || left.Bits() < r.Cache.MinBits {
				return nil, fmt.Errorf("make %s exclusive: the root group would be left with %d ways of %s:%d, and needs %d: %w",
					g.path, left.Bits(), l.Resource, d.ID, max(1, r.Cache.MinBits), ErrRefused)
			}
			if left != d.Mask() {
				rest.Set(l.Resource, d.ID, uint64(left))
			}
		}
	}
	if len(rest) > 0 {
		if _, err := root.SetSchemata(rest); err != nil {
			return nil, fmt.Errorf("shrink the root group: %w", err)
		}
	}
	if err := g.SetMode(Exclusive); err != nil {
		if len(rest) == 0 {
			return nil, err
		}
		if _, undo := root.SetSchemata(before); undo != nil {
			return before, errors.Join(err, fmt.Errorf("give the root group back what it had: %w", undo))
		}
		return nil, err
	}
	return before, nil
}

// ways are the ways of a cache that a group uses, for code, data or both.
func (s Schemata) ways(resource string, id int) Mask {
	cache, _, _ := level(resource)
	var m Mask
	for _, l := range s {
		if c, _, ok := level(l.Resource); ok && c == cache {
			v, _ := s.Value(l.Resource, id)
			m |= Mask(v)
		}
	}
	return m
}

// CPUs lists the CPUs that the group has: on them it counts for tasks of the root group too.
func (g *Group) CPUs() ([]int, error) {
	text, err := g.fs.read(g.file("cpus_list"))
	if err != nil {
		return nil, err
	}
	return parseCPUs(text)
}

// SetCPUs gives the group these CPUs and no others. They leave the group that had them; those it had fall to the root
// group, whose own can only grow. A monitoring group can have CPUs of its control group only.
func (g *Group) SetCPUs(cpus []int) error {
	sorted := slices.Compact(slices.Sorted(slices.Values(cpus)))
	if len(sorted) > 0 && sorted[0] < 0 {
		return fmt.Errorf("CPU %d: %w", sorted[0], ErrRefused)
	}
	return g.fs.write(g.file("cpus_list"), formatCPUs(sorted)+"\n")
}

// formatCPUs writes ranges: "0-3,8".
func formatCPUs(sorted []int) string {
	var b strings.Builder
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(sorted[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(sorted[j]))
		}
		i = j + 1
	}
	return b.String()
}

// parseCPUs reads ranges: "0-3,8".
func parseCPUs(text string) ([]int, error) {
	const most = 1 << 16
	var cpus []int
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		firstText, lastText, isRange := strings.Cut(part, "-")
		if !isRange {
			lastText = firstText
		}
		first, err1 := strconv.ParseUint(firstText, 10, 31)
		last, err2 := strconv.ParseUint(lastText, 10, 31)
		if err1 != nil || err2 != nil || last < first || last >= most || len(cpus) > 0 && int(first) <= cpus[len(cpus)-1] {
			return nil, &ParseError{"cpus_list", part, "rising CPU numbers and ranges"}
		}
		for c := first; c <= last; c++ {
			cpus = append(cpus, int(c))
		}
	}
	return cpus, nil
}

// MonGroups lists the monitoring groups of a control group, by name. There are none where nothing is monitored.
func (g *Group) MonGroups() ([]*Group, error) {
	list, err := g.fs.readDir(g.file("mon_groups"))
	if errors.Is(err, fs.ErrNotExist) {
		// Either the kernel does not monitor, or the group itself is gone.
		if _, err := g.fs.read(g.file("tasks")); err != nil {
			return nil, err
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var groups []*Group
	for _, e := range list {
		if e.Dir {
			groups = append(groups, &Group{fs: g.fs, path: path.Join(g.path, "mon_groups", e.Name)})
		}
	}
	return groups, nil
}

// MonGroup finds a monitoring group by its name. ErrGone means that there is none.
func (g *Group) MonGroup(name string) (*Group, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	m := &Group{fs: g.fs, path: path.Join(g.path, "mon_groups", name)}
	if _, err := g.fs.read(m.file("tasks")); err != nil {
		return nil, err
	}
	return m, nil
}

// CreateMonGroup makes a monitoring group in a control group. It waits for RMIDs as FS.Create does.
func (g *Group) CreateMonGroup(ctx context.Context, name string) (*Group, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if g.Monitoring() {
		return nil, fmt.Errorf("make a group in monitoring group %s: %w", g.path, ErrRefused)
	}
	m := &Group{fs: g.fs, path: path.Join(g.path, "mon_groups", name)}
	if err := g.fs.mkdir(ctx, m.path); err != nil {
		return nil, err
	}
	return m, nil
}

// Rename gives a monitoring group another name or moves it, with its tasks, to another control group; its counters go on.
// The kernel (6.4 and newer) has it for monitoring groups without CPUs only; otherwise the error is EPERM. The group that
// is returned has the new name.
func (g *Group) Rename(parent *Group, name string) (*Group, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	to := path.Join(parent.path, "mon_groups", name)
	if !g.Monitoring() {
		return nil, fmt.Errorf("rename control group %s: the kernel can't: %w", g.path, ErrRefused)
	}
	g.fs.mu.Lock()
	defer g.fs.mu.Unlock()
	if err := g.fs.files.Rename(g.path, to); err != nil {
		return nil, g.fs.failed("rename", g.path, to, err)
	}
	return &Group{fs: g.fs, path: to}, nil
}

// Remove removes the group. Its tasks and CPUs fall to the root group, or to the control group of a monitoring one. Its
// monitoring groups go with it.
func (g *Group) Remove() error {
	if g.path == "." {
		return fmt.Errorf("remove the root group: %w", ErrRefused)
	}
	g.fs.mu.Lock()
	defer g.fs.mu.Unlock()
	if err := g.fs.files.Rmdir(g.path); err != nil {
		return g.fs.failed("rmdir", g.path, "", err)
	}
	return nil
}
