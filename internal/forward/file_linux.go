package forward

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/stream"
)

func (s *tcpServer) file() (*os.File, error) { return duplicateOf(s.fd) }

func (l *udpListener) file() (*os.File, error) {
	s, is := l.socket.(*fdSocket)
	if !is {
		return nil, errNoHandover
	}
	return duplicateOf(s.fd)
}

func duplicateOf(fd int) (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "listening socket"), nil
}

// reset closes a file descriptor, and resets its connection if it is that of one.
func reset(fd int) {
	stream.SetReset(fd)
	stream.Close(fd)
}
