package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/connlimit"
)

// Bounds on what a client can make a server do.
const (
	headerTime  = 5 * time.Second
	readTime    = 10 * time.Second
	writeTime   = 30 * time.Second // profiles may take longer by what they are asked for
	idleTime    = 90 * time.Second
	headerBytes = 16 << 10

	retryPeriod = 5 * time.Second
	grace       = 2 * time.Second // for requests under way when a server stops
)

// Listen opens a TCP port; with network "tcp" 0.0.0.0 and [::] stand for every
// address of both families.
type Listen func(ctx context.Context, network string, at netip.AddrPort) (net.Listener, error)

// ServerOptions for NewServer. Listen and Log are needed.
type ServerOptions struct {
	Name   string // for the log, such as "metrics"
	Listen Listen
	Log    *slog.Logger

	// MaxConns is the most connections at a time; a further one closes the one
	// that was silent the longest (package connlimit). 0: any number.
	MaxConns int

	// HardFail makes Run end with the error if the port cannot be opened, unless
	// it served already: then what works goes on.
	HardFail bool

	// Failed is told when serving fails, once until it works again. It may be nil.
	Failed func(error)
}

// Setting is what to serve, and where.
type Setting struct {
	Addr    netip.AddrPort // not valid: nowhere
	Handler http.Handler
}

// State is how a Server is doing.
type State struct {
	Wanted  netip.AddrPort // not valid: switched off
	Serving netip.AddrPort // not valid: nowhere
	Err     error          // why it does not serve where it should
}

// Server serves at an address that may change. One that cannot be opened is
// tried again and again, while the one before goes on.
type Server struct {
	opt   ServerOptions
	conns *connlimit.Limiter
	awake chan struct{}
	now   *serving // nil: nowhere. Of the goroutine of Run.

	mu    sync.Mutex
	want  Setting
	state State
}

// serving is one port that is open.
type serving struct {
	at     netip.AddrPort // as it was asked for
	server *http.Server
	ended  chan error
}

// NewServer returns a Server for the setting. It does nothing yet.
func NewServer(o ServerOptions, s Setting) *Server {
	conns := connlimit.New(connlimit.Options{Max: o.MaxConns, Full: func() {
		o.Log.Warn("Too many clients are connected; those that were silent the longest are disconnected", "server", o.Name, "connections", o.MaxConns)
	}})
	return &Server{opt: o, conns: conns, awake: make(chan struct{}, 1), want: s, state: State{Wanted: s.Addr}}
}

// Set changes what is served at once, and where as soon as that is possible.
func (s *Server) Set(to Setting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want, s.state.Wanted = to, to.Addr
	select {
	case s.awake <- struct{}{}:
	default:
	}
}

// State says how the server is doing.
func (s *Server) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// ServeHTTP passes requests on to the handler that is set now.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	h := s.want.Handler
	s.mu.Unlock()
	if h == nil { // switched off a moment ago
		h = http.NotFoundHandler()
	}
	h.ServeHTTP(w, r)
}

// Run serves until the context ends; requests under way are given a moment.
func (s *Server) Run(ctx context.Context) error {
	defer s.stop()
	served := false
	for {
		err := s.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.tell(err)
		served = served || s.now != nil
		if err != nil && s.opt.HardFail && !served {
			return err
		}
		if ended := s.wait(ctx, err); ended != nil {
			s.now = nil
			s.tell(ended)
			_ = s.wait(ctx, ended) // nothing is served that could end
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// wait returns when there is something to do: after an error, soon. It returns
// why serving ended, if it did.
func (s *Server) wait(ctx context.Context, err error) error {
	var ended chan error
	if s.now != nil {
		ended = s.now.ended
	}
	var again <-chan time.Time
	if err != nil {
		again = time.After(retryPeriod)
	}
	select {
	case <-ctx.Done():
	case <-s.awake:
	case <-again:
	case err := <-ended:
		return fmt.Errorf("serve %s at %s: %w", s.opt.Name, s.now.at, err)
	}
	return nil
}

// follow makes the server serve where it should.
func (s *Server) follow(ctx context.Context) error {
	to := s.State().Wanted
	switch {
	case !to.IsValid():
		s.stop()
		return nil
	case s.now != nil && s.now.at == to:
		return nil
	}
	l, err := s.opt.Listen(ctx, "tcp", to)
	if err != nil && s.inOurOwnWay(to, err) {
		return s.swap(ctx, to)
	}
	if err != nil {
		return fmt.Errorf("serve %s: %w", s.opt.Name, err)
	}
	s.stop()
	s.start(l, to)
	return nil
}

// inOurOwnWay reports whether it may be our own port that keeps us from another
// address: 0.0.0.0:1 and 127.0.0.1:1 cannot both be open.
func (s *Server) inOurOwnWay(to netip.AddrPort, err error) bool {
	return s.now != nil && s.now.at.Port() == to.Port() && errors.Is(err, syscall.EADDRINUSE)
}

// swap closes the port before it opens the other, and returns to it if that
// does not work.
func (s *Server) swap(ctx context.Context, to netip.AddrPort) error {
	from := s.now.at
	s.stop()
	l, err := s.opt.Listen(ctx, "tcp", to)
	if err == nil {
		s.start(l, to)
		return nil
	}
	err = fmt.Errorf("serve %s: %w", s.opt.Name, err)
	back, backErr := s.opt.Listen(ctx, "tcp", from)
	if backErr != nil {
		return errors.Join(err, backErr)
	}
	s.start(back, from)
	return err
}

func (s *Server) start(l net.Listener, at netip.AddrPort) {
	n := &serving{at: at, ended: make(chan error, 1), server: &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       readTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(s.opt.Log.Handler(), slog.LevelDebug),
	}}
	go func() { n.ended <- n.server.Serve(s.conns.Listener(l)) }()
	s.now = n
	if a, err := netip.ParseAddrPort(l.Addr().String()); err == nil {
		at = a // with the port that the kernel chose for 0
	}
	s.opt.Log.Info("Serving", "server", s.opt.Name, "address", at)
	s.note(func(st *State) { st.Serving = at })
}

// stop closes the port that is open, if any, and waits for requests under way.
func (s *Server) stop() {
	if s.now == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if err := s.now.server.Shutdown(ctx); err != nil {
		_ = s.now.server.Close() // they had their time
	}
	if err := <-s.now.ended; err != nil && !errors.Is(err, http.ErrServerClosed) {
		s.opt.Log.Debug("Serving ended", "server", s.opt.Name, "error", err)
	}
	s.now = nil
	s.note(func(st *State) { st.Serving = netip.AddrPort{} })
}

func (s *Server) note(change func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
}

// tell logs a failure once, and the recovery from it.
func (s *Server) tell(err error) {
	var before error
	s.note(func(st *State) {
		before, st.Err = st.Err, err
		if s.now == nil {
			st.Serving = netip.AddrPort{}
		}
	})
	switch {
	case err == nil && before != nil && s.now != nil:
		s.opt.Log.Info("The server works again", "server", s.opt.Name)
	case err != nil && (before == nil || before.Error() != err.Error()):
		s.opt.Log.Error("Cannot serve", "server", s.opt.Name, "error", err)
		if s.opt.Failed != nil {
			s.opt.Failed(err)
		}
	}
}
