package door

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/obs"
	"github.com/tideline-io/tideline/internal/policy"
)

// runtimeState is what the door last heard of the runtime.
type runtimeState struct {
	mu sync.Mutex
	control.Runtime
}

// SetRuntime tells the door what was heard of the runtime; of one that is away, name and version are kept. It gives what
// was known before.
func (d *Door) SetRuntime(rt control.Runtime) (was control.Runtime) {
	d.runtime.mu.Lock()
	defer d.runtime.mu.Unlock()
	was = d.runtime.Runtime
	if !rt.Connected {
		rt.Name, rt.Version = was.Name, was.Version
	}
	d.runtime.Runtime = rt
	return was
}

func (r *runtimeState) get() control.Runtime {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Runtime
}

// listenControl makes the control socket, for root alone, and opens the metrics address when there is one.
func (d *Door) listenControl() (ls []net.Listener, err error) {
	path := filepath.Join(d.cfg.RunDir, "control.sock")
	// The lock is ours, so whoever made this socket is gone.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale control socket: %w", err)
	}
	old := syscall.Umask(0o177)
	l, err := net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on control socket: %w", err)
	}
	ls = append(ls, l)
	if d.cfg.MetricsAddress != "" {
		m, err := net.Listen("tcp", d.cfg.MetricsAddress)
		if err != nil {
			l.Close()
			return nil, fmt.Errorf("listen on --metrics-address: %w", err)
		}
		ls = append(ls, m)
	}
	return ls, nil
}

// serveControl answers on what listenControl opened, and closes it.
func (d *Door) serveControl(ctx context.Context, listeners []net.Listener) (err error) {
	health := http.NewServeMux()
	d.routeHealth(health)
	full := http.NewServeMux()
	d.routeHealth(full)
	d.routeControl(full)
	handlers := []http.Handler{full, health}
	ended := make(chan error, len(listeners))
	var servers []*http.Server
	for i, l := range listeners {
		s := &http.Server{Handler: handlers[i], ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 64 << 10}
		servers = append(servers, s)
		go func() { ended <- s.Serve(l) }()
	}
	select {
	case <-ctx.Done():
	case err = <-ended:
		ended <- err
	}
	for _, s := range servers {
		s.Close()
	}
	for range servers {
		if e := <-ended; err == nil && !errors.Is(e, http.ErrServerClosed) {
			err = e
		}
	}
	if err != nil {
		return fmt.Errorf("serve control socket: %w", err)
	}
	return nil
}

func (d *Door) routeHealth(mux *http.ServeMux) {
	mux.HandleFunc("GET "+control.PathHealth, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET "+control.PathReady, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case d.cfg.Connect == nil:
		case d.Engine() == nil:
			http.Error(w, *d.why.Load(), http.StatusServiceUnavailable)
			return
		default:
			if rt := d.runtime.get(); !rt.Connected {
				http.Error(w, "the runtime is away: "+rt.Error, http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET "+control.PathMetrics, d.metrics())
}

func (d *Door) routeControl(mux *http.ServeMux) {
	mux.HandleFunc("GET "+control.PathStatus, func(w http.ResponseWriter, r *http.Request) {
		st, err := d.status(r.Context())
		answer(w, st, err)
	})
	withEngine := func(f func(w http.ResponseWriter, r *http.Request, e *engine.Engine)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			e := d.Engine()
			if e == nil {
				http.Error(w, d.whyNot(), http.StatusServiceUnavailable)
				return
			}
			f(w, r, e)
		}
	}
	mux.HandleFunc("GET "+control.PathContainers, withEngine(func(w http.ResponseWriter, r *http.Request, e *engine.Engine) {
		out, err := e.Containers(r.Context())
		answer(w, out, err)
	}))
	mux.HandleFunc("GET "+control.PathCPUs, withEngine(func(w http.ResponseWriter, r *http.Request, e *engine.Engine) {
		out, err := e.CPUs(r.Context())
		answer(w, out, err)
	}))
	mux.HandleFunc("GET "+control.PathExplainPod, withEngine(func(w http.ResponseWriter, r *http.Request, e *engine.Engine) {
		ns, name := r.FormValue("namespace"), r.FormValue("name")
		out, found, err := e.Explain(r.Context(), ns, name)
		if err == nil && !found {
			http.Error(w, fmt.Sprintf("pod %.253q/%.253q", ns, name), http.StatusNotFound)
			return
		}
		answer(w, out, err)
	}))
	mux.HandleFunc("POST "+control.PathPolicyDiff, withEngine(func(w http.ResponseWriter, r *http.Request, e *engine.Engine) {
		data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, v1alpha1.MaxPolicySize+1))
		var p v1alpha1.QoSPolicy
		if err == nil {
			p, err = v1alpha1.ParsePolicy(data)
		}
		var next *policy.Policy
		if err == nil {
			next, err = policy.Compile(p.Spec)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out, err := e.PolicyDiff(r.Context(), next)
		answer(w, out, err)
	}))
	mux.HandleFunc("POST "+control.PathBypass, func(w http.ResponseWriter, r *http.Request) {
		on, err := strconv.ParseBool(r.FormValue("on"))
		if err != nil {
			http.Error(w, fmt.Sprintf("on=%.32q: want true or false", r.FormValue("on")), http.StatusBadRequest)
			return
		}
		if err := d.setBypass(on); err != nil {
			answer(w, nil, err)
			return
		}
		st, err := d.status(r.Context())
		answer(w, st, err)
	})
	mux.HandleFunc("POST "+control.PathDisable, withEngine(func(w http.ResponseWriter, r *http.Request, e *engine.Engine) {
		if err := d.setBypass(true); err != nil {
			answer(w, nil, err)
			return
		}
		// Half of a disable is worse than either end, so it outlives a CLI that is interrupted.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 10*time.Minute)
		defer cancel()
		report, err := e.Disable(ctx)
		answer(w, report, err)
	}))
}

func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return // the client has gone
	}
}

// whyNot says why there is no core, or why it only observes.
func (d *Door) whyNot() string {
	if d.cfg.Connect == nil {
		return "--pass-through"
	}
	if why := d.why.Load(); why != nil {
		return *why
	}
	return ""
}

// status tells the state of the door.
func (d *Door) status(ctx context.Context) (control.Status, error) {
	st := control.Status{Mode: control.ModeBypass, StartMode: d.cfg.Mode}
	if e := d.Engine(); e != nil {
		var err error
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if st, err = e.Status(ctx); err != nil {
			return st, fmt.Errorf("ask the engine: %w", err)
		}
		st.Runtime = d.runtime.get()
		if !st.Runtime.Connected {
			st.Degraded = append(st.Degraded, control.Degraded{What: "runtime", Why: st.Runtime.Error})
		}
	} else if d.cfg.Connect != nil {
		st.Degraded = append(st.Degraded, control.Degraded{What: "decisions", Why: d.whyNot(), Since: d.started})
	}
	st.Door, st.Version, st.PID = d.cfg.Name, obs.Version(), os.Getpid()
	st.StartedAt, st.Listen, st.Runtime.Endpoint = d.started, d.cfg.Listen, d.cfg.Endpoint
	st.ModeWhy = d.whyNot()
	return st, nil
}
