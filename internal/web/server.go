package web

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/fair"
)

// Bounds on what a client can make a server do.
const (
	headerTime  = 5 * time.Second
	readTime    = 10 * time.Second
	writeTime   = 30 * time.Second // package pprof extends it for profiles
	idleTime    = 90 * time.Second
	headerBytes = 16 << 10

	retryPeriod = 5 * time.Second
	grace       = 2 * time.Second // for requests under way when a server stops
)

// Listen opens a TCP port; with network "tcp" 0.0.0.0 and [::] stand for every address of both families.
type Listen func(ctx context.Context, network string, at netip.AddrPort) (net.Listener, error)

// ServerOptions for NewServer. Listen and Log are needed.
type ServerOptions struct {
	Name    string         // for the log, such as "metrics"
	Addr    netip.AddrPort // not valid: the server is switched off
	Handler http.Handler
	Listen  Listen
	Log     *slog.Logger

	// MaxConns is the most connections at a time; a further one closes the one
	// that was silent the longest (package fair). 0: any number.
	MaxConns int

	// HardFail makes Run end with the error if the port cannot be opened, unless it served already.
	HardFail bool

	// Failed is called when serving fails, once until it works again. It may be nil.
	Failed func(error)
}

// State is the state of a Server.
type State struct {
	Name    string         `json:"name"`
	Address string         `json:"address"`         // empty: switched off
	Error   string         `json:"error,omitempty"` // why it does not serve at Address
	Serving netip.AddrPort `json:"-"`               // not valid: it does not serve
}

// Server serves at one address. If it cannot open the port, it retries.
type Server struct {
	opt   ServerOptions
	conns *fair.Limiter

	mu    sync.Mutex
	state State
}

// NewServer returns a Server. It does nothing yet.
func NewServer(o ServerOptions) *Server {
	conns := fair.NewLimiter(fair.LimiterOptions{Max: o.MaxConns, Full: func() {
		o.Log.Warn("Too many clients are connected; those that were silent the longest are disconnected", "server", o.Name,
			"connections", o.MaxConns)
	}})
	s := &Server{opt: o, conns: conns, state: State{Name: o.Name}}
	if o.Addr.IsValid() {
		s.state.Address = o.Addr.String()
	}
	return s
}

// State returns the state. It is safe for concurrent use.
func (s *Server) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Run serves until the context ends, and then finishes requests for up to the grace period.
func (s *Server) Run(ctx context.Context) error {
	if !s.opt.Addr.IsValid() {
		<-ctx.Done()
		return nil
	}
	for served := false; ; {
		l, err := s.opt.Listen(ctx, "tcp", s.opt.Addr)
		if err != nil {
			err = fmt.Errorf("serve %s: %w", s.opt.Name, err)
		} else {
			served = true
			err = s.serve(ctx, l)
		}
		if ctx.Err() != nil {
			return nil
		}
		s.fail(err)
		if s.opt.HardFail && !served {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryPeriod):
		}
	}
}

// serve serves until the context ends or the listener fails.
func (s *Server) serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           s.opt.Handler,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       readTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(s.opt.Log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(s.conns.Listener(l)) }()
	s.serving(l)
	select {
	case err := <-ended:
		return fmt.Errorf("serve %s at %s: %w", s.opt.Name, s.opt.Addr, err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_ = l.Close() // the next run of the program may keep the port open
	if err := <-ended; err != nil {
		s.opt.Log.Debug("Stopped accepting connections", "server", s.opt.Name, "reason", err)
	}
	server.SetKeepAlivesEnabled(false)
	s.conns.Drain(stopping)
	_ = server.Close() // the grace period is over
	return nil
}

// serving records that the server serves, and logs it.
func (s *Server) serving(l net.Listener) {
	at := s.opt.Addr
	if a, err := netip.ParseAddrPort(l.Addr().String()); err == nil {
		at = a // with the port that the kernel chose for 0
	}
	s.opt.Log.Info("Serving", "server", s.opt.Name, "address", at)
	if s.set(at, "") != "" {
		s.opt.Log.Info("The server works again", "server", s.opt.Name)
	}
}

// fail records that the server does not serve, and logs an error once.
func (s *Server) fail(err error) {
	if s.set(netip.AddrPort{}, err.Error()) == err.Error() {
		return
	}
	s.opt.Log.Error("Cannot serve", "server", s.opt.Name, "error", err)
	if s.opt.Failed != nil {
		s.opt.Failed(err)
	}
}

// set changes the state and returns the error that it had before.
func (s *Server) set(serving netip.AddrPort, err string) (before string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.state.Error
	s.state.Serving, s.state.Error = serving, err
	return before
}
