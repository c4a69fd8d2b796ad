package obs

import (
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"
)

const (
	maxQueued  = 4096
	closeLimit = time.Second
)

// Lines writes lines in the background, so that whoever logs never waits for a terminal or a journal that hangs. While more
// than maxQueued lines wait, lines are dropped, and a line says how many. It is safe for several goroutines.
type Lines struct {
	queue   chan []byte
	end     chan struct{}
	ended   chan struct{}
	dropped atomic.Int64
}

// NewLines begins to write to w until Close.
func NewLines(w io.Writer) *Lines {
	l := &Lines{queue: make(chan []byte, maxQueued), end: make(chan struct{}), ended: make(chan struct{})}
	go l.run(w)
	return l
}

func (l *Lines) run(w io.Writer) {
	defer close(l.ended)
	put := func(b []byte) {
		if n := l.dropped.Swap(0); n > 0 {
			fmt.Fprintf(w, "tideline: %d lines of the log were dropped: nobody took them\n", n)
		}
		_, _ = w.Write(b) // there is nobody left to tell
	}
	for {
		select {
		case b := <-l.queue:
			put(b)
		case <-l.end:
			for {
				select {
				case b := <-l.queue:
					put(b)
				default:
					return
				}
			}
		}
	}
}

// Write takes one line. It never fails and never waits.
func (l *Lines) Write(b []byte) (int, error) {
	select {
	case l.queue <- slices.Clone(b):
	default:
		l.dropped.Add(1)
	}
	return len(b), nil
}

// Close writes what waits, for a second at most. Nothing may be written after it.
func (l *Lines) Close() {
	close(l.end)
	select {
	case <-l.ended:
	case <-time.After(closeLimit):
	}
}
