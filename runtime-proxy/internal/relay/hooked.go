package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime/debug"
	"slices"
	"time"
)

// hook asks the Hook about a new call and prepares its halves.
func (p *pair) hook(st *stream, method string) {
	defer func() {
		if v := recover(); v != nil {
			p.observe(EventHookPanicked, method, &PanicError{Value: v, Stack: debug.Stack()})
		}
	}()
	call := p.Hook(method)
	if call == nil {
		return
	}
	st.call, st.method = call, method
	st.ctx, st.cancel = context.WithCancel(p.ctx)
	if call.Request != nil {
		st.half[up] = p.up.newHalf(collectFirst)
	}
	if call.Message != nil {
		st.half[down] = p.down.newHalf(collectEach)
	} else if call.Response != nil {
		st.half[down] = p.down.newHalf(collectWhole)
	}
}

func (d *direction) newHalf(m mode) *half {
	return &half{mode: m, window: d.initWindow, credit: d.initCredit}
}

// collect takes DATA of a hooked stream; its bytes are counted as kept.
func (d *direction) collect(st *stream, h *half, body []byte, end bool) {
	for len(body) > 0 && h.mode != passing {
		n := len(body)
		if missing := h.missing(); h.size() == 0 {
			n = min(n, prefixBytes-len(h.msg))
		} else if missing > 0 {
			n = int(min(int64(n), missing))
		} else { // a second message where there should be one
			d.pass(st, h)
			break
		}
		h.take(body[:n])
		body = body[n:]
		if h.size() > d.p.MaxKeptBytes {
			d.p.refuseKept(st)
			return
		}
		if h.size() == 0 || h.missing() > 0 || h.mode == collectWhole {
			continue
		}
		d.keepHeaders(h)
		msg := h.msg
		h.msg = nil
		if h.mode == collectFirst {
			h.mode = passing
		}
		d.enqueue(st, h, item{kind: frameData, data: msg, callback: true, end: end && len(body) == 0})
		if st.gone {
			return
		}
		if end && len(body) == 0 {
			return
		}
	}
	if end {
		d.pass(st, h)
	}
	if len(body) > 0 || end {
		d.enqueue(st, h, item{kind: frameData, data: bytes.Clone(body), end: end})
	}
}

// take appends to msg. It grows by doubling: the length in the prefix is only a promise.
func (h *half) take(b []byte) {
	if want := len(h.msg) + len(b); want > cap(h.msg) {
		size := max(want, 2*cap(h.msg), 4<<10)
		if h.size() > 0 {
			size = max(want, int(min(int64(size), h.size())))
		}
		h.msg = append(make([]byte, 0, size), h.msg...)
	}
	h.msg = append(h.msg, b...)
}

// pass forwards what is collected as it is, and all that follows.
func (d *direction) pass(st *stream, h *half) {
	h.mode = passing
	if len(h.msg) == 0 {
		return
	}
	msg := h.msg
	h.msg = nil
	d.enqueue(st, h, item{kind: frameData, data: msg})
}

// keepHeaders leaves the HEADERS of a stream unflushed for its message, which came in the same batch.
func (d *direction) keepHeaders(h *half) {
	if h.headersIn == d.batch && d.held1st > 0 {
		d.held1st--
		h.headersIn = 0
	}
}

// hookedHeaders handles HEADERS of a hooked stream: response headers, or trailers, with which the message is complete
// and its status known.
func (d *direction) hookedHeaders(st *stream, h *half, hf headerFrame) {
	if hf.end && len(h.msg) > 0 {
		if h.mode == collectWhole && st.status == statusOK && h.size() > 0 && h.missing() == 0 {
			d.keepHeaders(h)
			msg := h.msg
			h.msg, h.mode = nil, passing
			d.enqueue(st, h, item{kind: frameData, data: msg, callback: true})
		} else {
			d.pass(st, h)
		}
	}
	if hf.end {
		h.mode = passing
	}
	if st.gone {
		return
	}
	if h.waiting() || len(h.msg) > 0 {
		d.enqueue(st, h, item{kind: frameHeaders, fields: slices.Clone(d.fields), priority: hf.priority, end: hf.end})
		return
	}
	d.writeHeaders(st, d.fields, hf.priority, hf.end)
}

