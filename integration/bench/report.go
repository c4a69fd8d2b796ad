package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what was measured.
type Report struct {
	Machine             string
	Runs, Rounds, Known int
	Calls               []*Call
	Filled, Worked      Memory // resident memory of the proxy with the known containers: before and after all calls
	Relists             []Relist
	Binary              int64  // bytes
	Pods                []Pair // create to Ready; nil: not measured
	NoPods              string // why not
}

// Call holds the quantiles of one kind of call, one for each run, by endpoint.
type Call struct {
	Name     string
	Bar, Aim float64
	p50, p99 map[string][]time.Duration
}

// Relist is the CPU time of an endpoint for 1,000 lists.
type Relist struct {
	Endpoint string
	Seconds  float64
}

// Pair is how long one pod took direct and the next one through the proxy.
type Pair struct{ Direct, Proxy time.Duration }

// Bars that are no call's p50.
const (
	barP99    = 1.5 // of io.Copy's
	barReady  = 1.02
	barMemory = 25 << 20
	barBinary = 40 << 20
)

func (r *Report) add(c call, endpoint string, p50, p99 time.Duration) {
	i := slices.IndexFunc(r.Calls, func(x *Call) bool { return x.Name == c.name })
	if i < 0 {
		i = len(r.Calls)
		r.Calls = append(r.Calls, &Call{Name: c.name, Bar: c.p50, Aim: c.aim, p50: map[string][]time.Duration{}, p99: map[string][]time.Duration{}})
	}
	x := r.Calls[i]
	x.p50[endpoint] = append(x.p50[endpoint], p50)
	x.p99[endpoint] = append(x.p99[endpoint], p99)
}

// ratio is the median over the runs of the ratio within each run.
func ratio(of map[string][]time.Duration, over, under string) float64 {
	var all []float64
	for i := range of[over] {
		all = append(all, float64(of[over][i])/float64(of[under][i]))
	}
	return median(all)
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// verdicts counts.
type verdicts struct {
	passed, all int
	missed      []string
}

func (v *verdicts) of(name string, ok bool) string {
	v.all++
	if ok {
		v.passed++
		return "pass"
	}
	v.missed = append(v.missed, name)
	return "miss"
}

// Print writes the tables and a summary in one line.
func (r *Report) Print(out io.Writer) error {
	var v verdicts
	fmt.Fprintf(out, "\n%s\n", r.Machine)
	fmt.Fprintf(out, "Ratios to direct within a run; median of %d runs of %d rounds (lists and streams fewer), %d containers known.\n\n", r.Runs, r.Rounds, r.Known)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "call\tdirect p50\tio.Copy p50\tproxy p50\tbar\t\tio.Copy p99\tproxy p99\tproxy/io.Copy p99\tbar\t\t")
	for _, c := range r.Calls {
		p50, p99 := ratio(c.p50, proxy, direct), ratio(c.p99, proxy, copied)
		bar := fmt.Sprintf("%.1f", c.Bar)
		if c.Aim > 0 {
			bar += fmt.Sprintf(" (aim %.1f)", c.Aim)
		}
		fmt.Fprintf(t, "%s\t%v\t%.2f\t%.2f\t%s\t%s\t%.2f\t%.2f\t%.2f\t%.1f\t%s\t\n", c.Name, middle(c.p50[direct]), ratio(c.p50, copied, direct), p50, bar, v.of(c.Name+" p50", p50 <= c.Bar),
			ratio(c.p99, copied, direct), ratio(c.p99, proxy, direct), p99, barP99, v.of(c.Name+" p99", p99 <= barP99))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	t = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "what\tmeasured\tbar\t")
	fmt.Fprintf(t, "resident memory after all calls\t%s\t25 MiB\t%s\n", r.Worked, v.of("resident memory", r.Worked.Sum() <= barMemory))
	fmt.Fprintf(t, "resident memory before them\t%s\t-\t\n", r.Filled)
	fmt.Fprintf(t, "CPU seconds for 1,000 relists of %d\t%s\t-\t\n", r.Known, relists(r.Relists))
	fmt.Fprintf(t, "size of the program\t%.1f MB\t40 MB\t%s\n", float64(r.Binary)/1e6, v.of("size", r.Binary <= barBinary))
	if r.Pods == nil {
		fmt.Fprintf(t, "pod create to Ready\tnot measured: %s\t%.2f\t\n", r.NoPods, barReady)
	} else {
		x, text := ready(r.Pods)
		fmt.Fprintf(t, "pod create to Ready, proxy/direct\t%s\t%.2f\t%s\n", text, barReady, v.of("create to Ready", x <= barReady))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nbench-proxy: %d of %d bars passed", v.passed, v.all)
	if len(v.missed) > 0 {
		fmt.Fprintf(out, "; missed: %s", strings.Join(v.missed, ", "))
	}
	fmt.Fprintln(out)
	return nil
}

// String shows both parts.
func (m Memory) String() string {
	return fmt.Sprintf("%.1f MiB (RssAnon %.1f + RssFile %.1f)", mib(m.Sum()), mib(m.Anon), mib(m.File))
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

func middle(d []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(d))[len(d)/2].Round(time.Microsecond)
}

func relists(all []Relist) string {
	var parts []string
	for _, x := range all {
		parts = append(parts, fmt.Sprintf("%s %.2f", x.Endpoint, x.Seconds))
	}
	return strings.Join(parts, ", ")
}

// ready gives the ratio of the medians, and for people how far the ratios of the pairs lie apart: on a busy machine that
// is more than the bar.
func ready(pairs []Pair) (float64, string) {
	var d, p []time.Duration
	var each []float64
	for _, x := range pairs {
		d, p = append(d, x.Direct), append(p, x.Proxy)
		each = append(each, float64(x.Proxy)/float64(x.Direct))
	}
	slices.Sort(d)
	slices.Sort(p)
	slices.Sort(each)
	x := float64(quantile(p, 0.5)) / float64(quantile(d, 0.5))
	return x, fmt.Sprintf("%.3f (%v and %v; %d pairs, half of them %.2f to %.2f)", x, quantile(d, 0.5).Round(100*time.Microsecond), quantile(p, 0.5).Round(100*time.Microsecond),
		len(pairs), each[len(each)/4], each[len(each)*3/4])
}
