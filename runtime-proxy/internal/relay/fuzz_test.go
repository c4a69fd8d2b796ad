package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
)

func rawFrame(kind, flags byte, id uint32, payload string) string {
	return string(appendFrameHeader(nil, len(payload), kind, flags, id)) + payload
}

// FuzzFrames feeds both frame loops of a pair with anything, in steps of any size. Nothing may panic, spin, or break
// the invariants of the windows; callbacks run in between.
func FuzzFrames(f *testing.F) {
	settings := rawFrame(frameSettings, 0, 0, "")
	headers := func(id uint32, method string) string { // literal :path and content-type, not indexed
		return rawFrame(frameHeaders, flagEndHeaders, id, "\x04"+string(rune(len(method)))+method+"\x0f\x10\x10application/grpc")
	}
	answer := "\x88\x00\x0bgrpc-status\x010" // :status 200, grpc-status 0
	message := "\x00\x00\x00\x00\x10\x02\x02aaaaaaaaaaaaaa"
	f.Add([]byte(preface+settings), []byte(settings+rawFrame(frameSettings, flagAck, 0, "")), uint8(7))
	for _, method := range []string{"/t.T/Hook", "/t.T/HookStream", "/t.T/HookResp", "/t.T/Unary"} {
		f.Add([]byte(preface+settings+headers(1, method)+rawFrame(frameData, flagEndStream, 1, message)+
			rawFrame(frameWindowUpdate, 0, 0, "\x00\x00\x01\x00")+headers(3, method)+rawFrame(frameData, 0, 3, message)+rawFrame(frameRSTStream, 0, 3, "\x00\x00\x00\x08")),
			[]byte(rawFrame(frameSettings, 0, 0, "\x00\x04\x00\x00\x00\x05")+rawFrame(frameSettings, flagAck, 0, "")+
				rawFrame(frameHeaders, flagEndHeaders, 1, "\x88")+rawFrame(frameData, flagPadded, 1, "\x02"+message+"\x00\x00")+
				rawFrame(frameData, 0, 1, message)+rawFrame(frameHeaders, flagEndHeaders|flagEndStream, 1, answer)+rawFrame(frameRSTStream, 0, 1, "\x00\x00\x00\x00")+
				rawFrame(frameGoAway, 0, 0, "\x00\x00\x00\x01\x00\x00\x00\x00")), uint8(30))
	}
	f.Add([]byte(preface+rawFrame(frameSettings, 0, 0, "\x00\x04\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x05\x00\x10\x00\x00")+
		rawFrame(frameHeaders, 0, 1, "\x04\x09/t.T/Ho")+rawFrame(frameContinuation, flagEndHeaders, 1, "ok\x0f\x10\x10application/grpc")+
		rawFrame(frameData, flagPadded, 1, "\x01"+message[:7]+"\x00")+rawFrame(frameData, flagEndStream, 1, message[7:])+rawFrame(framePing, 0, 0, "12345678")),
		[]byte(settings+rawFrame(frameRSTStream, 0, 1, "\x00\x00\x00\x08")), uint8(255))
	f.Fuzz(func(t *testing.T, fromClient, fromBackend []byte, step uint8) {
		feedPair(t, fromClient, fromBackend, int(step)*3, int(step)+1)
	})
}