// enqueue puts an item of a hooked stream behind all that came before it.
func (d *direction) enqueue(st *stream, h *half, it item) {
	if it.callback && it.data[0] != 0 {
		d.p.observe(EventCompressed, st.method, nil)
		it.callback = false
	}
	if len(h.work) == 0 && !it.callback {
		h.queue = appendItem(h.queue, it)
		d.setReady(st, h)
		return
	}
	if n := len(h.work); n > 0 && it.kind == frameData && len(it.data) == 0 && h.work[n-1].callback {
		h.work[n-1].end = it.end // END_STREAM alone: it goes with the message
	} else {
		h.work = appendItem(h.work, it)
	}
	d.advance(st, h)
}

func appendItem(q []item, it item) []item {
	if n := len(q); n > 0 && q[n-1].join(&it) {
		return q
	}
	return append(q, it)
}

func (d *direction) setReady(st *stream, h *half) {
	if !h.ready {
		h.ready = true
		d.ready = append(d.ready, st)
	}
	d.pump()
}

// advance moves work on: to the queue, or into a callback. A response waits for the request's callback.
func (d *direction) advance(st *stream, h *half) {
	moved := false
	for len(h.work) > 0 && !h.busy {
		it := h.work[0]
		if it.callback {
			if other := st.half[d.back.index]; !d.isUp() && other != nil && other.busy {
				break
			}
			if d.inline(st.call) && len(it.data) <= maxInline {
				before := len(it.data)
				var s *Status
				if it.data, s = d.runInline(st, it.data); s != nil {
					d.p.refuse(st, s)
					return
				}
				d.keep(h, len(it.data)-before)
			} else if d.start(st, h, it.data) {
				break
			}
			it.callback = false
		}
		h.work[0] = item{}
		h.work = h.work[1:]
		h.queue = appendItem(h.queue, it)
		moved = true
	}
	if moved {
		d.setReady(st, h)
	}
}

// run is one callback under way.
type run struct {
	d      *direction
	st     *stream
	h      *half
	raw    []byte // the message with its prefix; kept counts it, the half does not
	timer  *time.Timer
	cancel context.CancelFunc
	over   bool // its result, or that there is none in time, is settled
}

// start runs the callback for the message raw, which is in work[0]; false means that it is not to be run.
func (d *direction) start(st *stream, h *half, raw []byte) bool {
	p := d.p
	if p.abandoned.Load() >= maxAbandoned {
		p.observe(EventHookSkipped, st.method, nil)
		return false
	}
	cb := d.callback(st.call)
	h.busy = true
	h.work[0].data = nil
	h.inCallback = int64(len(raw))
	h.bytes -= h.inCallback
	st.running++
	ctx, cancel := context.WithCancel(st.ctx)
	r := &run{d: d, st: st, h: h, raw: raw, cancel: cancel}
	r.timer = time.AfterFunc(p.CallbackTimeout, r.timeout)
	p.tasks++
	p.work(func() { r.do(ctx, cb) })
	return true
}

// work runs f in a goroutine. A few of them stay for the next f, since their stacks have grown by then, which costs
// more than most callbacks do.
func (p *pair) work(f func()) {
	select {
	case p.jobs <- f:
		return
	default:
	}
	go func() {
		for {
			f()
			if p.waiting.Add(1) > maxWaiting {
				p.waiting.Add(-1)
				return
			}
			select {
			case f = <-p.jobs:
				p.waiting.Add(-1)
			case <-p.ctx.Done():
				return
			}
		}
	}()
}

// runInline runs the callback for the message raw at once. One that panics leaves its message as it was.
func (d *direction) runInline(st *stream, raw []byte) (msg []byte, s *Status) {
	defer func() {
		if v := recover(); v != nil {
			d.p.observe(EventHookPanicked, st.method, &PanicError{Value: v, Stack: debug.Stack()})
			msg, s = raw, nil
		}
	}()
	out, s := d.callback(st.call)(st.ctx, raw[prefixBytes:])
	if s != nil {
		return nil, s
	}
	return frameMessage(raw, out), nil
}

