//go:build !windows

package relay

import (
	"errors"
	"syscall"
)

// is reports whether a system call failed with an error.
func is(err error, want syscall.Errno) bool { return errors.Is(err, want) }
