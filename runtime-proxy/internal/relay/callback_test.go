package relay

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
)

// A callback that panics, ends its goroutine, or hangs costs no call: its message passes unchanged, and it is counted.
func TestBadCallbacksCostNothing(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	for _, bad := range []struct {
		name   string
		f      func()
		kind   EventKind
		inline bool
	}{
		{"panic", func() { panic("boom") }, EventHookPanicked, false},
		{"inline panic", func() { panic("boom") }, EventHookPanicked, true},
		{"nil dereference", func() { var p *run; p.over = true }, EventHookPanicked, false},
		{"goexit", runtime.Goexit, EventHookPanicked, false},
		{"stall", func() { <-hang }, EventHookTimedOut, false},
	} {
		for _, where := range []string{"request", "response", "message", "hook", "done"} {
			if (where == "hook" || where == "done") && bad.name != "panic" && bad.name != "nil dereference" {
				continue
			}
			t.Run(bad.name+" in "+where, func(t *testing.T) {
				var dones atomic.Int32
				hook := func(string) *Call {
					c := &Call{InlineRequest: bad.inline, InlineResponse: bad.inline, Done: func(code int) {
						dones.Add(1)
						if where == "done" {
							bad.f()
						}
					}}
					switch where {
					case "hook":
						bad.f()
					case "request":
						c.Request = func(_ context.Context, m []byte) ([]byte, *Status) { bad.f(); return nil, refusal }
					case "response":
						c.Response = func(_ context.Context, m []byte) ([]byte, *Status) { bad.f(); return nil, refusal }
					case "message":
						c.Message = func(_ context.Context, m []byte) []byte { bad.f(); return nil }
					}
					return c
				}
				w := newWorld(t, worldOptions{cfg: Config{Hook: hook, CallbackTimeout: 50 * time.Millisecond}})
				cc, direct := w.client("up", 0, false), w.client("direct", 0, false)
				kind, wantBad := "Unary", 1
				if where == "message" {
					kind, wantBad = "Stream", 6
				}
				m := orders(2000, opSame, opSame, answerSimple, 0, 3000)
				got := invoke(testContext(t, 10*time.Second), cc, kind, m, false, 0)
				compare(t, "relay", kind, m, got, invoke(testContext(t, 10*time.Second), direct, kind, m, false, 0))
				eventually(t, fmt.Sprintf("%d events", wantBad), func() bool { return w.events.count(bad.kind) == wantBad })
				if where != "hook" {
					eventually(t, "Done", func() bool { return dones.Load() == 1 })
				}
				if bad.kind == EventHookPanicked {
					e, ok := w.events.event(bad.kind).Err.(*PanicError)
					if !ok || len(e.Stack) == 0 || e.Error() == "" {
						t.Errorf("observed %#v", w.events.event(bad.kind))
					}
				}
				quiet(t, w.relay)
			})
		}
	}
}

// Callbacks that hang for good are bounded: past maxAbandoned no more are started until some return.
func TestAbandonedCallbacksAreBounded(t *testing.T) {
	hang := make(chan struct{})
	var started, running atomic.Int32
	w := newWorld(t, worldOptions{cfg: Config{CallbackTimeout: 30 * time.Millisecond, Hook: func(string) *Call {
		return &Call{Request: func(ctx context.Context, m []byte) ([]byte, *Status) {
			started.Add(1)
			running.Add(1)
			defer running.Add(-1)
			<-hang
			return m, refusal
		}}
	}}})
	cc := w.client("up", 0, false)
	call := func() {
		t.Helper()
		if r := invoke(testContext(t, 5*time.Second), cc, "Unary", orders(100, 0, 0, 0, 0, 10), false, 0); r.Code != codes.OK {
			t.Fatalf("got %+v", r)
		}
	}
	for range maxAbandoned + 5 {
		call()
	}
	if n := started.Load(); n != maxAbandoned {
		t.Errorf("%d callbacks were started, want %d", n, maxAbandoned)
	}
	if n := w.events.count(EventHookSkipped); n != 5 {
		t.Errorf("%d skipped, want 5", n)
	}
	close(hang)
	eventually(t, "they end", func() bool { return running.Load() == 0 && w.relay.shared.abandoned.Load() == 0 })
	if r := invoke(testContext(t, 5*time.Second), cc, "Unary", orders(100, 0, 0, 0, 0, 10), false, 0); r.Code != codes.FailedPrecondition {
		t.Errorf("callbacks are not run again: %+v", r)
	}
}

