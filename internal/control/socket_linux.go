package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// socket is an abstract unix socket, which belongs to a network namespace instead of
// a file system.
type socket struct {
	name  string // with its "@"
	netns int    // file descriptor of the network namespace; 0: the current one
}

// listen opens the socket. The kernel closes it when the process ends.
func (s socket) listen(ctx context.Context) (*net.UnixListener, error) {
	var l net.Listener
	err := netns.Do(s.netns, func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, "unix", s.name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.name, err)
	}
	return l.(*net.UnixListener), nil
}

// dial connects to the socket. It does not wait: the error is ECONNREFUSED if no
// process listens, and EAGAIN if the listener's queue of connections is full.
func (s socket) dial(ctx context.Context) (*net.UnixConn, error) {
	var c net.Conn
	err := netns.Do(s.netns, func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, "unix", s.name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", s.name, err)
	}
	return c.(*net.UnixConn), nil
}

// peer has the credentials of the other end of a connection, from the time when it
// connected or began to listen, in the namespaces of this process.
type peer struct {
	pid int // 0: in another PID namespace
	uid int // 65534 for a user that this user namespace has no number for
}

// peerOf returns the peer of a connection as the kernel reports it (SO_PEERCRED,
// unix(7)). The peer cannot forge it.
func peerOf(c *net.UnixConn) (peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return peer{}, fmt.Errorf("read the credentials of the peer: %w", err)
	}
	var cred *syscall.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return peer{}, fmt.Errorf("read the credentials of the peer: %w", err)
	}
	return peer{pid: int(cred.Pid), uid: int(cred.Uid)}, nil
}

// root is the user of both ends, in this user namespace, where a network namespace is served.
const root = 0
