package doors

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/internal/facts/nri/nritest"
	"github.com/tideline-io/tideline/internal/policy"
)

var update = flag.Bool("update", false, `fill in want: "?" of testdata, and write the table of docs/doors.md`)

// leastCases is the size of the corpus that the project promises.
const leastCases = 60

// TestDoors runs every case through the doors and prints what they differ in.
func TestDoors(t *testing.T) {
	machines, topics := load(t)
	seen := make([]map[string]bool, len(differences)) // cases by difference
	for i := range seen {
		seen[i] = map[string]bool{}
	}
	sent := map[string]map[string]bool{"creation": {}, "update": {}}
	var counts strings.Builder
	total, updates := 0, 0
	for _, tp := range topics {
		n := 0
		var got []string
		t.Run(strings.TrimSuffix(tp.file, ".yaml"), func(t *testing.T) {
			for i := range tp.Cases {
				c := &tp.Cases[i]
				n, updates = n+1, updates+len(c.Updates)
				t.Run(c.Name, func(t *testing.T) {
					r := run(t, c, machines[c.Machine], sent)
					got = append(got, r.filled...)
					declared := map[string]bool{}
					for _, f := range r.findings {
						switch i := slices.IndexFunc(differences, func(d difference) bool { return d.door == f.door && d.is(f) }); {
						case i >= 0:
							seen[i][c.Name] = true
						case f.follows():
							declared[f.door] = true
						default:
							t.Errorf("%s: %s%s: door cri has %q, door %s has %q: not in the list of differences", f.step, prefix(f.container), f.key, cut(f.cri), f.door, cut(f.has))
						}
					}
					for door, id := range c.Because {
						if i := find(id); i < 0 || differences[i].door != door || !seen[i][c.Name] {
							t.Errorf("because: %s is no difference of door %s that this case shows", id, door)
						} else if !declared[door] {
							t.Errorf("because: %s: the decision does not differ", id)
						}
					}
				})
			}
		})
		if *update {
			fillIn(t, tp.file, got)
		}
		total += n
		fmt.Fprintf(&counts, "  %-42s %3d\n", tp.Topic, n)
	}
	fmt.Fprintf(&counts, "  %-42s %3d cases, %d updates\n", "all", total, updates)
	if total < leastCases {
		t.Errorf("%d cases, want %d", total, leastCases)
	}
	var table, known strings.Builder
	for _, door := range []string{nriName, explainName, noneName} {
		for i, d := range differences {
			if d.door != door {
				continue
			}
			if len(seen[i]) == 0 {
				t.Errorf("difference %s is in the list, and no case shows it", d.id)
			}
			to := &table
			if d.known {
				to = &known
			}
			fmt.Fprintf(to, "  %s (%d)\n      CRI: %s\n      %s: %s\n      since %s\n", d.what, len(seen[i]), d.cri, strings.Trim(column(door), "`"), d.here, d.why)
		}
	}
	t.Logf("\nCases by topic\n\n%s\nWhat differs, and in how many cases\n\n%s\nKnown disagreements, that no protocol is the reason of\n\n%s", &counts, &table, &known)
	for call := range sent {
		if diff := cmp.Diff(fields[call], slices.Sorted(maps.Keys(sent[call]))); diff != "" {
			t.Errorf("fields set in a %s (-list +seen):\n%s", call, diff)
		}
	}
}

func prefix(container string) string {
	if container == "" {
		return "pod."
	}
	return container + "."
}

func cut(s string) string {
	if len(s) > 200 {
		return s[:200] + "..."
	}
	return s
}

// result is what a case came to.
type result struct {
	findings []finding
	filled   []string // each "want" in the order of the file, "" for one that is there
}

