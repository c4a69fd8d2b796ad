package relay

import (
	"context"
	"encoding/binary"
)

// stream is one call. It lives in pair.streams from the client's HEADERS until both directions have ended, a peer has
// reset it, or it was refused:
//
//	                 to the backend             to the client              then
//	END_STREAM       as it was sent             as it was sent             removed when both have passed
//	client resets    RST_STREAM at once         nothing                    removed at once, kept bytes dropped
//	backend resets   nothing more is sent       what it sent, RST_STREAM   removed when that is written
//	refused          RST_STREAM(CANCEL)         grpc-status, END_STREAM    removed at once
//	removed          late frames: decoded for HPACK, dropped, credited on the connection
type stream struct {
	id           uint32
	half         [2]*half // by direction; nil: untouched
	seen         [2]bool  // END_STREAM came from the sender
	ended        [2]bool  // END_STREAM went to the receiver
	dropped      [2]bool  // nothing more is written in that direction
	inFifo       [2]int
	answered     bool // response headers went to the client
	backendReset bool // the backend has reset it, and must not hear of it again
	gone         bool

	status  int // grpc-status, or StatusUnseen
	call    *Call
	method  string
	running int // callbacks within their time
	ctx     context.Context
	cancel  context.CancelFunc
}

// mode says what a half does with the bytes of its sender.
type mode int

const (
	passing      mode = iota // forward them in order, after what waits
	collectFirst             // the first message goes to Call.Request, then passing
	collectWhole             // the only message goes to Call.Response once the status is known
	collectEach              // each message goes to Call.Message
)

// half is one direction of a hooked stream. Bytes move from msg to work to queue to the receiver:
//
//	msg     a message that is not whole, or whose status is not known
//	work    what a callback is to see, and all that came after it; work[0] is in its callback if busy
//	queue   what may be written when the windows allow
//
// window is what the receiver allows on this stream, credit what the sender believes to be allowed. They are
// independent: the sender is topped up as its bytes are kept, the receiver's updates end here.
type half struct {
	mode           mode
	window, credit int64
	bytes          int64 // in msg, work and queue: the share of pair.kept
	msg            []byte
	work           []item
	busy           bool
	inCallback     int64 // bytes of work[0] while busy; bytes does not count them
	queue          []item
	ready          bool // in direction.ready
	headersIn      int  // the batch in which its HEADERS were left unflushed
}

// waiting reports whether something whole is on its way to the receiver.
func (h *half) waiting() bool { return len(h.work) > 0 || len(h.queue) > 0 }

// backlogged reports whether the sender must wait because the receiver takes too little.
func (h *half) backlogged() bool {
	const items, bytes = 256, 256 << 10
	return len(h.work)+len(h.queue) > items || h.bytes+h.inCallback-int64(len(h.msg)) > bytes
}

// size is the length of the message in msg, prefix included, or 0 if it is not known yet.
func (h *half) size() int64 {
	if len(h.msg) < prefixBytes {
		return 0
	}
	return prefixBytes + int64(binary.BigEndian.Uint32(h.msg[1:]))
}

// missing is how much of the message in msg is still to come.
func (h *half) missing() int64 { return max(h.size()-int64(len(h.msg)), 0) }

// deliverable reports whether the client can still get something although the backend has closed.
func (st *stream) deliverable() bool {
	if st.ended[down] {
		return false
	}
	h := st.half[down]
	return st.seen[down] || st.inFifo[down] > 0 || (h != nil && h.waiting())
}

// keep counts bytes that were added to a half, or taken from it.
func (d *direction) keep(h *half, n int) {
	h.bytes += int64(n)
	d.p.kept += int64(n)
}

// ended notes that END_STREAM went to the receiver.
func (d *direction) ended(st *stream) {
	st.ended[d.index] = true
	if st.ended[up] && st.ended[down] {
		d.p.remove(st)
	}
}

// remove forgets a stream and what it kept. A callback that still runs is cancelled, and Done waits for it.
func (p *pair) remove(st *stream) {
	if st.gone {
		return
	}
	st.gone = true
	delete(p.streams, st.id)
	if st.cancel != nil {
		st.cancel()
	}
	p.drop(st, p.up)
	p.drop(st, p.down)
	p.callDone(st)
}

// drop throws away what waits of a stream in one direction, and gives its room back.
func (p *pair) drop(st *stream, d *direction) {
	if st.dropped[d.index] {
		return
	}
	st.dropped[d.index] = true
	if st.inFifo[d.index] > 0 {
		for i := range d.fifo {
			if it := &d.fifo[i]; it.st == st { // pump skips it
				d.held -= int64(len(it.data))
				it.data = nil
			}
		}
	}
	if h := st.half[d.index]; h != nil {
		p.kept -= h.bytes
		h.bytes, h.msg, h.work, h.queue = 0, nil, nil, nil
	}
	d.grant(false)
}

// dropPartial throws away a message whose rest will not come.
func (d *direction) dropPartial(h *half) {
	d.keep(h, -len(h.msg))
	h.msg = nil
}

// refuse ends a call in the backend's place.
func (p *pair) refuse(st *stream, s *Status) {
	if !st.backendReset && !(st.ended[up] && st.seen[down]) {
		p.up.out.addWord(frameRSTStream, st.id, errCancel)
	}
	st.status = int(s.Code)
	p.drop(st, p.up)
	p.drop(st, p.down)
	if !st.ended[down] {
		p.down.writeHeaders(st, statusFields(s, st.answered), nil, true)
	}
	if !st.seen[up] {
		p.down.out.addWord(frameRSTStream, st.id, errNone) // it need not send the rest
	}
	p.remove(st)
}

func (p *pair) refuseKept(st *stream) {
	p.observe(EventKeptLimit, st.method, nil)
	p.refuse(st, &Status{Code: statusResourceExhausted, Message: "relay: too many message bytes kept for one connection"})
}
