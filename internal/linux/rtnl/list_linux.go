package rtnl

import (
	"context"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

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
