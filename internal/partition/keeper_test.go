package partition_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/partition"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/resctrl"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

var (
	batch   = []policy.Partition{{Tier: v1alpha1.BE, L3: 30, L2: 100, MB: 50}}
	service = policy.Partition{Tier: v1alpha1.LS, L3: 80, L2: 100, MB: 100}
)

// keep has the partitions kept, and gives the group of each tier that has one.
func keep(t *testing.T, k *partition.Keeper, parts []policy.Partition, write bool) map[v1alpha1.Tier]policy.Group {
	t.Helper()
	groups, f, err := k.Keep(t.Context(), parts, write)
	if err != nil || f.Support != policy.Supported {
		t.Fatalf("%+v, %v", f, err)
	}
	return groups
}

// tree is the groups with their schemata, a line a group.
func tree(t *testing.T, files resctrl.Files) string {
	t.Helper()
	states, err := resctrl.Open(files).States()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, s := range states {
		fmt.Fprintf(&b, "/%s %s\n", s.Name, strings.ReplaceAll(strings.TrimSpace(s.Schemata.String()), "\n", "  "))
	}
	return b.String()
}

func mkdir(t *testing.T, files resctrl.Files, names ...string) {
	t.Helper()
	for _, n := range names {
		if err := files.Mkdir(n); err != nil {
			t.Fatal(err)
		}
	}
}

// On each machine the default policy comes to what the machine can do, the root group and those of others keep what they
// have, what others change is put right, and nothing is left in the end.
func TestKeepOnAllMachines(t *testing.T) {
	t.Parallel()
	for _, l := range resctrltest.Layouts() {
		t.Run(l.Name, func(t *testing.T) {
			t.Parallel()
			kernel := resctrltest.New(l)
			if l.Name != resctrltest.MonitorOnly().Name {
				mkdir(t, kernel, "other")
			}
			before := tree(t, kernel)
			k := partition.Of(kernel)
			if dry := keep(t, k, batch, false); tree(t, kernel) != before {
				t.Errorf("it wrote: %v\n%s", dry, tree(t, kernel))
			}
			group := keep(t, k, batch, true)[v1alpha1.BE]
			if group.Name == "" && group.Why == "" {
				t.Error("neither a group nor a reason")
			}
			set := tree(t, kernel)
			if !strings.HasPrefix(set, strings.Split(before, "\n")[0]) {
				t.Errorf("the root group was changed:\n%s", set)
			}
			if l.Name == resctrltest.MonitorOnly().Name || l.Name == resctrltest.L2Only().Name {
				if group.Name != "" || set != before {
					t.Errorf("%+v\n%s", group, set)
				}
				return
			}
			if group.Name != "tideline-be" {
				t.Fatalf("%+v", group)
			}
			states, _ := resctrl.Open(kernel).States()
			for _, s := range states {
				if s.Name != group.Name {
					continue
				}
				wide := s.Schemata.Clone()
				for _, line := range states[0].Schemata {
					for _, d := range line.Domains {
						wide.Set(line.Resource, d.ID, d.Value)
					}
				}
				if err := kernel.WriteFile(group.Name+"/schemata", strings.TrimSuffix(wide.String(), "\n")+"\n"); err != nil {
					t.Fatal(err)
				}
			}
			if tree(t, kernel) == set {
				t.Error("nothing was changed behind its back")
			}
			keep(t, k, batch, true)
			if diff := cmp.Diff(set, tree(t, kernel)); diff != "" {
				t.Errorf("after the repair, -want +got:\n%s", diff)
			}
			if err := kernel.Rmdir(group.Name); err != nil {
				t.Fatal(err)
			}
			keep(t, k, batch, true)
			if diff := cmp.Diff(set, tree(t, kernel)); diff != "" {
				t.Errorf("made anew, -want +got:\n%s", diff)
			}
			if n, err := k.Clear(t.Context()); n != 1 || err != nil || tree(t, kernel) != before {
				t.Errorf("clear: %d, %v\n%s", n, err, tree(t, kernel))
			}
		})
	}
}