// The context of a callback ends with its call, and at its timeout.
func TestCallbackContext(t *testing.T) {
	ended := make(chan error, 1)
	started := make(chan struct{}, 1)
	w := newWorld(t, worldOptions{cfg: Config{CallbackTimeout: 5 * time.Second, Hook: func(string) *Call {
		return &Call{Request: func(ctx context.Context, m []byte) ([]byte, *Status) {
			started <- struct{}{}
			<-ctx.Done()
			ended <- ctx.Err()
			return m, nil
		}}
	}}})
	cc := w.client("up", 0, false)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-started; cancel() }()
	if r := invoke(ctx, cc, "Unary", orders(100, 0, 0, 0, 0, 10), false, 0); r.Code != codes.Canceled {
		t.Errorf("got %+v", r)
	}
	select {
	case <-ended:
	case <-time.After(3 * time.Second):
		t.Error("the callback does not learn of the end of its call")
	}
	if n := w.events.count(EventHookTimedOut); n != 0 {
		t.Errorf("%d timeouts", n)
	}
}

// Done is called once a call, with the status that the client was sent, in whatever way the call ends.
func TestDone(t *testing.T) {
	var mu sync.Mutex
	codesSeen := map[string][]int{}
	busy := map[string]int{}
	gate := make(chan struct{})
	hook := func(method string) *Call {
		c := &Call{Done: func(code int) {
			mu.Lock()
			defer mu.Unlock()
			codesSeen[method] = append(codesSeen[method], code)
			if busy[method] != 0 {
				t.Errorf("%s: Done while a callback runs", method)
			}
		}}
		slowly := func(_ context.Context, m []byte) ([]byte, *Status) {
			mu.Lock()
			busy[method]++
			mu.Unlock()
			<-gate
			mu.Lock()
			busy[method]--
			mu.Unlock()
			return m, nil
		}
		switch method {
		case "/t.T/RefuseUnary":
			c.Request = func(context.Context, []byte) ([]byte, *Status) { return nil, refusal }
		case "/t.T/ReplaceUnary":
			c.Response = func(context.Context, []byte) ([]byte, *Status) { return nil, refusal }
		case "/t.T/SlowUnary", "/t.T/GoneUnary":
			c.Request = slowly
		}
		return c
	}
	w := newWorld(t, worldOptions{cfg: Config{Hook: hook, CallbackTimeout: 10 * time.Second}})
	cc, gone := w.client("up", 0, false), w.client("up", 0, false)
	m := orders(100, 0, 0, answerSimple, 0, 100)
	for method, m := range map[string][]byte{
		"Unary": m, "ErrorUnary": orders(100, 0, 0, answerError, 0, 100), "Stream": m, "RefuseUnary": m, "ReplaceUnary": m, "Bidi": m,
	} {
		invoke(testContext(t, 5*time.Second), cc, method, m, false, 0)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		invoke(ctx, cc, "SlowUnary", m, false, 0)
	})
	wg.Go(func() { invoke(testContext(t, 5*time.Second), gone, "GoneUnary", m, false, 0) })
	eventually(t, "both callbacks run", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return busy["/t.T/SlowUnary"] == 1 && busy["/t.T/GoneUnary"] == 1
	})
	gone.Close()
	wg.Wait()
	time.Sleep(20 * time.Millisecond)
	close(gate)
	want := map[string]int{
		"Unary": statusOK, "ErrorUnary": int(codes.NotFound), "Stream": statusOK, "RefuseUnary": 9, "ReplaceUnary": 9, "Bidi": statusOK,
		"SlowUnary": StatusUnseen, "GoneUnary": StatusUnseen,
	}
	for method, code := range want {
		eventually(t, "Done of "+method, func() bool { mu.Lock(); defer mu.Unlock(); return len(codesSeen["/t.T/"+method]) > 0 })
		mu.Lock()
		if got := codesSeen["/t.T/"+method]; !slices.Equal(got, []int{code}) {
			t.Errorf("%s: Done of %v, want once %d", method, got, code)
		}
		mu.Unlock()
	}
}

