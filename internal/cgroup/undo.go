package cgroup

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/tideline-io/tideline/internal/policy"
)

// Report is what UndoAll did. Every journalled entry is in one of the three.
type Report struct {
	Restored []Entry // back to Old
	Gone     []Entry // the cgroup is gone or was made anew, so there was nothing to bring back
	Failed   []Entry // still journalled; the error says why
}

// Journal returns every value that an undo would bring back, sorted by path. Corrupt files are set aside and reported
// as ErrCorrupt beside the entries of the others.
func (f *FS) Journal() ([]Entry, error) { return f.journal.all() }

// Forget drops the journal of a cgroup that is gone.
func (f *FS) Forget(p Path) error {
	if err := checkPath(string(p)); err != nil {
		return fmt.Errorf("forget %q: %w: %w", p, ErrRefused, err)
	}
	defer f.locks.lock(p)()
	return f.journal.remove(fileName(p))
}

// Rebase says that somebody else's value stands below ours from now on, in the format that Write takes: the kubelet
// resized the container, say. Undo then brings that value back. Without an entry for the knob it does nothing, as the
// other's value is what stands in the kernel.
func (f *FS) Rebase(p Path, k policy.Knob, value string) error {
	fail := func(err error) error { return &Error{Op: "journal", Path: p, Knob: k, Value: value, Err: err} }
	if err := permit(p, k); err != nil {
		return fail(err)
	}
	defer f.locks.lock(p)()
	entries, err := f.journal.load(p)
	if err != nil {
		return fail(err)
	}
	changed := false
	for i, e := range entries {
		c, ok := f.controlOf(e)
		if e.Knob != k || !ok {
			continue
		}
		old, err := c.want(e.Old, value)
		if err != nil {
			return fail(err)
		}
		changed = changed || old != e.Old
		entries[i].Old = old
	}
	if !changed {
		return nil
	}
	if err := f.journal.store(p, entries); err != nil {
		return fail(err)
	}
	return nil
}

func (f *FS) controlOf(e Entry) (control, bool) {
	for _, c := range controls(f.mounts[e.Controller].version, e.Knob) {
		if c.file == e.File {
			return c, true
		}
	}
	return control{}, false
}

// Undo brings every journalled value of a cgroup back, in an order that the kernel accepts, and drops the entries that
// it brought back. Entries of a cgroup that is gone, or was made anew under the name, are dropped unapplied, which is
// no error. It goes on after failures and joins them.
func (f *FS) Undo(p Path) error {
	_, err := f.undo(p, "")
	return err
}

// UndoKnob is Undo for one knob: what the other knobs have stays, and stays journalled.
func (f *FS) UndoKnob(p Path, k policy.Knob) error {
	_, err := f.undo(p, k)
	return err
}

// Journalled reports whether an undo would bring a value of that knob back.
func (f *FS) Journalled(p Path, k policy.Knob) (bool, error) {
	if err := checkPath(string(p)); err != nil {
		return false, fmt.Errorf("read journal of %q: %w: %w", p, ErrRefused, err)
	}
	defer f.locks.lock(p)()
	entries, err := f.journal.load(p)
	return slices.ContainsFunc(entries, func(e Entry) bool { return e.Knob == k }), err
}

// UndoAll undoes every cgroup in the journal, goes on after failures, and joins them. A v1 parent can't go below its
// children nor a child above its parent, so containers go before their pods, and what failed is tried again as
// long as something moves. It stops between cgroups when ctx ends.
func (f *FS) UndoAll(ctx context.Context) (Report, error) {
	var total Report
	all, err := f.journal.all()
	var corrupt error
	if err != nil {
		corrupt = fmt.Errorf("undo: %w", err)
	}
	paths := []Path{}
	for _, e := range all {
		paths = append(paths, e.Path)
	}
	slices.SortFunc(paths, func(a, b Path) int {
		if d := strings.Count(string(b), "/") - strings.Count(string(a), "/"); d != 0 {
			return d
		}
		return strings.Compare(string(a), string(b))
	})
	paths = slices.Compact(paths)
	for {
		total.Failed = nil
		moved := false
		var again []Path
		var errs []error
		for i, p := range paths {
			if err := ctx.Err(); err != nil {
				for _, e := range all {
					if slices.Contains(paths[i:], e.Path) {
						total.Failed = append(total.Failed, e)
					}
				}
				return total, errors.Join(append(errs, corrupt, fmt.Errorf("undo: %w", err))...)
			}
			r, err := f.undo(p, "")
			total.Restored = append(total.Restored, r.Restored...)
			total.Gone = append(total.Gone, r.Gone...)
			total.Failed = append(total.Failed, r.Failed...)
			moved = moved || len(r.Restored) > 0
			if err != nil {
				errs = append(errs, err)
				again = append(again, p)
			}
		}
		if len(again) == 0 || !moved {
			return total, errors.Join(append(errs, corrupt)...)
		}
		paths = again
	}
}

