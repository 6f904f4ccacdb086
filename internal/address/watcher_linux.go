package address

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Run calls fn with all addresses, at the start and after each change, until ctx is done; it returns nil then. Calls do
// not overlap, and fn may keep the list. Changes during a call cause one further call.
func (w *Watcher) Run(ctx context.Context, fn func([]netip.Addr)) error {
	return netns.Watch(ctx, w.opts.NetNS, w.update(ctx, fn), unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
}

// List returns all addresses, sorted and without duplicates, except for OfSockets.
func (w *Watcher) List(ctx context.Context) ([]netip.Addr, error) {
	handle, err := netns.Handle(w.opts.NetNS, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
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
