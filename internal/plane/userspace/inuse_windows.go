package userspace

import (
	"errors"
	"syscall"
)

// What bind returns on Windows: the port is in use, or Windows has reserved it.
const (
	wsaeacces     syscall.Errno = 10013
	wsaeaddrinuse syscall.Errno = 10048
)

// inUse reports whether another program has the address of a socket. Windows never returns
// syscall.EADDRINUSE, which has another number there.
func inUse(err error) bool { return errors.Is(err, wsaeaddrinuse) || errors.Is(err, wsaeacces) }
