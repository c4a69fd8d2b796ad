// Package plugin is the NRI door: it answers the hooks of a runtime from what the engine knows, and connects again
// whenever the runtime has gone or has dropped it. A hook never calls the runtime: that would wait for the hook itself.
//
//	p := plugin.New(plugin.Config{Socket: "/var/run/nri/nri.sock", Name: "tideline", Index: "90", Log: log}, 2)
//	d, err := door.Open(door.Config{Name: "nri", Connect: func(int) (door.Link, error) { return p, nil }, …})
package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"k8s.io/apimachinery/pkg/util/version"

	applynri "github.com/tideline-io/tideline/internal/apply/nri"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/door"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/policy"
)

// Config says where the runtime is and who we are to it.
type Config struct {
	Socket string // path
	Name   string
	Index  string // two digits: plugins are called in this order
	// Budget is what a hook waits for its decision, never more than half of what the runtime waits for the hook; 0 is
	// DefaultBudget.
	Budget time.Duration
	// NoSwap says that cgroup v1 counts no swap. NRI's memory limit at a creation always sets the swap limit too, and
	// without that file the container would not start: the limit goes to its file instead.
	NoSwap bool
	Log    *slog.Logger
}

// DefaultBudget is well below the 2 s after which runtimes drop a plugin.
const DefaultBudget = 500 * time.Millisecond

// Plugin is one plugin. It implements door.Link, and the hooks of package stub.
type Plugin struct {
	cfg     Config
	limits  limits
	version int // cgroup version
	store   *store
	late    sync.WaitGroup // what follows a hook
	ended   chan struct{}  // closed when Run is over
	updates pending

	mu     sync.Mutex
	engine *engine.Engine // set by Run
	door   *door.Door
	stub   stub.Stub // of the connection
	seen   control.Runtime
}

var _ door.Link = (*Plugin)(nil)

// New makes a plugin on a machine with that cgroup version. Run connects it.
func New(cfg Config, cgroupVersion int) *Plugin {
	cfg.Budget = cmp.Or(cfg.Budget, DefaultBudget)
	return &Plugin{
		cfg: cfg, version: cgroupVersion, store: newStore(), ended: make(chan struct{}),
		limits:  limits{firstWait: 100 * time.Millisecond, lastWait: 2 * time.Second, register: 10 * time.Second, settle: time.Second, update: 10 * time.Second},
		updates: newPending(),
	}
}

// Carries implements door.Link.
func (p *Plugin) Carries(k policy.Knob) bool {
	return applynri.Carries(p.version, k) && !(k == policy.MemoryMax && p.cfg.NoSwap)
}

// carried gives the settings that go into a message.
func (p *Plugin) carried(settings []policy.Setting) []policy.Setting {
	if !p.cfg.NoSwap {
		return settings
	}
	return slices.DeleteFunc(slices.Clone(settings), func(s policy.Setting) bool { return s.Knob == policy.MemoryMax })
}

// limits are how long things are waited for.
type limits struct {
	firstWait, lastWait time.Duration // between two attempts to connect
	// register bounds an attempt: registration and configuration together, which the runtime bounds by 5 s and 2 s.
	register time.Duration
	// settle is what the runtime gets to apply what a Synchronize has answered, and update to say that an update was
	// made. Of an update that failed it says nothing.
	settle, update time.Duration
}

// ErrLaunched ends a plugin that its runtime has started, when that has dropped it: it can't connect by itself.
var ErrLaunched = errors.New("the runtime that started this plugin has closed its connection")

