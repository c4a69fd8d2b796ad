// Package partition carries out what a policy says of caches and memory bandwidth: a resctrl group for each tier that has a
// limit, and the threads of its containers in it. It is the only writer of resctrl, of groups whose name begins with Prefix,
// and never of the root group or of groups of others.
//
//	k := partition.New("/")
//	groups, feature, err := k.Keep(ctx, policy.Partitions(), true)
//	failed := k.Join(ctx, members)
package partition

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/resctrl"
)

// moveRounds bounds how often the threads of one container are listed for it. A container that forks faster is left to the
// next time.
const moveRounds = 5

// Keeper is the resctrl of one machine. It keeps nothing in memory: each call reads the kernel.
type Keeper struct {
	mu   sync.Mutex // calls wait for each other
	open func() (resctrl.Files, error)
}

// New is the keeper of the machine whose files are below root.
func New(root string) *Keeper {
	return &Keeper{open: func() (resctrl.Files, error) {
		m, err := resctrl.Locate(root)
		if err != nil {
			return nil, err
		}
		if m.ReadOnly {
			return nil, fmt.Errorf("%s: %w", m.Point, resctrl.ErrReadOnly)
		}
		return resctrl.OS(filepath.Join(root, m.Point)), nil
	}}
}

// Of is a keeper of files.
func Of(files resctrl.Files) *Keeper {
	return &Keeper{open: func() (resctrl.Files, error) { return files, nil }}
}

// Member is a container whose threads belong into a resctrl group.
type Member struct {
	ID      string
	Group   string // "" for the root group
	Threads func() ([]int, error)
}

// absent says what this node lacks where there is no resctrl to be had, which is no fault.
func absent(err error) (policy.Feature, bool) {
	switch {
	case errors.Is(err, resctrl.ErrNotSupported):
		return policy.Feature{Support: policy.Unsupported, Need: "a CPU with cache or memory bandwidth allocation, and a kernel with resctrl"}, true
	case errors.Is(err, resctrl.ErrNotMounted):
		return policy.Feature{Support: policy.Unsupported, Need: "resctrl to be mounted: tideline resctrl --mount"}, true
	case errors.Is(err, resctrl.ErrReadOnly):
		return policy.Feature{Support: policy.Unsupported, Need: "resctrl to be mounted for writing"}, true
	}
	return policy.Feature{}, false
}

// Keep makes the groups that the partitions need, puts right what others have changed in them, and removes groups of ours that
// nothing needs; with write false it changes nothing. It gives the group of each tier; nil and what it would take where this
// node has no resctrl. With an error the groups that it gives can be used all the same.
func (k *Keeper) Keep(ctx context.Context, parts []policy.Partition, write bool) (map[v1alpha1.Tier]policy.Group, policy.Feature, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fs, err := k.mounted()
	if f, ok := absent(err); ok {
		return nil, f, nil
	}
	if err != nil {
		return nil, policy.Feature{}, err
	}
	planned, err := plan(fs, parts)
	if f, ok := absent(err); ok {
		return nil, f, nil
	}
	if err != nil {
		return nil, policy.Feature{}, err
	}
	if write {
		err = resctrl.Apply(ctx, fs, planned)
	}
	groups := Groups(planned, parts)
	if err != nil { // a group that could not be made is nobody's
		there := map[string]bool{}
		list, lerr := fs.Groups()
		for _, g := range list {
			there[g.Name()] = true
		}
		for t, g := range groups {
			if g.Name != "" && (!there[g.Name] || lerr != nil) {
				groups[t] = policy.Group{Why: err.Error()}
			}
		}
	}
	return groups, policy.Feature{Support: policy.Supported}, err
}

func (k *Keeper) mounted() (*resctrl.FS, error) {
	files, err := k.open()
	if err != nil {
		return nil, err
	}
	return resctrl.Open(files), nil
}

