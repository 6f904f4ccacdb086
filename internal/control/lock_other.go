//go:build !linux

package control

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/internal/connlimit"
	"github.com/sluice-proxy/sluice/internal/kernel/userlock"
)

// domain is what one daemon serves.
const domain = "this user of this machine"

// ErrNotRunning means that no daemon of this user runs.
var ErrNotRunning = errors.New("no Sluice of this user is running; run the command as the user who started it")

// Errors of Listen besides a *TakenError, which only other systems have.
var (
	ErrUnsupported = errors.New("this system has no lock of the daemon")
	ErrPrivilege   = errors.New("missing privilege: the lock of the daemon")
)

var (
	errNotRoot = errors.New("only the user who started the daemon may ask it")
	errHeld    = userlock.ErrHeld
)

// lock is the lock of a user. It cannot be handed over.
type lock struct{ *userlock.Lock }

var errNoHandover = errors.New("hand over the lock: not possible on this system")

// File returns an error.
func (lock) File() (*os.File, error) { return nil, errNoHandover }

func acquire(Options) (*lock, error) {
	l, err := userlock.Acquire(userlock.Options{})
	if err != nil {
		return nil, err
	}
	return &lock{l}, nil
}

func adopt(file *os.File) (*lock, error) { return nil, errors.Join(errNoHandover, file.Close()) }

// holder returns the PID of the holder of the lock; 0: it is about to listen. The error
// is userlock.ErrFree if there is no holder.
func holder(Options) (pid int, err error) { return userlock.Holder(userlock.Options{}) }

// dialPause is the time between two attempts to connect to a daemon that does not
// listen yet.
const dialPause = 50 * time.Millisecond

// dial connects to the daemon. It waits until the daemon listens or the context ends.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	for {
		conn, pid, err := userlock.Dial(ctx, userlock.Options{})
		switch {
		case err == nil:
			c.pid.Store(int64(pid))
			return conn, nil
		case errors.Is(err, userlock.ErrFree):
			return nil, ErrNotRunning
		case !errors.Is(err, userlock.ErrSilent):
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, &UnansweredError{}
		case <-time.After(dialPause):
		}
	}
}

// listener is a net.Listener for the commands of this user.
type listener struct {
	net.Listener
	lock  *lock
	inner *userlock.Listener
}

func newListener(ctx context.Context, lock *lock, o Options) (*listener, error) {
	inner, err := lock.Listen(ctx)
	if err != nil {
		return nil, err
	}
	limit := connlimit.New(connlimit.Options{Max: o.MaxConns})
	return &listener{limit.Listener(inner), lock, inner}, nil
}

// run accepts connections until Close.
func (l *listener) run() { l.inner.Run() }

// Close implements net.Listener. It releases the lock.
func (l *listener) Close() error { return errors.Join(l.Listener.Close(), l.lock.Close()) }
