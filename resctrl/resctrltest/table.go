package resctrltest

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideline-io/tideline/resctrl"
)

// Op is an operation of the table.
type Op string

// Operations.
const (
	OpMkdir  Op = "mkdir"
	OpRmdir  Op = "rmdir"
	OpRead   Op = "read"
	OpList   Op = "list"
	OpWrite  Op = "write"
	OpRename Op = "rename"
)

// Answer is what a kernel answers.
type Answer struct {
	Errno  syscall.Errno // 0: ok
	Status string        // last_cmd_status after the operation without its last newline, "" where it says ok
	Text   string        // what was read; of a list the names, those of directories with a slash, by name
}

// Row is one operation and its answer. Texts may have {A} and {B}, the ids of two tasks that do nothing; {N}, any number; and
// {lines}, any lines of one number each.
type Row struct {
	Op   Op
	Path string
	Data string // what is written, or the new name
	Want Answer
	Old  *Answer // what 6.1 answers, where it differs

	After []File        // what can be read afterwards
	Keep  bool          // last_cmd_status is not emptied before
	Retry time.Duration // how long to ask again, until the answer is the wanted one
}

// File is a file and its text.
type File struct{ Path, Text string }

// Section is a part of the table that begins without groups, as after a mount.
type Section struct {
	Name string
	Rows []Row
}

// Result is what a row came to.
type Result struct {
	Layout  string
	Section string
	Row     Row    // with the ids of tasks in it
	Got     Answer // of the operation
	Faults  []string
}

// OK tells whether the kernel answered as the table says.
func (r Result) OK() bool { return len(r.Faults) == 0 }

// String is one line, and one more for each fault.
func (r Result) String() string {
	what := fmt.Sprintf("%-6s %s", r.Row.Op, r.Row.Path)
	if r.Row.Op == OpWrite || r.Row.Op == OpRename {
		what += fmt.Sprintf(" %q", r.Row.Data)
	}
	mark := "ok  "
	if !r.OK() {
		mark = "FAIL"
	}
	line := fmt.Sprintf("%s %-13s %-58s -> %s", mark, r.Section, what, name(r.Got.Errno))
	if r.Got.Status != "" {
		line += fmt.Sprintf(" %q", r.Got.Status)
	}
	if r.Got.Text != "" {
		line += fmt.Sprintf(" %q", r.Got.Text)
	}
	for _, f := range r.Faults {
		line += "\n     " + f
	}
	return line
}

func name(e syscall.Errno) string {
	if e == 0 {
		return "ok"
	}
	if n := unix.ErrnoName(e); n != "" {
		return n
	}
	return "errno " + strconv.Itoa(int(e))
}

// busy is how long a row waits for RMIDs that earlier rows freed. It does not hide a missing EBUSY: rows that want one don't wait.
const busy = 5 * time.Second

// RunTable runs the table of a layout against a kernel: a Kernel of this package, or resctrl.OS on a machine that is like
// the layout. No group may be there, and all settings must be as after a mount; RunTable leaves it so. The tasks, two at least, must live
// and do nothing, in the root group. An error means that the table could not be run.
func RunTable(files resctrl.Files, l Layout, tasks []int) ([]Result, error) {
	sections := Table(l)
	if sections == nil {
		return nil, fmt.Errorf("layout %s has no table", l.Name)
	}
	if len(tasks) < 2 {
		return nil, fmt.Errorf("%d tasks: two are needed", len(tasks))
	}
	r := runner{files: files, layout: l, ids: strings.NewReplacer("{A}", strconv.Itoa(tasks[0]), "{B}", strconv.Itoa(tasks[1]))}
	var err error
	if r.schemata, err = files.ReadFile("schemata"); err != nil {
		return nil, fmt.Errorf("read schemata: %w", err)
	}
	list, err := r.groups()
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	if len(list) > 0 {
		return nil, fmt.Errorf("groups are there already: %s", strings.Join(list, " "))
	}
	const threshold = "info/L3_MON/max_threshold_occupancy"
	if before, err := files.ReadFile(threshold); err == nil {
		// Above what the RMIDs of the machine in the VM claim to occupy: so none stays in limbo forever.
		if err := files.WriteFile(threshold, fmt.Sprintf("%d\n", min(4<<20, l.Monitor.Limit))); err != nil {
			return nil, fmt.Errorf("write %s: %w", threshold, err)
		}
		defer func() { _ = files.WriteFile(threshold, before) }() // best effort: it only governs limbo
	}
	var results []Result
	for _, s := range sections {
		for _, row := range s.Rows {
			results = append(results, r.run(s.Name, row))
		}
		if err := r.reset(); err != nil {
			return results, fmt.Errorf("clean up after %s: %w", s.Name, err)
		}
	}
	return results, nil
}

type runner struct {
	files    resctrl.Files
	layout   Layout
	schemata string // after the mount
	ids      *strings.Replacer
}

