package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// rawPeer speaks HTTP/2 frame by frame: it sends what a test says, and gives no credit that it is not told to give.
type rawPeer struct {
	t    *testing.T
	conn net.Conn
	f    *http2.Framer
	hb   bytes.Buffer
	enc  *hpack.Encoder
	dec  *hpack.Decoder

	autoConn    bool            // give connection credit for all DATA
	autoStream  map[uint32]bool // and stream credit for these
	padded      bool            // send requests as padded frames of one byte
	open        bool            // do not end requests
	noPingAck   bool
	got         map[uint32]int // bytes
	done        map[uint32]bool
	rst         map[uint32]http2.ErrCode
	headers     map[uint32][]hpack.HeaderField
	goAways     []*http2.GoAwayFrame
	goAwayDebug string
	settings    int
	log         []string
	gone        bool
	block       bytes.Buffer
}

func newRawPeer(t *testing.T, c net.Conn) *rawPeer {
	t.Cleanup(func() { c.Close() })
	r := &rawPeer{
		t: t, conn: c, f: http2.NewFramer(c, c), autoConn: true, autoStream: map[uint32]bool{},
		got: map[uint32]int{}, done: map[uint32]bool{}, rst: map[uint32]http2.ErrCode{}, headers: map[uint32][]hpack.HeaderField{},
	}
	r.f.AllowIllegalWrites = true
	r.enc = hpack.NewEncoder(&r.hb)
	r.dec = hpack.NewDecoder(4096, nil)
	return r
}

// rawClient connects through both taps.
func (w *world) rawClient(set ...http2.Setting) *rawPeer {
	c, err := net.Dial("unix", w.path("up"))
	if err != nil {
		w.t.Fatal(err)
	}
	r := newRawPeer(w.t, c)
	c.Write([]byte(preface))
	r.f.WriteSettings(set...)
	return r
}

// rawBackend accepts the relay's connection as the backend; the world has noBackend.
func rawBackend(t *testing.T, l net.Listener, set ...http2.Setting) *rawPeer {
	l.(*net.UnixListener).SetDeadline(time.Now().Add(8 * time.Second))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(preface))
	for n := 0; n < len(b); {
		k, err := c.Read(b[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += k
	}
	r := newRawPeer(t, c)
	r.f.WriteSettings(set...)
	return r
}

func (r *rawPeer) writeHeaders(id uint32, end bool, fields ...string) {
	r.hb.Reset()
	for i := 0; i < len(fields); i += 2 {
		r.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	r.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.hb.Bytes(), EndHeaders: true, EndStream: end})
}

func (r *rawPeer) request(id uint32, method string, end bool, more ...string) {
	r.writeHeaders(id, end, append([]string{":method", "POST", ":scheme", "http", ":path", method, ":authority", "x",
		"content-type", "application/grpc", "te", "trailers"}, more...)...)
}

func prefixed(m []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
}

// call opens a stream with orders for serveAny.
func (r *rawPeer) call(id uint32, method string, respOp, delay byte, size int) {
	r.request(id, method, false)
	m := prefixed(orders(header, opSame, respOp, answerSimple, delay, size))
	if r.padded {
		for i := range m {
			r.f.WriteDataPadded(id, i == len(m)-1, m[i:i+1], make([]byte, 200))
		}
		return
	}
	r.f.WriteData(id, !r.open, m)
}

// until reads frames until cond holds, or the time is up.
func (r *rawPeer) until(d time.Duration, cond func() bool) bool {
	r.conn.SetReadDeadline(time.Now().Add(d))
	for !cond() {
		fr, err := r.f.ReadFrame()
		if err != nil {
			ne, ok := err.(net.Error)
			r.gone = !ok || !ne.Timeout()
			r.f = http2.NewFramer(r.conn, r.conn) // a timeout may have cut a frame, but never does here
			r.f.AllowIllegalWrites = true
			return cond()
		}
		r.handle(fr)
	}
	return true
}

