package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// codec moves raw messages: the tests know no protobuf types either.
type codec struct{}

func (codec) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (codec) Unmarshal(b []byte, v any) error { *v.(*[]byte) = bytes.Clone(b); return nil }
func (codec) Name() string                    { return "proto" }

// A test message begins with its orders: what the hook does to the request, and to the response (see change), how
// the server answers, its delay in ms, and the size of the answer (4 bytes); the rest of the header is random.
const header = 16

const (
	opSame = iota
	opQuarter
	opGrow70K
	opGrow1M
	opMinusOne
	opPlusOne
	opRefuse
	opTwice
	ops
)

const (
	answerError  = 1
	answerEmpty  = 2 // an error without text
	answerEarly  = 5 // bidi: an error before the client is done
	answerSimple = 0
)

var pool = sync.OnceValue(func() []byte {
	b := make([]byte, 8<<20)
	r := rand.New(rand.NewPCG(1, 1))
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b
})

// fill returns n bytes that depend on seed.
func fill(n int, seed uint64) []byte {
	b := make([]byte, 0, n)
	from := int(seed % (1 << 20))
	for len(b) < n {
		b = append(b, pool()[from:min(from+n-len(b), 8<<20)]...)
		from = 0
	}
	return b
}

// orders makes a request of n bytes (0, or header and more).
func orders(n int, reqOp, respOp, answer, delay byte, respSize int) []byte {
	if n == 0 {
		return nil
	}
	b := fill(max(n, header), uint64(n))
	b[0], b[1], b[2], b[3] = reqOp, respOp, answer, delay
	binary.BigEndian.PutUint32(b[4:], uint32(respSize))
	return b
}

func randomSize(r *rand.Rand) int {
	switch r.IntN(24) {
	case 0:
		return 0
	case 1:
		return r.IntN(5 << 20)
	case 2, 3:
		return r.IntN(300 << 10)
	case 4, 5, 6:
		return 60000 + r.IntN(12000) // around the default window
	default:
		return r.IntN(2000)
	}
}

func randomOrders(r *rand.Rand) []byte {
	delay := 0
	if r.IntN(8) == 0 {
		delay = r.IntN(30)
	}
	return orders(randomSize(r), byte(r.IntN(ops)), byte(r.IntN(ops)), byte(r.IntN(8)), byte(delay), randomSize(r))
}

var refusal = func() *Status {
	d, _ := proto.Marshal(&spb.Status{Code: 9, Message: "refusé 100%\n", Details: []*anypb.Any{{TypeUrl: "t/x", Value: []byte{1, 2}}}})
	return &Status{Code: uint32(codes.FailedPrecondition), Message: "refusé 100%\n", Details: d}
}()

// change is what the hooks of the tests do to a message.
func change(op byte, m []byte) ([]byte, *Status) {
	if len(m) < header {
		return m, nil
	}
	switch op {
	case opQuarter:
		return slices.Clone(m[:header+(len(m)-header)/4]), nil
	case opGrow70K:
		return append(slices.Clone(m), fill(70000, 2)...), nil
	case opGrow1M:
		return append(slices.Clone(m), fill(1<<20, 3)...), nil
	case opMinusOne:
		return slices.Clone(m[:max(header, len(m)-1)]), nil
	case opPlusOne:
		return append(slices.Clone(m), 7), nil
	case opRefuse:
		return nil, refusal
	case opTwice:
		return append(slices.Clone(m), m...), nil
	}
	return m, nil
}

func changeRequest(m []byte) ([]byte, *Status) {
	if len(m) < header {
		return m, nil
	}
	return change(m[0], m)
}

func changeResponse(m []byte) ([]byte, *Status) {
	if len(m) < header {
		return m, nil
	}
	return change(m[1], m)
}

func changeMessage(m []byte) []byte {
	if out, s := changeResponse(m); s == nil {
		return out
	}
	return m
}

