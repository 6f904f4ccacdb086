// Package admin lets commands query a running daemon over HTTP, and keeps a second daemon from writing the same
// rules. The daemon holds a lock, and answers at a unix socket in a folder that only its user can enter. The lock
// belongs to the network namespace that it serves (package netlock), and the socket has the number of the namespace,
// so that a command finds the daemon of its namespace. A daemon without privileges uses a lock and a socket of its
// user (package userlock). On Windows they are a mutex and a named pipe (package namedpipe). The reasons are in
// docs/decisions/0006-control-socket.md.
package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
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

// Identity describes a daemon to another one that finds the lock held.
type Identity struct {
	PID     int       `json:"pid"` // in its own PID namespace
	Version string    `json:"version"`
	Host    string    `json:"host"` // name of the host
	Mode    string    `json:"mode"`
	Since   time.Time `json:"since"`
}

// scope is the owner of a lock: the machine, a network namespace or a user. Commands reach the holder of the lock
// through it.
type scope interface {
	finder
	acquire() (lock, error)
	adopt(*os.File) (lock, error)
}

// finder finds the holder of a lock.
type finder interface {
	// holder returns the PID of the holder; 0 if it is not known. It returns an error if there is no holder.
	holder() (pid int, err error)

	// dial connects to the holder. It waits until the holder listens or the context ends.
	dial(context.Context) (net.Conn, error)

	String() string // completes "another Sluice already serves"
}

// lock is a lock that is held.
type lock interface {
	File() (*os.File, error)
	Close() error

	// listen returns a listener for commands, which is closed before the lock.
	listen(context.Context) (net.Listener, error)
}

// errHeld means that another process holds the lock.
var errHeld = errors.New("another process holds the lock")

// either is the scope of a command: the machine or network namespace first, and then the user.
type either struct{ first, own finder }

// dial connects to the daemon of the first scope. If there is none, or this process has no access to it, dial
// connects to the user's own daemon. If the user has none, dial returns the error of the first scope.
func (e either) dial(ctx context.Context) (net.Conn, error) {
	conn, err := e.first.dial(ctx)
	if !errors.Is(err, ErrNotRunning) && !errors.Is(err, errNotRoot) {
		return conn, err
	}
	own, ownErr := e.own.dial(ctx)
	if errors.Is(ownErr, errNoUserDaemon) {
		return nil, err
	}
	return own, ownErr
}

// errNoUserDaemon means that no daemon of this user runs.
var errNoUserDaemon = errors.New("no Sluice of this user is running; run the command as the user who started it")

const identityPath = "/identity"

// pidText formats a PID for a message; 0 is a process in another PID namespace.
func pidText(pid int) string {
	if pid == 0 {
		return "pid unknown, as it is in another PID namespace"
	}
	return "pid " + strconv.Itoa(pid)
}

// TakenError means that another daemon serves the network namespace.
type TakenError struct {
	PID    int       // in this PID namespace; 0 if the daemon is in another one
	Holder *Identity // nil: the daemon did not answer in time

	serves string // "this network namespace"
}

// Error names the other daemon.
func (e *TakenError) Error() string {
	who := pidText(e.PID)
	if h := e.Holder; h != nil {
		who = fmt.Sprintf("%s, %s on %s, mode %s, since %s", who,
			text.Short(h.Version), text.Short(h.Host), text.Short(h.Mode), h.Since.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("another Sluice (%s) already serves %s; stop it first", who, e.serves)
}

// identityTimeout bounds the wait for the Identity of another daemon.
const identityTimeout = time.Second

// identifyHolder queries the holder of the lock for its Identity. It returns
// false if nothing holds the lock any more.
func identifyHolder(ctx context.Context, o Options) (*TakenError, bool) {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	taken := &TakenError{serves: o.scope().String()}
	var id Identity
	if err := Dial(o).Get(ctx, identityPath, nil, &id); err == nil {
		taken.Holder = &id
	}
	var err error
	taken.PID, err = o.scope().holder()
	return taken, err == nil
}
