package relay

import (
	"context"
	"net"
	"sync/atomic"
	"time"
)

// Status ends a call in the backend's place.
type Status struct {
	Code    uint32 // a gRPC status code
	Message string // any text; it is percent-encoded on the wire
	Details []byte // a marshalled google.rpc.Status, or nil
}

// Call holds the callbacks of one hooked call; any may be nil. A Call belongs to one call, so its callbacks may share
// state through a closure: Request, Response or Message, and Done of one call never run at the same time, unless one
// of them has overrun Config.CallbackTimeout.
//
// A callback must not change msg, and must not use it after it has returned, except by returning it. It may block for
// I/O within Config.CallbackTimeout; other calls go on meanwhile. ctx ends when the call is over, at the latest at the
// timeout. A returned nil is the empty message, as in protobuf.
type Call struct {
	// Request sees the whole request message of a unary or server-streaming call, and returns the message to send
	// (returning msg itself passes the bytes as they are) or a Status that refuses the call: the backend's stream is
	// cancelled before it has a message. A client that streams has its first message hooked and the others passed.
	Request func(ctx context.Context, msg []byte) ([]byte, *Status)

	// Response sees the whole response message of a unary call that ended OK. A Status replaces the answer. Because it
	// waits for the status it must not be set for streams; a second message makes the call pass as it is.
	Response func(ctx context.Context, msg []byte) ([]byte, *Status)

	// Message sees each message of a server stream, in order, as it comes. Where it is set, Response is not used.
	Message func(ctx context.Context, msg []byte) []byte

	// InlineRequest says that Request, InlineResponse that Response or Message wait for nothing: no I/O, no lock that is
	// held across any. For messages of usual size they are then run by the goroutine that reads the connection, which
	// spares two switches of goroutines a message, and no timeout ends them.
	InlineRequest, InlineResponse bool

	// Done is called exactly once when the call is over in any way: trailers delivered, refused, reset, connection
	// gone. code is the grpc-status that the client was sent, or StatusUnseen. It runs in a goroutine of its own, when no other
	// callback of the call runs, and must be cheap.
	Done func(code int)
}

// StatusUnseen is what Done gets for a call that ended without a status.
const StatusUnseen = -1

// Hook says whether calls of a method ("/package.Service/Method") are hooked; nil leaves the call alone. It is asked
// once for each call, by the goroutine that reads the connection, so it must be a look-up and nothing more.
type Hook func(method string) *Call

// EventKind names what an Event counts.
type EventKind string

// The kinds of events. They are a closed set, fit for a metric label.
const (
	EventConnectionOpened  EventKind = "connection-opened"
	EventConnectionClosed  EventKind = "connection-closed"
	EventConnectionRefused EventKind = "connection-refused" // Config.MaxConnections are open
	EventAcceptFailed      EventKind = "accept-failed"      // and will be tried again, as for too many open files
	EventDialFailed        EventKind = "dial-failed"
	EventHookPanicked      EventKind = "hook-panicked"  // Err is a *PanicError
	EventHookTimedOut      EventKind = "hook-timed-out" // the message passed unchanged
	EventHookSkipped       EventKind = "hook-skipped"   // too many callbacks hang for another one to be started
	EventCompressed        EventKind = "compressed-message"
	EventKeptLimit         EventKind = "kept-limit"     // a call was ended with RESOURCE_EXHAUSTED
	EventProtocolError     EventKind = "protocol-error" // Err is a *ProtocolError
)

// EventKinds returns all kinds, for metrics that are created ahead.
func EventKinds() []EventKind {
	return []EventKind{
		EventConnectionOpened, EventConnectionClosed, EventConnectionRefused, EventAcceptFailed, EventDialFailed,
		EventHookPanicked, EventHookTimedOut, EventHookSkipped, EventCompressed, EventKeptLimit, EventProtocolError,
	}
}

// Event is something worth counting.
type Event struct {
	Kind   EventKind
	Method string // of the hooked call, where there is one
	Err    error  // the cause, where there is one
}

// Observer is told of events. It is called from many goroutines, also with a connection's lock held: it must be quick
// and must not call the relay.
type Observer func(Event)

// PanicError is the Err of EventHookPanicked.
type PanicError struct {
	Value any
	Stack []byte
}

// Config is what a Server needs; only Dial is required.
type Config struct {
	// Dial opens one backend connection; it is called for each client connection. ctx ends after DialTimeout.
	Dial        func(ctx context.Context) (net.Conn, error)
	DialTimeout time.Duration // default 5 s

	// Hook chooses the calls whose messages are shown to callbacks; nil relays everything as it is.
	Hook Hook

	// CallbackTimeout is the last net under callbacks, which are expected to have shorter deadlines of their own:
	// past it the message passes unchanged and the late result is dropped. Default 1 s.
	CallbackTimeout time.Duration

	// MaxKeptBytes bounds the message bytes kept for the hooked calls of one connection; default 64 MiB.
	MaxKeptBytes int64

	// MaxConnections bounds the client connections served at a time; default 1024. Runtimes know no such limit: some
	// clients, critest among them, leave hundreds of idle connections open.
	MaxConnections int

	Observer Observer // may be nil
}

const (
	defaultDialTimeout     = 5 * time.Second
	defaultCallbackTimeout = time.Second
	defaultMaxKeptBytes    = 64 << 20
	defaultMaxConnections  = 1024

	// maxInline is the largest message that holds up the other calls of its connection while it is edited.
	maxInline = 64 << 10

	// maxAbandoned bounds, for a Server, the callbacks that have overrun their time and still run. Each holds a
	// goroutine and a message; a hook that hangs for good must not eat the node's memory.
	maxAbandoned = 16
)

// shared is what all connections of a Server have in common.
type shared struct {
	Config
	abandoned atomic.Int64
}

func newShared(cfg Config) *shared {
	if cfg.DialTimeout <= 0 {
		cfg.DialTimeout = defaultDialTimeout
	}
	if cfg.CallbackTimeout <= 0 {
		cfg.CallbackTimeout = defaultCallbackTimeout
	}
	if cfg.MaxKeptBytes <= 0 {
		cfg.MaxKeptBytes = defaultMaxKeptBytes
	}
	if cfg.MaxConnections <= 0 {
		cfg.MaxConnections = defaultMaxConnections
	}
	return &shared{Config: cfg}
}

func (s *shared) observe(kind EventKind, method string, err error) {
	if s.Observer != nil {
		s.Observer(Event{Kind: kind, Method: method, Err: err})
	}
}