// pass reads for a while.
func (r *rawPeer) pass(d time.Duration) { r.until(d, func() bool { return false }) }

func (r *rawPeer) handle(fr http2.Frame) {
	id := fr.Header().StreamID
	switch fr := fr.(type) {
	case *http2.SettingsFrame:
		if fr.IsAck() {
			r.log = append(r.log, "ack")
		} else {
			r.settings++
			r.f.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !fr.IsAck() && !r.noPingAck {
			r.f.WritePing(true, fr.Data)
		}
	case *http2.DataFrame:
		r.got[id] += len(fr.Data())
		if n := fr.Length; n > 0 && r.autoConn {
			r.f.WriteWindowUpdate(0, n)
			if r.autoStream[id] {
				r.f.WriteWindowUpdate(id, n)
			}
		}
		if fr.StreamEnded() {
			r.done[id] = true
		}
	case *http2.HeadersFrame:
		r.block.Reset()
		r.block.Write(fr.HeaderBlockFragment())
		if fr.HeadersEnded() {
			r.decode(id)
		}
		if fr.StreamEnded() {
			r.done[id] = true
			r.log = append(r.log, "end")
		}
	case *http2.ContinuationFrame:
		r.block.Write(fr.HeaderBlockFragment())
		if fr.HeadersEnded() {
			r.decode(id)
		}
	case *http2.RSTStreamFrame:
		r.rst[id] = fr.ErrCode
		r.log = append(r.log, "rst")
	case *http2.GoAwayFrame:
		r.goAways = append(r.goAways, &http2.GoAwayFrame{LastStreamID: fr.LastStreamID, ErrCode: fr.ErrCode})
		r.goAwayDebug = string(fr.DebugData())
		r.log = append(r.log, "goaway")
	}
}

func (r *rawPeer) decode(id uint32) {
	f, err := r.dec.DecodeFull(r.block.Bytes())
	if err != nil {
		r.t.Errorf("header block of stream %d: %v", id, err)
	}
	r.headers[id] = append(r.headers[id], f...)
}

// A hooked response that its reader does not take must not stop the other streams (rules 3 and 4: bytes of ours count
// against the connection window when they are written, not when they are queued).
func TestShutWindowStopsOneStreamOnly(t *testing.T) {
	w := newWorld(t, worldOptions{cfg: Config{Hook: testHook}})
	r := w.rawClient()
	r.call(1, "/t.T/HookResp", opGrow1M, 0, 500000)
	if !r.until(5*time.Second, func() bool { return r.got[1] == defaultWindow }) {
		t.Fatalf("got %v, want a full window of stream 1", r.got)
	}
	for id := uint32(3); id < 60; id += 2 {
		method := "/t.T/Unary"
		if id%4 == 1 {
			method = "/t.T/Hook"
		}
		r.autoStream[id] = true
		r.call(id, method, opSame, 0, 200000)
		if !r.until(5*time.Second, func() bool { return r.done[id] }) {
			t.Fatalf("stream %d does not end: %v", id, r.got)
		}
	}
	r.f.WriteWindowUpdate(1, 4<<20)
	want := prefixBytes + header + 32 + 500000 + 1<<20
	if !r.until(5*time.Second, func() bool { return r.done[1] }) || r.got[1] != want {
		t.Fatalf("stream 1: %d bytes, ended %v; want %d", r.got[1], r.done[1], want)
	}
}

// A client without an initial window or a header table, and with padded requests.
func TestZeroInitialWindow(t *testing.T) {
	for _, method := range []string{"/t.T/HookResp", "/t.T/Hook", "/t.T/Unary", "/t.T/HookStream"} {
		t.Run(method[5:], func(t *testing.T) {
			w := newWorld(t, worldOptions{cfg: Config{Hook: testHook}})
			r := w.rawClient(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
			r.padded = true
			r.call(1, method, opPlusOne, 0, 100000)
			r.pass(150 * time.Millisecond)
			if r.got[1] != 0 {
				t.Fatalf("got %d bytes without a window", r.got[1])
			}
			for i := 1; i < 5; i++ {
				r.f.WriteWindowUpdate(1, 10)
				if !r.until(5*time.Second, func() bool { return r.got[1] == 10*i }) {
					t.Fatalf("got %d bytes, want %d", r.got[1], 10*i)
				}
			}
			r.autoStream[1] = true
			r.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535})
			if !r.until(5*time.Second, func() bool { return r.done[1] }) {
				t.Fatalf("no end: %v", r.got)
			}
		})
	}
}

