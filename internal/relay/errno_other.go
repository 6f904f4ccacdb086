//go:build !windows

package relay

import (
	"errors"
	"syscall"
)

// is reports whether a system call failed with an error.
func is(err error, want syscall.Errno) bool { return errors.Is(err, want) }

// InUse reports whether Engine.Listen failed because another program has the address.
func InUse(err error) bool { return is(err, syscall.EADDRINUSE) }
