// Package proxy puts the parts of the CRI door together and runs them until it is told to stop.
//
//	err := proxy.Run(ctx, proxy.Config{Root: "/", Listen: "unix:///run/tideline/cri.sock", …}, log)
//	// ctx done: drained and stopped, err is nil
package proxy

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
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"github.com/tideline-io/tideline/internal/apply/cri"
	"github.com/tideline-io/tideline/internal/cgroup"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/preflight"
	"github.com/tideline-io/tideline/runtime-proxy/internal/backend"
	"github.com/tideline-io/tideline/runtime-proxy/internal/hooks"
	"github.com/tideline-io/tideline/runtime-proxy/internal/listen"
	"github.com/tideline-io/tideline/runtime-proxy/internal/relay"
)

// DefaultDrainTimeout is below the 30 s after which systemd's and the kubelet's patience commonly end.
const DefaultDrainTimeout = 20 * time.Second

// Config says where things are.
type Config struct {
	Root            string // "/"
	Listen          string // unix:///PATH
	RuntimeEndpoint string // unix:///PATH
	PolicyFile      string // "" for the built-in policy
	Mode            control.Mode
	PassThrough     bool
	RunDir          string
	MetricsAddress  string // loopback HOST:PORT, or ""
	DecisionBudget  time.Duration
	DrainTimeout    time.Duration
}

// Run relays until ctx is done, then drains. It returns an error when it could not start or a part of it died.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	front, err := socketPath("--listen", cfg.Listen)
	if err != nil {
		return err
	}
	back, err := socketPath("--runtime-endpoint", cfg.RuntimeEndpoint)
	if err != nil {
		return err
	}
	if front == back {
		return fmt.Errorf("--listen and --runtime-endpoint are both %s: the proxy would talk to itself", front)
	}
	if err := checkLoopback(cfg.MetricsAddress); err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.RunDir, 0o755); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	lock, err := listen.Lock(cfg.RunDir)
	if err != nil {
		return err
	}
	defer lock.Close()

	d := &door{cfg: cfg, log: log, started: time.Now(), metrics: newMetrics()}
	relayConfig := relay.Config{
		Dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", back)
		},
		Observer: d.metrics.relayEvent(log),
		// The last net: a decision, its record and its files have budgets of their own, about three of these together.
		CallbackTimeout: max(time.Second, 10*cfg.DecisionBudget),
	}
	if !cfg.PassThrough {
		d.tryBuild(back) // before the first call, if it can be
		relayConfig.Hook = d.metrics.hook(func(method string) *relay.Call {
			if c := d.core.Load(); c != nil {
				return c.hooks.For(method)
			}
			return nil
		})
	}

	controls, err := d.listenControl()
	if err != nil {
		return err
	}
	l, from, err := listen.Open(front, back)
	if err != nil {
		for _, c := range controls {
			c.Close()
		}
		return err
	}
	server := relay.New(relayConfig)
	log.Info("relaying", "listen", front, "socket", from, "runtime", back, "mode", d.cfg.Mode, "passThrough", cfg.PassThrough, "runDir", cfg.RunDir)

	// The parts outlive ctx: running calls still need them while they drain.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, work := errgroup.WithContext(work)
	g.Go(func() error { return server.Serve(work, l) })
	g.Go(func() error { return d.serveControl(work, controls) })
	if !cfg.PassThrough {
		g.Go(func() error { return d.decide(work, back) })
	}
	g.Go(func() error { return d.watchdog(work) })
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Warn("tell systemd", "err", err)
	}
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-work.Done():
			return nil
		}
		if _, err := daemon.SdNotify(false, daemon.SdNotifyStopping); err != nil {
			log.Warn("tell systemd", "err", err)
		}
		log.Info("draining", "limit", cfg.DrainTimeout)
		drain, cancel := context.WithTimeout(work, cfg.DrainTimeout)
		defer cancel()
		if err := server.Shutdown(drain); err != nil {
			log.Warn("calls were cut off", "err", err)
		}
		stop()
		return nil
	})
	if err := g.Wait(); err != nil && !(errors.Is(err, context.Canceled) && ctx.Err() != nil) {
		return err
	}
	log.Info("stopped")
	return nil
}

