package admin

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/sluice-proxy/sluice/internal/admin/namedpipe"
)

// ErrNotRunning means that no daemon runs that this user may ask.
var ErrNotRunning = errors.New("no Sluice of this user is running, nor one that serves this machine; " +
	"run the command as the user who started it, or on the machine itself")

// Errors of Listen besides a *TakenError.
var (
	// ErrUnsupported means that this system has no lock.
	ErrUnsupported = errors.New("this system has no lock of the daemon")
	// ErrPrivilege means that this process may not serve the machine.
	ErrPrivilege = errors.New("missing privilege: the lock of the daemon belongs to administrators and LocalSystem; " +
		"run as an administrator, or with --bind=loopback")
)

var (
	// errNotRoot means that this process may not query the daemon.
	errNotRoot = errors.New("only administrators and LocalSystem may ask the Sluice of this machine: " +
		"run as an administrator")
	// errForeign means that another user has the names that are for this one.
	errForeign = errors.New("another user of this machine holds the lock of this user")

	errNoHandover = errors.New("hand over the lock: not possible on this system")
)

func (o Options) scope() scope {
	if o.User {
		return user()
	}
	return machine()
}

func nearest() either { return either{machine(), user()} }

// pipeScope is the scope of a lock whose holder answers at a named pipe.
type pipeScope struct {
	name  string
	place func() (namedpipe.Place, error)

	free, locked, closed error // nobody has the lock; this process may not take it; nor ask its holder
}

// machine is the scope of a daemon that changes this machine.
func machine() pipeScope {
	place := func() (namedpipe.Place, error) { return namedpipe.Machine(), nil }
	return pipeScope{"this machine", place, ErrNotRunning, ErrPrivilege, errNotRoot}
}

// user is the scope of the user who runs this process.
func user() pipeScope {
	return pipeScope{"this user of this machine", namedpipe.User, errNoUserDaemon, errForeign, errForeign}
}

// String implements scope.
func (s pipeScope) String() string { return s.name }

func (s pipeScope) acquire() (lock, error) {
	place, err := s.place()
	if err != nil {
		return nil, err
	}
	l, err := place.Listen()
	switch {
	case errors.Is(err, namedpipe.ErrDenied):
		return nil, s.locked
	case errors.Is(err, namedpipe.ErrHeld):
		return nil, errHeld
	case err != nil:
		return nil, err
	}
	return pipeLock{l}, nil
}

func (pipeScope) adopt(file *os.File) (lock, error) {
	return nil, errors.Join(errNoHandover, file.Close())
}

// holder implements scope. The PID is 0 if the daemon is about to answer.
func (s pipeScope) holder() (pid int, err error) {
	place, err := s.place()
	if err != nil {
		return 0, err
	}
	return place.Holder()
}

// dial implements scope.
func (s pipeScope) dial(ctx context.Context) (net.Conn, error) {
	place, err := s.place()
	if err != nil {
		return nil, err
	}
	conn, err := place.Dial(ctx)
	switch {
	case errors.Is(err, namedpipe.ErrFree):
		return nil, s.free
	case errors.Is(err, namedpipe.ErrDenied):
		return nil, s.closed
	case err != nil && ctx.Err() != nil:
		return nil, &UnansweredError{}
	}
	return conn, err
}

// pipeLock is a lock with its pipe. Closing one closes both.
type pipeLock struct{ *namedpipe.Listener }

// File returns an error: no other process inherits the lock.
func (pipeLock) File() (*os.File, error) { return nil, errNoHandover }

func (l pipeLock) listen(context.Context) (net.Listener, error) { return l.Listener, nil }
