package plugin

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/cgroup/cgrouptest"
	"github.com/tideline-io/tideline/internal/facts/nri/nritest"
)

// What the bars are about.
const (
	benchKnown  = 500
	benchRounds = 1500
	barHook     = time.Millisecond // p99 of a hook's own time
	benchSync   = 5000
	barSync     = time.Second
)

// BenchmarkTable measures the hooks, and prints each measure with its bar; `make bench-nri` runs it, once and in a tmpfs.
// It fails only where it can't measure, since a busy machine measures itself.
func BenchmarkTable(b *testing.B) {
	debug.SetGCPercent(50) // as main does
	begin := time.Now()
	progress := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "bench-nri: %5.1f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	for range b.N {
		var t table
		for _, layout := range []cgrouptest.Layout{cgrouptest.V1, cgrouptest.V2} {
			progress("hooks with %d containers known, cgroup %s", benchKnown, layout)
			benchHooks(b, layout, &t)
			progress("round trips beside an idle plugin, cgroup %s", layout)
			benchTrips(b, layout, &t)
		}
		for run := range 3 {
			progress("Synchronize of %d containers, run %d", benchSync, run+1)
			benchSynchronize(b, &t)
		}
		t.print(os.Stdout)
	}
}

// table collects what was measured.
type table struct {
	hooks, trips, syncs []*row
}

type row struct {
	name   string
	took   []time.Duration
	beside []time.Duration // an idle plugin
	bar    time.Duration   // 0: none
}

func add(rows *[]*row, name string, bar time.Duration, took time.Duration) *row {
	i := slices.IndexFunc(*rows, func(r *row) bool { return r.name == name })
	if i < 0 {
		i = len(*rows)
		*rows = append(*rows, &row{name: name, bar: bar})
	}
	r := (*rows)[i]
	r.took = append(r.took, took)
	return r
}

func quantile(d []time.Duration, q float64) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[min(int(q*float64(len(d))), len(d)-1)].Round(100 * time.Nanosecond)
}

func (t *table) print(out io.Writer) {
	passed, all := 0, 0
	var missed []string
	verdict := func(name string, got, bar time.Duration) string {
		if bar == 0 {
			return "-\t"
		}
		all++
		if got <= bar {
			passed++
			return fmt.Sprintf("%v\tpass", bar)
		}
		missed = append(missed, name)
		return fmt.Sprintf("%v\tmiss", bar)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\nown time of a hook, %d containers known, %d rounds\n\tp50\tp99\tmax\tbar of p99\t\t\n", benchKnown, benchRounds)
	for _, r := range t.hooks {
		p99 := quantile(r.took, 0.99)
		fmt.Fprintf(w, "%s\t%v\t%v\t%v\t%s\t\n", r.name, quantile(r.took, 0.5), p99, quantile(r.took, 1), verdict(r.name, p99, r.bar))
	}
	fmt.Fprintf(w, "\nround trip through NRI, called in turn\n\tours p50\tp99\tidle p50\tp99\tours/idle p50\t\n")
	for _, r := range t.trips {
		fmt.Fprintf(w, "%s\t%v\t%v\t%v\t%v\t%.2f\t\n", r.name, quantile(r.took, 0.5), quantile(r.took, 0.99), quantile(r.beside, 0.5), quantile(r.beside, 0.99),
			float64(quantile(r.took, 0.5))/float64(quantile(r.beside, 0.5)))
	}
	fmt.Fprintf(w, "\nSynchronize of %d containers\n\tmedian\tworst\tbar of worst\t\t\n", benchSync)
	for _, r := range t.syncs {
		worst := quantile(r.took, 1)
		fmt.Fprintf(w, "%s\t%v\t%v\t%s\t\n", r.name, quantile(r.took, 0.5).Round(time.Millisecond), worst.Round(time.Millisecond), verdict(r.name, worst, r.bar))
	}
	_ = w.Flush()
	fmt.Fprintf(out, "\nbench-nri: %d of %d bars passed", passed, all)
	if len(missed) > 0 {
		fmt.Fprintf(out, "; missed: %s", strings.Join(missed, ", "))
	}
	fmt.Fprintln(out)
}

// subject is one pod with one container, of tiers in turn.
type subject struct {
	pod  *api.PodSandbox
	made *made
	id   string
}

func subjectOf(n int) subject {
	p := pod(fmt.Sprintf("%08x-0000-4000-8000-000000000000", n), []string{"LS", "BE", "LSR", ""}[n%4], v1alpha1.AnnotationBatchResources, batch)
	res := burstable()
	if n%4 == 1 {
		res = besteffort()
	}
	return subject{p, &made{pod: p.Id, name: "app", spec: nritest.Create(res), annotations: map[string]string{"io.kubernetes.container.restartCount": "0"}}, containerID(n)}
}

func (s subject) message() *api.Container {
	c := nritest.Container(s.id, s.made.spec, s.made.annotations)
	c.Name, c.PodSandboxId, c.Pid, c.State = s.made.name, s.made.pod, s.made.pid, s.made.state
	return c
}

// caller is the way to a plugin.
type caller struct {
	run, removePod                                    func(context.Context, *api.PodSandbox) error
	create, post, start, update, posted, stop, remove func(context.Context, *api.PodSandbox, *api.Container) error
	adjusted                                          func() *api.ContainerAdjustment
}

// life runs through the life of a container. kernel does what kubelet and runtime do to cgroups.
func (s subject) life(t testing.TB, c caller, m *machine, pid int, ends bool, took func(hook string, d time.Duration)) {
	call := func(hook string, f func(context.Context) error) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		began := time.Now()
		err := f(ctx)
		took(hook, time.Since(began))
		must(t, err)
	}
	about := func(hook string, f func(context.Context, *api.PodSandbox, *api.Container) error) {
		msg := s.message()
		call(hook, func(ctx context.Context) error { return f(ctx, s.pod, msg) })
	}
	at := cgroupOf(s.pod, s.id)
	must(t, m.k.Make(at))
	must(t, m.k.AddProcess(pid, at))
	if m.layout == cgrouptest.V1 {
		must(t, m.k.Set(at, "cpu.cfs_quota_us", "200000"))
	}
	call("RunPodSandbox", func(ctx context.Context) error { return c.run(ctx, s.pod) })
	about("CreateContainer", c.create)
	if adj := c.adjusted(); adj != nil {
		must(t, nritest.Adjust(s.made.spec, adj))
	}
	about("PostCreateContainer", c.post)
	s.made.pid = uint32(pid)
	about("StartContainer", c.start)
	s.made.state = api.ContainerState_CONTAINER_RUNNING
	about("UpdateContainer", c.update)
	about("PostUpdateContainer", c.posted)
	if !ends {
		return
	}
	about("StopContainer", c.stop)
	s.made.pid, s.made.state = 0, api.ContainerState_CONTAINER_STOPPED
	must(t, m.k.Rmdir(at))
	about("RemoveContainer", c.remove)
	must(t, m.k.Rmdir(cgroup.Path(s.pod.GetLinux().GetCgroupParent())))
	call("RemovePodSandbox", func(ctx context.Context) error { return c.removePod(ctx, s.pod) })
}