// testHook hooks by the name of the method: Hook both ways, HookReq, HookResp, HookStream each message; half of the calls
// inline.
func testHook(method string) *Call {
	name, ok := strings.CutPrefix(method, "/t.T/Hook")
	if !ok {
		return nil
	}
	c := &Call{InlineRequest: rand.IntN(2) == 0, InlineResponse: rand.IntN(2) == 0}
	if name == "" || name == "Req" || name == "Stream" {
		c.Request = func(ctx context.Context, m []byte) ([]byte, *Status) {
			if len(m) >= header && m[3]&3 == 1 {
				time.Sleep(time.Duration(m[3]) * time.Millisecond)
			}
			return changeRequest(m)
		}
	}
	if name == "" || name == "Resp" {
		c.Response = func(_ context.Context, m []byte) ([]byte, *Status) { return changeResponse(m) }
	}
	if name == "Stream" {
		c.Message = func(_ context.Context, m []byte) []byte { return changeMessage(m) }
	}
	return c
}

// serveAny is the backend of the tests: any method, as its name and the orders in the message say.
func serveAny(_ any, s grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(s)
	md, _ := metadata.FromIncomingContext(s.Context())
	s.SetHeader(metadata.Pairs("echo", strings.Join(md.Get("k"), ","), "hb-bin", string([]byte{0, 1, 255})))
	s.SetTrailer(metadata.Pairs("tr", "a", "tr", "b", "big", strings.Join(md.Get("big"), ",")))
	if strings.HasSuffix(name, "Bidi") {
		for {
			var m []byte
			if err := s.RecvMsg(&m); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if len(m) > 2 && m[2] == answerEarly {
				return status.Error(codes.Aborted, "early")
			}
			out := append(sha256.New().Sum(slices.Clone(m[:min(len(m), 100)])), m...)
			if err := s.SendMsg(&out); err != nil {
				return err
			}
		}
	}
	var m []byte
	if err := s.RecvMsg(&m); err != nil {
		return err
	}
	if len(m) < header {
		out := []byte{}
		return s.SendMsg(&out)
	}
	if m[3] > 0 {
		select {
		case <-time.After(time.Duration(m[3]) * time.Millisecond):
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
	n := int(binary.BigEndian.Uint32(m[4:]))
	sum := sha256.Sum256(m)
	if strings.HasSuffix(name, "Stream") {
		for i := range 6 {
			out := append(slices.Clone(m[:header]), fill(n/6, uint64(i)+binary.BigEndian.Uint64(sum[:]))...)
			if err := s.SendMsg(&out); err != nil {
				return err
			}
		}
		if m[2] == answerError {
			return status.Error(codes.NotFound, "after all")
		}
		return nil
	}
	switch m[2] {
	case answerError:
		st, _ := status.New(codes.NotFound, "nö\x01%").WithDetails(wrapperspb.String(strings.Repeat("d", n%9000)))
		return st.Err()
	case answerEmpty:
		return status.Error(codes.Internal, "")
	}
	out := append(append(slices.Clone(m[:header]), sum[:]...), fill(n, binary.BigEndian.Uint64(sum[:]))...)
	return s.SendMsg(&out)
}

// outcome is all that a client can tell of a call.
type outcome struct {
	Sum             string // of the messages
	Header, Trailer string
	Code            codes.Code
	Message         string
	Details         string
}

func (r *outcome) finish(hd, tr metadata.MD, err error) {
	delete(tr, "grpc-status-details-bin")
	r.Header, r.Trailer = fmt.Sprint(hd), fmt.Sprint(tr)
	st := status.Convert(err)
	r.Code, r.Message, r.Details = st.Code(), st.Message(), fmt.Sprint(st.Proto().GetDetails())
}

func refused(s *Status) outcome {
	var p spb.Status
	proto.Unmarshal(s.Details, &p)
	return outcome{Code: codes.Code(s.Code), Message: s.Message, Details: fmt.Sprint(p.Details)}
}

// invoke makes one call. emulate: the hooks of testHook are applied here, for a connection that has none.
func invoke(ctx context.Context, cc *grpc.ClientConn, kind string, m []byte, emulate bool, slow time.Duration) (r outcome) {
	ctx = metadata.AppendToOutgoingContext(ctx, "k", "v1", "k", "v2", "x-bin", "\x00\xfe", "big", strings.Repeat("h", len(m)%30000))
	var hd, tr metadata.MD
	sum := sha256.New()
	if emulate && (kind == "Hook" || kind == "HookReq" || kind == "HookStream") {
		b, s := changeRequest(m)
		if s != nil {
			return refused(s)
		}
		m = b
	}
	if kind == "Stream" || kind == "HookStream" || kind == "Bidi" {
		s, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: kind == "Bidi"}, "/t.T/"+kind)
		if err != nil {
			r.finish(nil, nil, err)
			return r
		}
		if kind != "Bidi" {
			s.SendMsg(&m)
			s.CloseSend()
		} else {
			go func() {
				for i := range 5 {
					b := m[:len(m)/(i+1)]
					if s.SendMsg(&b) != nil {
						return
					}
				}
				s.CloseSend()
			}()
		}
		for {
			var b []byte
			if err = s.RecvMsg(&b); err != nil {
				break
			}
			if emulate && kind == "HookStream" {
				b = changeMessage(b)
			}
			fmt.Fprintf(sum, "%d:", len(b))
			sum.Write(b)
			time.Sleep(slow)
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		hd, _ = s.Header()
		r.finish(hd, s.Trailer(), err)
	} else {
		var out []byte
		err := cc.Invoke(ctx, "/t.T/"+kind, &m, &out, grpc.Header(&hd), grpc.Trailer(&tr))
		if emulate && (kind == "Hook" || kind == "HookResp") && err == nil {
			b, s := changeResponse(out)
			if s != nil {
				return refused(s)
			}
			out = b
		}
		sum.Write(out)
		r.finish(hd, tr, err)
	}
	r.Sum = fmt.Sprintf("%x", sum.Sum(nil))
	return r
}

// slowConn reads little at a time, so that sockets and windows fill.
type slowConn struct{ net.Conn }

func (s slowConn) Read(b []byte) (int, error) {
	time.Sleep(200 * time.Microsecond)
	return s.Conn.Read(b[:min(len(b), 8<<10)])
}

type slowListener struct{ net.Listener }

func (l slowListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return slowConn{c}, err
}

// events collects what an Observer is told.
type events struct {
	mu   sync.Mutex
	n    map[EventKind]int
	last map[EventKind]Event
}

func (e *events) observe(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n == nil {
		e.n, e.last = map[EventKind]int{}, map[EventKind]Event{}
	}
	e.n[ev.Kind]++
	e.last[ev.Kind] = ev
}

func (e *events) count(k EventKind) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.n[k]
}

