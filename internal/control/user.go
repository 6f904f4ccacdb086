package control

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/internal/fair"
	"github.com/sluice-proxy/sluice/internal/kernel/userlock"
)

// errNoUserDaemon means that no daemon of this user runs.
var errNoUserDaemon = errors.New("no Sluice of this user is running; run the command as the user who started it")

// errHeld means that another process holds the lock.
var errHeld = errors.New("another process holds the lock")

// user is the scope of the user who runs this process.
type user struct{}

// String implements scope.
func (user) String() string { return "this user of this machine" }

func (user) acquire() (lock, error) {
	l, err := userlock.Acquire(userlock.Options{})
	switch {
	case errors.Is(err, userlock.ErrHeld):
		return nil, errHeld
	case errors.Is(err, userlock.ErrNoFolder):
		return nil, noLock{err}
	case err != nil:
		return nil, err
	}
	return userLock{l}, nil
}

// noLock is an ErrUnsupported with another reason.
type noLock struct{ error }

// Is implements the interface of errors.Is.
func (noLock) Is(target error) bool { return target == ErrUnsupported }

func (user) adopt(file *os.File) (lock, error) {
	l, err := userlock.Adopt(file, userlock.Options{})
	if err != nil {
		return nil, err
	}
	return userLock{l}, nil
}

// holder implements scope. The PID is 0 if the daemon is about to listen.
func (user) holder() (pid int, err error) { return userlock.Holder(userlock.Options{}) }

// dialPause is the time between two attempts to connect to a daemon that does not
// listen yet.
const dialPause = 50 * time.Millisecond

// dial connects to the daemon. It waits until the daemon listens or the context ends.
func (user) dial(ctx context.Context) (net.Conn, int, error) {
	for {
		conn, pid, err := userlock.Dial(ctx, userlock.Options{})
		switch {
		case err == nil:
			return conn, pid, nil
		case errors.Is(err, userlock.ErrFree), errors.Is(err, userlock.ErrNoFolder):
			return nil, 0, errNoUserDaemon
		case !errors.Is(err, userlock.ErrSilent):
			return nil, 0, err
		}
		select {
		case <-ctx.Done():
			return nil, 0, &UnansweredError{}
		case <-time.After(dialPause):
		}
	}
}

// userLock is the lock of a user.
type userLock struct{ *userlock.Lock }

func (l userLock) listen(ctx context.Context, o Options) (listener, error) {
	inner, err := l.Listen(ctx)
	if err != nil {
		return nil, err
	}
	limit := fair.NewLimiter(fair.LimiterOptions{Max: o.MaxConns})
	return &userListener{limit.Listener(inner), l, inner}, nil
}

// userListener is a net.Listener for the commands of a user.
type userListener struct {
	net.Listener

	lock  lock
	inner *userlock.Listener
}

func (l *userListener) run() { l.inner.Run() }

// Close implements net.Listener. It releases the lock.
func (l *userListener) Close() error { return errors.Join(l.Listener.Close(), l.lock.Close()) }
