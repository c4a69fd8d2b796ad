package hostfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/resctrl"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

// dumpTree copies the tree of a kernel into a directory.
func dumpTree(t testing.TB, k resctrl.Files, dir, to string) {
	t.Helper()
	list, err := k.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Dir {
			dumpTree(t, k, path.Join(dir, e.Name), filepath.Join(to, e.Name))
			continue
		}
		text, err := k.ReadFile(path.Join(dir, e.Name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, e.Name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// groupedKernel has groups of ours and of others, monitoring groups in each, and a name with a secret.
func groupedKernel(t testing.TB, l resctrltest.Layout) *resctrltest.Kernel {
	t.Helper()
	k := resctrltest.New(l)
	fs := resctrl.Open(k)
	process := k.Start(7)
	for _, name := range []string{"tideline-be", "tideline-" + secret + " --", "aaa-" + secret, "zzz"} {
		g, err := fs.Create(context.Background(), name)
		if err != nil && (errors.Is(err, resctrl.ErrNoCLOSID) || errors.Is(err, syscall.EPERM)) {
			break // this machine has fewer, or none
		}
		if err != nil {
			t.Fatal(err)
		}
		if name == "tideline-be" {
			if err := g.AddTasks(process.Threads()); err != nil {
				t.Fatal(err)
			}
		}
		if l.Monitor != nil {
			if _, err := g.CreateMonGroup(context.Background(), secret+"-1"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if l.Monitor != nil {
		if _, err := fs.Root().CreateMonGroup(context.Background(), "tideline-mon"); err != nil {
			t.Fatal(err)
		}
	}
	k.SetStatus("No task 4711\n")
	return k
}

// described is all that the library tells of a tree, without the names and tasks of groups.
func described(t testing.TB, files resctrl.Files) (info resctrl.Info, groups []string) {
	t.Helper()
	fs := resctrl.Open(files)
	info, err := fs.Info()
	if err != nil {
		t.Fatal(err)
	}
	list, err := fs.Groups()
	if err != nil {
		t.Fatal(err)
	}
	var describe func(g *resctrl.Group)
	describe = func(g *resctrl.Group) {
		counters, err1 := g.Counters()
		cpus, err2 := g.CPUs()
		mon, err3 := g.MonGroups()
		text := fmt.Sprintf("%v %v", counters, cpus)
		if !g.Monitoring() {
			s, err4 := g.Schemata()
			sizes, err5 := g.Sizes()
			mode, err6 := g.Mode()
			text += fmt.Sprintf(" %v %v %v", s, sizes, mode)
			err1 = errors.Join(err1, err4, err5, err6)
		}
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		groups = append(groups, text)
		for _, m := range mon {
			describe(m)
		}
	}
	for _, g := range append(list, fs.Root()) {
		describe(g)
	}
	return info, groups
}

func TestSnapshotOfResctrl(t *testing.T) {
	t.Parallel()
	for _, l := range resctrltest.Layouts() {
		t.Run(l.Name, func(t *testing.T) {
			t.Parallel()
			k := groupedKernel(t, l)
			root := machine(t, cgrouptest.V2)
			dumpTree(t, k, ".", filepath.Join(root, "sys/fs/resctrl"))
			h := hostfs.Open(root)
			live, err := h.ReadFacts()
			if err != nil || live.Resctrl == nil || live.Resctrl.Copy != nil {
				t.Fatalf("%+v, %v", live.Resctrl, err)
			}
			var text bytes.Buffer
			if err := hostfs.Snapshot(h, &text); err != nil {
				t.Fatal(err)
			}
			for _, not := range []string{secret, "zzz", "4711", "/tasks --"} {
				if strings.Contains(text.String(), not) {
					t.Errorf("snapshot has %q:\n%s", not, text.String())
				}
			}
			facts, err := hostfs.FromSnapshot(text.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			r := facts.Resctrl
			if r == nil || r.Files == nil || r.Copy == nil || r.Mount.Point != "/sys/fs/resctrl" {
				t.Fatalf("%+v", r)
			}
			wantInfo, want := described(t, k)
			gotInfo, got := described(t, r.Files)
			if diff := cmp.Diff(wantInfo, gotInfo); diff != "" {
				t.Errorf("info, -machine +snapshot:\n%s", diff)
			}
			// The order is that of names, and names are replaced.
			count := func(list []string) map[string]int {
				m := map[string]int{}
				for _, s := range list {
					m[s]++
				}
				return m
			}
			if diff := cmp.Diff(count(want), count(got)); diff != "" {
				t.Errorf("groups, -machine +snapshot:\n%s", diff)
			}
			if len(l.Caches) > 0 && r.Copy.Tasks["tideline-be"] != 7 {
				t.Errorf("tasks %v", r.Copy.Tasks)
			}
			if err := resctrl.Open(r.Files).Root().SetMode(resctrl.Exclusive); !errors.Is(err, resctrl.ErrReadOnly) {
				t.Errorf("a copy was changed: %v", err)
			}
		})
	}
}

func TestSnapshotReplacesNames(t *testing.T) {
	t.Parallel()
	root := machine(t, cgrouptest.V2)
	dumpTree(t, groupedKernel(t, resctrltest.Intel()), ".", filepath.Join(root, "sys/fs/resctrl"))
	var text bytes.Buffer
	if err := hostfs.Snapshot(hostfs.Open(root), &text); err != nil {
		t.Fatal(err)
	}
	facts, err := hostfs.FromSnapshot(text.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		".": 3, "foreign-1": 0, "foreign-1/mon_groups/mon-1": 0, "foreign-2": 0, "foreign-2/mon_groups/mon-1": 0, "foreign-3": 0, "foreign-3/mon_groups/mon-1": 0,
		"mon_groups/tideline-mon": 0, "tideline-be": 7, "tideline-be/mon_groups/mon-1": 0,
	}
	if diff := cmp.Diff(want, facts.Resctrl.Copy.Tasks); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Many groups, of which each has a long list of domains, make no snapshot that can't be read.
func TestSnapshotOfManyGroups(t *testing.T) {
	t.Parallel()
	root := machine(t, cgrouptest.V2)
	tree := filepath.Join(root, "sys/fs/resctrl")
	dumpTree(t, resctrltest.New(resctrltest.Intel()), ".", tree)
	long := "L3:0=1" + strings.Repeat(" ", 30<<10) + "\n"
	for i := range 120 {
		dir := filepath.Join(tree, fmt.Sprintf("tideline-%03d", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"tasks": "5\n6\n", "schemata": long, "mode": "shareable\n", "cpus_list": "\n", "size": strings.Repeat("x", 65<<10*(i%2))} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	var text bytes.Buffer
	if err := hostfs.Snapshot(hostfs.Open(root), &text); err != nil {
		t.Fatal(err)
	}
	facts, err := hostfs.FromSnapshot(text.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if c := facts.Resctrl.Copy; c.LeftOut == 0 || c.LeftOut+len(c.Tasks) != 121 { // the root group is one
		t.Errorf("%d groups, %d left out", len(c.Tasks), c.LeftOut)
	}
}

func TestBadResctrlSnapshots(t *testing.T) {
	t.Parallel()
	const head = "# tideline snapshot v1\n-- proc/self/mountinfo --\n36 25 0:31 / /sys/fs/resctrl rw - resctrl resctrl rw\n"
	var many strings.Builder
	for i := range 1100 {
		fmt.Fprintf(&many, "-- resctrl/g%d/tasks.count --\n1\n", i)
	}
	for name, c := range map[string]struct{ text, err string }{
		"no tree":             {"", ""},
		"empty tree":          {"-- resctrl/left-out --\n3\n", ""},
		"tasks":               {"-- resctrl/g/tasks --\n4711\n", `read snapshot: "resctrl/g/tasks": a snapshot has no lists of tasks`},
		"no count":            {"-- resctrl/g/tasks.count --\nx\n", `read snapshot: "resctrl/g/tasks.count": no number: "x"`},
		"a negative count":    {"-- resctrl/left-out --\n-3\n", `read snapshot: "resctrl/left-out": no number: "-3"`},
		"file and directory":  {"-- resctrl/a --\n-- resctrl/a/b --\n", `read snapshot: resctrl tree: cannot create fs.FS from txtar.Archive: duplicate path "a"`},
		"a long file":         {"-- resctrl/schemata --\n" + strings.Repeat("x", 70<<10) + "\n", `read snapshot: "resctrl/schemata": the resctrl tree has more than 2097152 bytes, or this file more than 65536`},
		"many groups":         {many.String(), "read snapshot: resctrl tree: more than 1024 groups"},
		"a terminal's escape": {"-- resctrl/mode --\n\x1b[2J\n", `read snapshot: "resctrl/mode": a name or text that no snapshot has`},
		"an odd name":         {"-- resctrl/a b/mode --\n\n", `read snapshot: "resctrl/a b/mode": a name or text that no snapshot has`},
		"leads out of itself": {"-- resctrl/../x --\n", `read snapshot: bad file name "resctrl/../x"`},
	} {
		facts, err := hostfs.FromSnapshot([]byte(head + c.text))
		switch {
		case c.err == "" && err != nil, c.err != "" && (err == nil || err.Error() != c.err):
			t.Errorf("%s: %v, want %s", name, err, c.err)
		case err == nil && (facts.Resctrl == nil || facts.Resctrl.Files != nil):
			t.Errorf("%s: %+v", name, facts.Resctrl)
		}
	}
	facts, err := hostfs.FromSnapshot([]byte("# tideline snapshot v1\n-- resctrl/mode --\nshareable\n"))
	if err != nil || facts.Resctrl != nil {
		t.Errorf("a tree that is not mounted: %+v, %v", facts.Resctrl, err)
	}
}
