//go:build !linux && !windows

package admin

import "errors"

// ErrNotRunning means that no daemon of this user runs.
var ErrNotRunning = errNoUserDaemon

// Errors of Listen besides a *TakenError, which only other systems have.
var (
	ErrUnsupported = errors.New("this system has no lock of the daemon")
	ErrPrivilege   = errors.New("missing privilege: the lock of the daemon")
)

var errNotRoot = errors.New("only the user who started the daemon may ask it")

func (Options) scope() scope { return user{} }

func nearest() finder { return user{} }
