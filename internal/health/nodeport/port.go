package nodeport

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
)

// port is the port of a Service in a family, on one or more addresses.
type port struct {
	key
	number   uint16
	local    atomic.Int64 // how many endpoints there are here
	open     []*listener
	reported string  // the last error reported; empty: none
	failure  Failure // the last one
}

// listener is a port on one address.
type listener struct {
	net.Listener
	port *port
	at   netip.Addr
}

// closeExcept closes the port on all other addresses.
func (p *port) closeExcept(addrs []netip.Addr) {
	p.open = slices.DeleteFunc(p.open, func(l *listener) bool {
		if slices.Contains(addrs, l.at) {
			return false
		}
		_ = l.Close() // closed also on an error
		return true
	})
}

// drop closes a listener that no longer works; false: it was closed on purpose.
func (p *port) drop(l *listener) bool {
	i := slices.Index(p.open, l)
	if i < 0 {
		return false
	}
	_ = l.Close() // closed also on an error
	p.open = slices.Delete(p.open, i, i+1)
	return true
}

// openAll opens a port on the addresses where it is not open. A failure on one address does not affect others.
func (f *Follower) openAll(ctx context.Context, p *port) {
	var failure *Failure
	for _, a := range f.openAt.Listen(p.family) {
		if slices.ContainsFunc(p.open, func(l *listener) bool { return l.at == a }) {
			continue
		}
		at := netip.AddrPortFrom(a, p.number)
		l, err := f.listen(ctx, fmt.Sprintf("tcp%d", p.family), at)
		if err == nil {
			f.serve(&listener{f.conns.Listener(l), p, a})
		} else if failure == nil {
			failure = &Failure{p.name, at, err}
		}
	}
	if failure == nil {
		if p.reported != "" {
			f.opt.Opened(p.name, p.number)
		}
		p.reported = ""
		delete(f.failed, p.key)
		return
	}
	f.failed[p.key], p.failure = p, *failure
	if text := failure.Error(); text != p.reported && ctx.Err() == nil {
		p.reported = text
		f.opt.Failed(*failure)
	}
}

// listen opens a port, unless too many are open.
func (f *Follower) listen(ctx context.Context, network string, at netip.AddrPort) (net.Listener, error) {
	if most := f.opt.MaxListeners; most > 0 && f.listeners >= most {
		return nil, fmt.Errorf("%d health check node ports are open, and the limit of file descriptors of this process "+
			"(RLIMIT_NOFILE) has room for no more; raise it, for example with LimitNOFILE= in the systemd unit", most)
	}
	return f.opt.Listen(ctx, network, at)
}

// serve answers at a listener until it is closed.
func (f *Follower) serve(l *listener) {
	l.port.open = append(l.port.open, l)
	f.listeners++
	f.serving.Go(func() {
		_ = f.server.Serve(l) // reopened later unless it was closed on purpose
		f.mu.Lock()
		defer f.mu.Unlock()
		f.broken = append(f.broken, l)
		f.loop.Wake()
	})
}