// A backend that answers before the request has ended resets the stream after its trailers: the order must hold,
// kept response or not (rule 6).
func TestEarlyAnswerComesBeforeReset(t *testing.T) {
	for _, method := range []string{"/t.T/HookResp", "/t.T/Unary", "/t.T/HookStream"} {
		t.Run(method[5:], func(t *testing.T) {
			w := newWorld(t, worldOptions{cfg: Config{Hook: testHook}})
			r := w.rawClient()
			r.open = true
			r.autoStream[1] = true
			r.call(1, method, opGrow70K, 0, 50000)
			if !r.until(5*time.Second, func() bool { _, ok := r.rst[1]; return ok }) {
				t.Fatalf("no reset: %v", r.log)
			}
			if !r.done[1] || r.rst[1] != 0 || r.got[1] < 50000 {
				t.Fatalf("reset (%v) before the answer: %v of %d bytes", r.rst[1], r.log, r.got[1])
			}
		})
	}
}

// The ACK of a smaller initial window must not pass DATA that was sent under the larger one and waits (rule 5).
func TestSettingsAckKeepsOrder(t *testing.T) {
	w := newWorld(t, worldOptions{cfg: Config{Hook: testHook}})
	r := w.rawClient()
	r.autoConn = false
	r.call(1, "/t.T/HookResp", opGrow70K, 0, 0)
	if !r.until(5*time.Second, func() bool { return r.got[1] == 65535 && len(r.log) == 1 }) {
		t.Fatal(r.got, r.log)
	}
	r.call(3, "/t.T/Unary", opSame, 0, 30000)
	r.pass(150 * time.Millisecond)
	r.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	r.pass(150 * time.Millisecond)
	if r.got[3] != 0 || len(r.log) != 1 {
		t.Fatalf("something has passed a shut connection window: %v %v", r.got, r.log)
	}
	r.f.WriteWindowUpdate(0, 1<<20)
	r.until(5*time.Second, func() bool { return len(r.log) > 2 })
	r.f.WriteWindowUpdate(1, 100000)
	if !r.until(5*time.Second, func() bool { return r.done[1] && r.done[3] }) {
		t.Fatal(r.got, r.log)
	}
}

// The backend closes its connection while a callback for its answer runs (rule 8).
func TestBackendClosesDuringCallback(t *testing.T) {
	w := newWorld(t, worldOptions{cfg: Config{Hook: func(string) *Call {
		return &Call{Response: func(_ context.Context, m []byte) ([]byte, *Status) {
			time.Sleep(700 * time.Millisecond)
			return m, nil
		}}
	}}})
	r := w.rawClient()
	r.autoStream[1] = true
	r.call(1, "/t.T/HookResp", opSame, 50, 100000)
	r.pass(120 * time.Millisecond)
	w.server.Stop()
	if !r.until(3*time.Second, func() bool { return r.done[1] }) {
		t.Fatalf("the answer is lost: %v", r.got)
	}
	if r.pass(3 * time.Second); !r.gone {
		t.Fatal("the client's connection is left open")
	}
}

