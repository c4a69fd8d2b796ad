package relay

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// Without a backend connections are closed, which grpc shows as Unavailable; when it is there, the next call works.
func TestDialFailureThenRecovery(t *testing.T) {
	w := newWorld(t, worldOptions{noBackend: true, noTap: true}) // a tap would accept
	cc := w.client("up", 0, false)
	m := orders(100, 0, 0, 0, 0, 100)
	if r := invoke(testContext(t, 5*time.Second), cc, "Unary", m, false, 0); r.Code != codes.Unavailable {
		t.Fatalf("without a backend: %v", r.Code)
	}
	if e := w.events.event(EventDialFailed); !errors.Is(e.Err, syscall.ENOENT) {
		t.Errorf("observed %v", e)
	}
	s := grpc.NewServer(serverOptions(0)...)
	l := listen(t, w.path("backend"))
	background(t, func() { s.Serve(l) })
	t.Cleanup(s.Stop)
	ctx := testContext(t, 10*time.Second)
	var out []byte
	if err := cc.Invoke(ctx, "/t.T/Unary", &m, &out, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
}

// A dial that hangs ends after DialTimeout.
func TestDialTimeout(t *testing.T) {
	w := newWorld(t, worldOptions{cfg: Config{DialTimeout: 50 * time.Millisecond, Dial: func(ctx context.Context) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}})
	c, err := net.Dial("unix", w.path("relay"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v, want EOF", err)
	}
	if e := w.events.event(EventDialFailed); !errors.Is(e.Err, context.DeadlineExceeded) {
		t.Errorf("observed %v", e)
	}
}

// Shutdown costs no call: what runs ends, what is begun meanwhile goes to the successor, and Serve returns nil.
func TestShutdownDrains(t *testing.T) {
	for round := range rounds(5) {
		w := newWorld(t, worldOptions{cfg: Config{Hook: testHook}})
		next := New(Config{Dial: contextDialer(w.path("backend")), Hook: testHook})
		nextListener := listen(t, w.path("next"))
		background(t, func() { next.Serve(context.Background(), nextListener) })
		t.Cleanup(func() { nextListener.Close() })
		var upgraded atomic.Bool
		cc := w.client("up", 0, false, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if upgraded.Load() {
				return contextDialer(w.path("next"))(ctx)
			}
			return contextDialer(w.path("up"))(ctx)
		}))
		var wg sync.WaitGroup
		stop := make(chan struct{})
		var calls atomic.Int64
		for worker := range 16 {
			r := rand.New(rand.NewPCG(uint64(worker), uint64(round)))
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					kind := differentialKinds[r.IntN(len(differentialKinds))]
					m := orders(r.IntN(60000), byte(r.IntN(opRefuse)), opSame, answerSimple, byte(r.IntN(60)), r.IntN(60000))
					got := invoke(testContext(t, 20*time.Second), cc, kind, m, false, 0)
					if calls.Add(1); got.Code != codes.OK {
						t.Errorf("%s: %v %s", kind, got.Code, got.Message)
						return
					}
				}
			})
		}
		// A connection that still waits to be accepted is reset when the listener closes, unless systemd holds that.
		eventually(t, "the first connection is up", func() bool { return calls.Load() > 0 })
		time.Sleep(time.Duration(11*round) * time.Millisecond)
		upgraded.Store(true)
		if err := w.relay.Shutdown(testContext(t, 10*time.Second)); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-w.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		w.served <- nil
		time.Sleep(20 * time.Millisecond)
		close(stop)
		wg.Wait()
		for _, tp := range w.tapsOf("client") {
			tp.mu.Lock()
			if len(tp.goAways) != 2 || tp.goAways[0] != maxStreamID || tp.goAways[1] > tp.last {
				t.Errorf("GOAWAYs of %v, last stream %d", tp.goAways, tp.last)
			}
			tp.mu.Unlock()
		}
		if err := w.relay.Shutdown(context.Background()); err != nil {
			t.Errorf("second Shutdown: %v", err)
		}
	}
}

