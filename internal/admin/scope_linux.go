package admin

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/admin/netlock"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/process"
)

// ErrNotRunning means that no daemon serves the network namespace.
var ErrNotRunning = errors.New("no Sluice is running in this network namespace; " +
	"run the command where the daemon runs: with kubectl exec in the Sluice pod, " +
	"on the node if it is a program of the node, or with ip netns exec NAME")

// errNotRoot means that this process may not query the daemon.
var errNotRoot = errors.New("only root may ask the daemon: " +
	"run as root, for example with sudo, or with kubectl exec in the Sluice pod")

// Errors of Listen besides a *TakenError.
var (
	// ErrUnsupported means that the kernel has no mechanism for the lock.
	ErrUnsupported = netlock.ErrUnsupported
	// ErrPrivilege means that this process may neither hold the lock nor change rules.
	ErrPrivilege = errors.New("missing privilege: the lock of the daemon needs CAP_NET_ADMIN " +
		"in this network namespace; run as root, or give the container this capability")
)

// netnsScope is the scope of a network namespace.
type netnsScope struct{ netlock.Options }

func (o Options) scope() scope {
	if o.User {
		return user{}
	}
	return netnsScope{netlock.Options{NetNS: o.NetNS}}
}

func nearest() either { return either{netnsScope{}, user{}} }

// String implements scope.
func (netnsScope) String() string { return "this network namespace" }

// folder has the sockets of all network namespaces, as containers may share it.
const folder = "/run/sluice"

func (n netnsScope) socket() (socket, error) {
	inode, err := netns.Inode(n.NetNS)
	if err != nil {
		return socket{}, err
	}
	return socket{folder, strconv.FormatUint(inode, 10)}, nil
}

func (n netnsScope) acquire() (lock, error) {
	s, err := n.socket()
	if err != nil {
		return nil, err
	}
	l, err := netlock.Acquire(n.Options)
	switch {
	case errors.Is(err, netlock.ErrPrivilege):
		return nil, ErrPrivilege
	case errors.Is(err, netlock.ErrHeld):
		return nil, errHeld
	case err != nil:
		return nil, err
	}
	return socketLock{l, s}, nil
}

func (n netnsScope) adopt(file *os.File) (lock, error) {
	s, err := n.socket()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return socketLock{netlock.Adopt(file), s}, nil
}

// inode returns the number of the holder's netlink socket.
func (n netnsScope) inode() (uint64, error) {
	inode, err := netlock.Socket(n.Options)
	switch {
	case errors.Is(err, netlock.ErrFree):
		return 0, ErrNotRunning
	case errors.Is(err, netlock.ErrPrivilege):
		return 0, errNotRoot
	}
	return inode, err
}

// holder implements scope. The PID is 0 if no process of this PID namespace holds the lock.
func (n netnsScope) holder() (pid int, err error) {
	inode, err := n.inode()
	if err != nil {
		return 0, err
	}
	pid, _ = process.New(process.Options{}).WithSocket(inode) // 0 if no process is visible
	return pid, nil
}

// dial implements scope.
func (n netnsScope) dial(ctx context.Context) (net.Conn, error) {
	s, err := n.socket()
	if err != nil {
		return nil, err
	}
	return s.dial(ctx, func() error { _, err := n.inode(); return err })
}
