package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
)

// least is how many specs have to pass or fail for a whole run to count as one. critest 1.37 has 142 specs, of which some
// 120 run.
const least = 100

// podsCgroup is where containerd puts pods that name no cgroup parent: it has the name of its namespace of CRI.
const podsCgroup = "/k8s.io"

func TestConformance(t *testing.T) {
	expected, err := readList("expected-failures.txt")
	if err != nil {
		t.Fatal(err)
	}
	skips, err := readList("skips.txt")
	if err != nil {
		t.Fatal(err)
	}
	// critest's pods have no cgroup parent, so containerd makes them one.
	if _, err := os.Stat(lab.CgroupFile("cpu", podsCgroup, "cgroup.procs")); errors.Is(err, fs.ErrNotExist) {
		defer func() {
			if err := lab.RemoveEmptyCgroup(podsCgroup); err != nil {
				t.Error(err)
			}
		}()
	}
	t.Logf("direct: critest with seed %d", *seed)
	direct := critest(t, "direct", false, *focus)
	t.Logf("direct: %s", summary(direct))
	t.Logf("through: critest with seed %d", *seed)
	through := critest(t, "through", true, *focus)
	t.Logf("through: %s", summary(through))

	for _, r := range []struct {
		name string
		run  run
	}{{"direct", direct}, {"through", through}} {
		if ran := r.run.report.count(passed) + r.run.report.count(failed); *focus == "" && ran < least {
			t.Errorf("%s: %d specs ran, want at least %d", r.name, ran, least)
		}
	}
	checkHooked(t, through, *focus == "")

	// A spec that came out differently gets a second chance, the same in both runs: on a busy machine a spec may miss
	// its own time limit.
	differences := diff(direct.report, through.report)
	if len(differences) > 0 {
		t.Logf("%d specs differ and are run once more, both ways:", len(differences))
		var names []string
		for _, d := range differences {
			t.Logf("  %s", d)
			// The report adds ginkgo's labels to the name, such as this one, and a focus does not match them.
			names = append(names, regexp.QuoteMeta(strings.TrimSuffix(d.name, " [Serial]")))
		}
		again := " (" + strings.Join(names, "|") + ")" // ginkgo matches the suite's name, a blank, the spec's
		direct2, through2 := critest(t, "direct2", false, again), critest(t, "through2", true, again)
		t.Logf("direct, once more: %s", summary(direct2))
		t.Logf("through, once more: %s", summary(through2))
		checkHooked(t, through2, false)
		for _, d := range differences {
			d2, t2 := direct2.report.of(d.name), through2.report.of(d.name)
			if d2.unselected() || t2.unselected() {
				t.Errorf("was not run again: %s: direct %s, through %s", d.name, d2.outcome, t2.outcome)
				continue // and differs
			}
			verdict := "differs again"
			if d2.outcome == t2.outcome {
				verdict = "a flake"
			}
			t.Logf("  %s: %s: direct %s then %s, through %s then %s", verdict, d.name, d.direct.outcome, d2.outcome, d.through.outcome, t2.outcome)
			direct.report[d.name], through.report[d.name] = d2, t2
		}
		differences = diff(direct.report, through.report)
		direct.logs += direct2.logs
		through.logs += through2.logs
	}

	t.Logf("door %s, seed %d", *door, *seed)
	t.Log("run           specs  passed  failed  skipped  minutes")
	for _, r := range []struct {
		name   string
		report report
		took   time.Duration
	}{
		{"direct", direct.report, direct.took},
		{"  of NRI", direct.report.group("NRI"), direct.report.group("NRI").took()},
		{"through", through.report, through.took},
		{"  of NRI", through.report.group("NRI"), through.report.group("NRI").took()},
	} {
		t.Logf("%-13s %5d  %6d  %6d  %7d  %7.1f", r.name, len(r.report), r.report.count(passed), r.report.count(failed), r.report.count(skipped), r.took.Minutes())
	}
	if len(differences) == 0 {
		t.Log("diff of the outcomes: empty")
	}
	for _, d := range differences {
		t.Errorf("differs: %s", d)
	}
	checkFailures(t, expected, direct.report, through.report)
	checkSkips(t, skips, direct.report, through.report)
	if t.Failed() {
		t.Logf("logs of the direct run:\n%s", direct.logs)
		t.Logf("logs of the run through the door:\n%s", through.logs)
	}
}

func summary(r run) string {
	return fmt.Sprintf("%d specs passed, %d failed, %d skipped in %.1f minutes",
		r.report.count(passed), r.report.count(failed), r.report.count(skipped), r.took.Minutes())
}

// checkHooked makes sure that all that containerd was asked for came through the door and its hooks: else the suite would
// have tested containerd twice. A whole run has some of each method. A hook of NRI comes before what it announces is done,
// so it may have answered more calls than succeed.
func checkHooked(t *testing.T, through run, whole bool) {
	t.Helper()
	for _, method := range counted {
		hooked, inLog := through.hooked[method], through.runtime[method]
		t.Logf("through: %s: %d successful calls by the door's metrics, %d by containerd's log", method, hooked, inLog)
		if hooked < inLog || hooked != inLog && *door == node.CRI || whole && hooked < least/2 {
			t.Errorf("through: %s: %d successful calls by the door's metrics, %d by containerd's log: want the same, and many", method, hooked, inLog)
		}
	}
	c := through.counts
	t.Logf("through: %d decisions, %d messages changed, %d refused, %d failed open, %d bad input, %d kernel values written", c.Decisions, c.Changed, c.Refused, c.FailedOpen, c.BadInput, c.Writes)
	if touched := c.Changed + c.Refused + c.FailedOpen + c.BadInput + c.Writes + c.WriteFails; *tier == "" && *door == node.NRI && touched > 0 {
		t.Errorf("through: pods without a tier are not left alone: %+v", c)
	}
	if *tier != "" && c.Changed == 0 {
		t.Errorf("through: nothing was changed, though all pods have tier %s", *tier)
	}
}

// checkFailures names the specs that fail, which have to be on the list, and the lines that no spec needs any more.
func checkFailures(t *testing.T, list []listed, direct, through report) {
	t.Helper()
	for _, r := range []struct {
		name   string
		report report
	}{{"direct", direct}, {"through", through}} {
		for _, name := range r.report.named(failed) {
			if l, ok := find(list, name); ok {
				t.Logf("%s: fails as expected: %s: %s", r.name, name, l.why)
			} else {
				t.Errorf("%s: fails and is not in expected-failures.txt: %s\n    %s", r.name, name, strings.ReplaceAll(r.report[name].detail, "\n", "\n    "))
			}
		}
	}
	for _, l := range unused(list, direct.named(failed)) {
		if *focus == "" {
			t.Errorf("expected-failures.txt: fails no more: %s", l.pattern)
		}
	}
}

// checkSkips names the specs that critest skips, which have to be on the list. What a line names may run on another
// machine.
func checkSkips(t *testing.T, list []listed, direct, through report) {
	t.Helper()
	for _, r := range []struct {
		name   string
		report report
	}{{"direct", direct}, {"through", through}} {
		if *focus != "" {
			return // everything else is skipped
		}
		for _, name := range r.report.named(skipped) {
			if l, ok := find(list, name); ok {
				t.Logf("%s: skipped: %s: %s", r.name, name, l.why)
			} else {
				t.Errorf("%s: skipped and not in skips.txt: %s: %s", r.name, name, r.report[name].detail)
			}
		}
	}
	for _, l := range unused(list, direct.named(skipped)) {
		t.Logf("skips.txt: runs on this machine: %s", l.pattern)
	}
}
