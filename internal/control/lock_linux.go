package control

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/netlock"
	"github.com/sluice-proxy/sluice/internal/kernel/process"
)

// domain is what one daemon serves.
const domain = "this network namespace"

// ErrNotRunning means that no daemon serves the network namespace.
var ErrNotRunning = errors.New("no Sluice is running in this network namespace; " +
	"run the command in the daemon's network namespace: on the node itself, with kubectl exec in the Sluice pod, " +
	"or with ip netns exec NAME")

// errNotRoot means that this process may not query the daemon.
var errNotRoot = errors.New("only root may ask the daemon, with CAP_NET_ADMIN in its network namespace: " +
	"run as root, for example with sudo, or with kubectl exec in the Sluice pod")

// Errors of Listen besides a *TakenError.
var (
	// ErrUnsupported means that the kernel has no mechanism for the lock.
	ErrUnsupported = netlock.ErrUnsupported
	// ErrPrivilege means that this process may neither hold the lock nor change rules.
	ErrPrivilege = errors.New("missing privilege: the lock of the daemon needs CAP_NET_ADMIN " +
		"in this network namespace; run as root, or give the container this capability")
)

// errHeld means that another process holds the lock.
var errHeld = netlock.ErrHeld

// lock is the lock of a network namespace.
type lock = netlock.Lock

func (o Options) lock() netlock.Options { return netlock.Options{NetNS: o.NetNS} }

func acquire(o Options) (*lock, error) {
	l, err := netlock.Acquire(o.lock())
	if errors.Is(err, netlock.ErrPrivilege) {
		return nil, ErrPrivilege
	}
	return l, err
}

func adopt(file *os.File) (*lock, error) { return netlock.Adopt(file) }

// holder returns the PID of the holder of the lock; 0: no process of this PID namespace
// holds it. The error is netlock.ErrFree if there is no holder.
func holder(o Options) (pid int, err error) {
	inode, err := netlock.Socket(o.lock())
	if err != nil {
		return 0, err
	}
	pid, _ = process.New(process.Options{}).WithSocket(inode) // 0 if no process is visible
	return pid, nil
}

const (
	attemptTimeout = 2 * time.Second        // for the daemon to follow an invitation
	fullPause      = 100 * time.Millisecond // before the next invitation if the mailbox is full
)

// dial sends invitations until the daemon connects or the context ends.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	if os.Geteuid() != 0 {
		return nil, errNotRoot
	}
	var refused refusedPeers
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		conn, err := invite(attempt, c.opts, &refused)
		cancel()
		switch {
		case err == nil:
			c.pid.Store(int64(conn.peer.pid))
			return conn.UnixConn, nil
		case errors.Is(err, netlock.ErrFree):
			return nil, ErrNotRunning
		case errors.Is(err, netlock.ErrPrivilege):
			return nil, errNotRoot
		case !errors.Is(err, errNotConnected) && !errors.Is(err, syscall.EAGAIN):
			return nil, err
		}
		pause := time.Duration(0)
		if errors.Is(err, syscall.EAGAIN) {
			pause = fullPause
		}
		select {
		case <-ctx.Done():
			return nil, &UnansweredError{refused.count, refused.last.pid, refused.last.uid}
		case <-time.After(pause):
		}
	}
}
