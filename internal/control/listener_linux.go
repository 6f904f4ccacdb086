package control

import (
	"context"
	"net"
	"sync"

	"github.com/sluice-proxy/sluice/internal/fair"
	"github.com/sluice-proxy/sluice/internal/kernel/netlock"
)

// maxConnecting bounds how many invitations are followed at once. Further ones
// are dropped; a command sends another if the daemon does not connect.
const maxConnecting = 64

// invited is a net.Listener whose connections the daemon opens itself, when an
// invitation from root arrives.
type invited struct {
	lock  *netlock.Lock
	opts  Options
	conns chan net.Conn
	limit *fair.Limiter
	ctx   context.Context // ends with Close
	close context.CancelFunc
}

func newInvited(ctx context.Context, lock *netlock.Lock, o Options) *invited {
	l := &invited{lock: lock, opts: o, conns: make(chan net.Conn), limit: fair.NewLimiter(fair.LimiterOptions{Max: o.MaxConns})}
	l.ctx, l.close = context.WithCancel(ctx)
	return l
}

// run follows invitations until Close.
func (l *invited) run() {
	defer l.close()
	var connecting sync.WaitGroup
	defer connecting.Wait()
	slots := make(chan struct{}, maxConnecting)
	for {
		m, err := l.lock.Receive()
		if err != nil {
			return // closed
		}
		i, ok := parseInvitation(m.Text)
		if !ok || m.UID != 0 {
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			continue
		}
		connecting.Go(func() {
			defer func() { <-slots }()
			l.follow(i)
		})
	}
}

// follow follows an invitation and passes the connection to Accept.
func (l *invited) follow(i invitation) {
	c, err := i.follow(l.ctx, l.opts)
	if err != nil {
		return // the command has exited, or sends another invitation
	}
	select {
	case l.conns <- l.limit.Admit(c):
	case <-l.ctx.Done():
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (l *invited) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It releases the lock.
func (l *invited) Close() error {
	l.close()
	return l.lock.Close()
}

// Addr implements net.Listener.
func (l *invited) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: namePrefix} }
