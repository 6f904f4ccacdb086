//go:build !linux && !windows

package admin

import "errors"

// ErrNotRunning means that no daemon of this user runs.
var ErrNotRunning = errNoUserDaemon

// ErrPrivilege is an error of Listen that only other systems have.
var ErrPrivilege = errors.New("missing privilege: the lock of the daemon")

var errNotRoot = errors.New("only the user who started the daemon may ask it")

func (Options) scope() (scope, error) { return user() }
