package resctrl

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tideline-io/tideline/resctrl"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

// randomRows does n random operations, most of them valid ones or nearly so, and looks at everything after every few. A
// run has the same operations on all that have the same resources.
func randomRows(f resctrl.Files, cpus int, plug plug, run, n int) []row {
	r := &random{Files: f, run: run, rnd: rand.New(rand.NewPCG(uint64(run), 0)), cpus: cpus, plug: plug}
	defer func() {
		for c := 1; c < cpus; c++ {
			_ = plug(c, true) // a failure shows in the next run
		}
	}()
	if text, err := f.ReadFile(threshold); err == nil {
		r.threshold = strings.TrimSuffix(text, "\n")
		// A mount does not reset it. A failure shows in the next run.
		defer func() { _ = f.WriteFile(threshold, text) }()
	}
	schemata, err := f.ReadFile("schemata")
	if err != nil {
		return []row{{"read schemata", err.Error()}}
	}
	// "    MB:0=100;1=100\n    L3:0=7ff;1=7ff\n"
	for line := range strings.Lines(schemata) {
		name, values, _ := strings.Cut(strings.TrimSpace(line), ":")
		r.resources = append(r.resources, name)
		r.domains = append(r.domains, nil)
		for v := range strings.SplitSeq(values, ";") {
			id, _, _ := strings.Cut(v, "=")
			r.domains[len(r.domains)-1] = append(r.domains[len(r.domains)-1], id)
		}
	}
	var rows []row
	for i := range n {
		what, err := r.step()
		status, _ := f.ReadFile("info/last_cmd_status")
		rows = append(rows, row{fmt.Sprintf("%d.%d: %s", run, i, what), fmt.Sprintf("%s %q", errnoName(err), status)})
		if i%10 == 9 {
			rows = append(rows, r.look(i)...)
		}
	}
	return rows
}

// plug takes a CPU out or puts it in.
type plug func(cpu int, in bool) error

func plugFake(k *resctrltest.Kernel) plug {
	return func(cpu int, in bool) error {
		k.SetOnline(cpu, in)
		return nil
	}
}

func plugKernel(cpu int, in bool) error {
	file := fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", cpu)
	want := "0"
	if in {
		want = "1"
	}
	if b, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(b)) == want {
		return err
	}
	return os.WriteFile(file, []byte(want), 0)
}

const threshold = "info/L3_MON/max_threshold_occupancy"

