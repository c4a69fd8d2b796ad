package relay

import (
	"encoding/binary"

	"golang.org/x/net/http2/hpack"
)

// item waits in a queue of a direction to be written.
type item struct {
	kind     byte    // frameData, frameHeaders, frameRSTStream, or frameSettings for the ACK of SETTINGS
	st       *stream // nil for SETTINGS; only in fifo
	data     []byte
	callback bool // data is a whole message, prefix included, and goes to a callback first
	fields   []hpack.HeaderField
	priority []byte
	end      bool
	code     uint32
	set      settings
}

// join appends DATA to DATA, so that tiny frames need little memory.
func (it *item) join(next *item) bool {
	if it.kind != frameData || next.kind != frameData || it.callback || next.callback || it.end {
		return false
	}
	it.data = append(it.data, next.data...)
	it.end = next.end
	return true
}

// settings are the values of one SETTINGS frame that matter here; absent is -1.
type settings struct{ window, frame, table int64 }

var noSettings = settings{window: -1, frame: -1, table: -1}

const absent = -1

// Top-ups and grants are lazy, to send few frames; the sender always has lowCredit or more.
const (
	lowCredit   = 32 << 10
	smallGrant  = 16 << 10
	streamTopUp = 64 << 10
)

// grant gives the sender what the connection window leaves: all of it when the receiver has given, lazily when kept
// or dropped bytes made room.
func (d *direction) grant(all bool) {
	g := d.window - d.held - d.credit
	if g <= 0 || (!all && g < smallGrant && d.credit >= lowCredit) {
		return
	}
	d.back.out.addWord(frameWindowUpdate, 0, uint32(g))
	d.credit += g
}

// topUp keeps the sender of a hooked stream sending: as far as the message it is in the middle of, or a little, and not at all
// while much of the stream waits for its receiver.
func (d *direction) topUp(st *stream, h *half) {
	if st.seen[d.index] || st.dropped[d.index] || h.credit >= lowCredit || h.backlogged() {
		return
	}
	want := max(int64(streamTopUp), min(h.missing(), d.p.MaxKeptBytes)+smallGrant)
	k := min(want-h.credit, maxWindow)
	d.back.out.addWord(frameWindowUpdate, st.id, uint32(k))
	h.credit += k
}

func (d *direction) onWindowUpdate(f *frame) error {
	k := int64(binary.BigEndian.Uint32(f.payload) & maxWindow)
	if k == 0 {
		return faultf(errProtocol, "WINDOW_UPDATE of 0 on stream %d", f.stream)
	}
	to := d.back // the sender of this frame is the receiver there
	if f.stream == 0 {
		if to.window += k; to.window > maxWindow {
			return faultf(errFlowControl, "connection window over %d", maxWindow)
		}
		to.pump()
		to.grant(true)
		return nil
	}
	st := d.p.streams[f.stream]
	if st == nil {
		if d.idle(f.stream) {
			return faultf(errProtocol, "WINDOW_UPDATE on idle stream %d", f.stream)
		}
		return nil // for a closed stream
	}
	h := st.half[to.index]
	if h == nil {
		d.out.add(f.raw)
		return nil
	}
	if h.window += k; h.window > maxWindow {
		return faultf(errFlowControl, "window of stream %d over %d", f.stream, maxWindow)
	}
	to.pump()
	return nil
}

