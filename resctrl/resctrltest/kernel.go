// Package resctrltest is a kernel's resctrl in process, for tests without hardware and without root. A Kernel behaves as
// Linux 6.12 (or 6.1) does: groups, settings, CLOSIDs and RMIDs that run out, errnos and the text of last_cmd_status, all
// as they were measured. RunTable proves it: one table of operations with their answers runs against a Kernel here and
// against a real kernel in a virtual machine.
//
//	kernel := resctrltest.New(resctrltest.Intel())
//	process := kernel.Start(3)
//	fs := resctrl.Open(kernel)
//	group, err := fs.Create(ctx, "tideline-be")
//	err = group.AddTasks(process.Threads())
//
// Assignable counters are as the kernel's documentation says; no kernel that has them was measured. Pseudo-locking is as
// on a CPU that lacks it. Permissions of users are not modelled.
package resctrltest

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tideline-io/tideline/resctrl"
)

// Kernel is a machine's resctrl. It is a resctrl.Files, and may be used by several goroutines.
type Kernel struct {
	layout Layout

	mu        sync.Mutex
	before    func(op, name string) error
	mounted   bool
	options   resctrl.MountOptions
	readOnly  bool
	status    string
	full      bool // the status, so that nothing more is added
	root      *group
	groups    map[string]*group // but the root
	resources []*resource       // as schemata shows them
	closids   idSpace
	rmids     idSpace
	online    map[int]bool
	threshold uint64
	assign    string // "mbm_event" or "default", where counters are assignable
	tasks     map[int]*task
	lastID    int
	lastAge   int
}

// resource is a line of schemata.
type resource struct {
	name    string
	cache   *Cache
	bw      *Bandwidth
	closids int
	domains []Domain
}

type group struct {
	name     string
	parent   *group // of a monitoring group
	age      int    // among those of its parent, the oldest first
	closid   int
	rmid     int
	mode     resctrl.Mode
	values   map[string]map[int]uint64 // by resource and domain, of a control group
	cpus     map[int]bool
	mon      map[string]*group
	counters map[string]map[int]string // by event and domain: what is read there
	assigned map[string]map[int]bool   // likewise, where counters are assignable
}

// control is the group that a group's settings are those of.
func (g *group) control() *group {
	if g.parent != nil {
		return g.parent
	}
	return g
}

// idSpace are the CLOSIDs or RMIDs. Freed RMIDs are in limbo before they can be used again.
type idSpace struct {
	free  []int
	limbo []limboID
	hold  time.Duration
}

type limboID struct {
	id    int
	until time.Time
}

func newIDs(n int) idSpace {
	var s idSpace
	for i := 1; i < n; i++ { // the root group has 0
		s.free = append(s.free, i)
	}
	return s
}

// take is ok if an id was free.
func (s *idSpace) take() (id int, ok bool) {
	now := time.Now()
	s.limbo = slices.DeleteFunc(s.limbo, func(l limboID) bool {
		if now.Before(l.until) {
			return false
		}
		s.free = append(s.free, l.id)
		return true
	})
	if len(s.free) == 0 {
		return 0, false
	}
	id, s.free = s.free[0], s.free[1:]
	return id, true
}

func (s *idSpace) give(id int) {
	if s.hold == 0 {
		s.free = append(s.free, id)
		return
	}
	s.limbo = append(s.limbo, limboID{id, time.Now().Add(s.hold)})
}

// New boots a machine and mounts its resctrl with the layout's options. Three tasks run: 1, 2, and 3, which is the one
// that writes. A freed RMID is in limbo for a second, as with a kernel that has more than one L3 domain.
func New(l Layout) *Kernel {
	k := &Kernel{layout: l, online: map[int]bool{}, tasks: map[int]*task{}, assign: "mbm_event"}
	for c := range l.CPUs {
		k.online[c] = true
	}
	if l.Monitor != nil {
		k.threshold = l.Monitor.Threshold
		k.rmids.hold = time.Second
	}
	for range 3 {
		k.start(1, nil)
	}
	if err := k.Mount(l.Options); err != nil {
		panic(fmt.Sprintf("layout %s: mount: %v", l.Name, err))
	}
	return k
}

