package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// drainLimit is how long a client keeps its connection after the backend has closed its own, for what the backend
	// has answered and is not delivered: a running callback, a shut window, a full socket.
	drainLimit = 10 * time.Second
	// pingLimit bounds the wait for the ACK of the PING between the two GOAWAYs of a drain.
	pingLimit = 2 * time.Second
	// maxWaiting is how many goroutines of a connection wait for callbacks to run.
	maxWaiting = 2
)

// pingGuard decides which PINGs of the client reach the backend. grpc-go clients send one for each round trip in which
// DATA came (to measure the bandwidth), and grpc-go servers answer with GOAWAY(ENHANCE_YOUR_CALM) to the third PING
// since they have sent DATA or HEADERS. A message that we have kept reaches the client long after the backend has
// sent it, in many round trips; so we answer the PINGs that it causes. All others pass.
type pingGuard struct {
	unanswered int  // PINGs of the client that the backend has not acknowledged
	spoke      bool // the backend has sent DATA or HEADERS since it acknowledged the last one
	delivered  bool // DATA that had been kept was written to the client since its last PING
}

// forward reports whether the backend gets the client's PING.
func (g *pingGuard) forward() bool {
	own := g.delivered && !g.spoke
	g.delivered = false
	if own {
		return false
	}
	g.spoke = false
	g.unanswered++
	return true
}

func (g *pingGuard) acknowledged() { g.unanswered = max(g.unanswered-1, 0) }
func (g *pingGuard) backendSent()  { g.spoke = g.spoke || g.unanswered == 0 }

// drainState is how far a graceful end has come.
type drainState int

const (
	notDraining    drainState = iota
	drainWanted               // the backend's SETTINGS, which must be the client's first frame, has not come yet
	drainPinged               // GOAWAY(2^31-1) and PING are sent
	drainAnnounced            // GOAWAY(last stream) is sent; the pair ends with its last stream
)

// pair is one client connection and its backend connection. mu guards all of it, the directions, streams and writers
// included.
type pair struct {
	*shared
	mu       sync.Mutex
	up, down *direction // client to backend, backend to client
	streams  map[uint32]*stream
	lastID   uint32 // the highest stream that the client has opened
	kept     int64  // message bytes of hooked calls: collected, in callbacks, queued

	closed      bool // both connections are closed, or are being so
	backendGone bool // the backend has closed
	endTimer    *time.Timer

	drain      drainState
	pingData   [8]byte
	drainTimer *time.Timer
	lastGoAway uint32 // the last stream id named to the client in a GOAWAY; later ones must not be higher
	acceptID   uint32 // streams above it are not opened any more

	pings pingGuard

	jobs    chan func()  // to goroutines that wait for a callback to run
	waiting atomic.Int32 // how many do

	tasks int           // running goroutines, but for the readers
	over  bool          // none may start any more
	idle  chan struct{} // closed when over and tasks is 0

	ctx    context.Context // of the callbacks; ends with the pair
	cancel context.CancelFunc
}

