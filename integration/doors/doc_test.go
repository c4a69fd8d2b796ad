package doors

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// fields are all that the NRI door ever sets, by call.
var fields = map[string][]string{
	"creation": {
		"annotations[tideline.io/decision]",
		"linux.io_priority",
		"linux.oom_score_adj",
		"linux.resources.cpu.cpus",
		"linux.resources.cpu.period",
		"linux.resources.cpu.quota",
		"linux.resources.cpu.shares",
		"linux.resources.memory.limit",
		"linux.resources.unified[cpu.idle]",
		"linux.resources.unified[cpu.max.burst]",
		"linux.resources.unified[io.max]",
		"linux.resources.unified[memory.high]",
		"linux.resources.unified[memory.low]",
	},
	"update": {
		"linux.resources.cpu.cpus",
		"linux.resources.cpu.period",
		"linux.resources.cpu.quota",
		"linux.resources.cpu.shares",
		"linux.resources.memory.limit",
		"linux.resources.unified[cpu.idle]",
		"linux.resources.unified[cpu.max.burst]",
		"linux.resources.unified[io.max]",
		"linux.resources.unified[memory.high]",
		"linux.resources.unified[memory.low]",
	},
}

// note writes down the fields that an answer sets.
func (d *nriDoor) note(call string, m proto.Message) {
	for _, f := range setFields("", m.ProtoReflect()) {
		if f != "container_id" {
			d.sent[call][f] = true
		}
	}
}

func setFields(at string, m protoreflect.Message) []string {
	switch name := string(m.Descriptor().Name()); {
	case strings.HasPrefix(name, "Optional"), name == "LinuxIOPriority": // a value that may be missing, and one that a plugin owns whole
		return []string{strings.TrimSuffix(at, ".")}
	}
	var out []string
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := at + string(fd.Name())
		switch {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
				out = append(out, fmt.Sprintf("%s[%s]", name, k))
				return true
			})
		case fd.Kind() == protoreflect.MessageKind && !fd.IsList():
			out = append(out, setFields(name+".", v.Message())...)
		default:
			out = append(out, name)
		}
		return true
	})
	return out
}

const doc = "../../docs/doors.md"

// TestDoc keeps the tables of docs/doors.md equal to the lists here.
func TestDoc(t *testing.T) {
	b, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	want := string(b)
	for name, table := range map[string]string{"nri": differenceTable(nriName), "explain": differenceTable(explainName), "known": knownTable(), "fields": fieldTable()} {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->\n"
		before, rest, ok := strings.Cut(want, begin)
		_, after, ended := strings.Cut(rest, end)
		if !ok || !ended {
			t.Fatalf("%s has no place for the table %s", doc, name)
		}
		want = before + begin + table + end + after
	}
	if want == string(b) {
		return
	}
	if !*update {
		t.Fatalf("%s is not as the lists of this test: run go test ./doors -run TestDoc -update", doc)
	}
	if err := os.WriteFile(doc, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func differenceTable(door string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| what | CRI | %s | why |\n|---|---|---|---|\n", column(door))
	for _, d := range differences {
		if d.door == door && !d.known {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", d.what, d.cri, d.here, d.why)
		}
	}
	return b.String()
}

func knownTable() string {
	var b strings.Builder
	b.WriteString("| what | CRI | the other | why |\n|---|---|---|---|\n")
	for _, d := range differences {
		if d.known {
			fmt.Fprintf(&b, "| %s | %s | %s: %s | %s |\n", d.what, d.cri, column(d.door), d.here, d.why)
		}
	}
	return b.String()
}

func fieldTable() string {
	var b strings.Builder
	b.WriteString("| field | creation | update |\n|---|---|---|\n")
	var all []string
	for _, list := range fields {
		all = append(all, list...)
	}
	slices.Sort(all)
	mark := func(call, f string) string {
		if slices.Contains(fields[call], f) {
			return "yes"
		}
		return "-"
	}
	for _, f := range slices.Compact(all) {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f, mark("creation", f), mark("update", f))
	}
	return b.String()
}