// Layout is the machine.
func (k *Kernel) Layout() Layout { return k.layout }

// Mount mounts resctrl: EBUSY if it is mounted, EINVAL for an option that the machine lacks.
func (k *Kernel) Mount(o resctrl.MountOptions) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mounted {
		return syscall.EBUSY
	}
	capable := func(name string) bool {
		return slices.ContainsFunc(k.layout.Caches, func(c Cache) bool { return c.Name == name && c.CDP })
	}
	linear := slices.ContainsFunc(k.layout.Bandwidths, func(b Bandwidth) bool { return b.Name == "MB" && b.Linear })
	monitored := k.layout.Monitor != nil && slices.Contains(k.layout.Monitor.Events, "mbm_local_bytes")
	if o.CDP && !capable("L3") || o.CDPL2 && !capable("L2") || o.MBps && !(linear && monitored) || o.Debug && k.old() {
		return syscall.EINVAL
	}
	k.mounted, k.options = true, o
	k.hush()
	k.resources = nil
	for i := range k.layout.Caches {
		c := &k.layout.Caches[i]
		if o.CDP && c.Name == "L3" || o.CDPL2 && c.Name == "L2" {
			k.resources = append(k.resources,
				&resource{name: c.Name + "CODE", cache: c, closids: c.CLOSIDs / 2, domains: c.Domains},
				&resource{name: c.Name + "DATA", cache: c, closids: c.CLOSIDs / 2, domains: c.Domains})
		} else {
			k.resources = append(k.resources, &resource{name: c.Name, cache: c, closids: c.CLOSIDs, domains: c.Domains})
		}
	}
	for i := range k.layout.Bandwidths {
		b := &k.layout.Bandwidths[i]
		k.resources = append(k.resources, &resource{name: b.Name, bw: b, closids: b.CLOSIDs, domains: b.Domains})
	}
	slices.Reverse(k.resources)
	closids := 0
	for _, r := range k.resources {
		if closids == 0 || r.closids < closids {
			closids = r.closids
		}
	}
	k.closids = newIDs(closids)
	if m := k.layout.Monitor; m != nil {
		hold := k.rmids.hold
		k.rmids = newIDs(m.RMIDs)
		k.rmids.hold = hold
	}
	k.groups, k.root = map[string]*group{}, nil
	k.root = k.newGroup("")
	for c := range k.online {
		k.root.cpus[c] = k.online[c]
	}
	for _, t := range k.tasks {
		t.group = k.root
	}
	return nil
}

// Unmount removes all groups and settings.
func (k *Kernel) Unmount() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.mounted {
		return syscall.EINVAL
	}
	k.mounted, k.groups = false, nil
	return nil
}

// SetReadOnly mounts it read-only, or not.
func (k *Kernel) SetReadOnly(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.readOnly = on
}

// SetLimbo says how long freed RMIDs are busy.
func (k *Kernel) SetLimbo(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rmids.hold = d
}

// Before has a function called before each operation ("read", "readdir", "write", "mkdir", "rmdir", "rename"), which fails
// with the error that it returns. The function may use the Kernel, to fork a process or to remove a group meanwhile; it is
// not called for what it does itself.
func (k *Kernel) Before(f func(op, name string) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.before = f
}

// SetStatus puts text into last_cmd_status, for errors of Before.
func (k *Kernel) SetStatus(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status, k.full = text, false
}

// begin locks for one operation.
func (k *Kernel) begin(op, name string, change bool) error {
	k.mu.Lock()
	if before := k.before; before != nil {
		k.before = nil
		k.mu.Unlock()
		err := before(op, name)
		k.mu.Lock()
		if k.before == nil {
			k.before = before
		}
		if err != nil {
			return err
		}
	}
	switch {
	case !fs.ValidPath(name):
		return syscall.EINVAL
	case k.readOnly && change:
		return syscall.EROFS
	}
	return nil
}

