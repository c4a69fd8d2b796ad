package resctrl

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/tideline-io/tideline/resctrl"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

// row is one operation, or one thing that is read, and what came of it. Where the answer is the wanted one and may have any
// numbers, it is the wanted text.
type row struct{ Name, Got string }

// answers are those of one mount.
type answers struct {
	Table  []row // every file, then the rows of resctrltest.Table
	Random []row
}

// operations of a random run. It begins with a mount, so that a difference leads to others in the rest of its run alone.
const operations = 40

// TestTable compares the fake with the kernel, and prints what both said: all of the table, and the random rows that differ.
func TestTable(t *testing.T) {
	needHost(t)
	for _, l := range layouts() {
		t.Run(l.name(), func(t *testing.T) {
			kernel := map[string]answers{}
			if err := json.Unmarshal([]byte(read(t, filepath.Join(boot(t, l.machine("TestGuestTable")), tableFile))), &kernel); err != nil {
				t.Fatal(err)
			}
			for _, f := range l.fakes {
				k := resctrltest.New(f)
				table, err := tableRows(k, f, []int{k.Start(1).ID(), k.Start(1).ID()})
				if err != nil {
					t.Error(err)
				}
				var random []row
				for run := first; run < first+runs; run++ {
					k := resctrltest.New(f)
					random = append(random, randomRows(k, f.CPUs, plugFake(k), run, operations)...)
				}
				t1, bad1 := compare(table, kernel[f.Name].Table, true)
				t2, bad2 := compare(random, kernel[f.Name].Random, false)
				summary := fmt.Sprintf("%s: %d of %d rows differ, and %d of %d random ones", f.Name, bad1, len(table), bad2, len(random))
				t.Logf("%s\n%s%s\n", summary, t1, t2)
				if bad1+bad2 > 0 {
					t.Error(summary)
				}
			}
		})
	}
}

// compare makes a table of the rows of both, all or those that differ, and counts those that do. A row that only one of
// them has does.
func compare(fake, kernel []row, all bool) (text string, different int) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "row\tfake\tkernel\t")
	for i := range max(len(fake), len(kernel)) {
		name, cells := "", [2]string{"no row", "no row"}
		for side, rows := range [][]row{fake, kernel} {
			switch {
			case i >= len(rows):
			case name == "" || name == rows[i].Name:
				name, cells[side] = rows[i].Name, rows[i].Got
			default:
				cells[side] = "another row: " + rows[i].Name
			}
		}
		verdict := "equal"
		if cells[0] != cells[1] {
			verdict = "DIFFERENT"
			different++
		} else {
			cells[1] = cut(cells[1])
			cells[0] = cells[1]
		}
		if all || verdict != "equal" {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", cut(name), cells[0], cells[1], verdict)
		}
	}
	if !all && different == 0 {
		return "", 0
	}
	w.Flush()
	return b.String(), different
}

// cut is what fits into a cell.
func cut(s string) string {
	const most = 66
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

func TestCompare(t *testing.T) {
	fake := []row{{"a", "1"}, {"b", "2"}, {"c", "3"}}
	kernel := []row{{"a", "1"}, {"b", "3"}, {"d", "3"}, {"e", "4"}}
	text, different := compare(fake, kernel, true)
	want := `row  fake    kernel          
a    1       1               equal
b    2       3               DIFFERENT
c    3       another row: d  DIFFERENT
e    no row  4               DIFFERENT
`
	if text != want || different != 3 {
		t.Errorf("got %d\n%s\nwant 3\n%s", different, text, want)
	}
	if text, different := compare(fake, fake, false); text != "" || different != 0 {
		t.Errorf("got %q, %d of equal rows", text, different)
	}
}

const (
	layoutEnv = "TIDELINE_TEST_LAYOUT"
	tableFile = "table.json"
)

// guestLayout is the layout of this machine.
func guestLayout(t *testing.T) layout {
	t.Helper()
	for _, l := range layouts() {
		if l.name() == os.Getenv(layoutEnv) {
			return l
		}
	}
	t.Fatalf("no layout %q", os.Getenv(layoutEnv))
	return layout{}
}

// TestGuestTable runs everything on the machine's kernel.
func TestGuestTable(t *testing.T) {
	needGuest(t)
	var tasks []int
	for range 2 {
		sleep := exec.Command("/bin/sleep", "1000")
		if err := sleep.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			sleep.Process.Kill()
			sleep.Wait()
		})
		tasks = append(tasks, sleep.Process.Pid)
	}
	all := map[string]answers{}
	for _, f := range guestLayout(t).fakes {
		var a answers
		mounted(t, f.Options.String(), func() {
			var err error
			if a.Table, err = tableRows(resctrl.OS(root), f, tasks); err != nil {
				t.Error(err)
			}
		})
		for run := first; run < first+runs; run++ {
			mounted(t, f.Options.String(), func() {
				a.Random = append(a.Random, randomRows(resctrl.OS(root), f.CPUs, plugKernel, run, operations)...)
			})
		}
		all[f.Name] = a
	}
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(results, tableFile), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// tableRows reads all files of a freshly mounted resctrl and runs the layout's table on it, if there is one.
func tableRows(f resctrl.Files, l resctrltest.Layout, tasks []int) ([]row, error) {
	rows := tree(f, ".", nil)
	table := resctrltest.Table(l)
	if table == nil {
		return rows, nil
	}
	results, err := resctrltest.RunTable(f, l, tasks)
	for _, s := range table {
		for _, r := range s.Rows {
			if len(results) > 0 {
				rows = append(rows, tableRow(s.Name, r, results[0]))
				results = results[1:]
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("%s: run the table: %w", l.Name, err)
	}
	return rows, err
}

// tableRow has the row's own texts, as those of the result have the ids of tasks.
func tableRow(section string, r resctrltest.Row, result resctrltest.Result) row {
	what := fmt.Sprintf("%s: %s %q", section, r.Op, r.Path)
	if r.Op == resctrltest.OpWrite || r.Op == resctrltest.OpRename {
		what += fmt.Sprintf(" %q", r.Data)
	}
	if !result.OK() {
		return row{what, answer(result.Got) + "; " + strings.Join(result.Faults, "; ")}
	}
	got := answer(r.Want)
	for _, f := range r.After {
		got += fmt.Sprintf(", then %s %q", f.Path, f.Text)
	}
	return row{what, got}
}

func answer(a resctrltest.Answer) string {
	text := "ok"
	if a.Errno != 0 {
		text = unix.ErrnoName(a.Errno)
	}
	for _, more := range []string{a.Status, a.Text} {
		if more != "" {
			text += fmt.Sprintf(" %q", more)
		}
	}
	return text
}

// tree is one row for each file and directory. The ids of tasks differ anyway, and so do counters of bandwidth.
func tree(f resctrl.Files, dir string, rows []row) []row {
	list, err := f.ReadDir(dir)
	if err != nil {
		return append(rows, row{"list " + dir, err.Error()})
	}
	for _, e := range list {
		name := path.Join(dir, e.Name)
		if e.Dir {
			rows = tree(f, name, append(rows, row{name, "directory"}))
			continue
		}
		text, err := f.ReadFile(name)
		switch {
		case err != nil:
			text = err.Error()
		case e.Name == "tasks":
			text = "tasks"
		case strings.HasPrefix(e.Name, "mbm_") && strings.Contains(name, "mon_data/") && strings.Trim(text, "0123456789") == "\n":
			text = "a number"
		}
		rows = append(rows, row{name, fmt.Sprintf("%q", text)})
	}
	return rows
}