// Faults of each peer are answered with GOAWAY and the right code, to that peer only; the other one just loses its
// connection.
func TestProtocolErrors(t *testing.T) {
	raw := func(kind, flags byte, id uint32, payload string) string {
		return string(appendFrameHeader(nil, len(payload), kind, flags, id)) + payload
	}
	hooked := "\x04\x09/t.T/Hook\x0f\x10\x10application/grpc"
	headers := func(id uint32) string { return raw(frameHeaders, flagEndHeaders, id, hooked) }
	for _, c := range []struct {
		name string
		peer Peer
		send string
		code uint32
	}{
		{"frame too large", Client, "\x01\x00\x00\x00\x00\x00\x00\x00\x01", errFrameSize},
		{"idle data", Client, raw(frameData, 0, 7, "x"), errProtocol},
		{"data on stream 0", Client, raw(frameData, 0, 0, "x"), errProtocol},
		{"even stream", Client, headers(2), errProtocol},
		{"hpack", Client, raw(frameHeaders, flagEndHeaders, 1, "\xff\xff\xff\xff\xff"), errCompression},
		{"padding", Client, headers(1) + raw(frameData, flagPadded, 1, "\x09x"), errProtocol},
		{"continuation missing", Client, raw(frameHeaders, 0, 1, hooked) + raw(framePing, 0, 0, "12345678"), errProtocol},
		{"continuation alone", Client, raw(frameContinuation, flagEndHeaders, 1, ""), errProtocol},
		{"zero update", Client, raw(frameWindowUpdate, 0, 0, "\x00\x00\x00\x00"), errProtocol},
		{"idle update", Client, raw(frameWindowUpdate, 0, 9, "\x00\x00\x00\x01"), errProtocol},
		{"window overflow", Client, raw(frameWindowUpdate, 0, 0, "\x7f\xff\xff\xff"), errFlowControl},
		{"idle reset", Client, raw(frameRSTStream, 0, 9, "\x00\x00\x00\x08"), errProtocol},
		{"short reset", Client, raw(frameRSTStream, 0, 9, "\x00"), errFrameSize},
		{"odd settings", Client, raw(frameSettings, 0, 0, "\x00"), errFrameSize},
		{"settings on a stream", Client, raw(frameSettings, 0, 1, ""), errProtocol},
		{"huge window setting", Client, raw(frameSettings, 0, 0, "\x00\x04\xff\xff\xff\xff"), errFlowControl},
		{"tiny frame setting", Client, raw(frameSettings, 0, 0, "\x00\x05\x00\x00\x00\x01"), errProtocol},
		{"short ping", Client, raw(framePing, 0, 0, "1"), errFrameSize},
		{"push", Client, raw(framePushPromise, 0, 1, "\x00\x00\x00\x02"), errProtocol},
		{"data after the end", Client, headers(1) + raw(frameData, flagEndStream, 1, "") + raw(frameData, 0, 1, "x"), errStreamClosed},
		{"headers after the end", Client, headers(1) + raw(frameData, flagEndStream, 1, "") + headers(1), errStreamClosed},
		{"over the connection window", Client, raw(frameHeaders, flagEndHeaders, 1, "\x04\x09/t.T/Unar") + strings.Repeat(raw(frameData, 0, 1, strings.Repeat("x", 16384)), 5), errFlowControl},
		{"two paths", Client, raw(frameHeaders, flagEndHeaders, 1, hooked+"\x04\x02/b"), errProtocol},
		{"backend: idle headers", Backend, headers(1), errProtocol},
		{"backend: idle data", Backend, raw(frameData, 0, 1, "x"), errProtocol},
		{"backend: push", Backend, raw(framePushPromise, flagEndHeaders, 1, "\x00\x00\x00\x02"), errProtocol},
		{"backend: short goaway", Backend, raw(frameGoAway, 0, 0, "\x00"), errFrameSize},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// no taps: they would object
			dir := tempDir(t)
			l := listen(t, dir+"/b")
			ev := &events{}
			s := New(Config{Dial: contextDialer(dir + "/b"), Hook: testHook, Observer: ev.observe})
			rl := listen(t, dir+"/r")
			ctx, cancel := context.WithCancel(context.Background())
			background(t, func() { s.Serve(ctx, rl) })
			t.Cleanup(cancel)
			conn, err := net.Dial("unix", dir+"/r")
			if err != nil {
				t.Fatal(err)
			}
			client := newRawPeer(t, conn)
			conn.Write([]byte(preface))
			client.f.WriteSettings()
			backend := rawBackend(t, l)
			client.until(time.Second, func() bool { return client.settings > 0 })
			backend.until(time.Second, func() bool { return backend.settings > 0 })
			guilty, other := client, backend
			if c.peer == Backend {
				guilty, other = backend, client
			}
			guilty.conn.Write([]byte(c.send))
			background(t, func() { other.pass(5 * time.Second) })
			guilty.pass(5 * time.Second)
			if len(guilty.goAways) != 1 || uint32(guilty.goAways[0].ErrCode) != c.code || guilty.goAwayDebug == "" {
				t.Errorf("the guilty side got %+v %q, want one GOAWAY of code %d", guilty.goAways, guilty.goAwayDebug, c.code)
			}
			if !guilty.gone {
				t.Error("its connection is left open")
			}
			eventually(t, "an event", func() bool { return ev.count(EventProtocolError) == 1 })
			if e := ev.event(EventProtocolError).Err.(*ProtocolError); e.Peer != c.peer || e.Code != c.code {
				t.Errorf("observed %v", e)
			}
			eventually(t, "the end of the pair", func() bool { return ev.count(EventConnectionClosed) == 1 })
			if len(other.goAways) != 0 {
				t.Errorf("the other side got %+v", other.goAways)
			}
		})
	}
}

