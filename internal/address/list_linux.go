package address

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// List returns all addresses, sorted and without duplicates, except for OfSockets.
func (w *Watcher) List(ctx context.Context) ([]netip.Addr, error) {
	handle, err := open(w.opts)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	list, err := netns.List(ctx, func() ([]netlink.Addr, error) { return handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	addrs := make([]netip.Addr, 0, len(list))
	for _, l := range w.without(handle, list) {
		if l.IPNet == nil { // the message has no address
			continue
		}
		if a, ok := netip.AddrFromSlice(l.IP); ok && !slices.Contains(OfSockets(), a.Unmap()) {
			addrs = append(addrs, a)
		}
	}
	return canonical(addrs), nil
}

func open(opts Options) (*netlink.Handle, error) {
	handle, err := netns.Handle(opts.NetNS, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	return handle, nil
}

// without leaves out the addresses of the excluded interface.
func (w *Watcher) without(handle *netlink.Handle, list []netlink.Addr) []netlink.Addr {
	if w.opts.Except == "" {
		return list
	}
	link, err := handle.LinkByName(w.opts.Except)
	if err != nil {
		return list // the interface does not exist
	}
	return slices.DeleteFunc(list, func(a netlink.Addr) bool { return a.LinkIndex == link.Attrs().Index })
}

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
	return primary(all, func(remote netip.Addr) netip.Addr { return sourceFor(handle, remote) }), nil
}

// sourceFor returns the source address of packets to an address; invalid if there is no
// route, or only one that drops packets.
func sourceFor(handle *netlink.Handle, remote netip.Addr) netip.Addr {
	routes, err := handle.RouteGet(net.IP(remote.AsSlice()))
	if err != nil || len(routes) == 0 {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(routes[0].Src)
	if a = a.Unmap(); a.Is4() != remote.Is4() || a.IsLoopback() {
		return netip.Addr{}
	}
	return a
}