// The frames of a drain: GOAWAY(2^31-1) and PING, streams still open, ACK, GOAWAY(last), streams not served any more,
// a later GOAWAY of the backend clamped, the end of the last stream, the end of the connection.
func TestShutdownFrames(t *testing.T) {
	dir := tempDir(t)
	bl := listen(t, dir+"/b")
	s := New(Config{Dial: contextDialer(dir + "/b"), Hook: testHook})
	rl := listen(t, dir+"/r")
	served := make(chan error, 1)
	background(t, func() { served <- s.Serve(context.Background(), rl) })
	conn, err := net.Dial("unix", dir+"/r")
	if err != nil {
		t.Fatal(err)
	}
	client := newRawPeer(t, conn)
	client.noPingAck = true
	conn.Write([]byte(preface))
	client.f.WriteSettings()
	backend := rawBackend(t, bl)
	backend.until(time.Second, func() bool { return backend.settings == 1 })
	client.until(time.Second, func() bool { return client.settings == 1 })
	client.call(1, "/t.T/Unary", 0, 0, 0)
	backend.until(time.Second, func() bool { return backend.done[1] })

	down := make(chan error, 1)
	background(t, func() { down <- s.Shutdown(testContext(t, 15*time.Second)) })
	var ping http2.PingFrame
	client.conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	for ping.Header().Type != http2.FramePing {
		fr, err := client.f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := fr.(*http2.PingFrame); ok {
			ping = *p
		} else {
			client.handle(fr)
		}
	}
	if len(client.goAways) != 1 || client.goAways[0].LastStreamID != maxStreamID {
		t.Fatalf("GOAWAYs %+v before the PING", client.goAways)
	}
	client.call(3, "/t.T/Hook", 0, 0, 0) // sent before the client has read the GOAWAY
	if !backend.until(5*time.Second, func() bool { return backend.done[3] }) {
		t.Fatal("stream 3 is not served")
	}
	client.f.WritePing(true, ping.Data)
	if !client.until(5*time.Second, func() bool { return len(client.goAways) == 2 }) || client.goAways[1].LastStreamID != 3 {
		t.Fatalf("GOAWAYs %+v", client.goAways)
	}
	client.call(5, "/t.T/Unary", 0, 0, 0) // against the GOAWAY: ignored
	client.f.WriteWindowUpdate(5, 1)
	client.f.WriteRSTStream(5, http2.ErrCodeCancel)
	backend.f.WriteGoAway(maxStreamID, http2.ErrCodeNo, nil)
	if !client.until(5*time.Second, func() bool { return len(client.goAways) == 3 }) || client.goAways[2].LastStreamID != 3 {
		t.Fatalf("GOAWAYs %+v", client.goAways)
	}
	for _, id := range []uint32{1, 3} {
		select {
		case <-down:
			t.Fatalf("Shutdown is over while stream %d runs", id)
		default:
		}
		backend.writeHeaders(id, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0")
		if !client.until(5*time.Second, func() bool { return client.done[id] }) {
			t.Fatalf("stream %d does not end", id)
		}
	}
	client.pass(5 * time.Second)
	backend.pass(5 * time.Second)
	if !client.gone || !backend.gone {
		t.Errorf("connections are left open: %v %v", client.gone, backend.gone)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	for _, id := range []uint32{5} {
		if len(backend.headers[id]) > 0 {
			t.Errorf("stream %d reached the backend", id)
		}
	}
	for _, l := range backend.log {
		if strings.Contains(l, "rst") {
			t.Errorf("backend got %v", backend.log)
		}
	}
}

// Shutdown closes what has not ended when its context is done, and says so.
func TestShutdownAtDeadline(t *testing.T) {
	w := newWorld(t, worldOptions{cfg: Config{Hook: testHook}})
	cc := w.client("up", 0, false)
	s, err := cc.NewStream(testContext(t, 20*time.Second), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/t.T/Bidi")
	if err != nil {
		t.Fatal(err)
	}
	m := orders(100, 0, 0, 0, 0, 0)
	s.SendMsg(&m)
	if err := s.RecvMsg(&m); err != nil {
		t.Fatal(err)
	}
	idle, err := net.Dial("unix", w.path("relay")) // a client that has said nothing yet
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
	defer cancel()
	if err := w.relay.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-w.served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	w.served <- nil
	if err := s.RecvMsg(&m); err == nil {
		t.Error("the stream goes on")
	}
	l := listen(t, w.path("another"))
	if err := w.relay.Serve(context.Background(), l); err != nil {
		t.Errorf("Serve after Shutdown: %v", err)
	}
}

// A done context ends Serve and its connections at once.
func TestServeContext(t *testing.T) {
	dir := tempDir(t)
	bl := listen(t, dir+"/b")
	s := New(Config{Dial: contextDialer(dir + "/b")})
	rl := listen(t, dir+"/r")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	background(t, func() { served <- s.Serve(ctx, rl) })
	conn, err := net.Dial("unix", dir+"/r")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := bl.Accept(); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-served:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Serve goes on")
	}
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v, want EOF", err)
	}
}

// failingListener fails as an exhausted process does, and then for good.
type failingListener struct {
	net.Listener
	errs []error
}

func (l *failingListener) Accept() (net.Conn, error) {
	if len(l.errs) == 0 {
		return l.Listener.Accept()
	}
	err := l.errs[0]
	l.errs = l.errs[1:]
	return nil, err
}

func TestAcceptErrors(t *testing.T) {
	ev := &events{}
	s := New(Config{Dial: contextDialer("none"), Observer: ev.observe})
	l := &failingListener{listen(t, tempDir(t)+"/l"), []error{
		&net.OpError{Op: "accept", Err: syscall.EMFILE}, &net.OpError{Op: "accept", Err: syscall.ECONNABORTED}, &net.OpError{Op: "accept", Err: syscall.EBADF},
	}}
	if err := s.Serve(context.Background(), l); !errors.Is(err, syscall.EBADF) {
		t.Errorf("got %v", err)
	}
	if n := ev.count(EventAcceptFailed); n != 2 {
		t.Errorf("%d failures observed, want 2", n)
	}
}

func TestMaxConnections(t *testing.T) {
	w := newWorld(t, worldOptions{cfg: Config{MaxConnections: 2}})
	var conns []net.Conn
	for range 3 {
		c, err := net.Dial("unix", w.path("relay"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	conns[2].SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := conns[2].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v, want EOF", err)
	}
	eventually(t, "it is counted", func() bool { return w.events.count(EventConnectionRefused) == 1 })
	conns[0].Close()
	eventually(t, "room for another", func() bool { return w.events.count(EventConnectionClosed) == 1 })
	cc := w.client("up", 0, false)
	if r := invoke(testContext(t, 5*time.Second), cc, "Unary", orders(50, 0, 0, 0, 0, 0), false, 0); r.Code != codes.OK {
		t.Errorf("got %+v", r)
	}
}

// A backend that stops gracefully finishes what it has taken, through the relay as well.
func TestBackendGracefulStop(t *testing.T) {
	for i := range rounds(4) {
		w := newWorld(t, worldOptions{window: defaultWindow, cfg: Config{Hook: testHook}})
		cc := w.client("up", defaultWindow, i%2 == 0)
		if r := invoke(testContext(t, 5*time.Second), cc, "Unary", nil, false, 0); r.Code != codes.OK {
			t.Fatal(r)
		}
		var wg sync.WaitGroup
		for worker := range 40 {
			r := rand.New(rand.NewPCG(uint64(worker), uint64(i)))
			wg.Go(func() {
				kind := []string{"Unary", "Hook", "Stream", "HookResp", "HookStream"}[worker%5]
				m := orders(r.IntN(200000), byte(r.IntN(opRefuse)), byte(r.IntN(opRefuse)), answerSimple, byte(100+r.IntN(100)), r.IntN(200000))
				got := invoke(testContext(t, 30*time.Second), cc, kind, m, false, 0)
				if got.Code != codes.OK {
					t.Errorf("%d: %s of %d bytes: %v %.200v", i, kind, len(m), got.Code, got.Message)
				}
			})
		}
		eventually(t, "all calls are under way", func() (all bool) {
			w.relay.inspect(func(p *pair) { all = p.lastID >= 2*41-1 })
			return all
		})
		time.Sleep(time.Duration(11*i) * time.Millisecond)
		w.server.GracefulStop()
		wg.Wait()
	}
}

// Either peer may vanish after any byte: nothing is left behind, and the next connection works. The cuts are made by
// the taps, after so many bytes of a conversation of known calls.
func TestPeersVanish(t *testing.T) {
	step := 31
	if testing.Short() {
		step = 997
	}
	for _, side := range []string{"client", "backend"} {
		t.Run(side, func(t *testing.T) {
			var limit atomic.Int64 // of the direction in question; negative: none
			limit.Store(-1)
			var where atomic.Int32
			keep := func(d, passed, n int) int {
				if l := limit.Load(); l >= 0 && d == int(where.Load()) {
					return max(min(n, int(l)-passed), 0)
				}
				return n
			}
			o := worldOptions{cfg: Config{Hook: testHook}, allowCodes: true}
			if side == "client" {
				o.cut = keep
			} else {
				o.cutBackend = keep
			}
			w := newWorld(t, o)
			talk := func() bool {
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				cc := w.client("up", 0, false)
				defer cc.Close()
				ok := true
				for _, kind := range []string{"Hook", "HookStream", "Unary"} {
					r := invoke(ctx, cc, kind, orders(700, opPlusOne, opTwice, answerSimple, 0, 1500), false, 0)
					if r.Code == codes.DeadlineExceeded {
						t.Errorf("%s hangs when direction %d is cut at %d", kind, where.Load(), limit.Load())
					}
					ok = ok && r.Code == codes.OK
				}
				return ok
			}
			if !talk() {
				t.Fatal("does not even work whole")
			}
			base := runtime.NumGoroutine()
			for _, d := range []int{up, down} {
				where.Store(int32(d))
				for n, whole := 1, false; !whole && n < 40000; n += step {
					limit.Store(int64(n))
					whole = talk()
				}
			}
			limit.Store(-1)
			if !talk() {
				t.Fatal("does not work after the cuts")
			}
			eventually(t, "all is closed", func() bool {
				return w.events.count(EventConnectionOpened) == w.events.count(EventConnectionClosed) && runtime.NumGoroutine() <= base+5
			})
		})
	}
}

// rounds is 1 in a short run.
func rounds(n int) int {
	if testing.Short() {
		return 1
	}
	return n
}

// Many raw clients and backends that vanish at random moments leave no goroutine behind.
func TestNoLeak(t *testing.T) {
	dir := tempDir(t)
	srv := grpc.NewServer(serverOptions(0)...)
	bl := listen(t, dir+"/b")
	background(t, func() { srv.Serve(bl) })
	t.Cleanup(srv.Stop)
	s := New(Config{Hook: testHook, Dial: func(ctx context.Context) (net.Conn, error) {
		c, err := contextDialer(dir + "/b")(ctx)
		if err == nil && rand.IntN(3) == 0 {
			time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, func() { c.Close() })
		}
		return c, err
	}})
	rl := listen(t, dir+"/r")
	background(t, func() { s.Serve(context.Background(), rl) })
	t.Cleanup(func() { rl.Close() })
	base := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for range 10 * rounds(6) {
				c, err := net.Dial("unix", dir+"/r")
				if err != nil {
					t.Error(err)
					return
				}
				r := newRawPeer(t, c)
				r.autoConn = worker%2 == 1
				c.Write([]byte(preface))
				r.f.WriteSettings()
				r.call(1, "/t.T/Hook", opGrow1M, 0, 300000)
				r.call(3, "/t.T/Stream", opSame, 0, 900000)
				r.call(5, "/t.T/HookStream", opGrow70K, 0, 10)
				r.autoStream[1], r.autoStream[3] = true, true
				r.pass(time.Duration(rand.IntN(4000)) * time.Microsecond)
				c.Close()
			}
		})
	}
	wg.Wait()
	eventually(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= base+5 })
}