func (e *events) event(k EventKind) Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last[k]
}

// world is a backend, a relay in front of it, and a tap on both hops:
// up -> tap -> relay -> tap2 -> backend.
type world struct {
	t      *testing.T
	dir    string
	server *grpc.Server
	relay  *Server
	events *events
	served chan error // the result of Serve

	mu   sync.Mutex
	taps map[string][]*tap
}

type worldOptions struct {
	cfg        Config
	window     int32 // 0: grpc-go's dynamic ones
	slowServer bool
	noBackend  bool // the test listens on the backend socket itself
	noTap      bool // between relay and backend
	allowCodes bool // GOAWAYs may have codes
	cut        cut  // on the client's hop
	cutBackend cut
	listen     func(net.Listener) net.Listener // wraps the relay's listener
}

func tempDir(t testing.TB) string {
	// t.TempDir is too long for the 107 bytes of a unix socket path under some names of tests.
	dir, err := os.MkdirTemp("", "relay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func listen(t testing.TB, path string) net.Listener {
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func dialer(path string) func() (net.Conn, error) {
	return func() (net.Conn, error) { return net.Dial("unix", path) }
}

func contextDialer(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}

func serverOptions(window int32) []grpc.ServerOption {
	o := []grpc.ServerOption{grpc.UnknownServiceHandler(serveAny), grpc.ForceServerCodec(codec{}), grpc.MaxRecvMsgSize(128 << 20)}
	if window > 0 {
		o = append(o, grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window))
	}
	return o
}

// background runs f in a goroutine that the end of the test waits for.
func background(t testing.TB, f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	t.Cleanup(func() {
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			b := make([]byte, 1<<20)
			t.Errorf("a goroutine of the test does not end\n%s", b[:runtime.Stack(b, true)])
		}
	})
}