func (k *Kernel) old() bool { return k.layout.Kernel == "6.1" }

// say adds to last_cmd_status, which holds 511 bytes. A text that is too long is cut if it is a format, or else left out, and
// nothing more is added.
func (k *Kernel) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	const room = 511
	switch {
	case k.full:
	case len(k.status)+len(text) <= room:
		k.status += text
	default:
		if k.full = true; len(args) > 0 {
			k.status = (k.status + text)[:room]
		}
	}
}

// hush empties last_cmd_status.
func (k *Kernel) hush() { k.status, k.full = "", false }

func (k *Kernel) newGroup(name string) *group {
	g := &group{
		name: name, mode: resctrl.Shareable, values: map[string]map[int]uint64{}, cpus: map[int]bool{}, mon: map[string]*group{},
		counters: map[string]map[int]string{}, assigned: map[string]map[int]bool{},
	}
	for _, r := range k.resources {
		g.values[r.name] = map[int]uint64{}
		for _, d := range r.domains {
			g.values[r.name][d.ID] = k.standard(r)
		}
	}
	k.assignAll(g)
	return g
}

// standard is what a domain has after a boot.
func (k *Kernel) standard(r *resource) uint64 {
	switch {
	case r.cache != nil:
		return uint64(resctrl.Ways(0, r.cache.Bits))
	case k.options.MBps && r.name == "MB":
		return 1<<32 - 1
	}
	return r.bw.Max
}

// each calls f with the root and all control groups, by name.
func (k *Kernel) each() []*group {
	all := []*group{k.root}
	for _, name := range slices.Sorted(maps.Keys(k.groups)) {
		all = append(all, k.groups[name])
	}
	return all
}

// on are the domains of a list that have a CPU online.
func (k *Kernel) on(list []Domain) []Domain {
	var on []Domain
	for _, d := range list {
		if slices.ContainsFunc(d.CPUs, func(c int) bool { return k.online[c] }) {
			on = append(on, d)
		}
	}
	return on
}

// SetOnline plugs a CPU in or out. With its last CPU a domain goes, and its settings with it; a CPU comes back to the
// root group.
func (k *Kernel) SetOnline(cpu int, on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.online[cpu] == on || cpu < 0 || cpu >= k.layout.CPUs {
		return
	}
	was := map[string][]Domain{}
	for _, r := range k.resources {
		was[r.name] = k.on(r.domains)
	}
	k.online[cpu] = on
	for _, g := range k.each() {
		delete(g.cpus, cpu)
		for _, m := range g.mon {
			delete(m.cpus, cpu)
		}
		for _, r := range k.resources {
			for _, d := range k.on(r.domains) {
				if !slices.ContainsFunc(was[r.name], func(w Domain) bool { return w.ID == d.ID }) {
					g.values[r.name][d.ID] = k.standard(r)
				}
			}
		}
	}
	if on {
		k.root.cpus[cpu] = true
	}
}

// place is what a name leads to: a group, and a file or directory in it ("" for the group's own directory).
func (k *Kernel) place(name string) (g *group, rest string) {
	if name == "." {
		return k.root, ""
	}
	parts := strings.Split(name, "/")
	g = k.root
	if c, ok := k.groups[parts[0]]; ok {
		g, parts = c, parts[1:]
	}
	if len(parts) >= 2 && parts[0] == "mon_groups" {
		if m, ok := g.mon[parts[1]]; ok {
			g, parts = m, parts[2:]
		}
	}
	return g, strings.Join(parts, "/")
}

// ReadFile reads a file.
func (k *Kernel) ReadFile(name string) (string, error) {
	err := k.begin("read", name, false)
	defer k.mu.Unlock()
	if err != nil {
		return "", err
	}
	if !k.mounted {
		return "", syscall.ENOENT
	}
	g, rest := k.place(name)
	text, ok := k.text(g, rest)
	if !ok {
		if k.list(g, rest) != nil {
			return "", syscall.EISDIR
		}
		return "", k.missing(name)
	}
	return text, nil
}

