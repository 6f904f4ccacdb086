// Package namedpipe is a lock of a machine with Windows, or of one of its users, and connections to its holder. The
// lock is a named mutex; the holder answers at a named pipe. Only administrators and LocalSystem, or the user, may open
// them. Both exist while their holder runs, in whatever way it ends.
//
// The pipe is made by system calls, not by github.com/Microsoft/go-winio: in Wine 8, the Windows of the
// tests, clients of its listener are connected to an instance that nobody serves.
package namedpipe

import "errors"

// Errors of this package.
var (
	// ErrHeld means that another process has the lock.
	ErrHeld = errors.New("lock is held")
	// ErrFree means that no process has the lock.
	ErrFree = errors.New("lock is free")
	// ErrDenied means that this process may not use the lock.
	ErrDenied = errors.New("the lock belongs to others")
)
