package obs_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tideline-io/tideline/internal/obs"
)

func TestLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := obs.NewLines(&out)
	var want strings.Builder
	for i := range 1000 {
		line := fmt.Sprintf("line %d\n", i)
		want.WriteString(line)
		fmt.Fprint(l, line)
	}
	l.Close()
	if out.String() != want.String() {
		t.Errorf("got %d bytes, want %d", out.Len(), want.Len())
	}
}

// stuck is a terminal that nobody reads, until it is let go.
type stuck struct {
	release chan struct{}
	mu      sync.Mutex
	out     bytes.Buffer
}

func (s *stuck) Write(b []byte) (int, error) {
	<-s.release
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(b)
}

// A log that nobody takes costs lines and no time.
func TestLinesNeverWait(t *testing.T) {
	t.Parallel()
	s := &stuck{release: make(chan struct{})}
	l := obs.NewLines(s)
	const lines = 10000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range lines {
			fmt.Fprintln(l, "x")
		}
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("writing waits")
	}
	close(s.release)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		fmt.Fprintln(l, "y")
		s.mu.Lock()
		text := s.out.String()
		s.mu.Unlock()
		if strings.Contains(text, "lines of the log were dropped") && strings.Contains(text, "y\n") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no word of the dropped lines in %d bytes", len(text))
		}
	}
	l.Close()
}