// ReadDir lists a directory.
func (k *Kernel) ReadDir(name string) ([]resctrl.Entry, error) {
	err := k.begin("readdir", name, false)
	defer k.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if !k.mounted {
		if name == "." {
			return nil, nil
		}
		return nil, syscall.ENOENT
	}
	g, rest := k.place(name)
	list := k.list(g, rest)
	if list == nil {
		if k.isFile(g, rest) {
			return nil, syscall.ENOTDIR
		}
		return nil, k.missing(name)
	}
	var found []resctrl.Entry
	for _, n := range slices.Sorted(maps.Keys(list)) {
		found = append(found, resctrl.Entry{Name: n, Dir: list[n]})
	}
	return found, nil
}

// missing is the error of a name that leads nowhere.
func (k *Kernel) missing(name string) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if g, rest := k.place(dir); k.isFile(g, rest) {
			return syscall.ENOTDIR
		}
	}
	return syscall.ENOENT
}

// list is what a directory has, and which of it are directories. It is nil if there is no such directory.
func (k *Kernel) list(g *group, rest string) map[string]bool {
	entries := map[string]bool{}
	files := func(names ...string) {
		for _, n := range names {
			if k.isFile(g, path.Join(rest, n)) {
				entries[n] = false
			}
		}
	}
	dirs := func(names ...string) {
		for _, n := range names {
			entries[n] = true
		}
	}
	first, dir, _ := strings.Cut(rest, "/")
	m := k.layout.Monitor
	switch {
	case rest == "":
		files("tasks", "cpus", "cpus_list", "schemata", "size", "mode", "ctrl_hw_id", "mon_hw_id", "mbm_L3_assignments")
		if m != nil {
			dirs("mon_data")
			if g.parent == nil {
				dirs("mon_groups")
			}
		}
		if g == k.root {
			dirs("info")
			dirs(slices.Collect(maps.Keys(k.groups))...)
		}
	case rest == "mon_groups" && m != nil && g.parent == nil:
		dirs(slices.Collect(maps.Keys(g.mon))...)
	case rest == "mon_data" && m != nil:
		for _, d := range k.on(m.Domains) {
			dirs(monDir(d.ID))
		}
	case first == "mon_data" && m != nil && slices.ContainsFunc(k.on(m.Domains), func(d Domain) bool { return monDir(d.ID) == dir }):
		files(m.Events...)
	case first != "info" || g != k.root:
		return nil
	case dir == "":
		files("last_cmd_status")
		for _, r := range k.resources {
			dirs(r.name)
		}
		if m != nil {
			dirs("L3_MON")
		}
	case dir == "L3_MON" && m != nil:
		files("mon_features", "num_rmids", "max_threshold_occupancy", "mbm_assign_mode", "num_mbm_cntrs", "available_mbm_cntrs", "mbm_assign_on_mkdir")
	case k.resource(dir) != nil:
		files("num_closids", "cbm_mask", "min_cbm_bits", "shareable_bits", "bit_usage", "sparse_masks",
			"min_bandwidth", "bandwidth_gran", "delay_linear", "thread_throttle_mode")
	default:
		return nil
	}
	return entries
}

func (k *Kernel) resource(name string) *resource {
	for _, r := range k.resources {
		if r.name == name {
			return r
		}
	}
	return nil
}

func monDir(id int) string { return fmt.Sprintf("mon_L3_%02d", id) }

// Mkdir makes a group.
func (k *Kernel) Mkdir(name string) error {
	err := k.begin("mkdir", name, true)
	defer k.mu.Unlock()
	if err != nil {
		return err
	}
	if !k.mounted {
		if name == "." {
			return syscall.EEXIST
		}
		return syscall.EPERM
	}
	if name == "." {
		return syscall.EINVAL // as resctrl.OS
	}
	dir, base := path.Dir(name), path.Base(name)
	g, rest := k.place(name)
	if k.isFile(g, rest) || k.list(g, rest) != nil {
		return syscall.EEXIST
	}
	g, rest = k.place(dir)
	if k.list(g, rest) == nil {
		return k.missing(name)
	}
	switch {
	case strings.Contains(base, "\n"):
		return syscall.EINVAL
	case dir == "." && len(k.resources) > 0:
		return k.mkdirControl(base)
	case rest == "mon_groups" && base != "mon_groups":
		return k.mkdirMon(g, base)
	}
	return syscall.EPERM
}

func (k *Kernel) mkdirControl(name string) error {
	closid, ok := k.closids.take()
	if !ok {
		k.say("Out of CLOSIDs\n")
		return syscall.ENOSPC
	}
	rmid, err := k.takeRMID()
	if err != nil {
		k.closids.give(closid)
		return err
	}
	g := k.newGroup(name)
	g.closid, g.rmid = closid, rmid
	for _, r := range k.resources {
		if r.cache == nil {
			continue
		}
		for _, d := range k.on(r.domains) {
			m := k.initial(r, d.ID)
			if m.Bits() < r.cache.MinBits {
				k.say("No space on %s:%d\n", r.name, d.ID)
				k.closids.give(closid)
				k.giveRMID(rmid)
				return syscall.ENOSPC
			}
			g.values[r.name][d.ID] = uint64(m)
		}
	}
	k.groups[name] = g
	return nil
}

// initial is what a new group gets: the bits that nobody uses or that a shareable group uses, and those of the hardware.
func (k *Kernel) initial(r *resource, domain int) resctrl.Mask {
	used, mask := r.cache.Shareable, r.cache.Shareable
	for _, g := range k.each() {
		for _, peer := range k.halves(r) {
			v := resctrl.Mask(g.values[peer.name][domain])
			used |= v
			if g.mode == resctrl.Shareable {
				mask |= v
			}
		}
	}
	mask |= resctrl.Ways(0, r.cache.Bits) &^ used
	if runs := mask.Runs(); len(runs) > 0 {
		return runs[0] // where holes are allowed too
	}
	return mask
}

// halves are the resources of the same cache: both under CDP.
func (k *Kernel) halves(r *resource) []*resource {
	var both []*resource
	for _, o := range k.resources {
		if o.cache == r.cache {
			both = append(both, o)
		}
	}
	return both
}

func (k *Kernel) mkdirMon(parent *group, name string) error {
	rmid, err := k.takeRMID()
	if err != nil {
		return err
	}
	g := k.newGroup(name)
	k.lastAge++
	g.parent, g.age, g.rmid, g.values, g.mon = parent, k.lastAge, rmid, nil, nil
	parent.mon[name] = g
	return nil
}

func (k *Kernel) takeRMID() (int, error) {
	if k.layout.Monitor == nil {
		return 0, nil
	}
	rmid, ok := k.rmids.take()
	switch {
	case ok:
		return rmid, nil
	case len(k.rmids.limbo) > 0:
		k.say("Out of RMIDs\n")
		return 0, syscall.EBUSY
	}
	k.say("Out of RMIDs\n")
	return 0, syscall.ENOSPC
}

func (k *Kernel) giveRMID(id int) {
	if k.layout.Monitor != nil {
		k.rmids.give(id)
	}
}

// Rmdir removes a group.
func (k *Kernel) Rmdir(name string) error {
	err := k.begin("rmdir", name, true)
	defer k.mu.Unlock()
	if err != nil {
		return err
	}
	if !k.mounted {
		return syscall.ENOENT
	}
	g, rest := k.place(name)
	switch {
	case k.list(g, rest) == nil:
		if k.isFile(g, rest) {
			return syscall.ENOTDIR
		}
		return k.missing(name)
	case rest != "":
		return syscall.EPERM
	case g == k.root:
		return syscall.EBUSY
	}
	to := k.root
	if g.parent != nil {
		to = g.parent
		delete(g.parent.mon, g.name)
	} else {
		delete(k.groups, g.name)
		k.closids.give(g.closid)
		for c := range g.cpus {
			k.root.cpus[c] = true
		}
		for _, m := range g.mon {
			k.giveRMID(m.rmid)
		}
	}
	k.giveRMID(g.rmid)
	for _, t := range k.tasks {
		if t.group == g || t.group.parent == g {
			t.group = to
		}
	}
	return nil
}