// A peer that is not HTTP/2 gets no frames.
func TestNotHTTP2(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, err := net.Dial("unix", w.path("relay"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	b := make([]byte, 100)
	n, _ := c.Read(b)
	// the backend's SETTINGS may have come before
	if bytes.Contains(b[:n], []byte{frameGoAway, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("got %q", b[:n])
	}
	eventually(t, "a protocol error", func() bool { return w.events.count(EventProtocolError) == 1 })
}

// A peer that sends and does not read is cut off before it has eaten much memory.
func TestPeerThatDoesNotRead(t *testing.T) {
	w := newWorld(t, worldOptions{allowCodes: true, cfg: Config{Hook: func(string) *Call {
		return &Call{Request: func(context.Context, []byte) ([]byte, *Status) {
			return nil, &Status{Code: 9, Message: strings.Repeat("m", 8000)}
		}}
	}}})
	c, err := net.Dial("unix", w.path("relay"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRawPeer(t, c)
	c.Write([]byte(preface))
	r.f.WriteSettings()
	c.SetWriteDeadline(time.Now().Add(10 * time.Second))
	m := prefixed(make([]byte, header))
	for id := uint32(1); ; id += 2 {
		r.request(id, "/t.T/x", false)
		if err := r.f.WriteData(id, true, m); err != nil {
			break
		}
		if id > 40000 {
			t.Fatal("20000 refusals are kept for it")
		}
		most := 0
		if id%101 == 0 {
			w.relay.inspect(func(p *pair) { most = max(most, p.down.out.size()) })
		}
		if most > hardBuffer+1<<20 {
			t.Fatalf("%d bytes buffered", most)
		}
	}
	eventually(t, "the fault", func() bool { return w.events.count(EventProtocolError) == 1 })
}

// Many tiny frames for a shut window need little memory, and do not lose their order.
func TestTinyFrames(t *testing.T) {
	for _, method := range []string{"/t.T/HookResp", "/t.T/Hook", "/t.T/Unary"} {
		t.Run(method[5:], func(t *testing.T) {
			dir := tempDir(t)
			bl := listen(t, dir+"/b")
			s := New(Config{Dial: contextDialer(dir + "/b"), Hook: testHook})
			rl := listen(t, dir+"/r")
			background(t, func() { s.Serve(context.Background(), rl) })
			t.Cleanup(func() { rl.Close() })
			conn, err := net.Dial("unix", dir+"/r")
			if err != nil {
				t.Fatal(err)
			}
			client := newRawPeer(t, conn)
			client.autoConn = false
			conn.Write([]byte(preface))
			client.f.WriteSettings()
			backend := rawBackend(t, bl)
			backend.until(time.Second, func() bool { return backend.settings == 1 })
			client.call(1, "/t.T/HookResp", opSame, 0, 0)
			client.call(3, method, opSame, 0, 0)
			backend.until(5*time.Second, func() bool { return backend.done[3] })
			// the message of stream 1 grows, and takes the connection window with it: the backend does not know of that
			backend.writeHeaders(1, false, ":status", "200", "content-type", "application/grpc")
			backend.f.WriteData(1, false, prefixed(orders(header, opSame, opGrow70K, 0, 0, 0)))
			backend.writeHeaders(1, true, "grpc-status", "0")
			if !client.until(5*time.Second, func() bool { return client.got[1] == defaultWindow }) {
				t.Fatal(client.got)
			}
			backend.writeHeaders(3, false, ":status", "200", "content-type", "application/grpc")
			m := prefixed(fill(2000, 1))
			for i := range m {
				backend.f.WriteData(3, false, m[i:i+1])
				backend.f.WriteData(3, false, nil)
			}
			backend.writeHeaders(3, true, "grpc-status", "0")
			client.pass(300 * time.Millisecond)
			if client.got[3] != 0 {
				t.Fatalf("%d bytes over a shut window", client.got[3])
			}
			s.inspect(func(p *pair) {
				if n := len(p.down.fifo); n > 3 {
					t.Errorf("%d items queued", n)
				}
				if st := p.streams[3]; st != nil && st.half[down] != nil && len(st.half[down].queue) > 3 {
					t.Errorf("%d items queued of a hooked stream", len(st.half[down].queue))
				}
			})
			client.f.WriteWindowUpdate(0, 1<<20)
			if !client.until(5*time.Second, func() bool { return client.done[3] }) || client.got[3] != len(m) {
				t.Fatalf("stream 3: %d bytes, ended %v", client.got[3], client.done[3])
			}
		})
	}
}

// Header blocks of any size pass: they are split by CONTINUATION, and priorities and never-indexed fields survive.
func TestHeaderBlocks(t *testing.T) {
	dir := tempDir(t)
	bl := listen(t, dir+"/b")
	s := New(Config{Dial: contextDialer(dir + "/b"), Hook: testHook})
	rl := listen(t, dir+"/r")
	background(t, func() { s.Serve(context.Background(), rl) })
	t.Cleanup(func() { rl.Close() })
	conn, err := net.Dial("unix", dir+"/r")
	if err != nil {
		t.Fatal(err)
	}
	client := newRawPeer(t, conn)
	conn.Write([]byte(preface))
	client.f.WriteSettings()
	backend := rawBackend(t, bl)
	backend.until(time.Second, func() bool { return backend.settings == 1 })
	client.hb.Reset()
	big := strings.Repeat("v", 70000)
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":path", Value: "/t.T/Hook"}, {Name: "content-type", Value: "application/grpc"},
		{Name: "secret", Value: "s", Sensitive: true}, {Name: "big", Value: big}, {Name: "content-length", Value: "5"},
	}
	for _, f := range fields {
		client.enc.WriteField(f)
	}
	block := client.hb.Bytes()
	client.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:5], Priority: http2.PriorityParam{Weight: 7, StreamDep: 0}})
	for len(block) > 5 {
		n := min(10000, len(block)-5)
		client.f.WriteContinuation(1, n == len(block)-5, block[5:5+n])
		block = block[n:]
	}
	if !backend.until(5*time.Second, func() bool { return len(backend.headers[1]) > 0 }) {
		t.Fatal("no headers")
	}
	want := slices.DeleteFunc(slices.Clone(fields), func(f hpack.HeaderField) bool { return f.Name == "content-length" })
	if !slices.Equal(backend.headers[1], want) {
		t.Errorf("got %.500v", backend.headers[1])
	}
}

