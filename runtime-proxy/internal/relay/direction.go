package relay

import (
	"bytes"
	"encoding/binary"
	"net"

	"golang.org/x/net/http2/hpack"
)

// The two directions, as indexes.
const (
	up   = 0 // client to backend: requests
	down = 1 // backend to client: responses
)

// direction carries frames from a sender to a receiver: it reads from one connection and writes to the other. Its
// flow control for the whole connection is three numbers:
//
//	window   what the receiver still allows us
//	credit   what the sender believes to be allowed
//	held     bytes of untouched streams that wait in fifo for window
//
// credit <= window - held, unless bytes of our own were written (a message that has grown): then nothing is granted
// until the receiver's updates have paid for them. Kept bytes of hooked streams leave these numbers as they come,
// since they go on later or never, and count against window only when they are written. So one formula decides every
// WINDOW_UPDATE to the sender: grant = window - held - credit, see [direction.grant].
type direction struct {
	p     *pair
	index int
	out   *writer    // to the receiver
	back  *direction // back.out leads to the sender

	// Reading.
	greeted   bool // the preface is read, where there is one
	settled   bool // the first SETTINGS, which comes before all else, has passed
	readLimit int  // the largest payload the sender may use: the largest the receiver has ever announced
	dec       *hpack.Decoder
	fields    []hpack.HeaderField // of the block being decoded
	listSize  int
	open      headerFrame // a header block whose CONTINUATION is due, if open.stream is not 0
	block     []byte
	batch     int // counts the chunks of frames between two flushes
	held1st   int // HEADERS written in this batch and not flushed, because their message may follow in it

	// Writing header blocks.
	enc    *hpack.Encoder
	encBuf bytes.Buffer

	// Flow control.
	window, credit, held int64
	initWindow           int64 // SETTINGS_INITIAL_WINDOW_SIZE as it binds us towards the receiver
	initCredit           int64 // the same as the sender counts; the two differ while its ACK waits in fifo
	frameSize            int   // the receiver's SETTINGS_MAX_FRAME_SIZE
	pending              []settings
	fifo                 []item // of untouched streams, in the order of the sender
	fifoFields           int    // bytes of the header fields in fifo
	ready                []*stream
}

// headerFrame is what a HEADERS frame says besides its block.
type headerFrame struct {
	stream   uint32
	end      bool   // END_STREAM
	priority []byte // nil if not given
}

func newDirection(p *pair, index int, out *writer) *direction {
	d := &direction{
		p: p, index: index, out: out,
		greeted: index == down, readLimit: minFrameSize,
		window: defaultWindow, credit: defaultWindow,
		initWindow: defaultWindow, initCredit: defaultWindow,
		frameSize: minFrameSize,
	}
	out.refill = d.pump
	d.enc = hpack.NewEncoder(&d.encBuf)
	d.dec = hpack.NewDecoder(maxTableSize, func(f hpack.HeaderField) {
		if d.listSize += int(f.Size()); d.listSize <= maxHeaderList {
			d.fields = append(d.fields, f)
		}
	})
	d.dec.SetMaxStringLength(maxHeaderList)
	return d
}

func (d *direction) isUp() bool { return d.index == up }

func (d *direction) sender() Peer {
	if d.isUp() {
		return Client
	}
	return Backend
}

// read is the frame loop. It returns nil when the sender closes or the pair is closed, and a fault otherwise.
func (d *direction) read(src net.Conn) error {
	const size = 64 << 10
	buf := make([]byte, size)
	r, w := 0, 0 // buf[r:w] is read and not handled
	for {
		n, readErr := src.Read(buf[w:])
		w += n
		need := frameHeader
		for r < w {
			used, more, open, err := d.handleChunk(buf[r:w])
			if err != nil || !open {
				return err
			}
			need = more
			if used == 0 {
				break
			}
			r += used
		}
		if readErr != nil {
			return nil //nolint:nilerr // the end of a connection, however it comes, is no fault of its peer
		}
		switch {
		case r == w:
			r, w = 0, 0
			if len(buf) > size {
				buf = make([]byte, size)
			}
		case r+need > len(buf):
			old := buf[r:w]
			if need > len(buf) {
				buf = make([]byte, need)
			}
			r, w = 0, copy(buf, old)
		}
	}
}

