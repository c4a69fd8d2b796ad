package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tideline-io/tideline/internal/policy"
)

// Config says where things are.
type Config struct {
	Root     string           // "/", or the root of a fake; the mounts come from ROOT/proc/self/mountinfo
	StateDir string           // the journal, on a file system that dies with the boot; made by the first write
	Clock    func() time.Time // nil: time.Now
	Kernel   Kernel           // nil: the files below Root
}

// FS reads and writes the cgroups of one machine. It may be used by several goroutines: calls on one cgroup wait for
// each other, calls on different ones don't. Two FS on one StateDir would not wait for each other; the engine's lock
// file sees to it that there is one.
type FS struct {
	kernel    Kernel
	root      string
	mounts    map[string]hierarchy // by v2 name of the controller
	version   int
	namespace Path // root of our cgroup namespace in the unified hierarchy, "" where that is the mount's
	journal   *journal
	locks     keyed
}

type hierarchy struct {
	Mount
	version int
}

// Change is what a write did. Old and New are in the format of Read.
type Change struct {
	Knob  policy.Knob
	Old   string // what stood there before
	New   string // what stands there after
	Wrote bool   // the kernel's value changed
	Err   error  // why it failed, also joined into the error of the call
}

// Open finds the cgroup mounts. The journal is read when a cgroup is touched, one small file each, and never kept in
// memory: a second process (tideline disable) sees the same.
func Open(cfg Config) (*FS, error) {
	root := cmp.Or(cfg.Root, "/")
	f := &FS{kernel: cfg.Kernel, root: root, mounts: map[string]hierarchy{}}
	if f.kernel == nil {
		f.kernel = realKernel{root: root}
	}
	text, err := readProc(root, "self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroup mounts: %w", err)
	}
	var errs []error
	mounts := ParseMountinfo(text)
	// The last mount at a place hides those before it, and some may be out of sight or show a part of the hierarchy.
	slices.Reverse(mounts)
	for _, controller := range []string{"cpu", "cpuset", "memory", "io"} {
		h, err := f.find(mounts, controller)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if h.version != 0 {
			f.mounts[controller] = h
		}
		f.version = max(f.version, h.version)
	}
	for _, h := range f.mounts {
		f.version = min(f.version, h.version)
	}
	if f.version == 0 {
		return nil, fmt.Errorf("find cgroup mounts: none has a controller of ours: %w", errors.Join(append(errs, fs.ErrNotExist)...))
	}
	for _, h := range f.mounts {
		if levels, _ := h.Above(); levels > 0 && f.namespace == "" {
			if f.namespace, err = namespaceRoot(root, h.Mount, levels); err != nil {
				return nil, fmt.Errorf("find our own cgroup below %s: %w", h.Point, err)
			}
		}
	}
	boot, err := readProc(root, "sys/kernel/random/boot_id")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	clock := cfg.Clock
	if clock == nil {
		clock = time.Now
	}
	f.journal = &journal{dir: cfg.StateDir, boot: strings.TrimSpace(boot), clock: clock}
	return f, nil
}

// find picks the hierarchy of a controller: its v1 mount if there is one (the kernel gives a controller to one hierarchy
// only), else the unified one if that has it. Version 0 means that there is none.
func (f *FS) find(mounts []Mount, controller string) (hierarchy, error) {
	nameV1 := controller
	if controller == "io" {
		nameV1 = "blkio"
	}
	var errs []error
	for _, version := range []int{1, 2} {
		for _, m := range mounts {
			v1 := m.Type == "cgroup" && slices.Contains(m.Options, nameV1)
			if version == 1 && !v1 || version == 2 && m.Type != "cgroup2" {
				continue
			}
			above, whole := m.Above()
			if !whole || v1 && above > 0 {
				errs = append(errs, fmt.Errorf("%s is mounted at %s from %s, not from its root", controller, m.Point, m.Root))
				continue
			}
			d, err := f.kernel.OpenDir(m, "/")
			if err != nil {
				errs = append(errs, err)
				continue
			}
			has, top := v1 || hasController(d, controller), above == 0 || isTop(d)
			d.Close()
			switch {
			case has && top:
				return hierarchy{m, version}, nil
			case has:
				errs = append(errs, fmt.Errorf("%s is mounted at %s from a cgroup above ours that is not its root", controller, m.Point))
			}
		}
	}
	return hierarchy{}, errors.Join(errs...)
}