func (r *runner) groups() ([]string, error) {
	list, err := r.files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range list {
		if e.Dir && e.Name != "info" && e.Name != "mon_data" && e.Name != "mon_groups" {
			names = append(names, e.Name)
		}
	}
	mon, err := r.files.ReadDir("mon_groups")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range mon {
		names = append(names, "mon_groups/"+e.Name)
	}
	return names, nil
}

// reset removes all groups and gives the root group its settings back.
func (r *runner) reset() error {
	list, err := r.groups()
	if err != nil {
		return err
	}
	for _, g := range list {
		if err := r.files.Rmdir(g); err != nil {
			return fmt.Errorf("rmdir %s: %w", g, err)
		}
	}
	if err := r.files.WriteFile("mode", "shareable\n"); err != nil {
		return fmt.Errorf("write mode: %w", err)
	}
	if err := r.files.WriteFile("schemata", r.schemata); err != nil && r.schemata != "" {
		return fmt.Errorf("write schemata: %w", err)
	}
	return nil
}

func (r *runner) run(section string, row Row) Result {
	row.Path, row.Data = r.ids.Replace(row.Path), r.ids.Replace(row.Data)
	want := row.Want
	if r.layout.Kernel == "6.1" && row.Old != nil {
		want = *row.Old
	}
	wait := row.Retry
	if row.Op == OpMkdir && want.Errno == 0 {
		wait = busy
	}
	var faults []string
	var got Answer
	for until := time.Now().Add(wait); ; time.Sleep(50 * time.Millisecond) {
		if !row.Keep {
			if mode, err := r.files.ReadFile("mode"); err == nil {
				_ = r.files.WriteFile("mode", mode) // a write of the mode that is empties last_cmd_status
			}
		}
		got, faults = r.ask(row, want)
		if len(faults) == 0 || time.Now().After(until) {
			break
		}
	}
	for _, f := range row.After {
		text, err := r.files.ReadFile(r.ids.Replace(f.Path))
		if err != nil {
			faults = append(faults, fmt.Sprintf("read %s: %v", f.Path, err))
		} else if !r.match(f.Text, text) {
			faults = append(faults, fmt.Sprintf("%s reads %q, want %q", f.Path, text, r.ids.Replace(f.Text)))
		}
	}
	return Result{Layout: r.layout.Name, Section: section, Row: row, Got: got, Faults: faults}
}

// ask does the operation and compares the answer.
func (r *runner) ask(row Row, want Answer) (got Answer, faults []string) {
	var err error
	switch row.Op {
	case OpMkdir:
		err = r.files.Mkdir(row.Path)
	case OpRmdir:
		err = r.files.Rmdir(row.Path)
	case OpRead:
		got.Text, err = r.files.ReadFile(row.Path)
	case OpWrite:
		err = r.files.WriteFile(row.Path, row.Data)
	case OpRename:
		err = r.files.Rename(row.Path, row.Data)
	case OpList:
		var list []resctrl.Entry
		list, err = r.files.ReadDir(row.Path)
		got.Text = names(list)
	default:
		return got, []string{fmt.Sprintf("no operation %q", row.Op)}
	}
	if err != nil && !errors.As(err, &got.Errno) {
		return got, []string{fmt.Sprintf("an error without errno: %v", err)}
	}
	if got.Errno != want.Errno {
		faults = append(faults, fmt.Sprintf("answers %s, want %s", name(got.Errno), name(want.Errno)))
	}
	status, err := r.files.ReadFile("info/last_cmd_status")
	if err != nil {
		return got, append(faults, fmt.Sprintf("read last_cmd_status: %v", err))
	}
	if got.Status = strings.TrimRight(status, "\n"); got.Status == "ok" {
		got.Status = ""
	}
	if !r.match(want.Status, got.Status) {
		faults = append(faults, fmt.Sprintf("status is %q, want %q", got.Status, r.ids.Replace(want.Status)))
	}
	if !r.match(want.Text, got.Text) {
		faults = append(faults, fmt.Sprintf("reads %q, want %q", got.Text, r.ids.Replace(want.Text)))
	}
	return got, faults
}

func names(list []resctrl.Entry) string {
	var all []string
	for _, e := range list {
		if e.Dir {
			e.Name += "/"
		}
		all = append(all, e.Name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

var wildcards = strings.NewReplacer(regexp.QuoteMeta("{N}"), `\d+`, regexp.QuoteMeta("{lines}"), `(?:\d+\n)*`)

func (r *runner) match(pattern, text string) bool {
	pattern = r.ids.Replace(pattern)
	if !strings.Contains(pattern, "{") {
		return pattern == text
	}
	ok, err := regexp.MatchString(`\A`+wildcards.Replace(regexp.QuoteMeta(pattern))+`\z`, text)
	return ok && err == nil
}