// handleChunk handles frames of b and flushes what came of them; open is false once the pair is closed.
func (d *direction) handleChunk(b []byte) (used, need int, open bool, err error) {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	if d.p.closed {
		return 0, 0, false, nil
	}
	d.batch++
	used, need, err = d.consume(b)
	if err != nil {
		return used, need, true, err // senderGone flushes, after the GOAWAY
	}
	if d.held1st > 0 { // the messages did not come with their headers
		d.held1st, d.out.urgent = 0, true
	}
	d.back.out.flush(false)
	d.out.flush(true)
	d.p.finish()
	return used, need, !d.p.closed, nil
}

// consume handles the whole frames in b, as long as the receiver's buffer has room; need is the size of the frame it
// has stopped at, as far as known. It reads nothing and waits for nothing.
func (d *direction) consume(b []byte) (used, need int, err error) {
	if !d.greeted {
		if len(b) < len(preface) {
			return 0, len(preface), nil
		}
		if string(b[:len(preface)]) != preface {
			return 0, 0, faultf(errProtocol, "no HTTP/2 preface")
		}
		d.greeted, used = true, len(preface)
		d.out.add(b[:used])
	}
	for {
		f, size, err := parseFrame(b[used:], d.readLimit)
		if err != nil {
			return used, 0, err
		}
		if size > len(b)-used {
			return used, size, nil
		}
		if err := d.handle(&f); err != nil {
			return used, 0, err
		}
		used += size
		if d.back.out.size() > hardBuffer {
			return used, 0, errUnread
		}
		if d.out.full() && used > 0 {
			return used, frameHeader, nil
		}
	}
}

func (d *direction) handle(f *frame) error {
	if err := f.check(); err != nil {
		return err
	}
	if (d.open.stream != 0) != (f.kind == frameContinuation) || (d.open.stream != 0 && f.stream != d.open.stream) {
		return faultf(errProtocol, "frame type %d in the wrong place of a header block", f.kind)
	}
	if !d.settled && (f.kind != frameSettings || f.has(flagAck)) {
		return faultf(errProtocol, "frame type %d before SETTINGS", f.kind)
	}
	if !d.isUp() && (f.kind == frameData || f.kind == frameHeaders) {
		d.p.pings.backendSent()
	}
	switch f.kind {
	case frameData:
		return d.onData(f)
	case frameHeaders:
		return d.onHeaders(f)
	case frameContinuation:
		if len(d.block)+len(f.payload) > maxHeaderList {
			return faultf(errEnhanceYourCalm, "header block over %d bytes", maxHeaderList)
		}
		d.block = append(d.block, f.payload...)
		if f.has(flagEndHeaders) {
			h, block := d.open, d.block
			d.open, d.block = headerFrame{}, nil
			return d.onBlock(h, block)
		}
	case frameRSTStream:
		return d.onReset(f.stream, binary.BigEndian.Uint32(f.payload))
	case frameSettings:
		return d.onSettings(f)
	case frameWindowUpdate:
		return d.onWindowUpdate(f)
	case framePing:
		d.onPing(f)
	case frameGoAway:
		d.onGoAway(f)
	case framePushPromise:
		return faultf(errProtocol, "PUSH_PROMISE") // no gRPC server pushes
	default: // PRIORITY, and what we do not know
		d.out.add(f.raw)
	}
	return nil
}

// onPing passes PINGs, so that the peers measure and watch each other, but for those that pingGuard keeps from the
// backend; the ACK of our own one goes no further.
func (d *direction) onPing(f *frame) {
	p, ack := d.p, f.has(flagAck)
	switch {
	case d.isUp() && ack && p.drain == drainPinged && bytes.Equal(f.payload, p.pingData[:]):
		p.announceDrain()
		return
	case d.isUp() && !ack && !p.pings.forward():
		d.back.out.addHeader(len(f.payload), framePing, flagAck, 0)
		d.back.out.add(f.payload)
		return
	case !d.isUp() && ack:
		p.pings.acknowledged()
	}
	d.out.add(f.raw)
}

