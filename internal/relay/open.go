package relay

import (
	"net"
	"net/netip"
)

// Open returns how many connections and flows each backend of the target has.
func (b *Balancer) Open() map[netip.AddrPort]int {
	p := b.plan.Load()
	open := make(map[netip.AddrPort]int, len(p.listed))
	for addr, l := range p.listed {
		open[addr] = int(l.open.Load())
	}
	return open
}

// CanListen reports whether this host has an address.
func CanListen(a netip.Addr) bool {
	l, err := net.Listen("tcp", netip.AddrPortFrom(a, 0).String())
	if err != nil {
		return false
	}
	_ = l.Close() // it had no connection
	return true
}
