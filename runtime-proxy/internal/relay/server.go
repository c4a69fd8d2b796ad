package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

// Server relays the connections of its listeners. Its methods may be called from any goroutine.
type Server struct {
	shared *shared

	mu        sync.Mutex
	stopping  bool
	listeners map[net.Listener]struct{}
	sessions  map[*session]struct{}
	empty     chan struct{} // closed when stopping has left no sessions
	ended     bool          // empty is closed
}

// session is a client connection from its accept on; pair is nil until the backend is dialled.
type session struct {
	cancel context.CancelFunc // ends it at once
	pair   *pair
}

// New returns a Server that does nothing until Serve is called. It panics if cfg.Dial is nil.
func New(cfg Config) *Server {
	if cfg.Dial == nil {
		panic("relay: Config.Dial is nil")
	}
	return &Server{
		shared:    newShared(cfg),
		listeners: map[net.Listener]struct{}{},
		sessions:  map[*session]struct{}{},
		empty:     make(chan struct{}),
	}
}

// Serve accepts connections from l and relays them, until l is closed, Shutdown is called, or ctx is done. It closes l
// in any case (a unix listener removes its socket file then, unless SetUnlinkOnClose(false) or systemd made it), and
// returns when its connections have ended. When ctx is done they are closed at once, and the error is ctx's cause; use
// Shutdown for an end that costs no call. The end of l or Shutdown is not an error.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		return l.Close()
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()

	var sessions sync.WaitGroup
	defer sessions.Wait()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
		l.Close()
	}()

	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			if se, ctx := s.open(ctx, c); se != nil {
				sessions.Go(func() { s.serve(ctx, se, c) })
			}
		case ctx.Err() != nil:
			sessions.Wait()
			return context.Cause(ctx)
		case errors.Is(err, net.ErrClosed):
			return nil
		case transient(err):
			s.shared.observe(EventAcceptFailed, "", err)
			pause(ctx, 50*time.Millisecond)
		default:
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
	}
}

// transient reports whether accept may work again by itself: a process out of files must not leave its node without
// a runtime.
func transient(err error) bool {
	for _, e := range []error{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.ECONNABORTED, syscall.EPROTO, syscall.EAGAIN, syscall.EINTR,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// open makes a session for c, or closes c if there may be no more.
func (s *Server) open(ctx context.Context, c net.Conn) (*session, context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping || len(s.sessions) >= s.shared.MaxConnections {
		if !s.stopping {
			s.shared.observe(EventConnectionRefused, "", nil)
		}
		c.Close()
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	se := &session{cancel: cancel}
	s.sessions[se] = struct{}{}
	return se, ctx
}

// serve relays one client connection until it has ended.
func (s *Server) serve(ctx context.Context, se *session, c net.Conn) {
	defer s.forget(se)
	defer se.cancel()
	s.shared.observe(EventConnectionOpened, "", nil)
	defer s.shared.observe(EventConnectionClosed, "", nil)
	b, err := s.dial(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.shared.observe(EventDialFailed, "", err)
		}
		c.Close() // which a gRPC client shows as Unavailable, and tries again
		return
	}
	p := newPair(ctx, s.shared, c, b)
	s.mu.Lock()
	se.pair = p
	stopping := s.stopping
	s.mu.Unlock()
	if stopping {
		p.startDrain()
	}
	p.run()
}

func (s *Server) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.shared.DialTimeout)
	defer cancel()
	return s.shared.Dial(ctx)
}

func (s *Server) forget(se *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, se)
	s.checkEmpty()
}

func (s *Server) checkEmpty() {
	if s.stopping && len(s.sessions) == 0 && !s.ended {
		s.ended = true
		close(s.empty)
	}
}

// Shutdown ends the Server gracefully: it closes the listeners, tells each client by GOAWAY to open no more calls on
// its connection (so that it opens its next connection to our successor), and lets those that run go on. It returns
// nil when all have ended. When ctx is done before, it closes what is left and returns ctx's error; streams that never
// end by themselves, such as container events, always take it that long.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	for l := range s.listeners {
		l.Close()
	}
	var pairs []*pair
	for se := range s.sessions {
		if se.pair != nil {
			pairs = append(pairs, se.pair)
		}
	}
	s.checkEmpty()
	s.mu.Unlock()
	for _, p := range pairs {
		p.startDrain()
	}
	select {
	case <-s.empty:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for se := range s.sessions {
		se.cancel()
	}
	s.mu.Unlock()
	<-s.empty // each session bounds its own end
	return fmt.Errorf("drain connections: %w", context.Cause(ctx))
}
