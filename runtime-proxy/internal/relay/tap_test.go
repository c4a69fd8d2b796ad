package relay

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
)

// tap forwards one hop and checks strictly what passes on it: connection and stream windows, zero updates, frames on
// idle streams and after the end, rising ids, GOAWAY. grpc-go itself does not enforce the connection window, so that
// passing with grpc-go alone proves little.
type tap struct {
	mu      sync.Mutex
	name    string
	fail    func(string)
	buf     [2][]byte
	started bool
	conn    [2]int64 // what direction i may still send
	initial [2]int64
	pending [2][]int64
	window  [2]map[uint32]int64
	done    [2]map[uint32]bool
	last    uint32
	block   [2]bool // a header block is open

	goAways     []uint32 // last stream ids, towards the client
	goAwayCodes []uint32
	allowCode   bool // a GOAWAY may have a code
	dataBytes   [2]int64
	lowest      [2]int64
	frames      [2]int
	pings       [2]int
}

func newTap(name string, fail func(string)) *tap {
	t := &tap{name: name, fail: fail}
	for i := range 2 {
		t.conn[i], t.initial[i], t.lowest[i] = defaultWindow, defaultWindow, defaultWindow
		t.window[i], t.done[i] = map[uint32]int64{}, map[uint32]bool{}
	}
	return t
}

func (t *tap) bad(i int, f string, a ...any) {
	t.fail(fmt.Sprintf("%s hop, direction %d: ", t.name, i) + fmt.Sprintf(f, a...))
}

func (t *tap) feed(i int, b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf[i] = append(t.buf[i], b...)
	for {
		b := t.buf[i]
		if i == up && !t.started {
			if len(b) < len(preface) {
				return
			}
			t.started = true
			t.buf[i] = b[len(preface):]
			continue
		}
		f, size, err := parseFrame(b, 1<<24)
		if err != nil || size > len(b) {
			return
		}
		t.frames[i]++
		t.frame(i, &f)
		t.buf[i] = b[size:]
	}
}

func (t *tap) frame(i int, f *frame) {
	id, n := f.stream, int64(len(f.payload))
	if t.block[i] != (f.kind == frameContinuation) {
		t.bad(i, "frame type %d inside a header block, or CONTINUATION outside", f.kind)
	}
	switch f.kind {
	case frameData:
		if id > t.last {
			t.bad(i, "DATA on idle stream %d", id)
		}
		if t.done[i][id] {
			t.bad(i, "DATA after the end of %d", id)
		}
		t.conn[i] -= n
		t.dataBytes[i] += n
		t.lowest[i] = min(t.lowest[i], t.conn[i])
		if t.conn[i] < 0 {
			t.bad(i, "connection window overrun: %d", t.conn[i])
		}
		if w, ok := t.window[i][id]; ok {
			t.window[i][id] = w - n
			if w-n < 0 && n > 0 {
				t.bad(i, "window of stream %d overrun: %d", id, w-n)
			}
		}
		if f.has(flagEndStream) {
			t.done[i][id] = true
		}
	case frameHeaders:
		t.block[i] = !f.has(flagEndHeaders)
		switch {
		case i == up && id > t.last:
			t.last = id
			t.window[up][id], t.window[down][id] = t.initial[up], t.initial[down]
		case id > t.last:
			t.bad(i, "HEADERS on idle stream %d", id)
		case t.done[i][id]:
			t.bad(i, "HEADERS after the end of %d", id)
		}
		if f.has(flagEndStream) {
			t.done[i][id] = true
		}
	case frameContinuation:
		t.block[i] = !f.has(flagEndHeaders)
	case frameRSTStream:
		if id > t.last {
			t.bad(i, "RST_STREAM on idle stream %d", id)
		}
		t.done[i][id] = true
		delete(t.window[0], id)
		delete(t.window[1], id)
	case frameWindowUpdate:
		k := int64(binary.BigEndian.Uint32(f.payload))
		if k == 0 {
			t.bad(i, "WINDOW_UPDATE of 0 on %d", id)
		}
		if id == 0 {
			if t.conn[1-i] += k; t.conn[1-i] > maxWindow {
				t.bad(i, "connection window overflow")
			}
		} else if id > t.last {
			t.bad(i, "WINDOW_UPDATE on idle stream %d", id)
		} else if w, ok := t.window[1-i][id]; ok {
			if t.window[1-i][id] = w + k; w+k > maxWindow {
				t.bad(i, "window of stream %d overflows", id)
			}
		}
	case frameSettings:
		if f.has(flagAck) {
			if len(t.pending[i]) == 0 {
				t.bad(i, "ACK of no SETTINGS")
				return
			}
			v := t.pending[i][0]
			t.pending[i] = t.pending[i][1:]
			if v >= 0 {
				for s := range t.window[i] {
					t.window[i][s] += v - t.initial[i]
				}
				t.initial[i] = v
			}
			return
		}
		v := int64(-1)
		for p := f.payload; len(p) > 0; p = p[settingBytes:] {
			if binary.BigEndian.Uint16(p) == settingInitialWindowSize {
				v = int64(binary.BigEndian.Uint32(p[2:]))
			}
		}
		t.pending[1-i] = append(t.pending[1-i], v)
	case framePing:
		t.pings[i]++
	case frameGoAway:
		last, code := binary.BigEndian.Uint32(f.payload), binary.BigEndian.Uint32(f.payload[4:])
		if i == down {
			if k := len(t.goAways); k > 0 && last > t.goAways[k-1] {
				t.bad(i, "GOAWAY for stream %d after %d", last, t.goAways[k-1])
			}
			t.goAways = append(t.goAways, last)
			t.goAwayCodes = append(t.goAwayCodes, code)
		}
		if code != errNone && !t.allowCode {
			t.bad(i, "GOAWAY code %d %s", code, f.payload[8:])
		}
	}
}

// cut says how many of n bytes may pass after those that have passed; if not all, both connections are closed.
type cut func(direction, passed, n int) int

// serveTap taps each connection of l on its way to dial, until l is closed.
func serveTap(l net.Listener, dial func() (net.Conn, error), newTap func() *tap, keep cut) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		b, err := dial()
		if err != nil {
			c.Close()
			continue
		}
		t := newTap()
		copyBytes := func(i int, dst, src net.Conn) {
			buf := make([]byte, 32<<10)
			passed := 0
			for {
				n, err := src.Read(buf)
				if n > 0 {
					may := n
					if keep != nil {
						may = keep(i, passed, n)
					}
					t.feed(i, buf[:may])
					if _, err := dst.Write(buf[:may]); err != nil {
						return // dst is closed, but what it sent before must still be read
					}
					passed += may
					if may < n {
						err = io.EOF
					}
				}
				if err != nil {
					dst.Close()
					src.Close()
					return
				}
			}
		}
		wg.Go(func() { copyBytes(up, b, c) })
		wg.Go(func() { copyBytes(down, c, b) })
	}
}
