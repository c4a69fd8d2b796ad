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
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/door"
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
	m := newMetrics()
	dc := door.Config{
		Name: "cri", Root: cfg.Root, RunDir: cfg.RunDir, PolicyFile: cfg.PolicyFile, Mode: cfg.Mode, MetricsAddress: cfg.MetricsAddress,
		DecisionBudget: cfg.DecisionBudget, Listen: cfg.Listen, Endpoint: cfg.RuntimeEndpoint, Collectors: m.all, Log: log,
	}
	if !cfg.PassThrough {
		dc.Connect = func(version int) (door.Link, error) {
			return newLink(cfg.RuntimeEndpoint, "unix://"+back, version, log)
		}
	}
	d, err := door.Open(dc)
	if err != nil {
		return err
	}
	defer d.Close()
	relayConfig := relay.Config{
		Dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", back)
		},
		Observer: m.relayEvent(log),
		// The last net: a decision, its record and its files have budgets of their own, about three of these together.
		CallbackTimeout: max(time.Second, 10*cfg.DecisionBudget),
	}
	if !cfg.PassThrough {
		relayConfig.Hook = m.hook(chosen(d, log))
	}
	l, from, err := listen.Open(front, back)
	if err != nil {
		return err
	}
	server := relay.New(relayConfig)
	log.Info("relaying", "listen", front, "socket", from, "runtime", back, "mode", cfg.Mode, "passThrough", cfg.PassThrough, "runDir", cfg.RunDir)

	// The parts outlive ctx: running calls still need them while they drain.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, work := errgroup.WithContext(work)
	g.Go(func() error { return server.Serve(work, l) })
	g.Go(func() error { return d.Run(work) })
	d.Notify(daemon.SdNotifyReady)
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-work.Done():
			return nil
		}
		d.Notify(daemon.SdNotifyStopping)
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

// chosen gives the hooks of a call, none while nothing can decide.
func chosen(d *door.Door, log *slog.Logger) relay.Hook {
	var h atomic.Pointer[hooks.Hooks]
	return func(method string) *relay.Call {
		if h.Load() == nil {
			e := d.Engine()
			if e == nil {
				return nil
			}
			h.CompareAndSwap(nil, hooks.New(e, log))
		}
		return h.Load().For(method)
	}
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
