// Package door is what the process of every door has in common: the run directory with its lock, the policy file, the
// engine, the control socket with metrics and health, and bypass. A door adds its protocol.
//
//	d, err := door.Open(door.Config{Name: "nri", Root: "/", RunDir: "/run/tideline", Connect: connect, …})
//	defer d.Close()
//	err = d.Run(ctx)      // until ctx is done
//	plan, err := d.Engine().Create(ctx, c) // nil while the engine can't be made: the call passes as it is
package door

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/partition"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/preflight"
)

// Config says where things are, and what the door adds.
type Config struct {
	Name           string // "cri" or "nri"
	Root           string // "/"
	RunDir         string // made when missing
	PolicyFile     string // "" for the built-in policy
	Mode           control.Mode
	MetricsAddress string // loopback HOST:PORT, or ""
	DecisionBudget time.Duration
	Listen         string // told in the status
	Endpoint       string // of the runtime; told in the status
	Collectors     []prometheus.Collector
	Log            *slog.Logger

	Recheck bool // see engine.Config

	// Connect makes the door's side of an engine on a machine with that cgroup version. It is called until it has
	// succeeded once; nil for a door that decides nothing.
	Connect func(cgroupVersion int) (Link, error)
}

// Link is how an engine and a runtime know of each other.
type Link interface {
	engine.Runtime
	// Carries says whether the door's protocol carries a container's knob.
	Carries(policy.Knob) bool
	// Run keeps up with the runtime until ctx is done. It tells the door what it hears, and has the engine adopt.
	Run(ctx context.Context, d *Door, e *engine.Engine) error
}

// Door is a process between a kubelet and its runtime.
type Door struct {
	cfg      Config
	log      *slog.Logger
	started  time.Time
	lock     *os.File
	controls []net.Listener
	policy   policyFile
	online   string // sys/devices/system/cpu/online as it was read last
	runtime  runtimeState
	core     atomic.Pointer[core]
	why      atomic.Pointer[string] // why there is no core, or why it only observes; "" and nil for no reason
}

// core is what decides.
type core struct {
	engine     *engine.Engine
	link       Link
	partitions *partition.Keeper
}

// Open takes the lock of the run directory and opens the control socket. It is called before anything else runs, since the
// umask is the whole process's. Run closes what it opens; Close does where Run is not called.
func Open(cfg Config) (*Door, error) {
	if err := checkLoopback(cfg.MetricsAddress); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.RunDir, 0o755); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	lock, err := Lock(cfg.RunDir)
	if err != nil {
		return nil, err
	}
	d := &Door{cfg: cfg, log: cfg.Log, started: time.Now(), lock: lock}
	if d.controls, err = d.listenControl(); err != nil {
		lock.Close()
		return nil, err
	}
	if cfg.Connect != nil {
		d.tryBuild() // before the first call, if it can be
	}
	return d, nil
}

// Close gives the lock and the sockets back.
func (d *Door) Close() {
	for _, c := range d.controls {
		c.Close()
	}
	d.lock.Close()
}

// Engine is what decides; nil while it can't be made.
func (d *Door) Engine() *engine.Engine {
	if c := d.core.Load(); c != nil {
		return c.engine
	}
	return nil
}

// Run serves the control socket and runs the engine until ctx is done.
func (d *Door) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.serveControl(ctx, d.controls) })
	if d.cfg.Connect != nil {
		g.Go(func() error { return d.decide(ctx) })
	}
	g.Go(func() error { return d.watchdog(ctx) })
	return g.Wait()
}

// buildRetry is how often a core that can't be built is tried again.
const buildRetry = 5 * time.Second

// tryBuild makes the core, or notes why it can't be made: an invalid policy, cgroups that are not mounted. The node then
// keeps its runtime: every call passes, as in bypass.
func (d *Door) tryBuild() {
	c, why, err := d.build()
	if err != nil {
		why = "not deciding, every call passes: " + err.Error()
	}
	if old := d.why.Load(); why != "" && (old == nil || *old != why) {
		d.log.Error("degraded", "why", why)
	}
	d.why.Store(&why)
	if err == nil {
		d.core.Store(c)
	}
}

