// Package listentest has the TCP ports of a host in memory.
package listentest

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
)

// Host is a host with TCP ports in memory. Like Linux it refuses an address that the host does not have, and a port
// that is open on an overlapping address. It is safe for concurrent use.
type Host struct {
	mu    sync.Mutex
	addrs []netip.Addr
	open  []*fakePort
	opens int
}

// fakePort is a net.Listener.
type fakePort struct {
	host    *Host
	network string
	at      netip.AddrPort
	conns   chan net.Conn
	broken  chan error
	closed  chan struct{}
}

// New returns a host that has these addresses, and loopback.
func New(addrs ...netip.Addr) *Host { return &Host{addrs: addrs} }

// SetAddrs changes the addresses. Like Linux it leaves ports on removed addresses open.
func (f *Host) SetAddrs(addrs ...netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addrs = addrs
}

// Listen is like the method of listen.Opener.
func (f *Host) Listen(_ context.Context, network string, at netip.AddrPort) (net.Listener, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opens++
	p := &fakePort{f, network, at, make(chan net.Conn), make(chan error, 1), make(chan struct{})}
	if a := at.Addr(); !a.IsUnspecified() && !a.IsLoopback() && !slices.Contains(f.addrs, a) {
		return nil, p.error(syscall.EADDRNOTAVAIL)
	}
	if slices.ContainsFunc(f.open, p.overlaps) {
		return nil, p.error(syscall.EADDRINUSE)
	}
	f.open = append(f.open, p)
	return p, nil
}

// Open lists the ports that are open, sorted by port.
func (f *Host) Open() []netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []netip.AddrPort
	for _, p := range f.open {
		list = append(list, p.at)
	}
	slices.SortFunc(list, func(a, b netip.AddrPort) int {
		return cmp.Or(cmp.Compare(a.Port(), b.Port()), a.Compare(b))
	})
	return list
}

// Opens counts the calls of Listen.
func (f *Host) Opens() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opens
}

// Dial connects a client on this host; at is an address and port.
func (f *Host) Dial(ctx context.Context, at string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(at)
	if err != nil {
		return nil, err
	}
	p := f.find(to)
	if p == nil {
		return nil, syscall.ECONNREFUSED
	}
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Break makes Accept of an open port return an error.
func (f *Host) Break(at netip.AddrPort, with error) {
	if p := f.find(at); p != nil {
		p.broken <- with
	}
}

func (f *Host) find(at netip.AddrPort) *fakePort {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.open {
		if p.at.Port() == at.Port() && (p.at == at || p.covers(at.Addr())) {
			return p
		}
	}
	return nil
}

func (p *fakePort) overlaps(q *fakePort) bool {
	return p.at.Port() == q.at.Port() && (p.at == q.at || p.covers(q.at.Addr()) || q.covers(p.at.Addr()))
}

// covers reports whether the port is open on all addresses, including this one.
func (p *fakePort) covers(a netip.Addr) bool {
	own := p.at.Addr()
	return own.IsUnspecified() && (own.Is6() == a.Is6() || p.network == "tcp")
}

func (p *fakePort) error(err error) error {
	return &net.OpError{Op: "listen", Net: p.network, Addr: p.Addr(), Err: err}
}

// Accept implements net.Listener.
func (p *fakePort) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case err := <-p.broken:
		return nil, err
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *fakePort) Close() error {
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	i := slices.Index(p.host.open, p)
	if i < 0 {
		return errors.New("closed already")
	}
	p.host.open = slices.Delete(p.host.open, i, i+1)
	close(p.closed)
	return nil
}

// Addr implements net.Listener.
func (p *fakePort) Addr() net.Addr { return net.TCPAddrFromAddrPort(p.at) }