// Version is 2 if the controllers are in the unified hierarchy, 1 if any of them has a v1 mount.
func (f *FS) Version() int { return f.version }

// Read returns a knob's value in the format of its v2 file on both versions, except CPUWeight, which is what the
// kernel has: a weight (1 to 10000, 0 under idle even where the kernel shows 1) on v2, shares (2 to 262144, 3 under idle) on v1. io.max comes in the form that
// policy.IOMax describes. A missing cgroup is ErrGone, a missing file ErrUnsupported; both are fs.ErrNotExist.
func (f *FS) Read(p Path, k policy.Knob) (string, error) {
	value, err := f.read(p, k)
	if err != nil {
		return "", &Error{Op: "read", Path: p, Knob: k, Err: err}
	}
	return value, nil
}

func (f *FS) read(p Path, k policy.Knob) (string, error) {
	if err := checkPath(string(p)); err != nil {
		return "", fmt.Errorf("%w: %w", ErrRefused, err)
	}
	g, err := f.open(p, k)
	if err != nil {
		return "", err
	}
	defer g.Close()
	places, err := f.places(g, k)
	if err != nil {
		return "", err
	}
	return places[0].show(places[0].now), nil
}

// group is an open cgroup in the hierarchy of one controller.
type group struct {
	Dir
	path Path
	hierarchy
}

func (f *FS) open(p Path, k policy.Knob) (*group, error) {
	if !slices.Contains(policy.Knobs(), k) || k.OfProcess() {
		return nil, fmt.Errorf("%w: %s is no cgroup file", ErrRefused, k)
	}
	h, ok := f.mounts[controllerOf(k)]
	if !ok {
		return nil, ErrUnsupported{Feature: string(k), Need: "controller " + controllerOf(k) + " in a mounted hierarchy"}
	}
	return f.openIn(h, p)
}

func (f *FS) openIn(h hierarchy, p Path) (*group, error) {
	d, err := f.kernel.OpenDir(h.Mount, string(p))
	if errors.Is(err, fs.ErrNotExist) || isGone(err) {
		return nil, fmt.Errorf("%w (%w)", ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	return &group{Dir: d, path: p, hierarchy: h}, nil
}

// gone tells whether the cgroup was removed while it was open, in which case its files are missing or answer ENODEV.
func (f *FS) gone(g *group) bool {
	again, err := f.openIn(g.hierarchy, g.path)
	if err != nil {
		return errors.Is(err, ErrGone)
	}
	defer again.Close()
	return again.ID() != g.ID()
}

// explain turns an error on a file of an open cgroup into ErrGone where that is the reason.
func (f *FS) explain(g *group, err error) error {
	if err == nil || !(errors.Is(err, fs.ErrNotExist) || isGone(err)) || errors.Is(err, ErrGone) || !f.gone(g) {
		return err
	}
	return fmt.Errorf("%w (%w)", ErrGone, err)
}

// place is a control of an open cgroup with its present text.
type place struct {
	control
	now string
}

// places reads the controls of a knob that exist there. At least one does, or the error says why not.
func (f *FS) places(g *group, k policy.Knob) ([]place, error) {
	var found []place
	for _, c := range controls(g.version, k) {
		now, err := c.read(g)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, f.explain(g, fmt.Errorf("read %s: %w", c.file, err))
		}
		found = append(found, place{c, now})
	}
	if len(found) > 0 {
		return found, nil
	}
	if f.gone(g) {
		return nil, ErrGone
	}
	need := Need(g.version, k)
	if g.version == 2 && !hasController(g, controllerOf(k)) {
		need = "controller " + controllerOf(k) + " in the parent's cgroup.subtree_control"
	}
	return nil, ErrUnsupported{Feature: string(k), Need: need}
}

// Write makes a knob's value stand in a cgroup. An equal one is not written. The first value of the knob that a write
// replaces is journalled before the kernel's file is touched; so is whatever the kernel drops along with it (the weight under
// cpu.idle 1, a burst above the new quota). Then the file is read back, and a value other than the kernel's normal
// form of what was written (whole pages, joined lists) is ErrMismatch.
//
// CPUWeight takes shares on both versions, as policy.CPUWeight says; on v2 they become a weight as the current runc and crun
// do it. policy.Unset leaves a weight alone under idle and puts the kernel's default there otherwise. A quota
// below the burst sets the burst to 0; write the burst again afterwards, or use WriteAll. A MemoryMax on v1 moves
// memory+swap as far as wantLimits says. A corrupt journal file makes one write fail with ErrCorrupt; the next starts a new file. Lowering MemoryMax below what is in use can block in reclaim on v1 and on kernels before 6.16, and end
// processes.
func (f *FS) Write(p Path, k policy.Knob, value string) (Change, error) {
	unlock := f.locks.lock(p)
	defer unlock()
	return f.write(f.journal.of(p), k, value)
}

// WriteAll writes settings of one cgroup in the order that the kernel accepts, goes on after failures, and returns
// the changes in the order of the settings, with all errors joined. A setting whose Level is not the cgroup's is refused.
// What they replace is journalled in one go; where that meets a corrupt file it is reported, and they are written.
func (f *FS) WriteAll(p Path, settings []policy.Setting) ([]Change, error) {
	unlock := f.locks.lock(p)
	defer unlock()
	changes := make([]Change, len(settings))
	l := f.journal.of(p)
	var errs []error
	if err := f.foresee(l, settings); err != nil {
		errs = append(errs, &Error{Op: "journal", Path: p, Err: err})
	}
	for _, i := range f.order(p, settings) {
		s := settings[i]
		var err error
		if s.Level != "" && s.Level != p.Level() {
			err = &Error{Op: "write", Path: p, Knob: s.Knob, Value: s.Value, Err: fmt.Errorf("%w: the setting is for a %s", ErrRefused, s.Level)}
			changes[i] = Change{Knob: s.Knob, Err: err}
		} else {
			changes[i], err = f.write(l, s.Knob, s.Value)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return changes, errors.Join(errs...)
}

// kernelOrder is the order in which the kernel accepts values of one cgroup: idle decides whether a weight can be written, a quota
// whether a burst can. high goes before max, so that a container that shrinks is slowed before it is cut.
var kernelOrder = []policy.Knob{
	policy.CPUIdle, policy.CPUWeight, policy.CPUMax, policy.CPUMaxBurst,
	policy.MemoryHigh, policy.MemoryMax, policy.MemoryLow,
	policy.CPUSetCPUs, policy.CPUSetMems, policy.IOWeight, policy.IOMax,
}

func (f *FS) order(p Path, settings []policy.Setting) []int {
	rank := slices.Clone(kernelOrder)
	// A burst that falls goes before the quota: it then need not pass through 0.
	for _, s := range settings {
		if s.Knob != policy.CPUMaxBurst {
			continue
		}
		if now, err := f.read(p, s.Knob); err == nil && bytesOf(s.Value) < bytesOf(now) {
			i := slices.Index(rank, policy.CPUMax)
			rank[i], rank[i+1] = rank[i+1], rank[i]
		}
		break
	}
	order := make([]int, len(settings))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(slices.Index(rank, settings[a].Knob), slices.Index(rank, settings[b].Knob))
	})
	return order
}

// foresee journals what settings are going to replace, so that each of them finds itself journalled already. What it can't
// tell is left to the write.
func (f *FS) foresee(l *ledger, settings []policy.Setting) error {
	if len(settings) < 2 {
		return nil
	}
	var saves []save
	for _, s := range settings {
		if s.Knob == policy.CPUWeight || s.Level != "" && s.Level != l.path.Level() || permit(l.path, s.Knob) != nil {
			continue // whether a weight is written depends on idle
		}
		saves = append(saves, f.replacing(l.path, s)...)
	}
	return l.add(saves)
}

// Drift gives what the kernel has of settings of one cgroup where that is not what they say: Old is there, New is wanted. A knob that the
// kernel lacks is left out; a cgroup that is gone is ErrGone.
func (f *FS) Drift(p Path, settings []policy.Setting) ([]Change, error) {
	var out []Change
	groups := map[string]*group{} // by controller
	defer func() {
		for _, g := range groups {
			g.Close()
		}
	}()
	for _, s := range settings {
		if s.Knob == policy.CPUWeight && s.Value == policy.Unset {
			continue // what idle leaves
		}
		g, opened := groups[controllerOf(s.Knob)]
		if !opened {
			var err error
			g, err = f.open(p, s.Knob)
			if errors.As(err, new(ErrUnsupported)) {
				continue
			}
			if err != nil {
				return nil, &Error{Op: "read", Path: p, Knob: s.Knob, Err: err}
			}
			groups[controllerOf(s.Knob)] = g
		}
		places, err := f.places(g, s.Knob)
		if errors.As(err, new(ErrUnsupported)) {
			continue
		}
		if err != nil {
			return nil, &Error{Op: "read", Path: p, Knob: s.Knob, Err: err}
		}
		for _, at := range places {
			if want, err := at.want(at.now, s.Value); err == nil && want != at.now {
				out = append(out, Change{Knob: s.Knob, Old: at.show(at.now), New: at.show(want)})
				break
			}
		}
	}
	return out, nil
}

func (f *FS) replacing(p Path, s policy.Setting) (saves []save) {
	g, err := f.open(p, s.Knob)
	if err != nil {
		return nil
	}
	defer g.Close()
	places, err := f.places(g, s.Knob)
	if err != nil {
		return nil
	}
	for _, at := range places {
		if want, err := at.want(at.now, s.Value); err == nil && want != at.now {
			along, _ := f.along(g, at, want)
			saves = append(saves, along...)
		}
	}
	return saves
}

func (f *FS) write(l *ledger, k policy.Knob, value string) (Change, error) {
	ch := Change{Knob: k}
	if err := f.writeTo(l, k, value, &ch); err != nil {
		ch.Err = &Error{Op: "write", Path: l.path, Knob: k, Value: value, Err: err}
		return ch, ch.Err
	}
	return ch, nil
}

func (f *FS) writeTo(l *ledger, k policy.Knob, value string, ch *Change) error {
	if err := permit(l.path, k); err != nil {
		return err
	}
	g, err := f.open(l.path, k)
	if err != nil {
		return err
	}
	defer g.Close()
	places, err := f.places(g, k)
	if err != nil {
		return err
	}
	ch.Old = places[0].show(places[0].now)
	ch.New = ch.Old
	if k == policy.CPUWeight && value == policy.Unset {
		// An idle group has no weight; the kernel refuses one.
		if idle, err := f.places(g, policy.CPUIdle); err == nil && idle[0].now == "1" {
			return nil
		}
	}
	var errs []error
	for i, at := range places {
		want, err := at.want(at.now, value)
		if err != nil {
			return err
		}
		if want == at.now {
			continue
		}
		if err := f.replace(l, g, at, want); err != nil {
			errs = append(errs, err)
			// A value of several writes may have got half way.
			now, rerr := at.read(g)
			if rerr != nil || now == at.now {
				continue
			}
			want = now
		}
		ch.Wrote = true
		if i == 0 {
			ch.New = at.show(want)
		}
	}
	return errors.Join(errs...)
}

// along gives what a write to one control replaces: its own text and what the kernel drops with it, a burst that has to
// go first among them.
func (f *FS) along(g *group, at place, want string) (saves []save, burst *place) {
	saves = []save{{at.control, g.ID(), at.now, want}}
	switch at.knob {
	case policy.CPUIdle:
		// Idle drops the weight, and the way back gives the default.
		if weight, err := f.places(g, policy.CPUWeight); err == nil && want == "1" {
			saves = append(saves, save{weight[0].control, g.ID(), weight[0].now, weight[0].now})
		}
	case policy.CPUMax:
		if found, err := f.places(g, policy.CPUMaxBurst); err == nil && bytesOf(found[0].now) > uint64(quotaOf(want)) {
			burst = &found[0]
			saves = append(saves, save{burst.control, g.ID(), burst.now, "0"})
		}
	}
	return saves, burst
}

// replace journals and writes one control whose text differs.
func (f *FS) replace(l *ledger, g *group, at place, want string) error {
	saves, burst := f.along(g, at, want)
	if err := l.add(saves); err != nil {
		return err
	}
	if burst != nil {
		if err := f.put(g, *burst, "0"); err != nil {
			return err
		}
	}
	if err := f.put(g, at, want); err != nil {
		if burst != nil {
			err = errors.Join(err, f.put(g, place{burst.control, "0"}, burst.now))
		}
		return err
	}
	if at.knob == policy.CPUIdle && want == "0" {
		return f.restoreWeight(l, g)
	}
	return nil
}

// restoreWeight brings the weight back that idle had dropped, after idle is 0 again.
func (f *FS) restoreWeight(l *ledger, g *group) error {
	entries, err := l.load()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Knob != policy.CPUWeight || e.ID != g.ID() {
			continue
		}
		weight, err := f.places(g, policy.CPUWeight)
		if err != nil {
			return err
		}
		return f.put(g, weight[0], e.Old)
	}
	return nil
}

// put writes and reads back.
func (f *FS) put(g *group, at place, want string) error {
	if at.now == want {
		return nil
	}
	if err := at.set(g, at.now, want); err != nil {
		return f.explain(g, fmt.Errorf("write %s: %w", at.file, err))
	}
	got, err := at.read(g)
	if err != nil {
		return f.explain(g, fmt.Errorf("read %s back: %w", at.file, err))
	}
	if got != want {
		return fmt.Errorf("%w: %s has %q, want %q", ErrMismatch, at.file, got, want)
	}
	return nil
}

// Expect returns what Read gives once a value is in place. Policy.Unset as CPUWeight is what an idle group shows. A
// bad value comes back as it is.
func Expect(version int, k policy.Knob, value string) string {
	if k == policy.CPUWeight && value == policy.Unset {
		if version == 1 {
			return "3"
		}
		return "0"
	}
	cs := controls(version, k)
	if len(cs) == 0 {
		return value
	}
	want, err := cs[0].want("", value)
	if err != nil {
		return value
	}
	return cs[0].show(want)
}

func hasController(d Dir, controller string) bool {
	text, err := d.ReadFile("cgroup.controllers")
	return err == nil && slices.Contains(strings.Fields(text), controller)
}

// keyed is a lock for each cgroup in use.
type keyed struct {
	mu sync.Mutex
	m  map[Path]*keyLock
}

type keyLock struct {
	mu   sync.Mutex
	uses int
}

func (k *keyed) lock(p Path) (unlock func()) {
	k.mu.Lock()
	if k.m == nil {
		k.m = map[Path]*keyLock{}
	}
	e := k.m[p]
	if e == nil {
		e = &keyLock{}
		k.m[p] = e
	}
	e.uses++
	k.mu.Unlock()
	e.mu.Lock()
	return func() {
		e.mu.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if e.uses--; e.uses == 0 {
			delete(k.m, p)
		}
	}
}
