package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/netlock"
)

// Server holds the lock of the daemon of a network namespace.
type Server struct {
	lock *netlock.Lock
	opts Options
}

// Errors of Listen besides a *TakenError.
var (
	// ErrUnsupported means that the kernel has nothing that can be the lock.
	ErrUnsupported = netlock.ErrUnsupported
	// ErrPrivilege means that this process may not hold the lock, nor change rules.
	ErrPrivilege = errors.New("missing privilege: the lock of the daemon needs CAP_NET_ADMIN " +
		"in this network namespace; run as root, or give the container this capability")
)

// Listen takes the lock and holds it until Close or the end of the process,
// also by kill -9. The error is a *TakenError if another daemon holds it.
func Listen(ctx context.Context, o Options) (*Server, error) {
	const tries = 5 // the holder may end before it is asked who it is
	for try := 1; ; try++ {
		lock, err := netlock.Acquire(o.lock())
		switch {
		case err == nil:
			return &Server{lock, o}, nil
		case errors.Is(err, netlock.ErrPrivilege):
			return nil, ErrPrivilege
		case !errors.Is(err, netlock.ErrHeld):
			return nil, fmt.Errorf("take the lock of the daemon: %w", err)
		}
		taken, held := askHolder(ctx, o)
		if held || try == tries {
			return nil, taken
		}
	}
}

// Adopt returns a Server that holds the lock by a file of File. It owns the file.
func Adopt(file *os.File, o Options) (*Server, error) {
	lock, err := netlock.Adopt(file)
	if err != nil {
		return nil, err
	}
	return &Server{lock, o}, nil
}

// File returns a file that holds the lock, too: it is released when that is
// closed as well. The caller closes it.
func (s *Server) File() (*os.File, error) { return s.lock.File() }

// Close releases the lock, if Serve has not.
func (s *Server) Close() error { return s.lock.Close() }

// Limits of a connection. An answer may be a hundred thousand Services.
const (
	headerTime  = 5 * time.Second
	writeTime   = 2 * time.Minute
	idleTime    = 30 * time.Second
	headerBytes = 16 << 10
	stopTime    = 200 * time.Millisecond // for answers that are being written
)

// Serve answers root until the context ends, then releases the lock. It answers
// another daemon who this one is; the handler answers everything else.
func (s *Server) Serve(ctx context.Context, who Identity, h http.Handler) error {
	said, err := json.Marshal(who)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("GET "+identityPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(said) // the peer may be gone
	})
	srv := &http.Server{
		Handler:           signed(who.Version, mux),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       headerTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          log.New(io.Discard, "", 0), // about peers that went away
	}
	d := newDoor(context.WithoutCancel(ctx), s.lock, s.opts)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(d.run)
	down := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(down); shutdown(srv) })
	err = srv.Serve(d)
	if stop() {
		return errors.Join(fmt.Errorf("control socket: %w", err), d.Close())
	}
	<-down
	return nil
}

func shutdown(srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if srv.Shutdown(ctx) != nil {
		_ = srv.Close() // cuts off what did not end in time
	}
}

// signed adds the version to each answer.
func signed(version string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(versionHeader, version)
		next.ServeHTTP(w, r)
	})
}