// decide runs the core, once it can be built.
func (d *Door) decide(ctx context.Context) error {
	for d.core.Load() == nil {
		select {
		case <-time.After(buildRetry):
			d.tryBuild()
		case <-ctx.Done():
			return nil
		}
	}
	c := d.core.Load()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.engine.Run(ctx) })
	g.Go(func() error { return d.watchPolicy(ctx, c.engine) })
	g.Go(func() error { return d.watchCPUs(ctx, c.engine) })
	g.Go(func() error { return c.link.Run(ctx, d, c.engine) })
	return g.Wait()
}

// build makes everything that decides. why says why it only observes, when that was not asked for.
func (d *Door) build() (c *core, why string, err error) {
	d.online = d.onlineCPUs() // before the facts: what changes between the two is seen later
	facts, err := hostfs.Open(d.cfg.Root).ReadFacts()
	if err != nil {
		return nil, "", fmt.Errorf("read the facts of this machine: %w", err)
	}
	for _, p := range facts.Problems {
		d.log.Warn("a fact of this machine is unknown", "fact", p)
	}
	mode := d.cfg.Mode
	if others := preflight.OtherAgents(filepath.Join(d.cfg.Root, "proc")); len(others) > 0 && mode == control.ModeEnforce {
		mode, why = control.ModeObserve, "only observing: another QoS agent runs here: "+strings.Join(others, ", ")
	}
	d.policy = policyFile{path: d.cfg.PolicyFile}
	compiled, info, err := d.policy.load()
	if err != nil {
		return nil, "", err
	}
	fs, err := cgroup.Open(cgroup.Config{Root: d.cfg.Root, StateDir: filepath.Join(d.cfg.RunDir, "journal")})
	if err != nil {
		return nil, "", err
	}
	link, err := d.cfg.Connect(facts.Node.CgroupVersion)
	if err != nil {
		return nil, "", err
	}
	partitions := partition.New(d.cfg.Root)
	e := engine.New(engine.Config{
		Cgroups: fs, Runtime: link, StateDir: filepath.Join(d.cfg.RunDir, "records"), PlacementDir: filepath.Join(d.cfg.RunDir, "placements"), Node: facts.Node, Topology: facts.Topology(), KubeletReserved: d.kubeletReserved(),
		Policy: compiled, Info: info, Mode: mode, Bypass: d.bypassed(), DecisionBudget: d.cfg.DecisionBudget,
		Partitions: partitions, Carries: link.Carries, Recheck: d.cfg.Recheck, Clock: time.Now, Log: d.log,
	})
	return &core{engine: e, link: link, partitions: partitions}, why, nil
}

// Notify tells systemd a state of the process (daemon.SdNotifyReady, say).
func (d *Door) Notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		d.log.Warn("tell systemd", "err", err)
	}
}

// Lock takes the lock of the run directory, which one engine a node may hold, until the file is closed.
func Lock(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0)
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another door runs on this node (pid %s holds %s): one engine a node; stop it first, or use another --run-dir", holder[:n], path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d", os.Getpid()), 0)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("write lock: %w", err)
		}
	}
	return f, nil
}

func checkLoopback(address string) error {
	if address == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--metrics-address %q: want 127.0.0.1:PORT or [::1]:PORT", address)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("--metrics-address %q: only a loopback address, 127.0.0.1:PORT or [::1]:PORT; let your collector's agent on the node read it", address)
	}
	return nil
}

// bypassFile remembers bypass over a restart.
func (d *Door) bypassFile() string { return filepath.Join(d.cfg.RunDir, "bypass") }

func (d *Door) bypassed() bool {
	_, err := os.Stat(d.bypassFile())
	return err == nil
}

func (d *Door) setBypass(on bool) error {
	if on {
		if err := os.WriteFile(d.bypassFile(), []byte("on\n"), 0o600); err != nil {
			return fmt.Errorf("remember bypass: %w", err)
		}
	} else if err := os.Remove(d.bypassFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget bypass: %w", err)
	}
	if e := d.Engine(); e != nil {
		e.SetBypass(on)
	}
	d.log.Info("bypass", "on", on)
	return nil
}

// watchdog tells systemd that the process lives, when the unit has a WatchdogSec.
func (d *Door) watchdog(ctx context.Context) error {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		d.log.Warn("read systemd's watchdog settings", "err", err)
	}
	if every <= 0 {
		return nil
	}
	for {
		d.Notify(daemon.SdNotifyWatchdog)
		select {
		case <-time.After(every / 3):
		case <-ctx.Done():
			return nil
		}
	}
}
