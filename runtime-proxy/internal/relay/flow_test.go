package relay

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// bench is a pair without sockets: a test feeds frames and looks at those that come out.
type bench struct {
	t    *testing.T
	p    *pair
	sink [2]*sink
}

// sink is a connection to a peer that reads all and says nothing.
type sink struct {
	net.Conn
	mu  sync.Mutex
	buf []byte
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = append(s.buf, b...)
	return len(b), nil
}

func (s *sink) Close() error                     { return nil }
func (s *sink) SetReadDeadline(time.Time) error  { return nil }
func (s *sink) SetWriteDeadline(time.Time) error { return nil }

func newBench(t *testing.T, hook Hook) *bench {
	b := &bench{t: t, sink: [2]*sink{{}, {}}}
	b.p = newPair(context.Background(), newShared(Config{Hook: hook, CallbackTimeout: time.Minute}), b.sink[down], b.sink[up])
	t.Cleanup(b.p.shut)
	b.feed(up, preface+rawFrame(frameSettings, 0, 0, ""))
	b.feed(down, rawFrame(frameSettings, 0, 0, ""), rawFrame(frameSettings, flagAck, 0, ""))
	b.feed(up, rawFrame(frameSettings, flagAck, 0, ""))
	b.take(up)
	b.take(down)
	return b
}

func (b *bench) feed(d int, frames ...string) {
	b.t.Helper()
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	in := []byte(strings.Join(frames, ""))
	used, _, err := []*direction{b.p.up, b.p.down}[d].consume(in)
	if err != nil || used < len(in) {
		b.t.Fatalf("%d of %d bytes handled: %v", used, len(in), err)
	}
}

// take returns the frames that were written in a direction, as "DATA 3 100 END" and so on.
func (b *bench) take(d int) (got []string) {
	w := []*direction{b.p.up, b.p.down}[d].out
	eventually(b.t, "all is written", func() bool {
		b.p.mu.Lock()
		defer b.p.mu.Unlock()
		w.urgent = true
		w.flush(false)
		return w.size() == 0 && !w.writing
	})
	b.sink[d].mu.Lock()
	defer b.sink[d].mu.Unlock()
	buf := []byte(strings.TrimPrefix(string(b.sink[d].buf), preface))
	b.sink[d].buf = nil
	names := []string{"DATA", "HEADERS", "PRIORITY", "RST", "SETTINGS", "PUSH", "PING", "GOAWAY", "UPDATE", "CONTINUATION"}
	for len(buf) > 0 {
		f, size, err := parseFrame(buf, 1<<24)
		if err != nil || size > len(buf) {
			b.t.Fatalf("written: %q", buf)
		}
		s := fmt.Sprint(names[f.kind], " ", f.stream)
		switch f.kind {
		case frameData:
			s += fmt.Sprint(" ", len(f.payload))
		case frameWindowUpdate, frameRSTStream:
			s += fmt.Sprint(" ", binary.BigEndian.Uint32(f.payload))
		}
		if f.kind < framePriority && f.has(flagEndStream) {
			s += " END"
		}
		got = append(got, s)
		buf = buf[size:]
	}
	return got
}

func (b *bench) open(id uint32, method string) {
	b.feed(up, rawFrame(frameHeaders, flagEndHeaders, id, "\x04"+string(rune(len(method)))+method+"\x0f\x10\x10application/grpc"))
}

const answerOK = "\x88\x00\x0bgrpc-status\x010"

func word(v uint32) string { return string(binary.BigEndian.AppendUint32(nil, v)) }

// shutWindow lets a message of stream 1 grow until the client's connection window is shut, of which the backend does
// not know: it still believes to have nearly 64 KiB.
func (b *bench) shutWindow() {
	b.open(1, "/t.T/HookResp")
	b.feed(down, rawFrame(frameHeaders, flagEndHeaders, 1, "\x88"),
		rawFrame(frameData, 0, 1, string(prefixed(orders(header, 0, opGrow70K, 0, 0, 0)))),
		rawFrame(frameHeaders, flagEndHeaders|flagEndStream, 1, answerOK))
	eventually(b.t, "the window is shut", func() bool { b.p.mu.Lock(); defer b.p.mu.Unlock(); return b.p.down.window == 0 })
	b.take(down)
	b.take(up)
}

func (b *bench) want(d int, want ...string) {
	b.t.Helper()
	if got := b.take(d); !slices.Equal(got, want) {
		b.t.Errorf("direction %d: got %q, want %q", d, got, want)
	}
}

