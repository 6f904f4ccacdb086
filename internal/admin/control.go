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
	"net"
	"os"
	"regexp"
	"strconv"
	"time"

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