// Streams beyond the bound are refused, so that the client may try again; those within go on.
func TestTooManyStreams(t *testing.T) {
	dir := tempDir(t)
	bl := listen(t, dir+"/b")
	s := New(Config{Dial: contextDialer(dir + "/b")})
	rl := listen(t, dir+"/r")
	background(t, func() { s.Serve(context.Background(), rl) })
	t.Cleanup(func() { rl.Close() })
	conn, err := net.Dial("unix", dir+"/r")
	if err != nil {
		t.Fatal(err)
	}
	client := newRawPeer(t, conn)
	conn.Write([]byte(preface))
	client.f.WriteSettings()
	backend := rawBackend(t, bl)
	var wg sync.WaitGroup
	wg.Go(func() { backend.until(20*time.Second, func() bool { return len(backend.headers) >= maxStreams }) })
	last := uint32(2*maxStreams + 1)
	for id := uint32(1); id <= last; id += 2 {
		client.request(id, "/t.T/Unary", false)
	}
	if !client.until(10*time.Second, func() bool { _, ok := client.rst[last]; return ok }) || client.rst[last] != http2.ErrCodeRefusedStream {
		t.Errorf("stream %d: %v", last, client.rst)
	}
	wg.Wait()
	if len(client.rst) != 1 || len(backend.headers) != maxStreams {
		t.Errorf("%d streams reset, %d opened", len(client.rst), len(backend.headers))
	}
}

