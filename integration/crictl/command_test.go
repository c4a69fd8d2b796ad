package crictl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tideline-io/tideline/integration/lab"
)

// result is what a command did.
type result struct {
	code        int
	out, errors string
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d\nstdout:\n%s\nstderr:\n%s", r.code, strings.TrimRight(r.out, "\n"), strings.TrimRight(r.errors, "\n"))
}

// side is crictl with one endpoint, and what it has made there.
type side struct {
	name    string // direct or through
	crictl  string
	config  string
	aliases [][2]string // ids and the like, and what stands for each in a comparison
}

// newSide writes the configuration of crictl.
func newSide(t *testing.T, l *lab.Lab, name, socket string) *side {
	t.Helper()
	path, err := l.Part("crictl")
	if err != nil {
		t.Fatal(err)
	}
	s := &side{name: name, crictl: path, config: filepath.Join(l.Dir(), name+".crictl.yaml")}
	text := fmt.Sprintf("runtime-endpoint: unix://%[1]s\nimage-endpoint: unix://%[1]s\ntimeout: 120\n", socket)
	if err := os.WriteFile(s.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

// alias has what stand for an id, also where it is cut to the 13 characters of a table.
func (s *side) alias(id, what string) {
	if id == "" {
		return
	}
	s.aliases = append(s.aliases, [2]string{id, "<" + what + ">"})
	if len(id) == 64 {
		s.aliases = append(s.aliases, [2]string{id[:13], "<" + what + ">"})
	}
}

func (s *side) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.crictl, append([]string{"--config", s.config}, args...)...)
	cmd.Env = append(os.Environ(), "TERM=dumb")
	return cmd
}

// run runs a command to its end.
func (s *side) run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := s.command(ctx, args...)
	var out, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%s: crictl %s: %v: %v\n%s", s.name, strings.Join(args, " "), err, ctx.Err(), stderr.String())
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), stderr.String()}
}

