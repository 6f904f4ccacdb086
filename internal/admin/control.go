// Package admin lets commands query a running daemon over HTTP, and keeps a second daemon from writing the same
// rules. The daemon holds a lock, and answers at a unix socket in a folder that only its user can enter. The lock
// belongs to the network namespace that it serves, and the socket has the number of the namespace, so that a command
// finds the daemon of its namespace. A daemon without privileges uses a lock and a socket of its user. On Windows they
// are a mutex and a named pipe. The reasons are in docs/decisions/0006-control-socket.md.
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
	"regexp"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/fair"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Options for Listen and Dial.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one

	// User means that the daemon needs no privilege: its lock belongs to the user who runs it,
	// not to the network namespace, and it answers to this user. Other systems have no other lock.
	User bool

	// MaxConns is the most connections that Serve keeps open; a further one closes
	// the one that has been silent longest (package fair). 0: no limit.
	MaxConns int
}

// ErrUnsupported is an error of Listen: the kernel has no mechanism for the lock.
var ErrUnsupported = errors.New("the kernel does not support nfnetlink_log (CONFIG_NETFILTER_NETLINK_LOG)")

// Errors for callers in this package.
var (
	// errHeld means that another process holds the lock.
	errHeld = errors.New("another process holds the lock")
	// errNoUserDaemon means that no daemon of this user runs.
	errNoUserDaemon = errors.New("no Sluice of this user is running; run the command as the user who started it")
)

// instanceVariable is an environment variable that names one of several daemons of a user. Each has a lock and a
// socket of its own.
const instanceVariable = "SLUICE_INSTANCE"

// instance returns what the names of the lock and of the socket of a user's daemon end with.
func instance() (suffix string, err error) {
	name := os.Getenv(instanceVariable)
	switch {
	case name == "":
		return "", nil
	case !regexp.MustCompile(`^[a-z0-9-]{1,32}$`).MatchString(name):
		return "", fmt.Errorf("%s=%q: expected 1 to 32 of a to z, 0 to 9 and -", instanceVariable, name)
	}
	return "-" + name, nil
}

// dial connects to the daemon of a network namespace, of the machine or of this user. It waits until the daemon
// listens or the context ends.
func (o Options) dial(ctx context.Context) (net.Conn, error) {
	if _, err := instance(); err != nil {
		return nil, err
	}
	s, err := o.scope()
	switch {
	case err != nil && o.User: // without a folder there is no daemon
		return nil, errNoUserDaemon
	case err != nil:
		return nil, err
	}
	return s.dial(ctx)
}

// dialNearest connects to the daemon of the network namespace or machine. If there is none, or this process has no
// access to it, dialNearest connects to the user's own daemon. If the user has none, it returns the first error.
// An instance is always one of the user.
func (o Options) dialNearest(ctx context.Context) (net.Conn, error) {
	if os.Getenv(instanceVariable) != "" {
		return Options{User: true}.dial(ctx)
	}
	conn, err := o.dial(ctx)
	if !errors.Is(err, ErrNotRunning) && !errors.Is(err, errNotRoot) {
		return conn, err
	}
	own, ownErr := Options{User: true}.dial(ctx)
	if errors.Is(ownErr, errNoUserDaemon) {
		return nil, err
	}
	return own, ownErr
}

// Identity is the part of the status of a daemon that TakenError names.
type Identity struct {
	PID        int // in its own PID namespace
	Version    string
	Since      time.Time
	Mode, Node struct{ Name string }
}

// TakenError means that another daemon serves the network namespace.
type TakenError struct {
	PID    int       // in this PID namespace; 0: unknown
	Holder *Identity // nil: the daemon did not answer in time

	serves string // "this network namespace"
}

// Error names the other daemon.
func (e *TakenError) Error() string {
	who := "pid unknown"
	if e.PID != 0 {
		who = "pid " + strconv.Itoa(e.PID)
	}
	if h := e.Holder; h != nil {
		who = fmt.Sprintf("%s, %s on %s, mode %s, since %s", who, text.Short(h.Version), text.Short(h.Node.Name),
			text.Short(h.Mode.Name), h.Since.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("another Sluice (%s) already serves %s; stop it first", who, e.serves)
}

// identityTimeout bounds the wait for the Identity of another daemon, which may wait for a second until a write ends.
const identityTimeout = 2 * time.Second

// identifyHolder queries the holder of the lock for its Identity. It returns false if nothing holds the lock any more.
func (o Options) identifyHolder(ctx context.Context, s scope) (*TakenError, bool) {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	taken := &TakenError{serves: s.serves}
	var id Identity
	if err := Dial(o).Get(ctx, "/status", nil, &id); err == nil {
		taken.Holder = &id
	}
	taken.PID = s.pid(id)
	return taken, s.held() == nil
}

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
