// Package bench measures what the proxy costs: calls of one fake runtime, direct, through a plain io.Copy relay, and
// through the proxy, and pods of a real containerd, direct and through the proxy. What it compares are ratios within one
// run, since they hold on a noisy machine; microseconds don't.
//
// Each endpoint is a process of its own, as a runtime and a proxy are. Endpoints are called in turn, one call each per
// round, so that what the machine does besides hits all of them.
//
//	if bench.Role(os.Args) { return } // this process is the fake runtime or the io.Copy relay
//	r, err := bench.Run(ctx, bench.Config{Proxy: path, Dir: dir, Runs: 5, Rounds: 1000})
//	r.Print(os.Stdout)
package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Config of a run.
type Config struct {
	Proxy    string                    // the program
	Dir      string                    // an empty folder, for sockets and logs
	RunDir   string                    // the proxy\'s run directory, on a tmpfs as on a node
	Runs     int                       // the median of so many counts
	Rounds   int                       // of the small calls in each run; lists and streams take fewer
	Relists  int                       // lists that CPU time is measured over
	Known    int                       // containers that the proxy has made before, and that the list of 500 is of
	Parent   string                    // cgroup of the pods, ends in /kubepods; need not exist
	PodDir   func(cgroup string) error // makes the cgroup of a pod with a tier; nil: it is not there
	Progress func(string)
}

// Names of the endpoints.
const (
	direct = "direct"
	copied = "io.Copy"
	proxy  = "proxy"
)

// endpoint is a way to the fake runtime.
type endpoint struct {
	name string
	*client
	process *process // nil for direct
}

// Run measures everything that needs the fake runtime alone.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var processes []*process
	defer func() {
		for _, p := range slices.Backward(processes) {
			p.end()
		}
	}()
	start := func(name string, socket string, args ...string) (*process, error) {
		p, err := startProcess(ctx, filepath.Join(cfg.Dir, name+".log"), socket, args...)
		if err == nil {
			processes = append(processes, p)
		}
		return p, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	socket := func(name string) string { return filepath.Join(cfg.Dir, name+".sock") }
	cfg.Progress("starting a fake runtime, an io.Copy relay and the proxy")
	if _, err := start("runtime", socket("runtime"), self, roleRuntime, socket("runtime")); err != nil {
		return nil, err
	}
	copier, err := start("copy", socket("copy"), self, roleCopy, socket("copy"), socket("runtime"))
	if err != nil {
		return nil, err
	}
	door, err := start("proxy", socket("proxy"), cfg.Proxy, "--listen", "unix://"+socket("proxy"), "--runtime-endpoint", "unix://"+socket("runtime"), "--run-dir", cfg.RunDir)
	if err != nil {
		return nil, err
	}
	var ends []*endpoint
	for _, e := range []struct {
		name, socket string
		process      *process
	}{{direct, socket("runtime"), nil}, {copied, socket("copy"), copier}, {proxy, socket("proxy"), door}} {
		c, err := dial(e.socket)
		if err != nil {
			return nil, err
		}
		defer c.conn.Close()
		ends = append(ends, &endpoint{e.name, c, e.process})
	}

	r := &Report{Machine: machine(), Runs: cfg.Runs, Rounds: cfg.Rounds, Known: cfg.Known}
	info, err := os.Stat(cfg.Proxy)
	if err != nil {
		return nil, err
	}
	r.Binary = info.Size()
	cfg.Progress(fmt.Sprintf("making %d containers through the proxy", cfg.Known))
	node, err := fill(ctx, cfg, ends)
	if err != nil {
		return nil, err
	}
	if r.Filled, err = door.memory(); err != nil {
		return nil, err
	}
	for run := range cfg.Runs {
		for _, c := range node.calls() {
			cfg.Progress(fmt.Sprintf("run %d of %d: %s", run+1, cfg.Runs, c.name))
			if err := r.measure(ctx, c, max(cfg.Rounds/c.rarer, 10), ends); err != nil {
				return nil, err
			}
		}
	}
	// After all calls, the large ones too: a relay that keeps what it has once needed shows here.
	if r.Worked, err = door.memory(); err != nil {
		return nil, err
	}
	for _, e := range ends[1:] {
		cfg.Progress(fmt.Sprintf("%d relists of %d containers through %s", cfg.Relists, cfg.Known, e.name))
		seconds, err := relist(ctx, e, cfg.Relists)
		if err != nil {
			return nil, err
		}
		r.Relists = append(r.Relists, Relist{e.name, seconds})
	}
	return r, nil
}

// measure calls every endpoint in turn. They take turns at being first, since a call finds the caches as the one before
// has left them.
func (r *Report) measure(ctx context.Context, c call, rounds int, ends []*endpoint) error {
	took := make([][]time.Duration, len(ends))
	warm := min(20, rounds)
	for round := range warm + rounds {
		for i := range ends {
			at := (round + i) % len(ends)
			d, err := c.do(ctx, ends[at])
			if err != nil {
				return fmt.Errorf("%s through %s: %w", c.name, ends[at].name, err)
			}
			if round >= warm {
				took[at] = append(took[at], d)
			}
		}
	}
	for i, e := range ends {
		slices.Sort(took[i])
		r.add(c, e.name, quantile(took[i], 0.5), quantile(took[i], 0.99))
	}
	return nil
}

// quantile of sorted values.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[int(q*float64(len(sorted)-1))]
}

// relist gives the CPU seconds that an endpoint takes for 1,000 lists.
func relist(ctx context.Context, e *endpoint, lists int) (float64, error) {
	before, err := e.process.cpu()
	if err != nil {
		return 0, err
	}
	for range lists {
		if _, err := e.list(ctx, listKnown); err != nil {
			return 0, fmt.Errorf("list through %s: %w", e.name, err)
		}
	}
	after, err := e.process.cpu()
	return (after - before).Seconds() * 1000 / float64(lists), err
}

// Role runs the program as the process that args name, and says whether they name one.
func Role(args []string) bool {
	if len(args) < 3 {
		return false
	}
	var err error
	switch args[1] {
	case roleRuntime:
		err = serveRuntime(args[2])
	case roleCopy:
		err = serveCopy(args[2], args[3])
	default:
		return false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		syscall.Exit(1)
	}
	return true
}

const (
	roleRuntime = "fake-runtime"
	roleCopy    = "copy-relay"
)