// The PINGs with which a grpc-go client measures kept messages must not reach the backend, which would call them too
// many; all other PINGs do. The first case has the real client and server, whose GOAWAY the taps would report.
func TestPingsOfKeptMessages(t *testing.T) {
	t.Run("grpc", func(t *testing.T) {
		w := newWorld(t, worldOptions{cfg: Config{Hook: func(string) *Call {
			return &Call{Message: func(_ context.Context, m []byte) []byte {
				time.Sleep(5 * time.Millisecond) // the backend has long sent all six, and each is a round trip
				return m
			}}
		}}})
		cc := w.client("up", 0, false)
		for range 10 {
			m := orders(100, opSame, opSame, answerSimple, 0, 600)
			if r := invoke(testContext(t, 10*time.Second), cc, "Stream", m, false, 0); r.Code != 0 {
				t.Fatal(r)
			}
		}
		client, backend := w.tapsOf("client"), w.tapsOf("backend")
		if len(client) != 1 || len(backend) != 1 {
			t.Fatalf("%d and %d connections, want 1", len(client), len(backend))
		}
		client[0].mu.Lock()
		defer client[0].mu.Unlock()
		if client[0].pings[up] < 20 {
			t.Errorf("the client has sent only %d PINGs, so nothing is tested", client[0].pings[up])
		}
	})
	t.Run("guard", func(t *testing.T) {
		var g pingGuard
		steps := []struct {
			what string
			do   func() bool
			want bool
		}{
			{"keepalive of an idle connection", g.forward, true},
			{"another before the ACK", g.forward, true},
			{"DATA before the ACKs does not count", func() bool { g.backendSent(); return g.spoke }, false},
			{"one ACK", func() bool { g.acknowledged(); g.backendSent(); return g.spoke }, false},
			{"both ACKs", func() bool { g.acknowledged(); g.backendSent(); return g.spoke }, true},
			{"after DATA", func() bool { g.delivered = true; return g.forward() }, true},
			{"of kept DATA", func() bool { g.acknowledged(); g.delivered = true; return g.forward() }, false},
			{"keepalive", g.forward, true},
		}
		for _, s := range steps {
			if got := s.do(); got != s.want {
				t.Errorf("%s: %v, want %v", s.what, got, s.want)
			}
		}
	})
}
