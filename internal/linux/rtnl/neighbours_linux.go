package rtnl

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Neighbourhood is how a host reaches others at layer 2.
type Neighbourhood struct {
	Uplinks  []Device     // of the default routes
	Gateways []Neighbour  // of the default routes
	Peers    []*Neighbour // of the requested addresses, in their order; nil: there is no route
}

// Device is a network interface.
type Device struct {
	Name  string
	Index int
}

// Neighbour is a host on a device.
type Neighbour struct {
	Addr     netip.Addr
	Device   Device
	Routed   bool    // a gateway is between: the rest is unknown
	MAC      [6]byte // the last one known; zero: none
	Resolved bool    // the kernel can send packets there
}

// Neighbourhood returns how this host reaches addresses. It makes the kernel resolve those that it has not resolved, or
// not recently, without waiting for the result. It takes some 20 µs for each address.
func (l *Links) Neighbourhood(ctx context.Context, peers []netip.Addr) (Neighbourhood, error) {
	h, err := netns.Handle(l.netns, unix.NETLINK_ROUTE)
	if err != nil {
		return Neighbourhood{}, fmt.Errorf("open route netlink: %w", err)
	}
	defer h.Close()
	s := &survey{h: h, devices: map[int]Device{}, entries: map[entryKey]netlink.Neigh{}}
	n, err := s.neighbourhood(ctx, peers)
	if err != nil {
		return Neighbourhood{}, fmt.Errorf("find neighbours: %w", err)
	}
	return n, nil
}

// survey reads routes and neighbour entries.
type survey struct {
	h       *netlink.Handle
	devices map[int]Device // by index
	entries map[entryKey]netlink.Neigh
}

type entryKey struct {
	device int
	addr   netip.Addr
}

func (s *survey) neighbourhood(ctx context.Context, peers []netip.Addr) (n Neighbourhood, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := netns.List(ctx, func() ([]netlink.Neigh, error) { return s.h.NeighList(0, family) })
		if err != nil {
			return n, err
		}
		for _, e := range list {
			if a, ok := netip.AddrFromSlice(e.IP); ok {
				s.entries[entryKey{e.LinkIndex, a.Unmap()}] = e
			}
		}
		if err := s.defaults(ctx, family, &n); err != nil {
			return n, err
		}
	}
	for _, a := range peers {
		p, err := s.peer(a)
		if err != nil {
			return n, err
		}
		n.Peers = append(n.Peers, p)
	}
	return n, nil
}

// defaults adds the devices and gateways of the default routes of a family.
func (s *survey) defaults(ctx context.Context, family int, n *Neighbourhood) error {
	routes, err := netns.List(ctx, func() ([]netlink.Route, error) {
		return s.h.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST)
	})
	if err != nil {
		return err
	}
	for _, r := range routes {
		hops := r.MultiPath
		if len(hops) == 0 {
			hops = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw}}
		}
		for _, hop := range hops {
			d, err := s.device(hop.LinkIndex)
			if err != nil {
				return err
			}
			n.Uplinks = append(n.Uplinks, d)
			if a, ok := netip.AddrFromSlice(hop.Gw); ok {
				gateway, err := s.neighbour(d, a.Unmap())
				if err != nil {
					return err
				}
				n.Gateways = append(n.Gateways, *gateway)
			}
		}
	}
	return nil
}

func (s *survey) peer(a netip.Addr) (*Neighbour, error) {
	routes, err := s.h.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		if errors.Is(err, unix.EBADF) {
			return nil, err
		}
		return nil, nil // no route, or one that refuses
	}
	d, err := s.device(routes[0].LinkIndex)
	if err != nil {
		return nil, err
	}
	if routes[0].Gw != nil {
		return &Neighbour{Addr: a, Device: d, Routed: true}, nil
	}
	return s.neighbour(d, a)
}

func (s *survey) device(index int) (Device, error) {
	if d, known := s.devices[index]; known {
		return d, nil
	}
	link, err := s.h.LinkByIndex(index)
	if err != nil {
		return Device{}, err
	}
	s.devices[index] = Device{link.Attrs().Name, index}
	return s.devices[index], nil
}

// neighbour returns the entry of a neighbour, and makes the kernel resolve it if it does not trust it.
func (s *survey) neighbour(d Device, a netip.Addr) (*Neighbour, error) {
	n := &Neighbour{Addr: a, Device: d}
	e := s.entries[entryKey{d.Index, a}]
	if len(e.HardwareAddr) == len(n.MAC) {
		copy(n.MAC[:], e.HardwareAddr)
		n.Resolved = e.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0
	}
	const trusted = netlink.NUD_REACHABLE | netlink.NUD_PERMANENT | netlink.NUD_NOARP |
		netlink.NUD_DELAY | netlink.NUD_PROBE
	if e.State&trusted != 0 {
		return n, nil
	}
	use := &netlink.Neigh{LinkIndex: d.Index, IP: a.AsSlice(), Flags: netlink.NTF_USE}
	if err := s.h.NeighSet(use); err != nil {
		return nil, fmt.Errorf("resolve %s on %s: %w", a, d.Name, err)
	}
	return n, nil
}
