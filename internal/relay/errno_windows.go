package relay

import (
	"errors"
	"syscall"
)

// is reports whether a system call failed with an error. On Windows, calls of sockets do not return the errors of
// package syscall, which have other numbers.
func is(err error, want syscall.Errno) bool {
	return errors.Is(err, want) || errors.Is(err, winsock(want))
}

// winsock returns the number that an error has for sockets.
func winsock(of syscall.Errno) syscall.Errno {
	switch of {
	case syscall.EMFILE:
		return 10024
	case syscall.EAGAIN:
		return 10035
	case syscall.EADDRINUSE:
		return 10048
	case syscall.EADDRNOTAVAIL:
		return 10049
	case syscall.ECONNRESET:
		return 10054
	case syscall.ENOBUFS:
		return 10055
	case syscall.ECONNREFUSED:
		return 10061
	default:
		return of
	}
}

// InUse reports whether Engine.Listen failed because another program has the address, or Windows has reserved the port.
func InUse(err error) bool {
	const reserved syscall.Errno = 10013 // WSAEACCES
	return is(err, syscall.EADDRINUSE) || errors.Is(err, reserved)
}
