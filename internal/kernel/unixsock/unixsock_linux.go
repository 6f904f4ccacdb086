// Package unixsock opens abstract unix sockets, which belong to a network namespace
// instead of a file system, and identifies peers.
package unixsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// Errors of Listen and Dial.
var (
	ErrInUse  = errors.New("address in use")
	ErrNobody = errors.New("nobody listens")
	ErrBusy   = errors.New("the queue of the listener is full")
)

// Options for Listen and Dial.
type Options struct {
	Name  string // of an abstract socket, with its "@"
	NetNS int    // file descriptor of a network namespace; 0: the current one
}

// Listen opens the socket. It is ErrInUse if another process has it. It is
// closed when the process ends, however it ends.
func Listen(ctx context.Context, o Options) (*net.UnixListener, error) {
	var l net.Listener
	err := netns.Do(o.NetNS, func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, "unix", o.Name)
		return err
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s: %w", o.Name, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", o.Name, err)
	}
	return l.(*net.UnixListener), nil
}

// Dial connects to the socket. The error is ErrNobody if no process listens there,
// although one may have bound the name, and ErrBusy if its queue of connections is
// full. It does not wait.
func Dial(ctx context.Context, o Options) (*net.UnixConn, error) {
	var c net.Conn
	err := netns.Do(o.NetNS, func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, "unix", o.Name)
		return err
	})
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("connect to %s: %w", o.Name, ErrNobody)
	}
	if errors.Is(err, syscall.EAGAIN) {
		return nil, fmt.Errorf("connect to %s: %w", o.Name, ErrBusy)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", o.Name, err)
	}
	return c.(*net.UnixConn), nil
}

// Peer are the credentials of a peer process when it connected or began to listen, in
// the namespaces of this process.
type Peer struct {
	PID int // 0: in another PID namespace
	UID int // 65534 for a user that this user namespace has no number for
}

// PeerOf returns the credentials of the peer of a connection from the kernel
// (SO_PEERCRED, unix(7)). The peer cannot forge them.
func PeerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("reach socket: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return Peer{}, fmt.Errorf("ask who is at the other end: %w", err)
	}
	return Peer{PID: int(cred.Pid), UID: int(cred.Uid)}, nil
}