var resize = &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(int64(200000)), Period: api.UInt64(uint64(100000))}}

// direct calls the hooks.
func direct(p *Plugin) caller {
	h := (*hooks)(p)
	var adj *api.ContainerAdjustment
	return caller{
		run: h.RunPodSandbox, removePod: h.RemovePodSandbox, post: h.PostCreateContainer, start: h.StartContainer, posted: h.PostUpdateContainer, remove: h.RemoveContainer,
		create: func(ctx context.Context, p *api.PodSandbox, c *api.Container) (err error) {
			adj, _, err = h.CreateContainer(ctx, p, c)
			return err
		},
		update: func(ctx context.Context, p *api.PodSandbox, c *api.Container) error {
			_, err := h.UpdateContainer(ctx, p, c, resize)
			return err
		},
		stop: func(ctx context.Context, p *api.PodSandbox, c *api.Container) error {
			_, err := h.StopContainer(ctx, p, c)
			return err
		},
		adjusted: func() *api.ContainerAdjustment { return adj },
	}
}

// through calls them as a runtime does.
func through(a *adaptation.Adaptation) caller {
	var adj *api.ContainerAdjustment
	return caller{
		run: func(ctx context.Context, p *api.PodSandbox) error {
			return a.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: p})
		},
		removePod: func(ctx context.Context, p *api.PodSandbox) error {
			return a.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: p})
		},
		create: func(ctx context.Context, p *api.PodSandbox, c *api.Container) error {
			answer, err := a.CreateContainer(ctx, &api.CreateContainerRequest{Pod: p, Container: c})
			adj = answer.GetAdjust()
			return err
		},
		post: func(ctx context.Context, p *api.PodSandbox, c *api.Container) error {
			return a.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: p, Container: c})
		},
		start: func(ctx context.Context, p *api.PodSandbox, c *api.Container) error {
			return a.StartContainer(ctx, &api.StartContainerRequest{Pod: p, Container: c})
		},
		update: func(ctx context.Context, p *api.PodSandbox, c *api.Container) error {
			_, err := a.UpdateContainer(ctx, &api.UpdateContainerRequest{Pod: p, Container: c, LinuxResources: &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: resize.Cpu.Quota, Period: resize.Cpu.Period}}})
			return err
		},
		posted: func(ctx context.Context, p *api.PodSandbox, c *api.Container) error {
			return a.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: p, Container: c})
		},
		stop: func(ctx context.Context, p *api.PodSandbox, c *api.Container) error {
			_, err := a.StopContainer(ctx, &api.StopContainerRequest{Pod: p, Container: c})
			return err
		},
		remove: func(ctx context.Context, p *api.PodSandbox, c *api.Container) error {
			return a.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: p, Container: c})
		},
		adjusted: func() *api.ContainerAdjustment { return adj },
	}
}