// Rename renames or moves a monitoring group.
func (k *Kernel) Rename(from, to string) error {
	err := k.begin("rename", from, true)
	defer k.mu.Unlock()
	switch {
	case err != nil:
		return err
	case !fs.ValidPath(to):
		return syscall.EINVAL
	case !k.mounted:
		return syscall.ENOENT
	}
	g, rest := k.place(from)
	isFile := k.isFile(g, rest)
	if !isFile && k.list(g, rest) == nil {
		return k.missing(from)
	}
	dir, base := path.Dir(to), path.Base(to)
	parent, where := k.place(dir)
	if k.list(parent, where) == nil {
		return k.missing(to)
	}
	// What file systems never hear of.
	switch {
	case from == to:
		return nil
	case strings.HasPrefix(to, from+"/"):
		return syscall.EINVAL
	case strings.HasPrefix(from, to+"/"):
		return syscall.ENOTEMPTY
	}
	if k.old() {
		return syscall.EPERM
	}
	if strings.HasPrefix(rest+"/", "info/") || strings.HasPrefix(where+"/", "info/") {
		return syscall.ENOENT
	}
	k.hush()
	switch {
	case isFile:
		k.say("Source and destination must be directories")
		return syscall.EPERM
	case g.parent == nil || rest != "":
		k.say("Source must be a MON group\n")
		return syscall.EPERM
	case where != "mon_groups" || base == "mon_groups":
		k.say("Destination must be a mon_groups subdirectory\n")
		return syscall.EPERM
	case len(g.cpus) > 0 && g.parent != parent:
		k.say("Cannot move a MON group that monitors CPUs\n")
		return syscall.EPERM
	case parent.mon[base] != nil:
		return syscall.EEXIST
	}
	delete(g.parent.mon, g.name)
	if parent != g.parent {
		k.lastAge++
		g.age = k.lastAge
	}
	g.name, g.parent = base, parent
	parent.mon[base] = g
	return nil
}

// WriteFile writes a file. A write of more than a page is E2BIG.
func (k *Kernel) WriteFile(name, data string) error {
	err := k.begin("write", name, true)
	defer k.mu.Unlock()
	if err != nil {
		return err
	}
	if !k.mounted {
		return syscall.ENOENT
	}
	g, rest := k.place(name)
	if !k.isFile(g, rest) {
		if k.list(g, rest) != nil {
			return syscall.EISDIR
		}
		return k.missing(name)
	}
	const page = 4096
	if len(data) > page {
		return syscall.E2BIG
	}
	return k.store(g, rest, data)
}

func (k *Kernel) store(g *group, file, data string) error {
	switch file {
	case "schemata":
		return k.storeSchemata(g, data)
	case "tasks":
		return k.storeTasks(g, data)
	case "mode":
		return k.storeMode(g, data)
	case "cpus":
		return k.storeCPUs(g, data, false)
	case "cpus_list":
		return k.storeCPUs(g, data, true)
	case "mbm_L3_assignments":
		return k.storeAssignments(g, data)
	case "info/L3_MON/max_threshold_occupancy":
		// As kstrtouint reads: a sign may be there, spaces may not.
		n, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSuffix(data, "\n"), "+"), 0, 32)
		switch {
		case err != nil && strings.Contains(err.Error(), "range"):
			return syscall.ERANGE
		case err != nil, n > k.layout.Monitor.Limit:
			return syscall.EINVAL
		}
		k.threshold = n / k.layout.Monitor.Unit * k.layout.Monitor.Unit
		return nil
	case "info/L3_MON/mbm_assign_mode":
		mode := trim(data)
		if mode != "mbm_event" && mode != "default" {
			return syscall.EINVAL
		}
		k.assign = mode
		return nil
	}
	return syscall.EACCES
}

// trim takes off what the kernel's strim does.
func trim(s string) string { return strings.Trim(s, " \t\n\v\f\r") }