// Messages of a stream that stays open are hooked one by one, as they come.
func TestMessagesOfOpenStream(t *testing.T) {
	var calls atomic.Int32
	w := newWorld(t, worldOptions{cfg: Config{Hook: func(string) *Call {
		return &Call{Message: func(_ context.Context, m []byte) []byte {
			return append([]byte(fmt.Sprintf("%d:", calls.Add(1))), m...)
		}}
	}}})
	s, err := w.client("up", 0, false).NewStream(testContext(t, 10*time.Second), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/t.T/Bidi")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		m := fill(i*i*100, uint64(i)) // up to 240 KB
		if err := s.SendMsg(&m); err != nil {
			t.Fatal(err)
		}
		var got []byte
		if err := s.RecvMsg(&got); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%d:", i+1); !bytes.HasPrefix(got, []byte(want)) || !bytes.HasSuffix(got, m) {
			t.Fatalf("message %d: %d bytes, begins with %.8q", i, len(got), got)
		}
	}
	s.CloseSend()
	var m []byte
	if err := s.RecvMsg(&m); err != io.EOF {
		t.Fatal(err)
	}
	quiet(t, w.relay)
}

// A stream whose client does not read holds its backend up, and not the relay's memory.
func TestStreamBackpressure(t *testing.T) {
	w := newWorld(t, worldOptions{window: 0, cfg: Config{Hook: testHook}})
	r := w.rawClient()
	r.call(1, "/t.T/HookStream", opPlusOne, 0, 30<<20)
	r.pass(400 * time.Millisecond)
	w.relay.inspect(func(p *pair) {
		if p.kept > 7<<20 { // one message of 5 MB, and a little
			t.Errorf("%d bytes kept", p.kept)
		}
	})
	r.autoStream[1] = true
	r.f.WriteWindowUpdate(1, 1<<20)
	want := 6 * (prefixBytes + header + (30<<20)/6 + 1)
	if !r.until(20*time.Second, func() bool { return r.done[1] }) || r.got[1] != want {
		t.Fatalf("%d bytes, want %d", r.got[1], want)
	}
}