// changing values, and what stands for each in a comparison.
var changing = []struct {
	re *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*( ?(Z|[+-]\d\d:?\d\d))?( UTC)?`), "<time>"},
	{regexp.MustCompile(`(?m)^[EWI]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ `), "<klog> "},
	{regexp.MustCompile(`\b\d{19}\b`), "0"}, // nanoseconds; numbers stay numbers, so that JSON stays JSON
	{regexp.MustCompile(`(Less than a second|About an? \w+|\d+ \w+) ago`), "<age>"},
	{regexp.MustCompile(`\b10\.88\.0\.\d+\b`), "<address>"},
	{regexp.MustCompile(`\bfe80::[0-9a-f:]+`), "<address>"},
	{regexp.MustCompile(`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`), "<MAC>"},
	{regexp.MustCompile(`\bcni-[0-9a-f-]{36}\b`), "<netns>"},
	{regexp.MustCompile(`\bveth[0-9a-f]{8}\b`), "<veth>"},
	{regexp.MustCompile(`(start exec \\*")[0-9a-f]{64}`), "${1}<exec>"},
	{regexp.MustCompile(`("pid": )\d+`), "${1}0"},
	{regexp.MustCompile(`/proc/\d+/`), "/proc/<pid>/"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+|\[::1\]:\d+`), "<loopback>"},
	{regexp.MustCompile(`(?m) +$`), ""},
	{regexp.MustCompile(`(\S) {2,}`), "$1  "}, // a column is as wide as its longest age
}

// measured are numbers of statistics, and the widths of a table that go with them.
var measured = []struct {
	re *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`("(?:value|usageNanoCores|timestamp)": )"\d+"`), `${1}"<number>"`},
	{regexp.MustCompile(`-?\b\d+(\.\d+)?(e[+-]\d+)?([kMG]?B)?\b`), "<number>"},
	{regexp.MustCompile(` {2,}`), "  "},
}

// normal replaces all that two runs of one command never have in common.
func (s *side) normal(text string) string {
	aliases := slices.Clone(s.aliases)
	slices.SortStableFunc(aliases, func(a, b [2]string) int { return len(b[0]) - len(a[0]) }) // whole ids before cut ones
	for _, a := range aliases {
		text = strings.ReplaceAll(text, a[0], a[1])
	}
	for _, c := range changing {
		text = c.re.ReplaceAllString(text, c.as)
	}
	return text
}

// numbers replaces what is measured.
func numbers(text string) string {
	for _, m := range measured {
		text = m.re.ReplaceAllString(text, m.as)
	}
	return text
}

// without parses JSON and removes what differs on purpose. Each path is a list of keys; a list on the way means all that
// is in it.
func without(text string, paths ...[]string) string {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return text // it is compared as it is
	}
	var remove func(v any, path []string)
	remove = func(v any, path []string) {
		switch v := v.(type) {
		case map[string]any:
			if len(path) == 1 {
				delete(v, path[0])
				return
			}
			remove(v[path[0]], path[1:])
		case []any:
			for _, e := range v {
				remove(e, path)
			}
		}
	}
	for _, p := range paths {
		remove(v, p)
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return text
	}
	return string(b)
}

// sorted sorts lines, for lists that containerd makes from a map.
func sorted(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimSuffix(l, ",")
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// differing shows two texts without the lines that they begin and end with alike.
func differing(direct, through string) string {
	x, y := strings.Split(direct, "\n"), strings.Split(through, "\n")
	begin := 0
	for len(x) > 0 && len(y) > 0 && x[0] == y[0] {
		x, y, begin = x[1:], y[1:], begin+1
	}
	for len(x) > 0 && len(y) > 0 && x[len(x)-1] == y[len(y)-1] {
		x, y = x[:len(x)-1], y[:len(y)-1]
	}
	var out strings.Builder
	fmt.Fprintf(&out, "  from line %d on\n", begin+1)
	for _, side := range []struct {
		name  string
		lines []string
	}{{"direct: ", x}, {"through:", y}} {
		for i, l := range side.lines {
			if i == 20 {
				fmt.Fprintf(&out, "    %s … and %d lines more\n", side.name, len(side.lines)-i)
				break
			}
			fmt.Fprintf(&out, "    %s %s\n", side.name, l)
		}
	}
	return out.String()
}

// follower is a command that runs on and prints meanwhile.
type follower struct {
	cmd  *exec.Cmd
	done chan struct{}
	mu   sync.Mutex
	out  bytes.Buffer
	log  bytes.Buffer // what goes to stderr
}

// locked is one of a follower's buffers as a writer.
type locked struct {
	f  *follower
	to *bytes.Buffer
}

func (l locked) Write(b []byte) (int, error) {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	return l.to.Write(b)
}

func (f *follower) errors() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.String()
}

func (f *follower) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.String()
}

// follow starts a command; it is interrupted at the end of the test at the latest.
func (s *side) follow(t *testing.T, args ...string) *follower {
	t.Helper()
	f := &follower{cmd: s.command(context.WithoutCancel(t.Context()), args...), done: make(chan struct{})}
	f.cmd.Stdout, f.cmd.Stderr = locked{f, &f.out}, locked{f, &f.log}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the command; stop waits for it
		_ = f.cmd.Wait()
		close(f.done)
	}()
	t.Cleanup(func() { f.stop(t) })
	return f
}

// stop interrupts the command, as Ctrl-C does, and waits for its end.
func (f *follower) stop(t *testing.T) {
	t.Helper()
	_ = f.cmd.Process.Signal(os.Interrupt) // it may have ended
	select {
	case <-f.done:
	case <-time.After(20 * time.Second):
		t.Errorf("%s does not end on SIGINT", strings.Join(f.cmd.Args, " "))
		_ = f.cmd.Process.Kill()
		<-f.done
	}
}

// sees waits until the command has printed something that matches.
func (f *follower) sees(t *testing.T, what *regexp.Regexp) []string {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if m := what.FindStringSubmatch(f.String()); m != nil {
			return m
		}
		select {
		case <-f.done:
			t.Fatalf("%s ended: %s\n%s", strings.Join(f.cmd.Args, " "), f.errors(), f.String())
		default:
		}
	}
	t.Fatalf("%s did not print %q within 30 s:\n%s", strings.Join(f.cmd.Args, " "), what, f.String())
	return nil
}
