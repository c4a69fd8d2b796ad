package relay

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	softBuffer = 128 << 10 // above it no more DATA is taken from the queues, and the reader that fills it waits
	hardBuffer = 8 << 20   // control frames pile up above this only if the peer sends and does not read
	idleBuffer = 256 << 10 // a larger buffer is given back once it is empty
	linger     = time.Second
	// failLimit ends a pair whose peer takes no more bytes, but also does not close.
	failLimit = 5 * time.Second
)

// writer is the write side of one connection. Everything is under pair.mu, but for the blocking write in drain.
type writer struct {
	p      *pair
	conn   net.Conn
	refill func() // writes what waits for room in buf

	raw    syscall.RawConn // nil: there is no writing without waiting
	try    func(fd uintptr) bool
	tried  int
	tryErr error

	buf      []byte
	spare    []byte
	inFlight int  // bytes that drain is writing
	writing  bool // drain runs
	urgent   bool // buf holds more than HEADERS whose message follows at once
	dead     bool // the peer takes no more bytes
	closing  bool // the connection is to be closed once buf is written
	room     sync.Cond
}

func newWriter(p *pair, c net.Conn) *writer {
	w := &writer{p: p, conn: c}
	w.room.L = &p.mu
	sc, ok := c.(syscall.Conn)
	if !ok {
		return w
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return w
	}
	w.raw = raw
	w.try = func(fd uintptr) bool {
		for {
			w.tried, w.tryErr = syscall.Write(int(fd), w.buf)
			if !errors.Is(w.tryErr, syscall.EINTR) {
				return true // never wait for the socket here
			}
		}
	}
	return w
}

func (w *writer) size() int  { return len(w.buf) + w.inFlight }
func (w *writer) full() bool { return w.size() >= softBuffer }
func (w *writer) open() bool { return !w.dead && !w.closing }

// add appends bytes that are worth a write of their own.
func (w *writer) add(b []byte) {
	if w.open() {
		w.urgent = true
		w.buf = append(w.buf, b...)
	}
}

func (w *writer) addHeader(n int, kind, flags byte, stream uint32) {
	if w.open() {
		w.urgent = true
		w.buf = appendFrameHeader(w.buf, n, kind, flags, stream)
	}
}

func (w *writer) addWord(kind byte, stream, word uint32) {
	if w.open() {
		w.urgent = true
		w.buf = appendWordFrame(w.buf, kind, stream, word)
	}
}

// flush writes what the socket takes without waiting, and lets a goroutine write the rest. A reader (wait) does so
// itself for the connection that it fills: it waits for a socket as a pipe does, and never for a window.
func (w *writer) flush(wait bool) {
	for wait && w.writing && w.size() > softBuffer && !w.dead && !w.p.closed {
		w.room.Wait()
	}
	for !w.writing && !w.dead && w.urgent && len(w.buf) > 0 {
		n, err := w.tryWrite()
		if n == len(w.buf) {
			w.urgent = false
			if w.buf = w.buf[:0]; cap(w.buf) > idleBuffer {
				w.buf = nil
			}
			w.refill()
			continue
		}
		if err != nil && !errors.Is(err, syscall.EAGAIN) {
			w.fail()
			return
		}
		w.writing = true
		chunk := w.take(n)
		if wait {
			w.drain(chunk, n, true)
		} else {
			w.p.spawn(func() { w.p.mu.Lock(); w.drain(chunk, n, false); w.p.finish(); w.p.mu.Unlock() })
		}
	}
}

func (w *writer) tryWrite() (int, error) {
	if w.raw == nil {
		return 0, syscall.EAGAIN
	}
	w.tried, w.tryErr = 0, nil
	if err := w.raw.Write(w.try); err != nil {
		return 0, err
	}
	return max(w.tried, 0), w.tryErr
}

// take moves buf, of which n bytes are written, to drain.
func (w *writer) take(n int) []byte {
	chunk := w.buf
	w.buf, w.spare, w.urgent = w.spare[:0], nil, false
	w.inFlight = len(chunk) - n
	return chunk
}

// drain writes chunk from offset n on, and then what has come into buf meanwhile: once, that is, by a reader (handOff),
// which has frames to read; a goroutine then does the rest. pair.mu is held, but not during the writes.
func (w *writer) drain(chunk []byte, n int, handOff bool) {
	for {
		w.p.mu.Unlock()
		_, err := w.conn.Write(chunk[n:])
		w.p.mu.Lock()
		w.inFlight = 0
		if cap(chunk) <= idleBuffer {
			w.spare = chunk[:0]
		}
		if err != nil {
			w.fail()
		}
		if !w.dead {
			w.refill()
		}
		w.room.Broadcast()
		if w.dead || len(w.buf) == 0 {
			break
		}
		chunk, n = w.take(0), 0
		if handOff {
			next := chunk
			w.p.spawn(func() { w.p.mu.Lock(); w.drain(next, 0, false); w.p.finish(); w.p.mu.Unlock() })
			return
		}
	}
	w.writing = false
	if w.closing {
		w.conn.Close()
	}
}

// fail notes that the peer takes no more bytes. What it sent before may still lie in the socket, so its reader goes
// on to the end of that, and ends the pair.
func (w *writer) fail() {
	w.dead, w.buf, w.spare = true, nil, nil
	w.room.Broadcast()
	w.p.endWithin(failLimit)
}

// close ends the connection after what is in buf, for which it does not wait.
func (w *writer) close() {
	if w.closing {
		return
	}
	w.closing = true
	w.urgent = true
	w.flush(false)
	if !w.writing {
		w.conn.Close()
		return
	}
	w.conn.SetReadDeadline(time.Now()) // its reader has nothing to wait for
	w.conn.SetWriteDeadline(time.Now().Add(linger))
}