// Compressed messages pass unmodified and counted, hooked or not.
func TestCompressedMessagesPass(t *testing.T) {
	hook := func(string) *Call {
		return &Call{
			Request:  func(_ context.Context, m []byte) ([]byte, *Status) { return nil, refusal },
			Response: func(_ context.Context, m []byte) ([]byte, *Status) { return nil, refusal },
		}
	}
	w := newWorld(t, worldOptions{cfg: Config{Hook: hook}})
	cc, direct := w.client("up", 0, false), w.client("direct", 0, false)
	m := orders(100000, opSame, opSame, answerSimple, 0, 100000)
	results := make([][]byte, 2)
	for i, cc := range []*grpc.ClientConn{cc, direct} {
		if err := cc.Invoke(testContext(t, 5*time.Second), "/t.T/Unary", &m, &results[i], grpc.UseCompressor(gzip.Name)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(results[0], results[1]) || len(results[0]) < 100000 {
		t.Errorf("%d and %d bytes", len(results[0]), len(results[1]))
	}
	if n := w.events.count(EventCompressed); n != 2 {
		t.Errorf("counted %d, want 2", n)
	}
}

// Messages above grpc's usual limits of 4 and 16 MiB pass, hooked or not.
func TestLargeMessages(t *testing.T) {
	w := newWorld(t, worldOptions{cfg: Config{Hook: testHook, CallbackTimeout: 30 * time.Second}})
	cc, direct := w.client("up", 0, false), w.client("direct", 0, false)
	for n, kinds := range map[int][]string{5 << 20: {"Unary", "Hook", "Stream", "HookStream"}, 17 << 20: {"Unary", "Hook", "Stream"}, 40 << 20: {"Hook"}} {
		for _, kind := range kinds {
			m := orders(n, opPlusOne, opPlusOne, answerSimple, 0, n)
			if testing.Short() && (n > 20<<20 || (n > 5<<20 && kind != "Hook")) {
				continue
			}
			got := invoke(testContext(t, 30*time.Second), cc, kind, m, false, 0)
			compare(t, "relay", kind, m, got, invoke(testContext(t, 30*time.Second), direct, kind, m, true, 0))
		}
	}
	quiet(t, w.relay)
}

// Past MaxKeptBytes the hooked call ends as RESOURCE_EXHAUSTED, in either direction; the connection and other calls go
// on, also those with larger messages that nobody hooks.
func TestKeptLimit(t *testing.T) {
	w := newWorld(t, worldOptions{cfg: Config{Hook: testHook, MaxKeptBytes: 1 << 20}})
	cc := w.client("up", 0, false)
	for _, c := range []struct {
		kind      string
		req, resp int
		want      codes.Code
	}{
		{"Hook", 2 << 20, 0, codes.ResourceExhausted},
		{"HookResp", 0, 0, codes.OK},
		{"HookResp", 100, 2 << 20, codes.ResourceExhausted},
		{"HookStream", 100, 6 * 2 << 20, codes.ResourceExhausted},
		{"HookStream", 100, 6 * 400 << 10, codes.OK},
		{"Unary", 3 << 20, 3 << 20, codes.OK},
		{"Hook", 900 << 10, 900 << 10, codes.OK},
	} {
		m := orders(c.req, opSame, opSame, answerSimple, 0, c.resp)
		if got := invoke(testContext(t, 10*time.Second), cc, c.kind, m, false, 0); got.Code != c.want {
			t.Errorf("%s of %d and %d bytes: %v %s, want %v", c.kind, c.req, c.resp, got.Code, got.Message, c.want)
		}
	}
	if n := w.events.count(EventKeptLimit); n != 3 {
		t.Errorf("counted %d, want 3", n)
	}
	if n := len(w.tapsOf("client")); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	quiet(t, w.relay)
}

// A callback for unary calls that is set for a method with streams does not stop it.
func TestUnaryCallbacksOnStreams(t *testing.T) {
	var requests, responses atomic.Int32
	w := newWorld(t, worldOptions{cfg: Config{Hook: func(string) *Call {
		return &Call{
			Request:  func(_ context.Context, m []byte) ([]byte, *Status) { requests.Add(1); return m, nil },
			Response: func(_ context.Context, m []byte) ([]byte, *Status) { responses.Add(1); return nil, refusal },
		}
	}}})
	cc, direct := w.client("up", 0, false), w.client("direct", 0, false)
	for _, kind := range []string{"Stream", "Bidi"} {
		m := orders(50000, opSame, opSame, answerSimple, 0, 50000)
		got := invoke(testContext(t, 10*time.Second), cc, kind, m, false, 0)
		compare(t, "relay", kind, m, got, invoke(testContext(t, 10*time.Second), direct, kind, m, false, 0))
	}
	if requests.Load() != 2 || responses.Load() != 0 {
		t.Errorf("%d requests and %d responses were hooked, want 2 and 0", requests.Load(), responses.Load())
	}
}

// Returning the message itself passes the bytes; an empty result is the empty message; the callbacks of a call share state.
func TestCallbackResults(t *testing.T) {
	w := newWorld(t, worldOptions{cfg: Config{Hook: func(method string) *Call {
		var request int
		return &Call{
			Request: func(_ context.Context, m []byte) ([]byte, *Status) {
				request = len(m)
				if method == "/t.T/Empty" {
					return nil, nil
				}
				return m[:header], nil // a part of the message
			},
			Response: func(_ context.Context, m []byte) ([]byte, *Status) { return []byte(fmt.Sprint(request, len(m))), nil },
		}
	}}})
	cc := w.client("up", 0, false)
	for method, want := range map[string]string{"/t.T/Empty": "500 0", "/t.T/Part": fmt.Sprint(500, " ", header+32+9)} {
		m, out := orders(500, 0, 0, 0, 0, 9), []byte(nil)
		if err := cc.Invoke(testContext(t, 5*time.Second), method, &m, &out); err != nil {
			t.Fatal(err)
		}
		if string(out) != want {
			t.Errorf("%s: got %q, want %q", method, out, want)
		}
	}
}

// Services that nobody knows pass with and without a Hook; so do status, metadata and trailers.
func TestPassThrough(t *testing.T) {
	for name, hook := range map[string]Hook{"nil hook": nil, "hook": testHook} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{cfg: Config{Hook: hook}})
			cc, direct := w.client("up", 0, false), w.client("direct", 0, false)
			for _, answer := range []byte{answerSimple, answerError, answerEmpty} {
				for _, kind := range []string{"Unary", "Hook", "Stream", "Bidi"} {
					m := orders(70000, opSame, opSame, answer, 0, 70000)
					got := invoke(testContext(t, 10*time.Second), cc, kind, m, false, 0)
					compare(t, "relay", kind, m, got, invoke(testContext(t, 10*time.Second), direct, kind, m, false, 0))
				}
			}
			m, out := orders(20, 0, 0, 0, 0, 20), []byte(nil)
			if err := cc.Invoke(testContext(t, 5*time.Second), "/runtime.v7.FutureService/Levitate", &m, &out); err != nil || len(out) == 0 {
				t.Error(err, len(out))
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
			defer cancel()
			m[3] = 255
			if err := cc.Invoke(ctx, "/t.T/Unary", &m, &out); status.Code(err) != codes.DeadlineExceeded {
				t.Error(err)
			}
			quiet(t, w.relay)
		})
	}
}