func newPair(ctx context.Context, s *shared, client, backend net.Conn) *pair {
	p := &pair{
		shared: s, streams: map[uint32]*stream{}, idle: make(chan struct{}), jobs: make(chan func()),
		lastGoAway: maxStreamID, acceptID: maxStreamID,
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	p.up = newDirection(p, up, newWriter(p, backend))
	p.down = newDirection(p, down, newWriter(p, client))
	p.up.back, p.down.back = p.down, p.up
	return p
}

// run relays until both connections are closed, and waits for the goroutines of the pair. Callbacks that hang are the
// exception: they are left behind, and counted in shared.abandoned.
func (p *pair) run() {
	stop := context.AfterFunc(p.ctx, p.shut)
	defer stop()
	defer p.cancel()
	var readers sync.WaitGroup
	readers.Go(func() { p.senderGone(p.up, p.up.read(p.down.out.conn)) })
	readers.Go(func() { p.senderGone(p.down, p.down.read(p.up.out.conn)) })
	readers.Wait()

	p.mu.Lock()
	for _, st := range p.streams {
		p.remove(st)
	}
	for _, t := range []*time.Timer{p.endTimer, p.drainTimer} {
		if t != nil {
			t.Stop()
		}
	}
	p.over = true // but a callback that still runs may start the Done of its call
	if p.tasks == 0 {
		close(p.idle)
	}
	p.mu.Unlock()
	limit := time.NewTimer(p.CallbackTimeout + 2*linger)
	defer limit.Stop()
	select {
	case <-p.idle:
	case <-limit.C: // a Done hangs
	}
}

// spawn runs f in a goroutine that run waits for. mu is held.
func (p *pair) spawn(f func()) {
	if p.over && p.tasks == 0 {
		return
	}
	p.tasks++
	p.work(func() {
		defer func() {
			p.mu.Lock()
			p.taskDone()
			p.mu.Unlock()
		}()
		f()
	})
}

func (p *pair) taskDone() {
	if p.tasks--; p.tasks == 0 && p.over {
		close(p.idle)
	}
}

// senderGone ends what the sender of d has left open; err is nil if it just closed its connection.
func (p *pair) senderGone(d *direction, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var f *fault
	if errors.As(err, &f) {
		p.blame(d, f)
	}
	if d.isUp() {
		p.shutLocked()
		return
	}
	p.backendGone = true
	p.up.out.close()
	p.endWithin(drainLimit)
	p.down.out.urgent = true
	p.down.out.flush(false)
	p.finish()
}

// blame tells the sender of d what it has done; its connection is to be closed then. mu is held.
func (p *pair) blame(d *direction, f *fault) {
	if p.closed {
		return
	}
	p.observe(EventProtocolError, "", &ProtocolError{Peer: d.sender(), Code: f.code, Reason: f.reason})
	if !d.isUp() {
		p.up.out.add(appendGoAway(nil, 0, f.code, f.reason)) // the backend has opened no streams
	} else if d.greeted {
		p.goAway(p.lastID, f.code, f.reason)
	}
}

// endWithin shuts the pair after d, unless that is to happen anyway. mu is held.
func (p *pair) endWithin(d time.Duration) {
	if p.endTimer == nil && !p.closed {
		p.endTimer = time.AfterFunc(d, p.shut)
	}
}

// shut ends the pair at once.
func (p *pair) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shutLocked()
}

func (p *pair) shutLocked() {
	if p.closed {
		return
	}
	p.closed = true
	p.cancel()
	for _, d := range []*direction{p.up, p.down} {
		d.out.close()
		d.out.room.Broadcast()
	}
}

// finish ends the pair once there is nothing left to deliver: after the backend has closed, or in a drain. It is
// called wherever frames have been handled and flushed. mu is held.
func (p *pair) finish() {
	o := p.down.out
	if p.closed || (!p.backendGone && p.drain != drainAnnounced) {
		return
	}
	if !o.dead && (o.size() > 0 || len(p.down.fifo) > 0) {
		return
	}
	if !p.backendGone {
		if len(p.streams) == 0 {
			p.endWithin(linger) // the client closes now that it has no calls here: so nothing it writes meets a closed socket
		}
		return
	}
	for _, st := range p.streams {
		if !o.dead && st.deliverable() {
			return
		}
	}
	p.shutLocked()
}

// startDrain begins the graceful end: the client is told to open no more streams here, and what runs goes on.
func (p *pair) startDrain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drain != notDraining || p.closed {
		return
	}
	p.drain = drainWanted
	p.drainTimer = time.AfterFunc(pingLimit, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.drain == drainWanted { // no SETTINGS, so no call either
			p.shutLocked()
		}
		p.announceDrain()
	})
	if p.down.settled {
		p.pingDrain()
	}
	p.down.out.flush(false)
}

// pingDrain sends the first GOAWAY. Streams that the client opens before it reads that are still served: it has
// opened them all when it answers the PING.
func (p *pair) pingDrain() {
	p.drain = drainPinged
	p.goAway(maxStreamID, errNone, "")
	for i := range p.pingData {
		p.pingData[i] = byte(rand.Uint32())
	}
	p.down.out.addHeader(len(p.pingData), framePing, 0, 0)
	p.down.out.add(p.pingData[:])
}

// announceDrain sends the second GOAWAY: what the client opens from here on was never seen by the backend, and the
// client may safely open it elsewhere.
func (p *pair) announceDrain() {
	if p.drain != drainPinged || p.closed {
		return
	}
	p.drain = drainAnnounced
	p.acceptID = p.lastID
	p.goAway(p.lastID, errNone, "")
	p.down.out.flush(false)
	p.finish()
}

// goAway sends GOAWAY to the client.
func (p *pair) goAway(last, code uint32, reason string) {
	p.lastGoAway = min(p.lastGoAway, last)
	p.down.out.add(appendGoAway(nil, p.lastGoAway, code, reason))
}