// Frames of an untouched stream wait for the connection window in their order, the reset included; padding that the
// receiver does not see is given back on the stream.
func TestQueueKeepsOrder(t *testing.T) {
	b := newBench(t, fuzzHook)
	b.shutWindow()
	b.open(3, "/t.T/Unary")
	b.take(up)
	b.feed(down, rawFrame(frameHeaders, flagEndHeaders, 3, "\x88"),
		rawFrame(frameData, flagPadded, 3, "\x63"+strings.Repeat("x", 1000)+strings.Repeat("\x00", 99)))
	b.want(up, "UPDATE 3 100")
	b.feed(down, rawFrame(frameHeaders, flagEndHeaders|flagEndStream, 3, answerOK), rawFrame(frameRSTStream, 0, 3, word(errNone)))
	b.want(down, "HEADERS 3")
	b.feed(up, rawFrame(frameData, 0, 3, "late"), rawFrame(frameWindowUpdate, 0, 0, word(600)))
	b.want(down, "DATA 3 600")
	b.feed(up, rawFrame(frameWindowUpdate, 0, 0, word(600)))
	b.want(down, "DATA 3 400", "HEADERS 3 END", "RST 3 0")
	b.want(up) // neither the late DATA, nor credit for what was paid by the client's updates
}

// Dropped DATA is given back on the connection: of streams that are gone, and of requests that are answered.
func TestDroppedDataIsCredited(t *testing.T) {
	b := newBench(t, fuzzHook)
	b.open(1, "/t.T/Unary")
	b.feed(up, rawFrame(frameRSTStream, 0, 1, word(errCancel)))
	b.take(up)
	for range 3 {
		b.feed(down, rawFrame(frameData, 0, 1, strings.Repeat("x", 16000)))
	}
	b.want(up, "UPDATE 0 32000") // the rest later
	b.want(down)
}

// Whoever has no initial window gets one for a hooked stream: the client with the opening of the stream, the backend
// after the HEADERS.
func TestTopUpWithoutInitialWindow(t *testing.T) {
	zero := rawFrame(frameSettings, 0, 0, "\x00\x04\x00\x00\x00\x00")
	ack := rawFrame(frameSettings, flagAck, 0, "")
	b := newBench(t, fuzzHook)
	b.feed(down, zero)
	b.feed(up, ack)
	b.feed(up, zero)
	b.feed(down, ack)
	b.take(up)
	b.take(down)
	b.open(1, "/t.T/Hook")
	b.want(up, "HEADERS 1", "UPDATE 1 65536")
	b.want(down, "UPDATE 1 65536")
}

// A backend that answers without waiting for the request: the callbacks still run one after the other.
func TestResponseWaitsForRequest(t *testing.T) {
	gate := make(chan struct{})
	var requestDone, responses atomic.Int32
	b := newBench(t, func(string) *Call {
		return &Call{
			Request: func(_ context.Context, m []byte) ([]byte, *Status) { <-gate; requestDone.Add(1); return m, nil },
			Response: func(_ context.Context, m []byte) ([]byte, *Status) {
				if requestDone.Load() == 0 {
					t.Error("Response runs before Request has returned")
				}
				responses.Add(1)
				return m, nil
			},
		}
	})
	b.open(1, "/t.T/Hook")
	b.feed(up, rawFrame(frameData, flagEndStream, 1, string(prefixed([]byte("question")))))
	b.feed(down, rawFrame(frameHeaders, flagEndHeaders, 1, "\x88"), rawFrame(frameData, 0, 1, string(prefixed([]byte("answer")))),
		rawFrame(frameHeaders, flagEndHeaders|flagEndStream, 1, answerOK))
	time.Sleep(20 * time.Millisecond)
	close(gate)
	eventually(t, "both run", func() bool { return responses.Load() == 1 })
	eventually(t, "the call ends", func() bool { b.p.mu.Lock(); defer b.p.mu.Unlock(); return len(b.p.streams) == 0 })
	b.want(down, "HEADERS 1", "DATA 1 11", "HEADERS 1 END")
}

// A stream that is hooked message by message and not read gives its backend no more credit, until it is read.
func TestBackpressureOfMessages(t *testing.T) {
	b := newBench(t, func(string) *Call {
		return &Call{Message: func(_ context.Context, m []byte) []byte { return m }}
	})
	b.open(1, "/t.T/Hook")
	sent := 0
	credit := func() int64 {
		b.p.mu.Lock()
		defer b.p.mu.Unlock()
		return min(b.p.streams[1].half[down].credit, b.p.down.credit)
	}
	m := rawFrame(frameData, 0, 1, string(prefixed(make([]byte, 8000))))
	for credit() >= 8005 && sent < 2<<20 {
		b.feed(down, m)
		sent += 8005
	}
	if sent > 512<<10 {
		t.Fatalf("the backend may send %d bytes that nobody reads", sent)
	}
	eventually(t, "the callbacks are done", func() bool { b.p.mu.Lock(); defer b.p.mu.Unlock(); return b.p.tasks == 0 })
	b.feed(up, rawFrame(frameWindowUpdate, 0, 0, word(1<<20)), rawFrame(frameWindowUpdate, 0, 1, word(1<<20)))
	if credit() < lowCredit {
		t.Errorf("only %d bytes of credit after all is read", credit())
	}
}