// Run connects, and again whenever the connection is lost, until ctx is done.
func (p *Plugin) Run(ctx context.Context, d *door.Door, e *engine.Engine) error {
	p.mu.Lock()
	p.engine, p.door = e, d
	p.mu.Unlock()
	defer p.late.Wait()
	defer p.end()
	launched := Launched()
	for wait := p.limits.firstWait; ; wait = min(2*wait, p.limits.lastWait) {
		began := time.Now()
		err := p.connect(ctx, launched)
		if ctx.Err() != nil {
			return nil
		}
		p.lost(err)
		if launched {
			return fmt.Errorf("%w: %w", ErrLaunched, err)
		}
		if time.Since(began) > p.limits.lastWait {
			wait = p.limits.firstWait
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// Launched says whether the runtime has started this process, and given it a connection, a name and an index.
func Launched() bool { return os.Getenv(api.PluginSocketEnvVar) != "" }

// end lets no hook begin anything any more.
func (p *Plugin) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.ended)
}

// broken tells that a connection has ended, which a stub that is not started yet does not.
type broken struct {
	net.Conn
	tell func()
}

func (c broken) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.tell()
	}
	return n, err
}

type configurer interface {
	Configure(context.Context, *api.ConfigureRequest) (*api.ConfigureResponse, error)
}

