package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tideline-io/tideline/integration/node"
)

// junit is cut from a report of critest 1.37.0.
const junit = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="142"><testsuite name="CRI validation"><properties></properties>
<testcase name="[BeforeSuite]" classname="CRI validation" status="passed" time="0.1"></testcase>
<testcase name="[It] [k8s.io] PodSandbox should run" classname="CRI validation" status="passed" time="1.5"></testcase>
<testcase name="[It] [k8s.io] PodSandbox should run" classname="CRI validation" status="timedout" time="2"><error message="too late" type="timedout">at x.go:1</error></testcase>
<testcase name="[It] [k8s.io] AppArmor should" classname="CRI validation" status="skipped" time="0"><skipped message="skipped - AppArmor is disabled on this host"></skipped></testcase>
<testcase name="[It] [k8s.io] Image benchmark about" classname="CRI validation" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
<testcase name="[AfterSuite]" classname="CRI validation" status="failed" time="0.1"><failure message="no end" type="failed">at y.go:1</failure></testcase>
</testsuite></testsuites>`

func TestParseReport(t *testing.T) {
	r, err := parseReport([]byte(junit))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]spec{
		"[k8s.io] PodSandbox should run":     {outcome: passed, seconds: 1.5},
		"[k8s.io] PodSandbox should run (2)": {outcome: failed, seconds: 2, detail: "too late\nat x.go:1"},
		"[k8s.io] AppArmor should":           {outcome: skipped, detail: "AppArmor is disabled on this host"},
		"[k8s.io] Image benchmark about":     {outcome: skipped, detail: "skipped"},
		"[AfterSuite]":                       {outcome: failed, seconds: 0.1, detail: "no end\nat y.go:1"},
	}
	if len(r) != len(want) {
		t.Errorf("got %d specs, want %d: %v", len(r), len(want), r)
	}
	for name, w := range want {
		if r[name] != w {
			t.Errorf("%s: got %+v, want %+v", name, r[name], w)
		}
	}
	if !r["[k8s.io] Image benchmark about"].unselected() || r["[k8s.io] AppArmor should"].unselected() || !r.of("none").unselected() {
		t.Error("a spec that skips itself is to be told from one that was not to run")
	}
	if _, err := parseReport([]byte("critest: no such socket")); err == nil {
		t.Error("what is no report gives no error")
	}
}

func TestGroup(t *testing.T) {
	r := report{"[k8s.io] NRI pod": {outcome: passed, seconds: 1.5}, "[k8s.io] NRI other": {outcome: skipped, seconds: 0.5}, "[k8s.io] NRIs": {outcome: failed, seconds: 4}}
	if g := r.group("NRI"); len(g) != 2 || g.count(passed) != 1 || g.took() != 2*time.Second {
		t.Errorf("got %v", g)
	}
}

func TestParseHooks(t *testing.T) {
	const text = `# TYPE tideline_cri_hooked_calls_total counter
tideline_cri_hooked_calls_total{code="0",method="CreateContainer"} 97
tideline_cri_hooked_calls_total{code="2",method="CreateContainer"} 3
containerd_nri_plugin_invocations_total{error="",operation="CreateContainer",plugin="90-tideline",status="success"} 98
containerd_nri_plugin_invocations_total{error="",operation="CreateContainer",plugin="00-cri-test-nri",status="success"} 5
`
	for d, want := range map[string]int{node.CRI: 97, node.NRI: 98} {
		if got, err := parseHooks(hooks[d], text); err != nil || len(got) != 1 || got["CreateContainer"] != want {
			t.Errorf("%s: got %v, %v", d, got, err)
		}
	}
	if failedHook.MatchString(text) {
		t.Error("an error is found where there is none")
	}
	if !failedHook.MatchString(`containerd_nri_plugin_invocations_total{error="deadline_exceeded",operation="CreateContainer",plugin="90-tideline",status="error"} 1`) {
		t.Error("an error is not found")
	}
}

func TestDiff(t *testing.T) {
	id := strings.Repeat("0a", 32)
	direct := report{
		"same": {outcome: passed, seconds: 1}, "fails in both": {outcome: failed, detail: "at 10:00"}, "only passes direct": {outcome: passed},
		"only direct": {outcome: passed}, "lost": {outcome: skipped, detail: "lost 2 (" + id + " " + id + ")"}, "other reason": {outcome: skipped, detail: "no AppArmor"},
	}
	through := report{
		"same": {outcome: passed, seconds: 2}, "fails in both": {outcome: failed, detail: "at 10:05"}, "only passes direct": {outcome: failed},
		"only through": {outcome: passed}, "lost": {outcome: skipped, detail: "lost 1 (" + id + ")"}, "other reason": {outcome: skipped, detail: "unimplemented"},
	}
	var names []string
	for _, d := range diff(direct, through) {
		names = append(names, d.name)
	}
	if want := []string{"only direct", "only passes direct", "only through", "other reason"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

func TestLists(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list.txt")
	read := func(text string) ([]listed, error) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return readList(path)
	}
	list, err := read("# comment\n\n[k8s.io] AppArmor * -- no AppArmor\none -- why -- not\n")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"[k8s.io] AppArmor should": "no AppArmor", "one": "why -- not", "one more": ""} {
		if l, _ := find(list, name); l.why != want {
			t.Errorf("%s: got %q, want %q", name, l.why, want)
		}
	}
	if got := unused(list, []string{"one"}); len(got) != 1 || got[0].why != "no AppArmor" {
		t.Errorf("unused lines: got %v", got)
	}
	for _, text := range []string{"no reason\n", " -- only a reason\n", "one -- \n"} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), "list.txt:1") {
			t.Errorf("%q: got error %v, want one that names the line", text, err)
		}
	}
	for _, committed := range []string{"skips.txt", "expected-failures.txt"} {
		if list, err := readList(committed); err != nil || len(list) == 0 {
			t.Errorf("%s: %v, %v", committed, list, err)
		}
	}
}
