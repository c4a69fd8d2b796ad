package relay

import "fmt"

// Peer names an end of a connection pair.
type Peer string

// The two peers of the relay.
const (
	Client  Peer = "client"
	Backend Peer = "backend"
)

// ProtocolError says which peer broke HTTP/2, or a bound of the relay, and how. The peer got Code in a GOAWAY.
type ProtocolError struct {
	Peer   Peer
	Code   uint32 // an HTTP/2 error code
	Reason string
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("read from %s: %s (HTTP/2 error %d)", e.Peer, e.Reason, e.Code)
}

func (e *PanicError) Error() string { return fmt.Sprintf("run callback: panic: %v", e.Value) }

// fault is a connection error on its way to becoming a ProtocolError. Frame handlers return it; the readers, which
// know the peer, answer it with GOAWAY.
type fault struct {
	code   uint32
	reason string
}

func (f *fault) Error() string { return f.reason }

// errUnread is the fault of a peer that sends and leaves in its socket what that causes.
var errUnread = &fault{code: errEnhanceYourCalm, reason: "sends frames and does not read what they cause"}

func faultf(code uint32, format string, args ...any) error {
	return &fault{code: code, reason: fmt.Sprintf(format, args...)}
}