// connect registers with the runtime and serves its hooks until the connection ends.
func (p *Plugin) connect(ctx context.Context, launched bool) error {
	closed := make(chan struct{})
	hear := sync.OnceFunc(func() { close(closed) })
	opts := []stub.Option{stub.WithLogger(nriLog{p.cfg.Log}), stub.WithPluginName(p.cfg.Name), stub.WithOnClose(hear)}
	if !launched {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", p.cfg.Socket)
		if err != nil {
			return fmt.Errorf("connect to NRI: %w", err)
		}
		defer c.Close()
		opts = append(opts, stub.WithConnection(broken{c, hear}), stub.WithPluginIdx(p.cfg.Index))
	}
	s, err := stub.New((*hooks)(p), opts...)
	if err != nil {
		return fmt.Errorf("make NRI stub: %w", err)
	}
	p.mu.Lock()
	p.stub = s
	p.mu.Unlock()
	started := make(chan error, 1)
	go func() { started <- s.Start(ctx) }()
	// Start has no end of its own when the runtime accepts the registration and never configures us: a stub waits for its
	// Configure.
	giveUp := func(why error) error {
		gone, cancel := context.WithCancel(ctx)
		cancel()
		if c, ok := s.(configurer); ok {
			_, _ = c.Configure(gone, &api.ConfigureRequest{}) // ends Start
		}
		if err := <-started; err == nil {
			s.Stop()
		}
		return why
	}
	limit := time.NewTimer(p.limits.register)
	defer limit.Stop()
	select {
	case err := <-started:
		if err != nil {
			return fmt.Errorf("register with NRI: %w", err)
		}
	case <-closed:
		return giveUp(errors.New("register with NRI: the runtime has closed the connection"))
	case <-limit.C:
		return giveUp(fmt.Errorf("register with NRI: not configured within %v", p.limits.register))
	case <-ctx.Done():
		return giveUp(ctx.Err())
	}
	defer s.Stop()
	select {
	case <-closed:
		return errors.New("the runtime has closed the NRI connection")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lost notes that there is no connection.
func (p *Plugin) lost(err error) {
	p.mu.Lock()
	was := p.seen
	p.seen = control.Runtime{Endpoint: p.cfg.Socket, Name: was.Name, Version: was.Version, Error: err.Error()}
	seen, d := p.seen, p.door
	p.mu.Unlock()
	d.SetRuntime(seen)
	if was.Connected || was.Error != seen.Error {
		p.cfg.Log.Warn("no NRI connection", "err", err)
	}
}

// configured notes who is at the other end. It is not there for anybody else before it has synchronized us.
func (p *Plugin) configured(runtime, version string) {
	p.mu.Lock()
	s := p.stub
	p.seen = control.Runtime{Endpoint: p.cfg.Socket, Name: runtime, Version: version, NRI: &control.NRI{
		Version: s.RuntimeNRIVersion(), Since: time.Now(), Updates: safeUpdates(s.RuntimeNRIVersion()),
		RegistrationTimeout: s.RegistrationTimeout().String(), RequestTimeout: s.RequestTimeout().String(),
	}}
	seen := p.seen
	p.mu.Unlock()
	p.cfg.Log.Info("connected to NRI", "runtime", runtime, "version", version, "nri", seen.NRI.Version, "requestTimeout", seen.NRI.RequestTimeout)
}

// synchronized notes that the runtime has told all that it has. Its connection may be lost since.
func (p *Plugin) synchronized() {
	p.mu.Lock()
	p.seen.Connected = p.seen.NRI != nil
	seen, d := p.seen, p.door
	p.mu.Unlock()
	d.SetRuntime(seen)
}

// safeUpdates says whether an update that nobody has asked for can't deadlock the runtime: since NRI 0.12.1
// (containerd/nri#301). A version that can't be read is taken for an old one.
func safeUpdates(nri string) bool {
	v, err := version.ParseGeneric(nri)
	return err == nil && v.AtLeast(version.MajorMinor(0, 12).WithPatch(1))
}

// PID implements engine.Runtime.
func (p *Plugin) PID(_ context.Context, id string) (int, error) { return p.store.pid(id) }

// List implements engine.Runtime.
func (p *Plugin) List(context.Context) (engine.Listing, error) {
	p.mu.Lock()
	connected := p.seen.Connected
	p.mu.Unlock()
	if !connected {
		return engine.Listing{}, errors.New("there is no NRI connection")
	}
	return p.store.list(), nil
}

// Spec implements engine.Runtime.
func (p *Plugin) Spec(_ context.Context, id string) (engine.Spec, error) { return p.store.spec(id) }

// Update implements engine.Runtime. It must not be called while a hook waits for its caller.
func (p *Plugin) Update(ctx context.Context, id string, settings []policy.Setting) error {
	p.mu.Lock()
	s, seen := p.stub, p.seen
	p.mu.Unlock()
	switch {
	case !seen.Connected:
		return fmt.Errorf("%w: there is no NRI connection", engine.ErrNoUpdates)
	case !safeUpdates(seen.NRI.Version):
		return fmt.Errorf("%w: its NRI is %q, and updates are safe since 0.12.1", engine.ErrNoUpdates, seen.NRI.Version)
	case p.store.over(id):
		return fmt.Errorf("container %.64s: %w", id, engine.ErrNotFound)
	}
	u, _, err := applynri.Update(p.carried(settings), p.version, id, nil)
	if err != nil || u == nil {
		return err
	}
	if err := send(ctx, s, u); err != nil {
		return fmt.Errorf("update container %.64s: %w", id, err)
	}
	p.store.updated(id, settings)
	return nil
}

// send has the runtime make an update. The stub waits for the answer as long as the connection lasts.
func send(ctx context.Context, s stub.Stub, u *api.ContainerUpdate) error {
	done := make(chan error, 1)
	go func() {
		failed, err := s.UpdateContainers([]*api.ContainerUpdate{u})
		if err == nil && len(failed) > 0 {
			err = errors.New("the runtime refused it; its log says why")
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nriLog is slog for NRI.
type nriLog struct{ log *slog.Logger }

func (l nriLog) Debugf(ctx context.Context, format string, args ...any) {
	l.at(ctx, slog.LevelDebug, format, args)
}
func (l nriLog) Infof(ctx context.Context, format string, args ...any) {
	l.at(ctx, slog.LevelDebug, format, args)
}
func (l nriLog) Warnf(ctx context.Context, format string, args ...any) {
	l.at(ctx, slog.LevelWarn, format, args)
}
func (l nriLog) Errorf(ctx context.Context, format string, args ...any) {
	l.at(ctx, slog.LevelWarn, format, args)
}

func (l nriLog) at(ctx context.Context, level slog.Level, format string, args []any) {
	l.log.Log(ctx, level, "nri", "message", fmt.Sprintf(format, args...))
}