func errnoName(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

type random struct {
	resctrl.Files
	run       int
	rnd       *rand.Rand
	threshold string // as it was
	cpus      int
	plug      plug
	resources []string
	domains   [][]string // of each resource
}

func (r *random) of(list ...string) string { return list[r.rnd.IntN(len(list))] }

// rare is true once in n times.
func (r *random) rare(n int) bool { return r.rnd.IntN(n) == 0 }

// The names are few, so that most of them exist.
func (r *random) group() string {
	return r.of(".", "a", "b", "c", "d")
}

func (r *random) monitoring() string {
	return strings.TrimPrefix(r.group()+"/mon_groups/"+r.of("m", "n"), "./")
}

func (r *random) file(group, name string) string { return strings.TrimPrefix(group+"/"+name, "./") }

func (r *random) step() (what string, err error) {
	write := func(name, data string) (string, error) {
		return fmt.Sprintf("write %q to %s", data, name), r.WriteFile(name, data)
	}
	switch n := r.rnd.IntN(100); {
	case n < 45:
		return write(r.file(r.group(), "schemata"), r.schemata())
	case n < 57:
		mode := r.of("shareable\n", "shareable\n", "exclusive\n", "exclusive\n", "exclusive\n", "pseudo-locksetup\n", "pseudo-locked\n", "foo\n", "\n", "shareable", "")
		return write(r.file(r.group(), "mode"), mode)
	case n < 68:
		name := r.group()
		if r.rare(8) {
			name = r.of("info", "mon_data", "a/b", "info/x", "mon_groups", "a\nb", "a/mon_data/x", "nosuch/x")
		}
		return fmt.Sprintf("mkdir %q", name), r.mkdir(name)
	case n < 73:
		name := r.of("a", "b", "c", "d", "info", "mon_groups", "nosuch", "a/mon_data")
		return "rmdir " + name, r.Rmdir(name)
	case n < 77:
		name := r.monitoring()
		return "mkdir " + name, r.mkdir(name)
	case n < 79:
		name := r.monitoring()
		return "rmdir " + name, r.Rmdir(name)
	case n < 82:
		from, to := r.monitoring(), r.monitoring()
		if r.rare(4) {
			from, to = r.of("a", "info", "a/tasks", from), r.of("e", to)
		}
		return fmt.Sprintf("rename %s to %s", from, to), r.Rename(from, to)
	case n < 92:
		group := r.group()
		if r.rare(3) {
			group = r.monitoring()
		}
		if r.rare(4) {
			return write(r.file(group, "cpus"), r.of("0", "1", "2", "3", "f", "c", "10", "100000000", "x", "", "0x1", "0,00000001")+r.of("\n", "\n", ""))
		}
		return write(r.file(group, "cpus_list"), r.of("", "0", "1", "2", "3", "0-1", "2-3", "0-3", "1,3", "0-2,3", "3-2", "9", "64", "x", "0,", "1-", "0-3:1/2", " 1", "+1")+r.of("\n", "\n", ""))
	case n < 98:
		group := r.group()
		if r.rare(3) {
			group = r.monitoring()
		}
		return write(r.file(group, "tasks"), r.of("1", "2", "1,2", "2,1", "1,999999", "999999,1", "2,abc", "abc", "-1", "", "1 2", "99999999999", "4194305", "0x1", " 1", "1,", ",1", "+1", "01",
			// More than a page is refused, and of a status there are 511 bytes.
			strings.Repeat("1,", 3000)+"1", strings.Repeat("2,1,", 1023)+"2", strings.Repeat("1", 4095), strings.Repeat("1", 4096), strings.Repeat("x", 600))+r.of("\n", "\n", ""))
	case n == 98 && r.rare(2):
		// The first CPU can't go.
		cpu, in := 1+r.rnd.IntN(r.cpus-1), r.rare(2)
		return fmt.Sprintf("plug CPU %d: %t", cpu, in), r.plug(cpu, in)
	default:
		// Not less, or RMIDs that are freed would not come back, as they seem to occupy more.
		return write(threshold, r.of(r.threshold, r.threshold, "0"+r.threshold, "+"+r.threshold, " "+r.threshold, "4294967295", "99999999999", "x", "", "0x", "-1")+r.of("\n", ""))
	}
}

// mkdir waits out freed RMIDs: how long they are busy is up to a clock. The failures add to last_cmd_status, which a write
// of the mode that is there empties.
func (r *random) mkdir(name string) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if mode, err := r.ReadFile("mode"); err == nil {
			_ = r.WriteFile("mode", mode)
		}
		err := r.Mkdir(name)
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

// schemata is one line or two.
func (r *random) schemata() string {
	text := r.line()
	if r.rare(4) {
		text += "\n" + r.line()
	}
	switch {
	case r.rare(30):
		return text
	case r.rare(30):
		return text + "\n\n"
	case r.rare(30):
		return "\n" + text + "\n"
	case r.rare(60):
		return ""
	}
	return text + "\n"
}

func (r *random) line() string {
	if len(r.resources) == 0 {
		return r.of("L3:0=1", "MB:0=10", "")
	}
	i := r.rnd.IntN(len(r.resources))
	name := r.resources[i]
	switch {
	case r.rare(25):
		return r.of("L3", "l3", "L4", "L3CODE", "MB", "", " ", name) + r.of(":0=1", ":", "", ":0", ":a=1", ":=", ":0=", ": 0=1", ":0 =1", ":0= 1", ":0=1 ", ":-1=1", ":0=1=1", ":;0=1", ":0=1;;1=1")
	case r.rare(20):
		name = r.of(" ", "   ", "\t", "") + name
	case r.rare(60):
		name = strings.Repeat(r.of("x", " "), 600) + name
	}
	var parts []string
	for _, id := range r.domains[i] {
		if r.rnd.IntN(3) > 0 {
			parts = append(parts, id+"="+r.value(name))
		}
	}
	if len(parts) == 0 || r.rare(20) {
		parts = append(parts, r.of("0", "1", "3", "7", "99", "00", "0x0", "4294967296")+"="+r.value(name))
	}
	return name + ":" + strings.Join(parts, ";") + r.of("", "", "", "", "", ";")
}

func (r *random) value(name string) string {
	if strings.Contains(name, "MB") {
		if r.rare(15) {
			return r.of("", "5%", "0x20", "-10", "1e1", "4294967295", "4294967296", "0", "+50", " 50", "050", "50 ", "max", strings.Repeat("0", 600)+"50")
		}
		return fmt.Sprint(r.rnd.IntN(12)*r.rnd.IntN(12) + r.rnd.IntN(8))
	}
	if r.rare(15) {
		return r.of("", "0", "zz", "0x", "0x3f", "0X3", "3F", "00003", strings.Repeat("z", 600), strings.Repeat("0", 600)+"3", "7ff", "fff", "fffff", "10000", "ffffffff", "100000000", "5", "-1", "+3", " 3", "3 ", "1,2")
	}
	from := r.rnd.IntN(9)
	return fmt.Sprintf("%x", (uint64(1)<<(1+r.rnd.IntN(4))-1)<<from)
}

// look is everything that the operations can have changed.
func (r *random) look(i int) []row {
	var rows []row
	see := func(name string) {
		text, err := r.ReadFile(name)
		if err != nil {
			text = errnoName(err)
		}
		if strings.HasSuffix(name, "tasks") {
			// What else runs differs.
			text = strings.Join(slices.DeleteFunc(strings.Fields(text), func(id string) bool { return id != "1" && id != "2" }), " ")
		}
		rows = append(rows, row{fmt.Sprintf("%d.%d: read %s", r.run, i, name), fmt.Sprintf("%q", text)})
	}
	for _, g := range []string{".", "a", "b", "c", "d"} {
		list, err := r.ReadDir(g)
		rows = append(rows, row{fmt.Sprintf("%d.%d: list %s", r.run, i, g), fmt.Sprint(list, " ", errnoName(err))})
		if err != nil {
			continue
		}
		for _, name := range []string{"schemata", "size", "mode", "cpus", "cpus_list", "tasks"} {
			see(r.file(g, name))
		}
		monitoring, err := r.ReadDir(r.file(g, "mon_groups"))
		rows = append(rows, row{fmt.Sprintf("%d.%d: list mon_groups of %s", r.run, i, g), fmt.Sprint(monitoring, " ", errnoName(err))})
		for _, m := range monitoring {
			see(r.file(g, "mon_groups/"+m.Name+"/cpus_list"))
			see(r.file(g, "mon_groups/"+m.Name+"/tasks"))
		}
	}
	for _, name := range r.resources {
		if !strings.Contains(name, "MB") {
			see("info/" + name + "/bit_usage")
		}
	}
	return rows
}
