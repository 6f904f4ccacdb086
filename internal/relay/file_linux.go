package relay

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/relay/socket"
)

func (s *tcpServer) file() (*os.File, error) { return fileOf(s.fd) }

func (l *udpListener) file() (*os.File, error) {
	s, is := l.socket.(*fdSocket)
	if !is {
		return nil, errNoHandover
	}
	return fileOf(s.fd)
}

// fileOf returns a file for a duplicate of a file descriptor.
func fileOf(fd int) (*os.File, error) {
	fd, err := duplicate(uintptr(fd))
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "listening socket"), nil
}

// duplicate duplicates a file descriptor.
func duplicate(fd uintptr) (int, error) {
	n, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	return n, os.NewSyscallError("fcntl", err)
}

// inherit returns a duplicate of an inherited socket, and closes the file. prepare sets the socket up.
func inherit(f *os.File, prepare func(fd int) error) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, errors.Join(err, f.Close())
	}
	fd := -1
	controlErr := raw.Control(func(of uintptr) { fd, err = duplicate(of) })
	if err = errors.Join(err, controlErr, f.Close()); err == nil {
		err = prepare(fd)
	}
	if err != nil && fd >= 0 {
		_ = unix.Close(fd)
		fd = -1
	}
	return fd, err
}

// reset closes a file descriptor, and resets its connection if it has one.
func reset(fd int) {
	socket.SetReset(fd)
	socket.Close(fd)
}
