// Package control lets commands query a running daemon over HTTP, and keeps a
// second daemon from writing the same rules. The daemon holds a lock of the
// network namespace that it serves (package netlock). The daemon has no listener:
// a command listens, and sends the holder of the lock an invitation to connect,
// which requires CAP_NET_ADMIN over the namespace. The reasons are in
// docs/decisions/0016-the-lock-of-a-network-namespace.md.
//
// The lock of a daemon without privileges, and of all daemons on systems without network
// namespaces, belongs to a user, and the daemon has a listener for the commands of this user
// (package userlock).
package control

import (
	"context"
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

// scope is what a lock belongs to, and how commands reach its holder.
type scope interface {
	finder
	acquire() (lock, error)
	adopt(*os.File) (lock, error)
}

// finder finds the holder of a lock.
type finder interface {
	// holder returns the PID of the holder; 0: it is not known. The error says that there is none.
	holder() (pid int, err error)

	// dial connects to the holder.
	dial(context.Context) (conn net.Conn, pid int, err error)

	String() string // completes "another Sluice already serves"
}

// lock is a lock that is held.
type lock interface {
	File() (*os.File, error)
	Close() error
	listen(context.Context, Options) (listener, error) // for commands; closing it releases the lock
}

// listener accepts connections of commands while run runs, until Close.
type listener interface {
	net.Listener
	run()
}

const (
	identityPath  = "/identity"
	versionHeader = "Sluice-Version"
)

// pidText formats a PID for a message; 0 is a process in another PID namespace.
func pidText(pid int) string {
	if pid == 0 {
		return "pid unknown, as it is in another PID namespace"
	}
	return "pid " + strconv.Itoa(pid)
}

// TakenError means that another daemon serves the network namespace.
type TakenError struct {
	PID    int       // in this PID namespace; 0: the daemon is in another one
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
	var id Identity
	c := dialIn(o.scope())
	if err := c.Get(ctx, identityPath, nil, &id); err == nil {
		return &TakenError{PID: int(c.pid.Load()), Holder: &id, serves: c.scope.String()}, true
	}
	pid, err := c.scope.holder()
	return &TakenError{PID: pid, serves: c.scope.String()}, err == nil
}