func newWorld(t *testing.T, o worldOptions) *world {
	w := &world{t: t, dir: tempDir(t), events: &events{}, taps: map[string][]*tap{}, served: make(chan error, 1)}
	add := func(name string) func() *tap {
		return func() *tap {
			tp := newTap(name, func(s string) { t.Error(s) })
			tp.allowCode = o.allowCodes
			w.mu.Lock()
			defer w.mu.Unlock()
			w.taps[name] = append(w.taps[name], tp)
			return tp
		}
	}
	if !o.noBackend {
		w.server = grpc.NewServer(serverOptions(o.window)...)
		l := listen(t, w.path("backend"))
		if o.slowServer {
			l = slowListener{l}
		}
		direct := listen(t, w.path("direct"))
		background(t, func() { w.server.Serve(l) })
		background(t, func() { w.server.Serve(direct) })
	}
	tap2 := listen(t, w.path("tap2"))
	background(t, func() { serveTap(tap2, dialer(w.path("backend")), add("backend"), o.cutBackend) })
	if o.cfg.Dial == nil {
		o.cfg.Dial = contextDialer(w.path("tap2"))
		if o.noTap {
			o.cfg.Dial = contextDialer(w.path("backend"))
		}
	}
	if o.cfg.CallbackTimeout == 0 {
		o.cfg.CallbackTimeout = 30 * time.Second // the machine may be busy
	}
	o.cfg.Observer = w.events.observe
	w.relay = New(o.cfg)
	l := listen(t, w.path("relay"))
	if o.listen != nil {
		l = o.listen(l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	background(t, func() { w.served <- w.relay.Serve(ctx, l) })
	tap1 := listen(t, w.path("up"))
	background(t, func() { serveTap(tap1, dialer(w.path("relay")), add("client"), o.cut) })
	t.Cleanup(func() { // before the waits above
		tap1.Close()
		tap2.Close()
		cancel()
		if w.server != nil {
			w.server.Stop()
		}
	})
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) tapsOf(name string) []*tap {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.taps[name])
}

// client connects to one of the sockets: "up" through all, "direct" to the backend.
func (w *world) client(socket string, window int32, slow bool, more ...grpc.DialOption) *grpc.ClientConn {
	return newClient(w.t, w.path(socket), window, slow, more...)
}

func newClient(t testing.TB, path string, window int32, slow bool, more ...grpc.DialOption) *grpc.ClientConn {
	o := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}), grpc.MaxCallRecvMsgSize(128<<20)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := contextDialer(path)(ctx)
			if slow && err == nil {
				return slowConn{c}, nil
			}
			return c, err
		}),
	}
	if window > 0 {
		o = append(o, grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window))
	}
	cc, err := grpc.NewClient("passthrough:///x", append(o, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func testContext(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition that other goroutines make true.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(8 * time.Second); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after 8 s: %s", what)
		}
	}
}

// inspect looks at the pairs of a Server.
func (s *Server) inspect(f func(*pair)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for se := range s.sessions {
		if p := se.pair; p != nil {
			p.mu.Lock()
			f(p)
			p.mu.Unlock()
		}
	}
}
