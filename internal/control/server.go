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
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/unixsock"
)

// Server holds the place of the daemon of a network namespace.
type Server struct{ socket *net.UnixListener }

// Listen takes the place, and holds it until Close or the end of the process,
// however that comes. It is a *TakenError if another daemon has it, and an
// *OccupiedError if something that is no daemon of ours has. Who takes no
// connections may be about to go: it is given a moment.
func Listen(ctx context.Context, o Options) (*Server, error) {
	for try := 1; ; try++ {
		l, err := unixsock.Listen(ctx, o.socket())
		if err == nil {
			return &Server{l}, nil
		}
		if !errors.Is(err, unixsock.ErrInUse) {
			return nil, fmt.Errorf("open control socket: %w", err)
		}
		err = whoHas(ctx, o)
		if occupied, ok := errors.AsType[*OccupiedError](err); !ok || occupied.UID != unknown || try > goingTries {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("open control socket: %w", ctx.Err())
		case <-time.After(goingPause):
		}
	}
}

// The moment that who takes no connections is given to go.
const (
	goingTries = 5
	goingPause = 20 * time.Millisecond
)

// Close gives the place up, if Serve has not.
func (s *Server) Close() error { return s.socket.Close() }

// Limits of a connection. An answer may be a hundred thousand Services.
const (
	headerTime  = 5 * time.Second
	writeTime   = 2 * time.Minute
	idleTime    = 30 * time.Second
	headerBytes = 16 << 10
	stopTime    = 200 * time.Millisecond // for answers under way
)

// Serve answers root and the own user until the context ends, then gives the
// place up. It tells who it is to another daemon; all else the handler answers.
func (s *Server) Serve(ctx context.Context, who Identity, h http.Handler) error {
	said, err := json.Marshal(who)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("GET "+identityPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(said) // who asked may be gone
	})
	srv := &http.Server{
		Handler:           signed(who.Version, mux),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withPeer,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       headerTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          log.New(io.Discard, "", 0), // about peers that went away
	}
	down := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(down); shutdown(srv) })
	err = srv.Serve(newGate(s.socket))
	if stop() {
		return fmt.Errorf("control socket: %w", err)
	}
	<-down
	return nil
}

func shutdown(srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if srv.Shutdown(ctx) != nil {
		_ = srv.Close() // what did not end in time is cut off
	}
}

// signed says the version with each answer, and refuses strangers.
func signed(version string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(versionHeader, version)
		if p, ok := r.Context().Value(peerKey{}).(unixsock.Peer); !ok || !trusted(p) {
			w.Header().Set("Connection", "close")
			http.Error(w, "only root may ask the daemon", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

type peerKey struct{}

// withPeer keeps who is at the other end of a connection.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if k, ok := c.(*known); ok {
		return context.WithValue(ctx, peerKey{}, k.peer)
	}
	return ctx
}