// Clear removes every group of ours. The kernel puts their threads into the root group.
func (k *Keeper) Clear(context.Context) (removed int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fs, err := k.mounted()
	var groups []*resctrl.Group
	if err == nil {
		groups, err = fs.Groups()
	}
	if _, ok := absent(err); ok {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("remove resctrl groups: %w", err)
	}
	var errs []error
	for _, g := range groups {
		if !strings.HasPrefix(g.Name(), Prefix) {
			continue
		}
		switch err := g.Remove(); {
		case errors.Is(err, resctrl.ErrGone):
		case err != nil:
			errs = append(errs, fmt.Errorf("remove resctrl group: %w", err))
		default:
			removed++
		}
	}
	return removed, errors.Join(errs...)
}

// Join has the threads of each member in its group, and gives what failed by the member's ID. Threads that are in a group of
// others stay there.
func (k *Keeper) Join(ctx context.Context, members []Member) map[string]error {
	k.mu.Lock()
	defer k.mu.Unlock()
	failed := map[string]error{}
	all := func(err error) map[string]error {
		for _, m := range members {
			failed[m.ID] = err
		}
		return failed
	}
	fs, err := k.mounted()
	var at places
	if err == nil {
		at, err = whereabouts(fs)
	}
	if _, ok := absent(err); ok {
		return failed // nothing is to be in a group
	}
	if err != nil {
		return all(err)
	}
	for _, m := range members {
		if err := at.move(ctx, fs, m); err != nil {
			failed[m.ID] = err
		}
	}
	return failed
}

// places is which control group a thread is in, of those that are not in the root group.
type places map[int]string

func whereabouts(fs *resctrl.FS) (places, error) {
	groups, err := fs.Groups()
	if err != nil {
		return nil, err
	}
	at := places{}
	for _, g := range groups {
		ids, err := g.Tasks()
		if errors.Is(err, resctrl.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			at[id] = g.Name()
		}
	}
	return at, nil
}

// move has the threads of a container in its group, but for those that others have put into groups of theirs.
func (p places) move(ctx context.Context, fs *resctrl.FS, m Member) error {
	ids, err := m.Threads()
	if err != nil {
		return err
	}
	ours := func(id int) bool { return p[id] == "" || strings.HasPrefix(p[id], Prefix) }
	if !slices.ContainsFunc(ids, func(id int) bool { return ours(id) && p[id] != m.Group }) {
		return nil
	}
	group, err := fs.Group(m.Group)
	if err != nil {
		return err
	}
	_, err = resctrl.MoveThreads(ctx, group, func() ([]int, error) {
		ids, err := m.Threads()
		return slices.DeleteFunc(slices.Clone(ids), func(id int) bool { return !ours(id) }), err
	}, moveRounds)
	return err
}

// Usage is what the groups have at the moment.
type Usage struct {
	CLOSIDs int // that there are, the root group's among them; 0 for none
	Groups  []GroupUsage
}

// GroupUsage is one control group.
type GroupUsage struct {
	Name     string // "" for the root group
	Ours     bool
	Tasks    int
	Counters resctrl.Counters
}

// Usage reads all groups. Where there is no resctrl it is empty.
func (k *Keeper) Usage() (Usage, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fs, err := k.mounted()
	if _, ok := absent(err); ok {
		return Usage{}, nil
	}
	if err != nil {
		return Usage{}, err
	}
	info, err := fs.Info()
	if _, ok := absent(err); ok {
		return Usage{}, nil
	}
	if err != nil {
		return Usage{}, err
	}
	u := Usage{CLOSIDs: info.NumCLOSIDs()}
	groups, err := fs.Groups()
	if err != nil {
		return u, err
	}
	for _, g := range append([]*resctrl.Group{fs.Root()}, groups...) {
		one := GroupUsage{Name: g.Name(), Ours: strings.HasPrefix(g.Name(), Prefix)}
		tasks, err := g.Tasks()
		if err == nil {
			one.Counters, err = g.Counters()
		}
		if errors.Is(err, resctrl.ErrGone) {
			continue // it went meanwhile
		}
		if err != nil {
			return u, err
		}
		one.Tasks = len(tasks)
		u.Groups = append(u.Groups, one)
	}
	return u, nil
}
