package conformance

import (
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// outcome of a spec.
type outcome string

const (
	passed  outcome = "passed"
	failed  outcome = "failed"
	skipped outcome = "skipped"
	absent  outcome = "absent" // the other run has it
)

// spec is one spec of a run.
type spec struct {
	outcome outcome
	seconds float64
	detail  string // why it failed or was skipped
}

// unselected says that ginkgo was not told to run a spec: one that skips itself says why.
func (s spec) unselected() bool {
	return s.outcome == absent || s.outcome == skipped && s.detail == "skipped"
}

// report maps the names of the specs to what became of them.
type report map[string]spec

// leaf is how ginkgo marks a spec, to tell it from a node such as [BeforeSuite].
const leaf = "[It] "

// readReport parses ginkgo's JUnit file:
//
//	<testsuites tests="142" …><testsuite name="CRI validation" …>
//	  <testcase name="[It] [k8s.io] PodSandbox runtime should …" classname="CRI validation" status="passed" time="0.9">
//	    <failure message="…" type="failed">…</failure>  <skipped message="skipped - …"></skipped>
func readReport(path string) (report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read critest's report: %w", err)
	}
	return parseReport(b)
}

func parseReport(b []byte) (report, error) {
	type message struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
	var doc struct {
		Cases []struct {
			Name    string   `xml:"name,attr"`
			Status  string   `xml:"status,attr"`
			Seconds float64  `xml:"time,attr"`
			Failure *message `xml:"failure"`
			Error   *message `xml:"error"` // a panic or an interrupt
			Skipped *message `xml:"skipped"`
		} `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("parse critest's report: %w", err)
	}
	r := report{}
	for _, c := range doc.Cases {
		s := spec{seconds: c.Seconds}
		// ginkgo knows more ways to fail than one: panicked, timedout, interrupted, aborted.
		switch c.Status {
		case "passed":
			s.outcome = passed
		case "skipped", "pending":
			s.outcome = skipped
			if c.Skipped != nil {
				s.detail = strings.TrimPrefix(c.Skipped.Message, "skipped - ")
			}
		default:
			s.outcome = failed
			for _, m := range []*message{c.Failure, c.Error} {
				if m != nil {
					s.detail = strings.TrimSpace(m.Message + "\n" + m.Text)
				}
			}
		}
		name := c.Name
		if !strings.HasPrefix(name, leaf) && s.outcome != failed {
			continue // the suite's own nodes matter when they fail
		}
		name = strings.TrimPrefix(name, leaf)
		unique := name
		for i := 2; ; i++ {
			if _, ok := r[unique]; !ok {
				break
			}
			unique = fmt.Sprintf("%s (%d)", name, i)
		}
		r[unique] = s
	}
	return r, nil
}

// count tells how many specs came out so.
func (r report) count(o outcome) int {
	n := 0
	for _, s := range r {
		if s.outcome == o {
			n++
		}
	}
	return n
}

// group gives the specs of one group of critest: its names begin with "[k8s.io] ", the group and a blank.
func (r report) group(name string) report {
	out := report{}
	for n, s := range r {
		if strings.HasPrefix(n, "[k8s.io] "+name+" ") {
			out[n] = s
		}
	}
	return out
}

// took is how long the specs took.
func (r report) took() time.Duration {
	var d time.Duration
	for _, s := range r {
		d += time.Duration(s.seconds * float64(time.Second))
	}
	return d
}

// named lists the specs that came out so, sorted.
func (r report) named(o outcome) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if r[name].outcome == o {
			names = append(names, name)
		}
	}
	return names
}

// difference is a spec whose outcome is not the same in both runs.
type difference struct {
	name            string
	direct, through spec
}

func (d difference) String() string {
	s := fmt.Sprintf("%s: direct %s, through %s", d.name, d.direct.outcome, d.through.outcome)
	for _, x := range []struct{ run, detail string }{{"direct", d.direct.detail}, {"through", d.through.detail}} {
		if x.detail != "" {
			s += fmt.Sprintf("\n    %s: %s", x.run, strings.ReplaceAll(x.detail, "\n", "\n      "))
		}
	}
	return s
}

// diff lists what differs, sorted by name. That a spec was skipped for another reason is a difference too; a failure's
// text has times and ids in it, and is none.
func diff(direct, through report) []difference {
	names := maps.Clone(direct)
	maps.Copy(names, through)
	var out []difference
	for _, name := range slices.Sorted(maps.Keys(names)) {
		d, t := direct.of(name), through.of(name)
		if d.outcome != t.outcome || d.outcome == skipped && reason(d) != reason(t) {
			out = append(out, difference{name, d, t})
		}
	}
	return out
}

func (r report) of(name string) spec {
	if s, ok := r[name]; ok {
		return s
	}
	return spec{outcome: absent}
}

// numbers are what two runs do not have in common in a reason: "containerd lost 5 container(s) … ([6af8… 2fc3…])".
var numbers = regexp.MustCompile(`[0-9a-f]{64}( [0-9a-f]{64})*|[0-9]+`)

// reason is why a spec was skipped, without the numbers in it.
func reason(s spec) string { return numbers.ReplaceAllString(s.detail, "N") }

// listed is a line of skips.txt or expected-failures.txt.
type listed struct{ pattern, why string }

// readList parses lines of the form "NAME -- REASON"; a NAME that ends in * stands for all that begin so. Lines that
// begin with # are comments.
func readList(path string) ([]listed, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list []listed
	for i, line := range strings.Split(string(b), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, why, ok := strings.Cut(line, " -- ")
		if !ok || pattern == "" || why == "" {
			return nil, fmt.Errorf("parse %s:%d: %q: want NAME -- REASON", path, i+1, line)
		}
		list = append(list, listed{pattern, why})
	}
	return list, nil
}

// find returns the line that stands for a spec.
func find(list []listed, name string) (listed, bool) {
	for _, l := range list {
		prefix, cut := strings.CutSuffix(l.pattern, "*")
		if name == l.pattern || cut && strings.HasPrefix(name, prefix) {
			return l, true
		}
	}
	return listed{}, false
}

// unused returns the lines that stand for none of the names.
func unused(list []listed, names []string) []listed {
	var out []listed
	for _, l := range list {
		if !slices.ContainsFunc(names, func(n string) bool { _, ok := find([]listed{l}, n); return ok }) {
			out = append(out, l)
		}
	}
	return out
}