func TestKeepShowsWhatItSets(t *testing.T) {
	t.Parallel()
	kernel := resctrltest.New(resctrltest.Intel())
	k := partition.Of(kernel)
	groups := keep(t, k, append([]policy.Partition{service}, batch...), true)
	want := map[v1alpha1.Tier]policy.Group{v1alpha1.LS: {Name: "tideline-ls"}, v1alpha1.BE: {Name: "tideline-be"}}
	if diff := cmp.Diff(want, groups); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// Batch has the low end; the two high ways are those that I/O fills too.
	if diff := cmp.Diff("/ MB:0=100;1=100  L3:0=7ff;1=7ff\n/tideline-be MB:0=50;1=50  L3:0=f;1=f\n/tideline-ls MB:0=100;1=100  L3:0=1ff;1=1ff\n", tree(t, kernel)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// Tiers with the same limits share a group, and one that nothing needs goes.
	groups = keep(t, k, []policy.Partition{{Tier: v1alpha1.BE, L3: 30, L2: 100, MB: 50}, {Tier: v1alpha1.SYSTEM, L3: 30, L2: 100, MB: 50}}, true)
	if groups[v1alpha1.BE].Name == "" || len(strings.Split(tree(t, kernel), "\n")) < 3 {
		t.Errorf("%v\n%s", groups, tree(t, kernel))
	}
	if groups = keep(t, k, nil, true); len(groups) != 0 || tree(t, kernel) != "/ MB:0=100;1=100  L3:0=7ff;1=7ff\n" {
		t.Errorf("%v\n%s", groups, tree(t, kernel))
	}
}

// Where others have all CLOSIDs batch stays in the root group, and the decision says why. None of theirs is touched.
func TestKeepWithoutCLOSIDs(t *testing.T) {
	t.Parallel()
	kernel := resctrltest.New(resctrltest.IntelL3()) // 4 CLOSIDs
	mkdir(t, kernel, "a", "b", "c")
	before := tree(t, kernel)
	k := partition.Of(kernel)
	g := keep(t, k, batch, true)[v1alpha1.BE]
	if g.Name != "" || !strings.Contains(g.Why, "4 CLOSIDs, less the root group's and 3 of foreign groups") {
		t.Errorf("%+v", g)
	}
	if tree(t, kernel) != before {
		t.Errorf("changed:\n%s", tree(t, kernel))
	}
	if err := kernel.Rmdir("b"); err != nil {
		t.Fatal(err)
	}
	if g := keep(t, k, batch, true)[v1alpha1.BE]; g.Name != "tideline-be" {
		t.Errorf("with one free: %+v", g)
	}
}

// A group that can't be made is nobody's, so that no container is put into it; one that can't be set is still there.
func TestKeepFails(t *testing.T) {
	t.Parallel()
	kernel := resctrltest.New(resctrltest.Intel())
	k := partition.Of(kernel)
	kernel.Before(func(op, name string) error {
		if op == "mkdir" {
			return syscall.ENOSPC
		}
		return nil
	})
	groups, _, err := k.Keep(t.Context(), batch, true)
	if g := groups[v1alpha1.BE]; !errors.Is(err, syscall.ENOSPC) || g.Name != "" || !strings.Contains(g.Why, "no space left") {
		t.Errorf("%+v, %v", groups, err)
	}
	kernel.Before(nil)
	keep(t, k, batch, true)
	if err := kernel.WriteFile("tideline-be/schemata", "L3:0=7ff\n"); err != nil {
		t.Fatal(err)
	}
	kernel.Before(func(op, name string) error {
		if op == "write" {
			return syscall.EIO
		}
		return nil
	})
	groups, _, err = k.Keep(t.Context(), batch, true)
	if g := groups[v1alpha1.BE]; !errors.Is(err, syscall.EIO) || g.Name != "tideline-be" {
		t.Errorf("%+v, %v", groups, err)
	}
}

func TestNoResctrl(t *testing.T) {
	t.Parallel()
	kernel := resctrltest.New(resctrltest.Intel())
	if err := kernel.Unmount(); err != nil {
		t.Fatal(err)
	}
	k := partition.Of(kernel)
	groups, f, err := k.Keep(t.Context(), batch, true)
	if groups != nil || f.Support != policy.Unsupported || !strings.Contains(f.Need, "tideline resctrl --mount") || err != nil {
		t.Errorf("not mounted: %v, %+v, %v", groups, f, err)
	}
	if failed := k.Join(t.Context(), []partition.Member{{ID: "a", Threads: func() ([]int, error) { return []int{1}, nil }}}); len(failed) != 0 {
		t.Errorf("join: %v", failed)
	}
	if n, err := k.Clear(t.Context()); n != 0 || err != nil {
		t.Errorf("clear: %d, %v", n, err)
	}
	if u, err := k.Usage(); len(u.Groups) != 0 || err != nil {
		t.Errorf("usage: %+v, %v", u, err)
	}
	// This machine, or one without: whatever it is, there is an answer.
	if _, _, err := partition.New(t.TempDir()).Keep(t.Context(), batch, false); err == nil || !strings.Contains(err.Error(), "mountinfo") {
		t.Errorf("a root without /proc: %v", err)
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	kernel := resctrltest.New(resctrltest.Intel())
	mkdir(t, kernel, "other")
	k := partition.Of(kernel)
	keep(t, k, batch, true)
	fs := resctrl.Open(kernel)
	in := func(name string) []int {
		g, err := fs.Group(name)
		if err != nil {
			t.Fatal(err)
		}
		ids, err := g.Tasks()
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	p := kernel.Start(3)
	ids := p.Threads()
	theirs := kernel.Start(2).Threads()
	g, err := fs.Group("other")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.AddTasks(theirs[:1]); err != nil {
		t.Fatal(err)
	}
	forked := 0
	member := partition.Member{ID: "a", Group: "tideline-be", Threads: func() ([]int, error) {
		if forked == 0 { // between the list and the move
			forked = p.Clone(ids[0])
			return ids, nil
		}
		return p.Threads(), nil
	}}
	whole := append(append([]int{}, theirs...), kernel.Start(1).Threads()...)
	odd := partition.Member{ID: "b", Group: "tideline-be", Threads: func() ([]int, error) { return whole, nil }}
	gone := partition.Member{ID: "c", Group: "tideline-be", Threads: func() ([]int, error) { return nil, errors.New("no cgroup") }}
	failed := k.Join(t.Context(), []partition.Member{member, odd, gone})
	if len(failed) != 1 || failed["c"] == nil {
		t.Errorf("failed: %v", failed)
	}
	want := append(append(append([]int{}, ids...), forked), theirs[1], whole[2])
	if diff := cmp.Diff(slices.Sorted(slices.Values(want)), in("tideline-be")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(theirs[:1], in("other")); diff != "" {
		t.Errorf("the group of others, -want +got:\n%s", diff)
	}
	// Back into the root group, but for what others have taken.
	member.Group, odd.Group = "", ""
	if failed := k.Join(t.Context(), []partition.Member{member, odd}); len(failed) != 0 {
		t.Errorf("failed: %v", failed)
	}
	if ids := in("tideline-be"); len(ids) != 0 {
		t.Errorf("left: %v", ids)
	}
	if diff := cmp.Diff(theirs[:1], in("other")); diff != "" {
		t.Errorf("the group of others, -want +got:\n%s", diff)
	}
	// The group is removed under its feet.
	member.Group = "tideline-be"
	if err := kernel.Rmdir("tideline-be"); err != nil {
		t.Fatal(err)
	}
	if failed := k.Join(t.Context(), []partition.Member{member}); !errors.Is(failed["a"], resctrl.ErrGone) {
		t.Errorf("failed: %v", failed)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	kernel := resctrltest.New(resctrltest.Intel())
	mkdir(t, kernel, "other")
	k := partition.Of(kernel)
	keep(t, k, batch, true)
	u, err := k.Usage()
	if err != nil || u.CLOSIDs != 8 || len(u.Groups) != 3 {
		t.Fatalf("%+v, %v", u, err)
	}
	for i, want := range []struct {
		name string
		ours bool
	}{{"", false}, {"other", false}, {"tideline-be", true}} {
		g := u.Groups[i]
		if g.Name != want.name || g.Ours != want.ours {
			t.Errorf("group %d: %+v", i, g)
		}
		if c, ok := g.Counters.Total("llc_occupancy"); !ok || c.State != resctrl.Counted {
			t.Errorf("group %s: %+v", g.Name, c)
		}
	}
}
