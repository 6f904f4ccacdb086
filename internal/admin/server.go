package admin

import (
	"context"
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
	scope, err := o.scope()
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		lock, err := scope.acquire()
		switch {
		case err == nil:
			return &Server{lock, o}, nil
		case errors.Is(err, ErrPrivilege):
			return nil, ErrPrivilege
		case !errors.Is(err, errHeld):
			return nil, fmt.Errorf("take the lock of the daemon: %w", err)
		}
		taken, held := o.identifyHolder(ctx, scope)
		if held || try == tries {
			return nil, taken
		}
	}
}

// Adopt returns a Server that holds the lock by a file of File. It owns the file.
func Adopt(file *os.File, o Options) (*Server, error) {
	scope, err := o.scope()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	lock, err := scope.adopt(file)
	if err != nil {
		return nil, err
	}
	return &Server{lock, o}, nil
}

// Beside returns the path of a file in the folder of the socket, which other daemons have under other names.
func (s *Server) Beside(name string) string { return s.lock.beside(name) }

// File returns a second file that holds the lock, which is released when both are closed. The caller closes it.
func (s *Server) File() (*os.File, error) { return s.lock.duplicate() }

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

// Serve answers queries until the context ends, then releases the lock. At /status the handler answers with an
// Identity or more. The error is ErrNoSocket if there is no place for the socket.
func (s *Server) Serve(ctx context.Context, h http.Handler) error {
	l, err := s.lock.listen(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoSocket, err)
	}
	srv := serverOf(ctx, h)
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

func serverOf(ctx context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(io.Discard, "", 0), // about peers that closed the connection
	}
}

func shutdown(srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if srv.Shutdown(ctx) != nil {
		_ = srv.Close() // ends the answers that are still being written
	}
}
