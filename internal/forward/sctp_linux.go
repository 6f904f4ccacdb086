package forward

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Errors of SCTP listeners.
var (
	errNoSCTP      = errors.New("SCTP: this kernel has no SCTP sockets (CONFIG_IP_SCTP, module sctp)")
	errSCTPStreams = errors.New("SCTP is not forwarded: a relay of bytes would lose streams and message boundaries")
)

// listenSCTP reports why there is no listener.
func (p *poller) listenSCTP(*Listener) (server, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, errNoSCTP
	}
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	_ = unix.Close(fd)
	return nil, errSCTPStreams
}
