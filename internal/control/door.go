package control

import (
	"context"
	"net"
	"sync"

	"github.com/sluice-proxy/sluice/internal/connlimit"
	"github.com/sluice-proxy/sluice/internal/kernel/netlock"
)

// maxConnecting bounds how many invitations are followed at once. A command
// whose invitation is dropped sends another.
const maxConnecting = 64

// door is a net.Listener whose connections are those that the daemon opened
// because root invited it to.
type door struct {
	lock  *netlock.Lock
	opts  Options
	conns chan net.Conn
	limit *connlimit.Limiter
	ctx   context.Context // ends with Close
	close context.CancelFunc
}

func newDoor(ctx context.Context, lock *netlock.Lock, o Options) *door {
	d := &door{lock: lock, opts: o, conns: make(chan net.Conn), limit: connlimit.New(connlimit.Options{Max: o.MaxConns})}
	d.ctx, d.close = context.WithCancel(ctx)
	return d
}

// run follows invitations until Close.
func (d *door) run() {
	defer d.close()
	var connecting sync.WaitGroup
	defer connecting.Wait()
	slots := make(chan struct{}, maxConnecting)
	for {
		m, err := d.lock.Receive()
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
			d.enter(i)
		})
	}
}

// enter hands a connection to Accept.
func (d *door) enter(i invitation) {
	c, err := i.follow(d.ctx, d.opts)
	if err != nil {
		return // the command has ended, or sends another invitation
	}
	select {
	case d.conns <- d.limit.Admit(c):
	case <-d.ctx.Done():
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It releases the lock.
func (d *door) Close() error {
	d.close()
	return d.lock.Close()
}

// Addr implements net.Listener.
func (d *door) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: namePrefix} }
