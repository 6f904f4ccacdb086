package nodeport

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/fair"
	"github.com/sluice-proxy/sluice/internal/route"
)

// key names the port of a Service in a family.
type key struct {
	name   cluster.Name
	family route.Family
}

// place is a port on one address.
type place struct {
	key
	at netip.AddrPort
}

func (p place) compare(q place) int {
	return cmp.Or(p.name.Compare(q.name), cmp.Compare(p.family, q.family), p.at.Compare(q.at))
}

// port is the port of a Service in a family, on all its addresses.
type port struct {
	name     cluster.Name
	number   uint16
	local    atomic.Int64 // how many endpoints there are here
	reported string       // the failure that Options.Failed has got; empty: none
}

// listener is a port on one address. It links its connections to the port.
type listener struct {
	net.Listener
	port  *port
	conns *fair.Limiter
	ended atomic.Bool // it accepts no more
}

type conn struct {
	net.Conn
	port *port
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{l.conns.Admit(c), l.port}, nil
}

// listen opens a port on one address and answers there until it is closed, unless too many are open.
func (f *Follower) listen(ctx context.Context, at place, p *port) error {
	if most := f.opt.MaxListeners; most > 0 && len(f.open) >= most {
		return fmt.Errorf("%d health check node ports are open, and the limit of file descriptors of this process "+
			"(RLIMIT_NOFILE) has room for no more; raise it, for example with LimitNOFILE= in the systemd unit", most)
	}
	network := "tcp4"
	if at.family == route.IPv6 {
		network = "tcp6"
	}
	opened, err := f.opt.Listen(ctx, network, at.at)
	if err != nil {
		return err
	}
	l := &listener{Listener: opened, port: p, conns: f.conns}
	f.open[at] = l
	f.serving.Go(func() {
		_ = f.server.Serve(l) // opened again unless it was closed on purpose
		l.ended.Store(true)
		f.loop.Wake()
	})
	return nil
}