// onGoAway passes GOAWAY. The backend's must not name a higher stream than ours has (grpc-go closes the connection).
func (d *direction) onGoAway(f *frame) {
	if !d.isUp() {
		last := binary.BigEndian.Uint32(f.payload) & maxStreamID
		d.p.lastGoAway = min(d.p.lastGoAway, last)
		binary.BigEndian.PutUint32(f.payload, d.p.lastGoAway)
	}
	d.out.add(f.raw)
}

// onData handles a DATA frame. Whatever becomes of it, its bytes leave the sender's credit here.
func (d *direction) onData(f *frame) error {
	n := int64(len(f.payload))
	if d.credit -= n; d.credit < 0 {
		return faultf(errFlowControl, "DATA over the connection window")
	}
	body, err := f.unpad()
	if err != nil {
		return err
	}
	st := d.p.streams[f.stream]
	if st == nil || st.dropped[d.index] {
		if st == nil && d.idle(f.stream) {
			return faultf(errProtocol, "DATA on idle stream %d", f.stream)
		}
		d.grant(false) // too late for this stream
		return nil
	}
	if st.seen[d.index] {
		return faultf(errStreamClosed, "DATA on stream %d after its end", f.stream)
	}
	end := f.has(flagEndStream)
	st.seen[d.index] = end
	h := st.half[d.index]
	if h == nil {
		return d.passData(st, f, body, end)
	}
	if h.credit -= n; h.credit < 0 && len(d.pending) == 0 {
		return faultf(errFlowControl, "DATA over the window of stream %d", f.stream)
	}
	d.keep(h, len(body))
	if d.p.kept > d.p.MaxKeptBytes {
		d.p.refuseKept(st)
		return nil
	}
	d.collect(st, h, body, end)
	if !st.gone {
		d.topUp(st, h)
	}
	d.grant(false)
	return nil
}

// passData forwards DATA of an untouched stream, or queues it if the connection window is shut.
func (d *direction) passData(st *stream, f *frame, body []byte, end bool) error {
	n := int64(len(f.payload))
	if len(d.fifo) == 0 && n <= d.window && len(f.payload) <= d.frameSize {
		d.window -= n
		d.out.add(f.raw)
		if end {
			d.ended(st)
		}
		return nil
	}
	if pad := len(f.payload) - len(body); pad > 0 && !end { // the receiver does not see it, so can't give it back
		d.back.out.addWord(frameWindowUpdate, st.id, uint32(pad))
	}
	if len(body) == 0 && !end {
		d.grant(false)
		return nil
	}
	d.held += int64(len(body))
	if err := d.queue(st, item{kind: frameData, data: bytes.Clone(body), end: end}); err != nil {
		return err
	}
	d.pump()
	return nil
}

// idle reports whether the client has not opened the stream (yet). Even ids would be pushed streams; there are none.
func (d *direction) idle(id uint32) bool { return id > d.p.lastID || id%2 == 0 }

// onReset handles RST_STREAM. The client's passes at once, and discards what is kept. The backend's waits for what
// the backend has sent before: a server that answers early resets the stream after its trailers.
func (d *direction) onReset(id, code uint32) error {
	st := d.p.streams[id]
	if st == nil {
		if d.idle(id) {
			return faultf(errProtocol, "RST_STREAM on idle stream %d", id)
		}
		return nil
	}
	if d.isUp() {
		if !st.backendReset {
			d.out.addWord(frameRSTStream, id, code)
		}
		d.p.remove(st)
		return nil
	}
	if st.backendReset {
		return nil
	}
	st.backendReset = true
	st.seen[down] = true
	it := item{kind: frameRSTStream, code: code}
	switch h := st.half[down]; {
	case h != nil && h.waiting():
		d.dropPartial(h)
		d.p.drop(st, d.p.up)
		d.enqueue(st, h, it)
	case st.inFifo[down] > 0:
		d.p.drop(st, d.p.up)
		return d.queue(st, it)
	default:
		d.out.addWord(frameRSTStream, id, code)
		d.p.remove(st)
	}
	return nil
}