// door is the running proxy.
type door struct {
	cfg     Config
	log     *slog.Logger
	started time.Time
	metrics *metrics
	policy  policyFile
	runtime runtimeState
	core    atomic.Pointer[core]   // nil with --pass-through, and while it can't be built
	why     atomic.Pointer[string] // why there is no core, or why it only observes; nil for no reason
}

// core is what decides.
type core struct {
	engine  *engine.Engine
	backend *backend.Backend
	hooks   *hooks.Hooks
}

// buildRetry is how often a core that can't be built is tried again.
const buildRetry = 5 * time.Second

// tryBuild makes the core, or notes why it can't be made: an invalid policy, cgroups that are not mounted. The node then
// keeps its runtime: every call passes, as in bypass.
func (d *door) tryBuild(back string) {
	c, why, err := d.build(back)
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
func (d *door) decide(ctx context.Context, back string) error {
	for d.core.Load() == nil {
		select {
		case <-time.After(buildRetry):
			d.tryBuild(back)
		case <-ctx.Done():
			return nil
		}
	}
	c := d.core.Load()
	defer c.backend.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.engine.Run(ctx) })
	g.Go(func() error { return d.watchPolicy(ctx, c.engine) })
	g.Go(func() error { return d.watchRuntime(ctx, c) })
	c.engine.Adopt()
	return g.Wait()
}

// build makes everything that decides. why says why it only observes, when that was not asked for.
func (d *door) build(back string) (c *core, why string, err error) {
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
	records := filepath.Join(d.cfg.RunDir, "records")
	version := facts.Node.CgroupVersion
	b, err := backend.New("unix://"+back, version)
	if err != nil {
		return nil, "", err
	}
	e := engine.New(engine.Config{
		Cgroups: fs, Runtime: b, Root: d.cfg.Root, StateDir: records, Node: facts.Node,
		Policy: compiled, Info: info, Mode: mode, Bypass: d.bypassed(), DecisionBudget: d.cfg.DecisionBudget,
		Carries: func(k policy.Knob) bool { return cri.Carries(version, k) }, Clock: time.Now, Log: d.log,
	})
	return &core{engine: e, backend: b, hooks: hooks.New(e, version, d.log)}, why, nil
}

func socketPath(flag, endpoint string) (string, error) {
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s %q: want unix:///PATH", flag, endpoint)
	}
	if path = filepath.Clean(path); len(path) > 107 {
		return "", fmt.Errorf("%s %q: a socket's path has at most 107 bytes", flag, endpoint)
	}
	return path, nil
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
func (d *door) bypassFile() string { return filepath.Join(d.cfg.RunDir, "bypass") }

func (d *door) bypassed() bool {
	_, err := os.Stat(d.bypassFile())
	return err == nil
}

func (d *door) setBypass(on bool) error {
	if on {
		if err := os.WriteFile(d.bypassFile(), []byte("on\n"), 0o600); err != nil {
			return fmt.Errorf("remember bypass: %w", err)
		}
	} else if err := os.Remove(d.bypassFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget bypass: %w", err)
	}
	if c := d.core.Load(); c != nil {
		c.engine.SetBypass(on)
	}
	d.log.Info("bypass", "on", on)
	return nil
}

// watchdog tells systemd that the process lives, when the unit has a WatchdogSec.
func (d *door) watchdog(ctx context.Context) error {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		d.log.Warn("read systemd's watchdog settings", "err", err)
	}
	if every <= 0 {
		return nil
	}
	for {
		if _, err := daemon.SdNotify(false, daemon.SdNotifyWatchdog); err != nil {
			d.log.Warn("tell systemd", "err", err)
		}
		select {
		case <-time.After(every / 3):
		case <-ctx.Done():
			return nil
		}
	}
}
