//go:build !windows

package userspace

import (
	"errors"
	"syscall"
)

// inUse reports whether another program has the address of a socket.
func inUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }
