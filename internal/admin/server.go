package admin

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
	"time"

	"github.com/sluice-proxy/sluice/internal/fair"
)

// Server holds a lock and answers queries.
type Server struct {
	lock lock
	opts Options
}

// Listen takes the lock and holds it until Close or the end of the process, even
// by kill -9. The error is a *TakenError if another daemon holds the lock.
func Listen(ctx context.Context, o Options) (*Server, error) {
	const tries = 5 // the holder may exit before it is identified
	for try := 1; ; try++ {
		lock, err := o.scope().acquire()
		switch {
		case err == nil:
			return &Server{lock, o}, nil
		case errors.Is(err, ErrPrivilege):
			return nil, ErrPrivilege
		case !errors.Is(err, errHeld):
			return nil, fmt.Errorf("take the lock of the daemon: %w", err)
		}
		taken, held := identifyHolder(ctx, o)
		if held || try == tries {
			return nil, taken
		}
	}
}

// Adopt returns a Server that holds the lock by a file of File. It owns the file.
func Adopt(file *os.File, o Options) (*Server, error) {
	lock, err := o.scope().adopt(file)
	if err != nil {
		return nil, err
	}
	return &Server{lock, o}, nil
}

// File returns a second file that holds the lock, which is released when both are
// closed. The caller closes it.
func (s *Server) File() (*os.File, error) { return s.lock.File() }

// Close releases the lock if Serve has not done so.
func (s *Server) Close() error { return s.lock.Close() }

// Limits of a connection. An answer may be a hundred thousand Services.
const (
	headerTimeout  = 5 * time.Second
	writeTimeout   = 2 * time.Minute
	idleTimeout    = 30 * time.Second
	maxHeaderBytes = 16 << 10
	stopTimeout    = 200 * time.Millisecond // for answers that are being written
)

// ErrNoSocket means that a daemon cannot answer commands. It still holds the lock.
var ErrNoSocket = errors.New("no socket for commands")

// Serve answers queries until the context ends, then releases the lock. The handler
// answers all queries except another daemon's query for the Identity. The error is
// ErrNoSocket if there is no place for the socket.
func (s *Server) Serve(ctx context.Context, who Identity, h http.Handler) error {
	srv, err := serverOf(ctx, who, h)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	l, err := s.lock.listen(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoSocket, err)
	}
	limit := fair.NewLimiter(fair.LimiterOptions{Max: s.opts.MaxConns})
	down := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(down); shutdown(srv) })
	err = srv.Serve(limit.Listener(l))
	if stop() {
		return errors.Join(fmt.Errorf("control socket: %w", err), l.Close(), s.lock.Close())
	}
	<-down
	return s.lock.Close()
}

func serverOf(ctx context.Context, who Identity, h http.Handler) (*http.Server, error) {
	identity, err := json.Marshal(who)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("GET "+identityPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(identity) // the peer may have closed the connection
	})
	return &http.Server{
		Handler:           withVersion(who.Version, mux),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(io.Discard, "", 0), // about peers that closed the connection
	}, nil
}

func shutdown(srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if srv.Shutdown(ctx) != nil {
		_ = srv.Close() // ends the answers that are still being written
	}
}

// withVersion adds the version to the header of each answer.
func withVersion(version string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(versionHeader, version)
		next.ServeHTTP(w, r)
	})
}
