//go:build unix

package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/sluice-proxy/sluice/internal/admin/userlock"
)

// user is the scope of the user who runs this process.
type user struct{}

// String implements scope.
func (user) String() string { return "this user of this machine" }

// socket returns the socket, beside which the lock is. The error is an ErrUnsupported if this user has no folder for
// it.
func (user) socket() (socket, error) {
	caches, err := os.UserCacheDir()
	if err != nil {
		return socket{}, noLock{fmt.Errorf("find a folder for the lock: %w", err)}
	}
	return socket{filepath.Join(caches, "sluice"), "control"}, nil
}

// noLock is an ErrUnsupported with another reason.
type noLock struct{ error }

// Is implements the interface of errors.Is.
func (noLock) Is(target error) bool { return target == ErrUnsupported }

func (u user) acquire() (lock, error) {
	s, err := u.socket()
	if err != nil {
		return nil, err
	}
	if err := secure(s.folder); err != nil {
		return nil, fmt.Errorf("folder %s: %w", s.folder, err)
	}
	l, err := userlock.Acquire(s.folder)
	switch {
	case errors.Is(err, userlock.ErrHeld):
		return nil, errHeld
	case err != nil:
		return nil, err
	}
	return socketLock{l, s}, nil
}

func (u user) adopt(file *os.File) (lock, error) {
	s, err := u.socket()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return socketLock{userlock.Adopt(file), s}, nil
}

// holder implements scope. The PID is 0 if the daemon has just taken the lock.
func (u user) holder() (pid int, err error) {
	s, err := u.socket()
	if err != nil {
		return 0, errNoUserDaemon
	}
	pid, err = userlock.Holder(s.folder)
	if errors.Is(err, userlock.ErrFree) {
		err = errNoUserDaemon
	}
	return pid, err
}

// dial implements scope.
func (u user) dial(ctx context.Context) (net.Conn, error) {
	s, err := u.socket()
	if err != nil {
		return nil, errNoUserDaemon
	}
	return s.dial(ctx, func() error { _, err := u.holder(); return err })
}
