package control

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/sluice-proxy/sluice/internal/fair"
	"github.com/sluice-proxy/sluice/internal/kernel/adminpipe"
)

// ErrNotRunning means that no daemon runs that this user may ask.
var ErrNotRunning = errors.New("no Sluice of this user is running, nor one that serves this machine; " +
	"run the command as the user who started it, or on the machine itself")

// Errors of Listen besides a *TakenError.
var (
	// ErrUnsupported means that this user has no folder for the lock.
	ErrUnsupported = errors.New("this system has no lock of the daemon")
	// ErrPrivilege means that this process may not serve the machine.
	ErrPrivilege = errors.New("missing privilege: the lock of the daemon belongs to administrators and LocalSystem; " +
		"run as an administrator, or with --bind=loopback")
)

// errNotRoot means that this process may not query the daemon.
var errNotRoot = errors.New("only administrators and LocalSystem may ask the Sluice of this machine: run as an administrator")

func (o Options) scope() scope {
	if o.User {
		return user{}
	}
	return machine{}
}

// machine is the scope of a daemon that changes this machine. Its lock is a named pipe, at which it also
// answers.
type machine struct{}

// String implements scope.
func (machine) String() string { return "this machine" }

func (machine) acquire() (lock, error) {
	l, err := adminpipe.Listen()
	switch {
	case errors.Is(err, adminpipe.ErrDenied):
		return nil, ErrPrivilege
	case errors.Is(err, adminpipe.ErrHeld):
		return nil, errHeld
	case err != nil:
		return nil, err
	}
	return pipeLock{l}, nil
}

var errNoHandover = errors.New("hand over the lock: not possible on this system")

func (machine) adopt(file *os.File) (lock, error) {
	return nil, errors.Join(errNoHandover, file.Close())
}

// holder implements scope. The PID is 0 if the daemon is about to answer.
func (machine) holder() (pid int, err error) { return 0, adminpipe.Held() }

// dial connects to the daemon. It waits until the daemon answers or the context ends.
func (machine) dial(ctx context.Context) (net.Conn, int, error) {
	conn, pid, err := adminpipe.Dial(ctx)
	switch {
	case errors.Is(err, adminpipe.ErrFree):
		return nil, 0, ErrNotRunning
	case errors.Is(err, adminpipe.ErrDenied):
		return nil, 0, errNotRoot
	case err != nil && ctx.Err() != nil:
		return nil, 0, &UnansweredError{}
	}
	return conn, pid, err
}

// pipeLock is the lock of a machine.
type pipeLock struct{ *adminpipe.Listener }

// File returns an error: no other process inherits the lock.
func (pipeLock) File() (*os.File, error) { return nil, errNoHandover }

func (l pipeLock) listen(_ context.Context, o Options) (listener, error) {
	limit := fair.NewLimiter(fair.LimiterOptions{Max: o.MaxConns})
	return pipeListener{limit.Listener(l.Listener)}, nil
}

// pipeListener is a listener that needs nothing to run beside it.
type pipeListener struct{ net.Listener }

func (pipeListener) run() {}

// either is the scope of a command: the daemon of the machine, or else one of the user.
type either struct{ machine }

func nearest() scope { return either{} }

// dial implements scope. If the user has no daemon, the error is that for the machine.
func (e either) dial(ctx context.Context) (net.Conn, int, error) {
	conn, pid, err := e.machine.dial(ctx)
	if !errors.Is(err, ErrNotRunning) && !errors.Is(err, errNotRoot) {
		return conn, pid, err
	}
	own, pid, ownErr := user{}.dial(ctx)
	if errors.Is(ownErr, errNoUserDaemon) {
		return nil, 0, err
	}
	return own, pid, ownErr
}