func forgetTime(string, time.Duration) {}

// fill makes the containers that a node has.
func fill(t testing.TB, c caller, m *machine) {
	for i := range benchKnown {
		subjectOf(i).life(t, c, m, 100+i, false, forgetTime)
	}
}

func benchHooks(b *testing.B, layout cgrouptest.Layout, t *table) {
	m, _, p := pair(b, layout)
	c := direct(p.p)
	fill(b, c, m)
	ping, pong := make(chan struct{}), make(chan struct{})
	defer close(ping)
	go func() {
		for range ping {
			pong <- struct{}{}
		}
	}()
	for i := range benchRounds {
		began := time.Now()
		ping <- struct{}{}
		<-pong
		add(&t.hooks, "the machine: another goroutine answers", 0, time.Since(began))
		subjectOf(benchKnown+i).life(b, c, m, 100000+i, true, func(hook string, d time.Duration) {
			add(&t.hooks, hook+" "+string(layout), barHook, d)
		})
	}
	if n := p.counts(); n.FailedOpen+n.WriteFails > 0 || n.Changed == 0 {
		b.Errorf("%+v", n)
	}
	p.stop()
}

// idle is a plugin that is asked everything that ours is, and answers nothing.
type idle struct{}

func (idle) RunPodSandbox(context.Context, *api.PodSandbox) error    { return nil }
func (idle) RemovePodSandbox(context.Context, *api.PodSandbox) error { return nil }
func (idle) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return nil, nil, nil
}
func (idle) PostCreateContainer(context.Context, *api.PodSandbox, *api.Container) error { return nil }
func (idle) StartContainer(context.Context, *api.PodSandbox, *api.Container) error      { return nil }
func (idle) UpdateContainer(context.Context, *api.PodSandbox, *api.Container, *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	return nil, nil
}
func (idle) PostUpdateContainer(context.Context, *api.PodSandbox, *api.Container) error { return nil }
func (idle) StopContainer(context.Context, *api.PodSandbox, *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, nil
}
func (idle) RemoveContainer(context.Context, *api.PodSandbox, *api.Container) error { return nil }

func benchTrips(b *testing.B, layout cgrouptest.Layout, t *table) {
	m, r, p := pair(b, layout)
	other := newMachine(b, layout)
	or := other.runtime()
	s, err := stub.New(idle{}, stub.WithSocketPath(other.socket), stub.WithPluginName("idle"), stub.WithPluginIdx("90"), stub.WithLogger(nriLog{p.p.cfg.Log}))
	must(b, err)
	must(b, s.Start(b.Context()))
	or.wait()
	ours, beside := through(r.a), through(or.a)
	fill(b, ours, m)
	for i := range benchRounds / 3 {
		subjectOf(benchKnown+i).life(b, ours, m, 100000+i, true, func(hook string, d time.Duration) { add(&t.trips, hook+" "+string(layout), 0, d) })
		subjectOf(benchKnown+i).life(b, beside, other, 100000+i, true, func(hook string, d time.Duration) {
			x := t.trips[slices.IndexFunc(t.trips, func(r *row) bool { return r.name == hook+" "+string(layout) })]
			x.beside = append(x.beside, d)
		})
	}
	s.Stop()
	p.stop()
	r.stop()
	or.stop()
}

// benchSynchronize measures the first time, one after a restart with records, and the way there and back.
func benchSynchronize(b *testing.B, t *table) {
	m := newMachine(b, cgrouptest.V2)
	r := m.newRuntime()
	for i := range benchSync {
		s := subjectOf(i)
		s.made.pid, s.made.state = uint32(1000+i), api.ContainerState_CONTAINER_RUNNING
		must(b, m.k.Make(cgroupOf(s.pod, s.id)))
		must(b, m.k.AddProcess(1000+i, cgroupOf(s.pod, s.id)))
		r.pods[s.pod.Id], r.made[s.id] = s.pod, s.made
	}
	r.spent = make(chan time.Duration, 10)
	r.start()
	for _, what := range []string{"never seen before", "with records"} {
		p := m.plugin()
		r.wait()
		add(&t.syncs, "there and back, "+what, barSync, <-r.spent)
		// Its own time, on what it knows. What follows the first has an end that shows: nothing is written any more.
		for before := ""; ; time.Sleep(200 * time.Millisecond) {
			now := fmt.Sprint(len(m.records()), len(m.k.Writes()))
			if now == before {
				break
			}
			before = now
		}
		var pods []*api.PodSandbox
		var containers []*api.Container
		for id, c := range r.made {
			pods, containers = append(pods, r.pods[c.pod]), append(containers, r.message(id))
		}
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		began := time.Now()
		_, err := (*hooks)(p.p).Synchronize(ctx, pods, containers)
		add(&t.syncs, "own time, known", barSync, time.Since(began))
		cancel()
		must(b, err)
		if n := p.counts(); n.FailedOpen > 0 {
			b.Errorf("%+v", n)
		}
		p.stop()
		r.drop(context.DeadlineExceeded)
	}
	r.stop()
}
