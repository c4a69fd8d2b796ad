package proxy

import (
	"context"
	"log/slog"
	"time"

	"github.com/tideline-io/tideline/internal/apply/cri"
	"github.com/tideline-io/tideline/internal/control"
	"github.com/tideline-io/tideline/internal/door"
	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/runtime-proxy/internal/backend"
)

// link is the proxy's own connection to the runtime.
type link struct {
	*backend.Backend
	endpoint string // as it was given
	version  int
	log      *slog.Logger
}

func newLink(endpoint, dial string, cgroupVersion int, log *slog.Logger) (door.Link, error) {
	b, err := backend.New(dial, cgroupVersion)
	if err != nil {
		return nil, err
	}
	return &link{b, endpoint, cgroupVersion, log}, nil
}

func (l *link) Carries(k policy.Knob) bool { return cri.Carries(l.version, k) }

// Run asks the runtime for its version, often while it is away and rarely while it is there, and has the containers read
// again when it comes back.
func (l *link) Run(ctx context.Context, d *door.Door, e *engine.Engine) error {
	defer l.Close()
	e.Adopt()
	for {
		ask, cancel := context.WithTimeout(ctx, 5*time.Second)
		name, version, err := l.Version(ask)
		cancel()
		rt := control.Runtime{Endpoint: l.endpoint, Name: name, Version: version, Connected: err == nil}
		if err != nil {
			rt.Error = err.Error()
		}
		was := d.SetRuntime(rt)
		wait := 10 * time.Second
		switch {
		case err != nil:
			wait = time.Second
		case !was.Connected:
			l.log.Info("runtime is up", "name", name, "version", version)
			e.Adopt()
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}
