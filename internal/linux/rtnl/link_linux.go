package rtnl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Links are the interfaces of one network namespace. A socket is open only during a call.
type Links struct{ netns int }

// New returns access to the interfaces of the network namespace of a file descriptor; 0: the current one.
func New(netns int) *Links { return &Links{netns} }

// Addresses returns the addresses on an interface, sorted; ErrNotFound if there is none of this name.
func (l *Links) Addresses(ctx context.Context, name string) ([]netip.Addr, error) {
	var out []netip.Addr
	err := l.with(name, func(h *netlink.Handle, link netlink.Link) error {
		list, err := addresses(ctx, h, link)
		for _, a := range list {
			if addr, ok := netip.AddrFromSlice(a.IP); ok {
				out = append(out, addr.Unmap())
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses on %s: %w", name, err)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

func addresses(ctx context.Context, h *netlink.Handle, link netlink.Link) ([]netlink.Addr, error) {
	return netns.List(ctx, func() ([]netlink.Addr, error) { return h.AddrList(link, netlink.FAMILY_ALL) })
}

// Prefer sets the source address of connections from this host to the addresses on an interface: one of the sources,
// of the same family, in place of the destination itself. IPv6 needs the interface up.
func (l *Links) Prefer(ctx context.Context, name string, sources []netip.Addr) error {
	err := l.with(name, func(h *netlink.Handle, link netlink.Link) error {
		list, err := addresses(ctx, h, link)
		for _, have := range list {
			a, ok := netip.AddrFromSlice(have.IP)
			i := slices.IndexFunc(sources, func(s netip.Addr) bool { return s.Is4() == a.Is4() })
			if !ok || i < 0 || a.IsLinkLocalUnicast() {
				continue
			}
			if a.Is6() {
				if err := up(h, link); err != nil {
					return err
				}
			}
			route := local(link, a)
			route.Src = sources[i].AsSlice()
			if err := replace(h, route); err != nil {
				return fmt.Errorf("%s from %s: %w", a, sources[i], err)
			}
		}
		return err
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("set the source of connections to addresses on %s: %w", name, err)
	}
	return nil
}

// up brings an interface up, without a link-local address. The kernel refuses IPv6 routes of
// others, and kube-proxy leaves its interface down.
func up(h *netlink.Handle, link netlink.Link) error {
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	if err := h.LinkSetIP6AddrGenMode(link, nl.IN6_ADDR_GEN_MODE_NONE); err != nil {
		return fmt.Errorf("switch off its link-local address: %w", err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring it up: %w", err)
	}
	link.Attrs().Flags |= net.FlagUp
	return nil
}

// replace replaces the kernel's own route. In IPv6 that has metric 0, which only the kernel
// can set, so that both routes exist for a moment.
func replace(h *netlink.Handle, route *netlink.Route) error {
	if err := h.RouteReplace(route); err != nil {
		return err
	}
	if route.Scope == unix.RT_SCOPE_HOST {
		return nil
	}
	all, err := h.RouteListFiltered(netlink.FAMILY_V6, route,
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST|netlink.RT_FILTER_TYPE)
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.Priority == 0 {
			return h.RouteDel(&r)
		}
	}
	return nil
}

// local returns the route that makes an address local.
func local(link netlink.Link, a netip.Addr) *netlink.Route {
	r := &netlink.Route{
		LinkIndex: link.Attrs().Index, Dst: netlink.NewIPNet(a.AsSlice()), Type: unix.RTN_LOCAL,
		Table: unix.RT_TABLE_LOCAL, Protocol: unix.RTPROT_KERNEL,
	}
	if a.Is4() {
		r.Scope = unix.RT_SCOPE_HOST
	}
	return r
}

// Create creates an interface that sends nothing, unless it exists, for addresses that are
// only local. It stays down, as no packet leaves through it.
func (l *Links) Create(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h, err := netns.Handle(l.netns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open route netlink: %w", err)
	}
	defer h.Close()
	err = h.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name}})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create interface %s: %w", name, err)
	}
	return nil
}

// RemoveAddresses removes addresses from an interface. It ignores missing addresses, and a missing interface.
func (l *Links) RemoveAddresses(ctx context.Context, name string, addrs []netip.Addr) error {
	err := l.with(name, func(h *netlink.Handle, link netlink.Link) error {
		for _, a := range addrs {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := remove(h, link, a); err != nil {
				return fmt.Errorf("%s: %w", a, err)
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("remove addresses from %s: %w", name, err)
	}
	return nil
}

// remove removes an address and its route. The kernel does not remove a route that was changed.
func remove(h *netlink.Handle, link netlink.Link, a netip.Addr) error {
	err := h.AddrDel(link, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())})
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	if err := h.RouteDel(local(link, a)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove its route: %w", err)
	}
	return nil
}

// Change removes addresses from an interface and adds others to it. It ignores what is already done.
func (l *Links) Change(ctx context.Context, name string, add, remove []netip.Addr) error {
	if err := l.RemoveAddresses(ctx, name, remove); err != nil || len(add) == 0 {
		return err
	}
	return l.AddAddresses(ctx, name, add)
}

// Delete deletes an interface. It returns nil if there is none.
func (l *Links) Delete(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := l.with(name, func(h *netlink.Handle, link netlink.Link) error { return h.LinkDel(link) })
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete interface %s: %w", name, err)
	}
	return nil
}

// with calls fn with the interface of this name.
func (l *Links) with(name string, fn func(*netlink.Handle, netlink.Link) error) error {
	h, err := netns.Handle(l.netns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open route netlink: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if _, absent := errors.AsType[netlink.LinkNotFoundError](err); absent {
		return ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("find interface: %w", err)
	}
	return fn(h, link)
}

// Network lists the interfaces.
func (l *Links) Network(ctx context.Context) (Network, error) {
	h, err := netns.Handle(l.netns, unix.NETLINK_ROUTE)
	if err != nil {
		return Network{}, fmt.Errorf("open route netlink: %w", err)
	}
	defer h.Close()
	links, err := netns.List(ctx, h.LinkList)
	if err != nil {
		return Network{}, fmt.Errorf("list interfaces: %w", err)
	}
	routes, err := netns.List(ctx, func() ([]netlink.Route, error) { return h.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return Network{}, fmt.Errorf("list routes: %w", err)
	}
	uplinks, bridges := defaults(routes), map[int]string{}
	for _, one := range links {
		if one.Type() == "bridge" {
			bridges[one.Attrs().Index] = one.Attrs().Name
		}
	}
	n := Network{Routes: len(routes)}
	for _, one := range links {
		a := one.Attrs()
		n.Links = append(n.Links, Link{
			Name: a.Name, Kind: one.Type(), MTU: a.MTU, Up: a.Flags&net.FlagUp != 0,
			Bridge: bridges[a.MasterIndex], Uplink: uplinks[a.Index],
		})
	}
	return n, nil
}

// defaults returns the indexes of the interfaces of default routes.
func defaults(routes []netlink.Route) map[int]bool {
	found := map[int]bool{}
	for _, r := range routes {
		if r.Dst != nil && !isAll(r.Dst) {
			continue
		}
		found[r.LinkIndex] = true
		for _, hop := range r.MultiPath {
			found[hop.LinkIndex] = true
		}
	}
	return found
}

func isAll(n *net.IPNet) bool {
	ones, _ := n.Mask.Size()
	return ones == 0 && n.IP.IsUnspecified()
}
