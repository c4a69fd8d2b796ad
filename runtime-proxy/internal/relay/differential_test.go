package relay

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// soakEnv names the length of each differential run, e.g. 60s.
const soakEnv = "TIDELINE_RELAY_SOAK"

func soakTime(t *testing.T) time.Duration {
	if v := os.Getenv(soakEnv); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatalf("%s: %v", soakEnv, err)
		}
		return d
	}
	if testing.Short() {
		return 150 * time.Millisecond
	}
	return 3 * time.Second
}

var differentialKinds = []string{"Unary", "Hook", "Hook", "HookReq", "HookResp", "Stream", "HookStream", "Bidi", "Unheard"}

// TestDifferential makes random calls through the relay and compares all that a client can tell of them with the same
// call made directly, whose messages the test changes as the hooks do; and some of them with an ordinary grpc-go proxy.
// The taps watch both hops of the relay.
func TestDifferential(t *testing.T) {
	for _, c := range []struct {
		name                   string
		window                 int32
		slowClient, slowServer bool
	}{
		{name: "static64k", window: defaultWindow},
		{name: "dynamic"},
		{name: "slowclient", window: defaultWindow, slowClient: true},
		{name: "slowserver", window: defaultWindow, slowServer: true},
		{name: "1MiB", window: 1 << 20, slowClient: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, worldOptions{cfg: Config{Hook: testHook, CallbackTimeout: 30 * time.Second}, window: c.window, slowServer: c.slowServer})
			direct, relayed := w.client("direct", c.window, false), w.client("up", c.window, c.slowClient)
			twin := newClient(t, newTwin(t, w.path("direct")), c.window, false)
			length := soakTime(t)
			stop := time.Now().Add(length)
			var compared, twins, cancelled atomic.Int64
			var wg sync.WaitGroup
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			for worker := range 24 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(worker), seed))
					for time.Now().Before(stop) && !t.Failed() {
						m := randomOrders(r)
						kind := differentialKinds[r.IntN(len(differentialKinds))]
						if worker%4 == 3 {
							if cancelledCall(r, relayed, kind, m) {
								cancelled.Add(1)
							}
							continue
						}
						slow := time.Duration(0)
						if r.IntN(4) == 0 {
							slow = time.Duration(r.IntN(5)) * time.Millisecond
						}
						ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
						got := invoke(ctx, relayed, kind, m, false, slow)
						want := invoke(ctx, direct, kind, m, true, 0)
						compare(t, "relay", kind, m, got, want)
						if worker == 0 {
							compare(t, "twin", kind, m, invoke(ctx, twin, kind, m, false, 0), want)
							twins.Add(1)
						}
						compared.Add(1)
						cancel()
					}
				})
			}
			waitOrDump(t, &wg, length+75*time.Second)
			for hop, taps := range map[string][]*tap{"client": w.tapsOf("client"), "backend": w.tapsOf("backend")} {
				if len(taps) != 1 {
					t.Errorf("%d connections on the %s hop, want 1: one was lost", len(taps), hop)
				}
				for _, tp := range taps {
					tp.mu.Lock()
					t.Logf("%s: %d bytes up, %d down; lowest windows %v", hop, tp.dataBytes[up], tp.dataBytes[down], tp.lowest)
					tp.mu.Unlock()
				}
			}
			t.Logf("%d calls compared, %d of them with the twin too, %d cancelled", compared.Load(), twins.Load(), cancelled.Load())
			quiet(t, w.relay)
		})
	}
}

func compare(t *testing.T, who, kind string, m []byte, got, want outcome) {
	t.Helper()
	if want.Header == "" { // refused: what the backend would have answered does not count
		got.Header, got.Trailer, got.Sum, want.Sum = "", "", "", ""
	}
	if kind == "Bidi" && want.Code == codes.Aborted { // how much comes before the error is open
		got.Sum = want.Sum
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: %s of %d bytes, orders %v (-want +got):\n%.1000s", who, kind, len(m), m[:min(8, len(m))], d)
	}
}

// cancelledCall makes a call that is cancelled, or runs out of time, at any moment.
func cancelledCall(r *rand.Rand, cc *grpc.ClientConn, kind string, m []byte) bool {
	d := time.Duration(r.IntN(20000)) * time.Microsecond
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if r.IntN(2) == 0 {
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	} else {
		defer time.AfterFunc(d, cancel).Stop()
	}
	return invoke(ctx, cc, kind, m, false, 0).Code != codes.OK
}

func waitOrDump(t *testing.T, wg *sync.WaitGroup, d time.Duration) {
	ok := make(chan struct{})
	go func() { wg.Wait(); close(ok) }()
	select {
	case <-ok:
	case <-time.After(d):
		b := make([]byte, 1<<20)
		t.Fatalf("stall\n%s", b[:runtime.Stack(b, true)])
	}
}

// quiet checks that a relay without running calls holds nothing, and owes no credit.
func quiet(t *testing.T, s *Server) {
	t.Helper()
	eventually(t, "no streams, no kept bytes, credit given back", func() bool {
		ok := true
		s.inspect(func(p *pair) {
			if len(p.streams) > 0 || p.kept != 0 || p.tasks != 0 {
				ok = false
			}
			for _, d := range []*direction{p.up, p.down} {
				if d.held != 0 || len(d.fifo) != 0 || len(d.ready) != 0 || (d.window-d.credit >= smallGrant && d.credit < lowCredit) {
					ok = false
				}
			}
		})
		return ok
	})
}