// TestRandomFrames feeds random sequences of frames that are mostly well-formed, which reach further than bytes do.
func TestRandomFrames(t *testing.T) {
	n := 4000
	if testing.Short() {
		n = 500
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	faults := map[uint32]int{}
	for range n {
		for _, err := range feedPair(t, []byte(preface+randomFrames(r, true)), []byte(randomFrames(r, false)), 600, 1+r.IntN(300)) {
			var f *fault
			if errors.As(err, &f) {
				faults[f.code]++
			}
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("faults by code, of %d runs: %v", n, faults)
}

func randomFrames(r *rand.Rand, client bool) string {
	var b strings.Builder
	b.WriteString(rawFrame(frameSettings, 0, 0, ""))
	word := func(v uint32) string { return string(binary.BigEndian.AppendUint32(nil, v)) }
	const streams = 6
	methods := []string{"/t.T/Hook", "/t.T/HookReq", "/t.T/HookResp", "/t.T/HookStream", "/t.T/Unary"}
	if client {
		for i := range uint32(streams) {
			method := methods[r.IntN(len(methods))]
			b.WriteString(rawFrame(frameHeaders, flagEndHeaders, 2*i+1, "\x04"+string(rune(len(method)))+method+"\x0f\x10\x10application/grpc"))
		}
	}
	ended := map[uint32]bool{}
	for range 3 + r.IntN(60) {
		id := uint32(1 + 2*r.IntN(streams))
		end := byte(r.IntN(8) / 7 * flagEndStream)
		kind := r.IntN(12)
		if kind < 7 && ended[id] && r.IntN(100) > 0 {
			continue
		}
		ended[id] = ended[id] || (kind < 7 && end != 0)
		switch kind {
		case 0, 1, 2:
			if end != 0 || !client {
				b.WriteString(rawFrame(frameHeaders, flagEndHeaders|end, id, "\x88\x00\x0bgrpc-status\x01"+string(rune('0'+r.IntN(2)))))
			}
		case 3, 4, 5, 6:
			m := prefixed(orders(header+r.IntN(400), byte(r.IntN(opGrow1M)), byte(r.IntN(opGrow1M)), 0, 0, 0))
			m[0] = byte(r.IntN(8) / 7)
			if r.IntN(4) == 0 {
				m = m[:r.IntN(len(m))]
			}
			if r.IntN(4) == 0 {
				b.WriteString(rawFrame(frameData, flagPadded|end, id, "\x03"+string(m)+"\x00\x00\x00"))
			} else {
				b.WriteString(rawFrame(frameData, end, id, string(m)))
			}
		case 7:
			b.WriteString(rawFrame(frameWindowUpdate, 0, id*uint32(r.IntN(2)), word(1+uint32(r.IntN(100000)))))
		case 8:
			b.WriteString(rawFrame(frameSettings, 0, 0, "\x00\x04"+word(uint32(r.IntN(3)*r.IntN(70000)))))
		case 9:
			b.WriteString(rawFrame(frameSettings, flagAck, 0, ""))
		case 10:
			if r.IntN(4) == 0 {
				b.WriteString(rawFrame(frameRSTStream, 0, id, word(uint32(r.IntN(9)))))
			}
		case 11:
			b.WriteString(rawFrame(framePing, byte(r.IntN(2)), 0, "12345678"))
		}
	}
	return b.String()
}

// fuzzHook is testHook without its pauses and without chance.
func fuzzHook(method string) *Call {
	c := testHook(method)
	if c == nil {
		return nil
	}
	c.InlineRequest, c.InlineResponse = len(method)%2 == 0, len(method)%3 == 0
	if c.Request != nil {
		c.Request = func(_ context.Context, m []byte) ([]byte, *Status) { return changeRequest(m) }
	}
	return c
}

// feedPair feeds both frame loops, n bytes at a time and the client's lead first, and returns their faults.
func feedPair(t *testing.T, fromClient, fromBackend []byte, lead, n int) (faults []error) {
	p := newPair(context.Background(), newShared(Config{Hook: fuzzHook, MaxKeptBytes: 1 << 20}), &sink{}, &sink{})
	type side struct {
		d         *direction
		buf, rest []byte
		err       error
	}
	sides := []*side{{d: p.up, rest: fromClient}, {d: p.down, rest: fromBackend}}
	p.mu.Lock()
	for active := true; active; {
		active = false
		for _, s := range sides {
			if s.err != nil || (len(s.rest) == 0 && len(s.buf) == 0) {
				continue
			}
			k := min(n, len(s.rest))
			if s.d == p.up {
				k = min(max(n, lead), len(s.rest))
				lead = 0
			}
			s.buf, s.rest = append(s.buf, s.rest[:k]...), s.rest[k:]
			s.d.batch++
			used, need, err := s.d.consume(s.buf)
			if err == nil && used == 0 && need <= len(s.buf) {
				t.Fatalf("spins: needs %d of %d bytes", need, len(s.buf))
			}
			s.buf, s.err = s.buf[used:], err
			s.d.out.buf = s.d.out.buf[:0] // as if written
			s.d.back.out.buf = s.d.back.out.buf[:0]
			s.d.held1st = 0
			s.d.pump()
			active = active || used > 0 || k > 0
		}
		for _, s := range sides {
			d := s.d
			if d.window < 0 || d.held < 0 || d.fifoFields < 0 || p.kept < 0 {
				t.Fatalf("window %d, held %d, fields %d, kept %d", d.window, d.held, d.fifoFields, p.kept)
			}
		}
		if n%3 == 0 {
			p.mu.Unlock()
			runtime.Gosched()
			p.mu.Lock()
		}
	}
	for _, st := range p.streams {
		p.remove(st)
	}
	for _, d := range []*direction{p.up, p.down} {
		if d.held != 0 {
			t.Errorf("held %d without streams", d.held)
		}
	}
	p.mu.Unlock()
	p.shut()
	p.mu.Lock()
	p.over = true
	if p.tasks == 0 {
		close(p.idle)
	}
	p.mu.Unlock()
	<-p.idle
	if p.kept != 0 {
		t.Errorf("kept %d without streams", p.kept)
	}
	return []error{sides[0].err, sides[1].err}
}

// FuzzHeaderText checks what is built from text of callbacks and peers.
func FuzzHeaderText(f *testing.F) {
	f.Add("refusé 100%\n")
	f.Fuzz(func(t *testing.T, s string) {
		e := percentEncode(s)
		if strings.ContainsFunc(e, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q", e)
		}
	})
}
