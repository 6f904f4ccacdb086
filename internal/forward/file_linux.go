package forward

import (
	"os"

	"golang.org/x/sys/unix"
)

func (s *tcpServer) file() (*os.File, error) { return duplicateOf(s.fd) }

func (s *udpServer) file() (*os.File, error) { return duplicateOf(s.listener.fd) }

func duplicateOf(fd int) (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "listening socket"), nil
}