func run(t *testing.T, c *testCase, m machine, sent map[string]map[string]bool) result {
	p, err := c.policy()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := c.manifest()
	if err != nil {
		t.Fatal(err)
	}
	n, opts := m.node(t), c.options(m)
	k := &kubelet{adds: c.Kubelet, opts: opts, pod: c.stored(p, manifest, opts)}
	viaCRI, viaNRI := newCRI(t, n, p), newNRI(t, n, p, c.Kubelet.PauseLabels, sent)
	var r result
	plain := map[string]*specs.Spec{} // without Tideline
	added := map[string][]asks{}

	compare := func(step, door, container string, cri, has flat) {
		for _, key := range slices.Sorted(maps.Keys(union(cri, has))) {
			if cri[key] != has[key] {
				r.findings = append(r.findings, finding{c: c, door: door, step: step, container: container, key: key, cri: cri[key], has: has[key], asks: added[container]})
			}
		}
	}
	podLevel := func(step string, said explained) flat {
		got := viaCRI.pod()
		compare(step, nriName, "", strip(got), strip(viaNRI.pod()))
		compare(step, explainName, "", strip(got), strip(said.pod))
		return got
	}
	check := func(step string, w want, got want) {
		if w.missing {
			r.filled = append(r.filled, got.text(indent(step)))
			if !*update {
				t.Errorf("%s: nothing is wanted yet; got\n%s", step, got.text(""))
			}
			return
		}
		r.filled = append(r.filled, "")
		if a, b := w.text(""), got.text(""); a != b {
			t.Errorf("%s: want (-) and got (+):\n%s", step, cmp.Diff(a, b))
		}
	}

	cfg := k.sandbox()
	viaCRI.sandbox(cfg)
	viaNRI.sandbox(cfg)
	said := explain(t, manifest, p, n, opts)
	got := want{Containers: map[string]wantContainer{}}
	var inits []string
	for _, ctr := range k.containers() {
		if a, ok := c.Kubelet.Containers[ctr.name]; ok {
			added[ctr.name] = append(added[ctr.name], a)
		}
		cri := viaCRI.create(ctr.config)
		compare("", nriName, ctr.name, cri, viaNRI.create(ctr.config))
		compare("", explainName, ctr.name, told(cri), said.containers[ctr.name])
		plain[ctr.name] = nritest.Create(ctr.config.GetLinux().GetResources())
		if cri["answer"] == "made" {
			compare("", noneName, ctr.name, shows(cri), shows(unchanged(plain[ctr.name])))
		}
		got.Containers[ctr.name] = ends(cri, plain[ctr.name])
		got.Tier, got.From = cri["tier"], from(cri)
		if ctr.kind == kube.Init {
			inits = append(inits, ctr.name)
		}
	}
	for _, name := range inits { // explain tells of the time when they are gone
		if c.Kubelet.KeepsInit {
			break
		}
		viaCRI.finished(name)
		viaNRI.finished(name)
	}
	got.Pod = settings(podLevel("", said))
	check("", c.Want, got)

	for _, u := range c.Updates {
		messages := k.update(u)
		if u.PodResources != nil || len(u.Resize) > 0 {
			total := node.Resources(kube.Pod(k.pod, opts).Resources)
			viaCRI.resizing(total)
			viaNRI.resizing(total)
		}
		said := explain(t, k.pod, p, n, opts)
		got := want{Containers: map[string]wantContainer{}}
		for _, msg := range messages {
			if viaCRI.spec(msg.container) == nil {
				t.Fatalf("%s: container %s was not made", u.Name, msg.container)
			}
			if a, ok := u.Asks[msg.container]; ok {
				added[msg.container] = append(added[msg.container], a)
			}
			cri := viaCRI.update(msg)
			compare(u.Name, nriName, msg.container, cri, viaNRI.update(msg))
			compare(u.Name, explainName, msg.container, told(merged(cri, u, msg.container)), merged(said.containers[msg.container], u, msg.container))
			plain[msg.container] = nritest.Update(plain[msg.container], msg.linux)
			got.Containers[msg.container] = ends(cri, plain[msg.container])
			got.Tier, got.From = cri["tier"], from(cri)
			compare(u.Name, noneName, msg.container, shows(cri), shows(unchanged(plain[msg.container])))
		}
		got.Pod = settings(podLevel(u.Name, said))
		check(u.Name, u.Want, got)
	}
	return r
}

// unchanged is ContainerStatus without Tideline, and shows what a door makes of it.
func unchanged(s *specs.Spec) flat {
	f := flat{}
	f.add("shown.", shown(status(s)))
	return f
}

func shows(f flat) flat {
	out := flat{}
	out.add("shown.", only(f, "shown."))
	return out
}

func indent(step string) string {
	if step == "" {
		return "  "
	}
	return "    "
}

func union(a, b flat) flat {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

func only(f flat, prefix string) flat {
	out := flat{}
	for k, v := range f {
		if k, ok := strings.CutPrefix(k, prefix); ok {
			out[k] = v
		}
	}
	return out
}

func strip(f flat) flat { return only(f, "pod.") }

// told leaves out what a manifest has no part in: what the runtime is sent and what it shows.
func told(f flat) flat {
	out := maps.Clone(f)
	for k := range out {
		if k == "answer" || strings.HasPrefix(k, "answer.") || strings.HasPrefix(k, "birth") || strings.HasPrefix(k, "shown.") || k == "attempt" && out[k] == "0" {
			delete(out, k)
		}
	}
	return out
}

// merged leaves out what an update asks where it is less than all: explain tells the whole.
func merged(f flat, u testUpdate, container string) flat {
	if _, whole := u.Resize[container]; whole || u.PodResources != nil {
		return f
	}
	out := maps.Clone(f)
	for k := range out {
		if strings.HasPrefix(k, "asked.") {
			delete(out, k)
		}
	}
	return out
}

// ends is what a container came to beside what it would be without Tideline.
func ends(f flat, plain *specs.Spec) wantContainer {
	w := wantContainer{Set: map[string]string{}, Files: only(f, "files.")}
	if key, ok := f["answer.key"]; ok {
		w.Refused = key
	} else {
		with, without := only(f, "oci."), oci(plain)
		for k := range union(with, without) {
			if with[k] != without[k] {
				if w.Set[k] = with[k]; with[k] == "" {
					w.Set[k] = "-"
				}
			}
		}
	}
	for k := range only(f, "note.") {
		w.Notes = append(w.Notes, strings.TrimSuffix(k, "."))
	}
	slices.Sort(w.Notes)
	return w
}

func from(f flat) string {
	parts := strings.Fields(f["source"])
	if len(parts) == 0 {
		return "none"
	}
	switch policy.SourceKind(parts[0]) {
	case policy.FromRule:
		return "rule " + parts[len(parts)-1]
	case policy.FromAlias:
		return "alias"
	}
	return parts[0]
}

func settings(f flat) map[string]string {
	out := map[string]string{}
	for k, v := range only(f, "pod.set.") {
		out[k], _, _ = strings.Cut(v, " (asked ")
	}
	return out
}

// fillIn puts what was got in the place of each "want: ?".
func fillIn(t *testing.T, file string, got []string) {
	t.Helper()
	name := filepath.Join("testdata", file)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(b), "want: \"?\"\n")
	var filled []string
	for _, g := range got {
		if g != "" {
			filled = append(filled, g)
		}
	}
	if len(filled) != len(parts)-1 {
		t.Errorf("%s: %d to fill in, %d known", file, len(parts)-1, len(filled))
		return
	}
	if len(filled) == 0 {
		return
	}
	var out strings.Builder
	for i, p := range parts {
		if out.WriteString(p); i < len(filled) {
			out.WriteString("want: " + filled[i] + "\n")
		}
	}
	if err := os.WriteFile(name, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
