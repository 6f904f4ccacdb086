package relay

import (
	"errors"
	"syscall"
)

// is reports whether a system call failed with an error. On Windows, calls of sockets do not return the errors of
// package syscall, which have other numbers.
func is(err error, want syscall.Errno) bool {
	ofSockets := map[syscall.Errno]syscall.Errno{
		syscall.EMFILE: 10024, syscall.EAGAIN: 10035, syscall.EADDRINUSE: 10048, syscall.EADDRNOTAVAIL: 10049,
		syscall.ECONNRESET: 10054, syscall.ENOBUFS: 10055, syscall.ECONNREFUSED: 10061,
	}
	number, has := ofSockets[want]
	return errors.Is(err, want) || has && errors.Is(err, number)
}

// InUse reports whether Engine.Listen failed because another program has the address, or Windows has reserved the port.
func InUse(err error) bool {
	const reserved syscall.Errno = 10013 // WSAEACCES
	return is(err, syscall.EADDRINUSE) || errors.Is(err, reserved)
}
