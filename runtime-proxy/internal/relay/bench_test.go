package relay

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// BenchmarkCall measures calls made directly, through the relay and through the grpc-go twin, in turn, and reports the
// medians and their ratio to direct: on a noisy machine ratios hold, microseconds do not.
//
//	go test -run - -bench Call ./runtime-proxy/internal/relay/
func BenchmarkCall(b *testing.B) {
	dir := tempDir(b)
	srv := grpc.NewServer(serverOptions(0)...)
	l := listen(b, dir+"/b")
	background(b, func() { srv.Serve(l) })
	b.Cleanup(srv.Stop)
	unhooked := func(string) *Call { return nil }
	same := func(_ context.Context, m []byte) ([]byte, *Status) { return m, nil }
	grow := func(_ context.Context, m []byte) ([]byte, *Status) { return append(slices.Clone(m), 1), nil }
	message := func(_ context.Context, m []byte) []byte { return m }
	relayed := func(name string, hook Hook) *grpc.ClientConn {
		s := New(Config{Dial: contextDialer(dir + "/b"), Hook: hook})
		l := listen(b, dir+"/"+name)
		background(b, func() { s.Serve(context.Background(), l) })
		b.Cleanup(func() { l.Close() })
		return newClient(b, dir+"/"+name, 0, false)
	}
	paths := []struct {
		name string
		cc   *grpc.ClientConn
	}{
		{"direct", newClient(b, dir+"/b", 0, false)},
		{"relay-nohook", relayed("none", nil)},
		{"relay-unhooked", relayed("unhooked", unhooked)},
		{"relay-same", relayed("same", func(string) *Call { return &Call{Request: same, Response: same} })},
		{"relay-inline", relayed("inline", func(string) *Call {
			return &Call{InlineRequest: true, InlineResponse: true, Request: grow, Response: grow}
		})},
		{"relay-changed", relayed("changed", func(string) *Call { return &Call{Request: grow, Response: grow} })},
		{"relay-message", relayed("message", func(string) *Call { return &Call{Message: message} })},
		{"twin", newClient(b, newTwin(b, dir+"/b"), 0, false)},
	}
	for _, size := range []struct{ request, response int }{{100, 100}, {4000, 100}, {100, 400 << 10}, {100, 4500 << 10}} {
		b.Run(fmt.Sprintf("%d-%d", size.request, size.response), func(b *testing.B) {
			m := orders(size.request, opSame, opSame, answerSimple, 0, size.response)
			times := make([][]time.Duration, len(paths))
			for i := 0; i < b.N; i++ {
				for k, p := range paths {
					var out []byte
					start := time.Now()
					if err := p.cc.Invoke(context.Background(), "/t.T/Unary", &m, &out); err != nil {
						b.Fatal(p.name, err)
					}
					times[k] = append(times[k], time.Since(start))
				}
			}
			median := func(k int) float64 {
				slices.Sort(times[k])
				return float64(times[k][len(times[k])/2].Nanoseconds())
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(0)/1e3, "direct-us")
			for k := 1; k < len(paths); k++ {
				b.ReportMetric(median(k)/median(0), paths[k].name+"-x")
			}
		})
	}
}