// onSettings forwards SETTINGS, clamped to what we bear, and their ACKs. Settings bind what is sent to their author from
// the ACK on, not before; so they wait in pending for the ACK, which itself queues behind DATA that was sent before it.
// Only read limits are raised at once, and never lowered.
func (d *direction) onSettings(f *frame) error {
	d.settled = true
	if f.has(flagAck) {
		return d.onSettingsAck()
	}
	author := d.back // the direction that leads to the author
	if len(author.pending) >= maxPendingSetting {
		return faultf(errEnhanceYourCalm, "%d SETTINGS not acknowledged", len(author.pending))
	}
	s := noSettings
	for b := f.payload; len(b) > 0; b = b[settingBytes:] {
		v := int64(binary.BigEndian.Uint32(b[2:]))
		switch binary.BigEndian.Uint16(b) {
		case settingHeaderTableSize:
			v = min(v, maxTableSize)
			s.table = v
		case settingInitialWindowSize:
			if v > maxWindow {
				return faultf(errFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE %d", v)
			}
			s.window = v
		case settingMaxFrameSize:
			if v < minFrameSize || v >= 1<<24 {
				return faultf(errProtocol, "SETTINGS_MAX_FRAME_SIZE %d", v)
			}
			v = min(v, maxFrameSize)
			s.frame = v
			author.readLimit = max(author.readLimit, int(v))
		}
		binary.BigEndian.PutUint32(b[2:], uint32(v))
	}
	author.pending = append(author.pending, s)
	d.out.add(f.raw)
	if !d.isUp() && d.p.drain == drainWanted {
		d.p.pingDrain()
	}
	return nil
}

func (d *direction) onSettingsAck() error {
	if len(d.pending) == 0 {
		return nil // of nothing: harmless, but not for the other hop
	}
	s := d.pending[0]
	d.pending = d.pending[1:]
	if s.window != absent { // the sender counts with it from here on
		delta := s.window - d.initCredit
		d.initCredit = s.window
		for _, st := range d.p.streams {
			if h := st.half[d.index]; h != nil {
				h.credit += delta
				d.topUp(st, h)
			}
		}
	}
	if err := d.queue(nil, item{kind: frameSettings, set: s}); err != nil {
		return err
	}
	d.pump()
	return nil
}

// apply lets acknowledged settings bind what we write.
func (d *direction) apply(s settings) {
	if s.table != absent {
		d.enc.SetMaxDynamicTableSizeLimit(uint32(s.table))
		d.enc.SetMaxDynamicTableSize(uint32(s.table))
	}
	if s.frame != absent {
		d.frameSize = int(s.frame)
	}
	if s.window != absent {
		for _, st := range d.p.streams {
			if h := st.half[d.index]; h != nil {
				h.window += s.window - d.initWindow
			}
		}
		d.initWindow = s.window
	}
}

// queue puts an item of an untouched stream, or an ACK of SETTINGS (st is nil), behind what waits for the connection
// window.
func (d *direction) queue(st *stream, it item) error {
	if n := len(d.fifo); n > 0 && it.kind == frameData && d.fifo[n-1].st == st && d.fifo[n-1].join(&it) {
		return nil
	}
	for _, f := range it.fields {
		d.fifoFields += int(f.Size())
	}
	if len(d.fifo) >= maxQueuedItems || d.fifoFields > maxQueuedFields {
		return faultf(errEnhanceYourCalm, "too many frames for a shut connection window")
	}
	if it.st = st; st != nil {
		st.inFifo[d.index]++
	}
	d.fifo = append(d.fifo, it)
	return nil
}

// pump writes what windows and buffer allow: in turn one frame of the fifo and one of each hooked stream, so that none
// starves another.
func (d *direction) pump() {
	if d.p.closed {
		return
	}
	for progress := true; progress && !d.out.full(); {
		progress = d.pumpFifo()
		keep := d.ready[:0]
		for _, st := range d.ready {
			h := st.half[d.index]
			if d.pumpHalf(st, h) {
				progress = true
			}
			if st.dropped[d.index] || len(h.queue) == 0 {
				h.ready = false
				continue
			}
			keep = append(keep, st)
		}
		clear(d.ready[len(keep):])
		d.ready = keep
	}
	d.grant(false)
}

func (d *direction) pumpFifo() (progress bool) {
	if len(d.fifo) == 0 {
		return false
	}
	it := &d.fifo[0]
	if st := it.st; st == nil || !st.dropped[d.index] {
		n, done := d.write(st, it, maxWindow)
		d.held -= int64(n)
		if !done {
			return n > 0
		}
		if st != nil {
			st.inFifo[d.index]--
		}
	}
	for _, f := range it.fields {
		d.fifoFields -= int(f.Size())
	}
	d.fifo[0] = item{} // the array lives on
	if d.fifo = d.fifo[1:]; len(d.fifo) == 0 {
		d.fifo = nil
	}
	return true
}

func (d *direction) pumpHalf(st *stream, h *half) (progress bool) {
	if st.dropped[d.index] || len(h.queue) == 0 || d.out.full() {
		return false
	}
	it := &h.queue[0]
	n, done := d.write(st, it, h.window)
	if st.dropped[d.index] {
		return true // it was the last frame of the stream
	}
	h.window -= int64(n)
	d.keep(h, -n)
	if done {
		*it = item{}
		h.queue = h.queue[1:]
	}
	d.topUp(st, h)
	return done || n > 0
}

// write writes an item, or as much of it as window, the connection window and a frame hold; n counts against the windows.
func (d *direction) write(st *stream, it *item, window int64) (n int, done bool) {
	switch it.kind {
	case frameHeaders:
		d.writeHeaders(st, it.fields, it.priority, it.end)
	case frameRSTStream:
		d.out.addWord(frameRSTStream, st.id, it.code)
		d.p.remove(st)
	case frameSettings:
		d.apply(it.set)
		d.out.addHeader(0, frameSettings, flagAck, 0)
	case frameData:
		size := min(int64(len(it.data)), window, d.window, int64(d.frameSize))
		if size < 0 || (size == 0 && len(it.data) > 0) {
			return 0, false
		}
		n = int(size)
		done = n == len(it.data)
		flags := byte(0)
		if done && it.end {
			flags = flagEndStream
		}
		d.out.addHeader(n, frameData, flags, st.id)
		d.out.add(it.data[:n])
		d.window -= size
		it.data = it.data[n:]
		if !d.isUp() {
			d.p.pings.delivered = true
		}
		if done && it.end {
			d.ended(st)
		}
		return n, done
	}
	return 0, true
}