// undo brings back one knob, or with "" all.
func (f *FS) undo(p Path, only policy.Knob) (Report, error) {
	var r Report
	if err := checkPath(string(p)); err != nil {
		return r, fmt.Errorf("undo %q: %w: %w", p, ErrRefused, err)
	}
	defer f.locks.lock(p)()
	entries, err := f.journal.load(p)
	if err != nil {
		return r, fmt.Errorf("undo %s: %w", p, err)
	}
	if len(entries) == 0 {
		return r, nil
	}
	u := undoing{fs: f, path: p, groups: map[string]*group{}, entries: entries}
	defer u.close()
	var errs []error
	var kept []Entry
	for _, i := range u.order() {
		e := entries[i]
		if only != "" && e.Knob != only {
			kept = append(kept, e)
			continue
		}
		err := u.restore(e)
		switch {
		case err == nil:
			r.Restored = append(r.Restored, e)
		case errors.Is(err, ErrGone):
			r.Gone = append(r.Gone, e)
		default:
			r.Failed = append(r.Failed, e)
			errs = append(errs, &Error{Op: "undo", Path: p, Knob: e.Knob, Value: e.Old, Err: err})
		}
	}
	if err := f.journal.store(p, append(kept, r.Failed...)); err != nil {
		errs = append(errs, fmt.Errorf("undo %s: %w", p, err))
	}
	return r, errors.Join(errs...)
}

// undoing is one cgroup's undo in progress.
type undoing struct {
	fs      *FS
	path    Path
	entries []Entry
	groups  map[string]*group
}

func (u *undoing) close() {
	for _, g := range u.groups {
		g.Close()
	}
}

// order is that of writing; cpu.max makes room for itself as to the burst.
func (u *undoing) order() []int {
	order := make([]int, len(u.entries))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return slices.Index(kernelOrder, u.entries[a].Knob) - slices.Index(kernelOrder, u.entries[b].Knob)
	})
	return order
}

// group opens the cgroup that an entry belongs to. It is gone if another stands under its name.
func (u *undoing) group(e Entry) (*group, error) {
	g, ok := u.groups[e.Controller]
	if !ok {
		h, ok := u.fs.mounts[e.Controller]
		if !ok {
			return nil, fmt.Errorf("controller %s is not mounted", e.Controller)
		}
		var err error
		if g, err = u.fs.openIn(h, u.path); err != nil {
			return nil, err
		}
		u.groups[e.Controller] = g
	}
	if g.ID() != e.ID {
		return nil, fmt.Errorf("another cgroup has its name: %w", ErrGone)
	}
	return g, nil
}

func (u *undoing) restore(e Entry) error {
	g, err := u.group(e)
	if err != nil {
		return err
	}
	at, err := u.at(g, e)
	if err != nil {
		return err
	}
	if e.Knob == policy.CPUMax {
		if err := u.lowerBurst(g, e); err != nil {
			return err
		}
	}
	want := e.Old
	for {
		err := u.fs.put(g, at, want)
		if err == nil {
			return nil
		}
		if (e.Knob == policy.CPUSetCPUs || e.Knob == policy.CPUSetMems) && want == "" && isFull(err) {
			return u.widest(g, at)
		}
		rest, ok := withoutMissing(want, err)
		if e.Knob != policy.IOMax || !ok {
			return err
		}
		if at, err = u.at(g, e); err != nil {
			return err
		}
		want = rest
	}
}

// widest is for a list that was empty on cgroup v2, for no restriction: the kernel takes none back while there are tasks
// (validate_change in kernel/cgroup/cpuset.c, ENOSPC), so the cgroup gets what its parent has, which is the same.
func (u *undoing) widest(g *group, at place) error {
	parent, err := u.fs.openIn(g.hierarchy, Path(path.Dir(string(u.path))))
	if err != nil {
		return err
	}
	defer parent.Close()
	text, err := parent.ReadFile(at.file + ".effective")
	if err != nil {
		return u.fs.explain(parent, fmt.Errorf("read %s.effective of the parent: %w", at.file, err))
	}
	want, err := at.want(at.now, strings.TrimSpace(text))
	if err != nil {
		return err
	}
	return u.fs.put(g, at, want)
}

func (u *undoing) at(g *group, e Entry) (place, error) {
	c, ok := u.fs.controlOf(e)
	if !ok {
		return place{}, fmt.Errorf("%s is no file of this cgroup version", e.File)
	}
	now, err := c.read(g)
	if err != nil {
		return place{}, u.fs.explain(g, fmt.Errorf("read %s: %w", c.file, err))
	}
	return place{c, now}, nil
}

// lowerBurst makes room for a quota below the burst that stands: to the quota itself, or to 0 if the burst is ours,
// and then its own entry sets it next.
func (u *undoing) lowerBurst(g *group, e Entry) error {
	burst, err := u.fs.places(g, policy.CPUMaxBurst)
	if err != nil {
		return nil //nolint:nilerr // a kernel without bursts has none in the way
	}
	quota := quotaOf(e.Old)
	if bytesOf(burst[0].now) <= uint64(quota) {
		return nil
	}
	room := fmt.Sprint(quota)
	if slices.ContainsFunc(u.entries, func(e Entry) bool { return e.Knob == policy.CPUMaxBurst }) {
		room = "0"
	}
	return u.fs.put(g, burst[0], room)
}