func (d *direction) inline(c *Call) bool {
	if d.isUp() {
		return c.InlineRequest
	}
	return c.InlineResponse
}

// callback gives the callbacks one form.
func (d *direction) callback(c *Call) func(context.Context, []byte) ([]byte, *Status) {
	if d.isUp() {
		return c.Request
	}
	if c.Message == nil {
		return c.Response
	}
	return func(ctx context.Context, msg []byte) ([]byte, *Status) { return c.Message(ctx, msg), nil }
}

// do runs the callback. One that panics, or ends its goroutine, leaves its message as it was.
func (r *run) do(ctx context.Context, cb func(context.Context, []byte) ([]byte, *Status)) {
	in := r.raw[prefixBytes:]
	out, status, returned := in, (*Status)(nil), false
	defer func() {
		var err error
		if v := recover(); v != nil || !returned {
			out, status, err = in, nil, &PanicError{Value: v, Stack: debug.Stack()}
		}
		r.finish(out, status, err)
	}()
	out, status = cb(ctx, in)
	returned = true
}

// finish takes the result of the callback.
func (r *run) finish(out []byte, status *Status, panicked error) {
	var msg []byte
	if status == nil {
		msg = frameMessage(r.raw, out)
	}
	r.timer.Stop()
	r.cancel()
	p := r.d.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if panicked != nil {
		p.observe(EventHookPanicked, r.st.method, panicked)
	}
	if r.over {
		p.abandoned.Add(-1)
		return
	}
	r.settle(msg, status)
	p.taskDone()
}

// frameMessage gives msg a prefix; raw, the message as it came, is used again if nothing has changed.
func frameMessage(raw, msg []byte) []byte {
	if body := raw[prefixBytes:]; len(msg) == len(body) && (len(msg) == 0 || &msg[0] == &body[0]) {
		return raw
	}
	b := make([]byte, prefixBytes+len(msg))
	binary.BigEndian.PutUint32(b[1:], uint32(len(msg)))
	copy(b[prefixBytes:], msg)
	return b
}

// timeout gives a callback up.
func (r *run) timeout() {
	p := r.d.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.over {
		return
	}
	p.abandoned.Add(1)
	p.observe(EventHookTimedOut, r.st.method, nil)
	r.cancel()
	r.settle(r.raw, nil)
	p.taskDone()
}

// settle continues the call with the outcome of a callback: msg, or a Status.
func (r *run) settle(msg []byte, s *Status) {
	d, st, h, p := r.d, r.st, r.h, r.d.p
	r.over = true
	h.busy, h.inCallback = false, 0
	st.running--
	p.kept -= int64(len(r.raw))
	switch {
	case st.gone:
		p.callDone(st)
		return
	case p.closed, st.dropped[d.index]:
	case s != nil:
		p.refuse(st, s)
	default:
		h.work[0].data, h.work[0].callback = msg, false
		d.keep(h, len(msg))
		d.advance(st, h)
	}
	if other := st.half[down]; !st.gone && d.isUp() && other != nil {
		p.down.advance(st, other)
	}
	p.up.out.flush(false)
	p.down.out.flush(false)
	if p.down.out.size() > hardBuffer { // refusals
		p.blame(p.up, errUnread)
		p.shutLocked()
	}
	p.finish()
}

// callDone reports the end of a call, once it is over and no callback of it runs.
func (p *pair) callDone(st *stream) {
	if st.call == nil || st.call.Done == nil || st.running > 0 {
		return
	}
	done, code := st.call.Done, st.status
	st.call = nil
	method := st.method
	p.spawn(func() {
		defer func() {
			if v := recover(); v != nil {
				p.observe(EventHookPanicked, method, &PanicError{Value: v, Stack: debug.Stack()})
			}
		}()
		done(code)
	})
}
