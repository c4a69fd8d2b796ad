package proxy

import (
	"log/slog"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tideline-io/tideline/runtime-proxy/internal/relay"
)

// metrics counts what the relay tells.
type metrics struct {
	events map[relay.EventKind]prometheus.Counter
	calls  *prometheus.CounterVec
	all    []prometheus.Collector
}

func newMetrics() *metrics {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tideline_relay_events_total", Help: "Events of the relay, by kind."}, []string{"kind"})
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tideline_cri_hooked_calls_total", Help: "Hooked CRI calls, by method and gRPC status code (-1: ended without one)."}, []string{"method", "code"})
	m := &metrics{events: map[relay.EventKind]prometheus.Counter{}, calls: calls, all: []prometheus.Collector{events, calls}}
	for _, k := range relay.EventKinds() {
		m.events[k] = events.WithLabelValues(string(k))
	}
	return m
}

// relayEvent counts and, for faults, logs what the relay tells. It is called with a connection's lock held.
func (m *metrics) relayEvent(log *slog.Logger) relay.Observer {
	return func(e relay.Event) {
		if c := m.events[e.Kind]; c != nil {
			c.Inc()
		}
		switch e.Kind {
		case relay.EventConnectionOpened, relay.EventConnectionClosed, relay.EventCompressed:
			log.Debug("relay", "event", string(e.Kind), "method", e.Method)
		case relay.EventDialFailed:
			log.Warn("runtime is away", "err", e.Err)
		default:
			log.Warn("relay", "event", string(e.Kind), "method", e.Method, "err", e.Err)
		}
	}
}

// hook counts the hooked calls.
func (m *metrics) hook(f relay.Hook) relay.Hook {
	return func(method string) *relay.Call {
		c := f(method)
		if c == nil {
			return nil
		}
		counted, done := *c, c.Done
		name := method[strings.LastIndexByte(method, '/')+1:] // one of the hooked methods: a closed set
		counted.Done = func(code int) {
			m.calls.WithLabelValues(name, strconv.Itoa(code)).Inc()
			if done != nil {
				done(code)
			}
		}
		return &counted
	}
}
