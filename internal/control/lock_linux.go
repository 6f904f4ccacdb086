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

// netnsScope is the scope of a network namespace.
type netnsScope struct{ netlock.Options }

func (o Options) scope() scope {
	if o.User {
		return user{}
	}
	return netnsScope{netlock.Options{NetNS: o.NetNS}}
}

// String implements scope.
func (netnsScope) String() string { return "this network namespace" }

func (n netnsScope) acquire() (lock, error) {
	l, err := netlock.Acquire(n.Options)
	switch {
	case errors.Is(err, netlock.ErrPrivilege):
		return nil, ErrPrivilege
	case errors.Is(err, netlock.ErrHeld):
		return nil, errHeld
	case err != nil:
		return nil, err
	}
	return namespaceLock{l}, nil
}

func (netnsScope) adopt(file *os.File) (lock, error) {
	l, err := netlock.Adopt(file)
	if err != nil {
		return nil, err
	}
	return namespaceLock{l}, nil
}

// holder implements scope. The PID is 0 if no process of this PID namespace holds the lock.
func (n netnsScope) holder() (pid int, err error) {
	inode, err := netlock.Socket(n.Options)
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
func (n netnsScope) dial(ctx context.Context) (net.Conn, int, error) {
	if os.Geteuid() != 0 {
		return nil, 0, errNotRoot
	}
	var refused refusedPeers
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		conn, err := invite(attempt, Options{NetNS: n.NetNS}, &refused)
		cancel()
		switch {
		case err == nil:
			return conn.UnixConn, conn.peer.pid, nil
		case errors.Is(err, netlock.ErrFree):
			return nil, 0, ErrNotRunning
		case errors.Is(err, netlock.ErrPrivilege):
			return nil, 0, errNotRoot
		case !errors.Is(err, errNotConnected) && !errors.Is(err, syscall.EAGAIN):
			return nil, 0, err
		}
		pause := time.Duration(0)
		if errors.Is(err, syscall.EAGAIN) {
			pause = fullPause
		}
		select {
		case <-ctx.Done():
			return nil, 0, &UnansweredError{refused.count, refused.last.pid, refused.last.uid}
		case <-time.After(pause):
		}
	}
}

// either is the scope of a command: the daemon of the network namespace, or else one of the user.
type either struct{ netnsScope }

func nearest() scope { return either{} }

// dial implements scope. If the user has no daemon, the error is that for the network namespace.
func (e either) dial(ctx context.Context) (net.Conn, int, error) {
	conn, pid, err := e.netnsScope.dial(ctx)
	if !errors.Is(err, ErrNotRunning) && !errors.Is(err, errNotRoot) {
		return conn, pid, err
	}
	own, pid, ownErr := user{}.dial(ctx)
	if errors.Is(ownErr, errNoUserDaemon) {
		return nil, 0, err
	}
	return own, pid, ownErr
}

// namespaceLock is the lock of a network namespace.
type namespaceLock struct{ *netlock.Lock }

func (l namespaceLock) listen(ctx context.Context, o Options) (listener, error) {
	return newInvited(ctx, l.Lock, o), nil
}
