package address

import (
	"context"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Primary returns the primary address of this host in each family: the source address
// of the default route, or without such a route the first that is not loopback. It
// sends no packet.
func (w *Watcher) Primary() ([]netip.Addr, error) {
	handle, err := open(w.opts)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	all, err := w.List(context.Background())
	if err != nil {
		return nil, err
	}
	var primary []netip.Addr
	// Addresses for documentation (RFC 5737, RFC 3849) are in no network.
	for _, world := range []string{"192.0.2.1", "2001:db8:ffff:ffff::1"} {
		far := netip.MustParseAddr(world)
		if a := towards(handle, far); a.IsValid() {
			primary = append(primary, a)
			continue
		}
		if a := first(all, far); a.IsValid() {
			primary = append(primary, a)
		}
	}
	return primary, nil
}

// towards returns the source address of packets to an address; invalid if there is no
// route, or only one that drops packets.
func towards(handle *netlink.Handle, far netip.Addr) netip.Addr {
	routes, err := handle.RouteGet(net.IP(far.AsSlice()))
	if err != nil || len(routes) == 0 {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(routes[0].Src)
	if a = a.Unmap(); a.Is4() != far.Is4() || a.IsLoopback() {
		return netip.Addr{}
	}
	return a
}

func first(all []netip.Addr, like netip.Addr) netip.Addr {
	for _, a := range all {
		if a.Is4() == like.Is4() && a.IsGlobalUnicast() {
			return a
		}
	}
	return netip.Addr{}
}
