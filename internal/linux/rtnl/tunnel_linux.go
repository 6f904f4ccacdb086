package rtnl

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
)

// TunnelNetwork is the VXLAN network identifier of a Tunnel, and the number of its routing table.
const TunnelNetwork = 10264

// mtu is the MTU of the tunnel, in bytes. The kernel fragments the outer packets.
const mtu = 65485

// Tunnel is a VXLAN interface (RFC 7348), by which distant hosts become neighbours.
type Tunnel struct {
	netns    int
	name     string
	port     uint16
	answered map[netip.Addr]bool // whether a neighbour answered, in its last known state

	configured int  // the index of the interface that this process has configured; 0: none
	removed    bool // by this process, and not created again
}

// End is an end of the tunnel.
type End struct {
	Name  string     // name of the host, from which its hardware address in the tunnel is computed
	Outer netip.Addr // destination of the outer packets
	Inner netip.Addr // address of the neighbour in the tunnel
}

// NewTunnel returns a Tunnel with an interface name and a UDP port. It does nothing yet.
func NewTunnel(netns int, name string, port uint16) *Tunnel {
	return &Tunnel{netns: netns, name: name, port: port, answered: map[netip.Addr]bool{}}
}

// Inner returns the address of a host as a neighbour in the tunnel. In IPv4 it is addr, because hosts answer ARP for
// their addresses on all interfaces. In IPv6 it is the link-local address of the tunnel interface of the host.
func Inner(name string, addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return addr
	}
	m := hardwareAddress(name)
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}) // RFC 4291, A
}

// hardwareAddress returns the hardware address of a host in the tunnel, a locally administered unicast address.
func hardwareAddress(name string) (mac [6]byte) {
	sum := sha256.Sum256([]byte(name))
	copy(mac[:], sum[:])
	mac[0] = mac[0]&^1 | 2
	return mac
}

// Neighbours creates or updates the tunnel, and returns the far ends as neighbours, in the same order. It makes the
// kernel probe neighbours that have not answered recently, but does not wait for the answer.
func (t *Tunnel) Neighbours(ctx context.Context, self End, far []End) ([]Neighbour, error) {
	h, err := netns.Handle(t.netns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	defer h.Close()
	t.removed = false
	link, err := t.ensure(h, self)
	if err == nil {
		err = t.setOuter(ctx, h, link, far)
	}
	if err != nil {
		return nil, fmt.Errorf("create the tunnel %s: %w", t.name, err)
	}
	out, err := t.probe(ctx, h, link.Attrs().Index, far)
	if err != nil {
		return nil, fmt.Errorf("find neighbours on %s: %w", t.name, err)
	}
	return out, nil
}

// ensure creates the interface, unless it exists with the same settings.
func (t *Tunnel) ensure(h *netlink.Handle, self End) (netlink.Link, error) {
	mac := hardwareAddress(self.Name)
	want := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: t.name, MTU: mtu, HardwareAddr: mac[:]},
		VxlanId:   TunnelNetwork, Port: int(t.port), SrcAddr: self.Outer.AsSlice(), UDPCSum: true,
	}
	link, err := h.LinkByName(t.name)
	if v, is := link.(*netlink.Vxlan); err == nil && is && v.Port == want.Port && v.SrcAddr.Equal(want.SrcAddr) &&
		v.HardwareAddr.String() == want.HardwareAddr.String() && v.Flags&net.FlagUp != 0 {
		if v.Index == t.configured {
			return link, nil
		}
		return link, t.configure(h, link) // a process that was killed may not have finished it
	}
	if err == nil {
		err = h.LinkDel(link)
	}
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, err
	}
	if err := h.LinkAdd(want); err != nil {
		return nil, err
	}
	return want, t.configure(h, want)
}

// configure sets an address, rp_filter and a route, so that the kernel accepts packets of clients although their
// answers leave by another interface. With reverse path filters this needs an address, and rp_filter must be 2.
func (t *Tunnel) configure(h *netlink.Handle, link netlink.Link) error {
	if err := sysctl.New(sysctl.Options{NetNS: t.netns}).Set("net.ipv4.conf."+t.name+".rp_filter", "2"); err != nil {
		return err
	}
	dummy := netlink.NewIPNet(net.IPv4(192, 0, 0, 8).To4()) // the IPv4 dummy address (RFC 7600, section 4.8)
	if err := h.AddrReplace(link, &netlink.Addr{IPNet: dummy, Scope: unix.RT_SCOPE_HOST}); err != nil {
		return err
	}
	if err := h.LinkSetUp(link); err != nil {
		return err
	}
	// nf_dup_ipv4 routes copied packets with this interface as their output, so the interface needs a route.
	if err := h.RuleAdd(t.rule()); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	all := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	err := h.RouteReplace(&netlink.Route{
		LinkIndex: link.Attrs().Index, Table: TunnelNetwork, Scope: unix.RT_SCOPE_LINK, Dst: all,
	})
	if err == nil {
		t.configured = link.Attrs().Index
	}
	return err
}

// setOuter sets the outer destination of packets to the hardware address of each end, and deletes other entries.
func (t *Tunnel) setOuter(ctx context.Context, h *netlink.Handle, link netlink.Link, far []End) error {
	index := link.Attrs().Index
	list, err := netns.List(ctx, func() ([]netlink.Neigh, error) { return h.NeighList(index, unix.AF_BRIDGE) })
	if err != nil {
		return err
	}
	have := map[[6]byte]netip.Addr{}
	for _, e := range list {
		if a, ok := netip.AddrFromSlice(e.IP); ok && len(e.HardwareAddr) == 6 {
			have[[6]byte(e.HardwareAddr)] = a.Unmap()
		}
	}
	entry := func(mac [6]byte, to netip.Addr) *netlink.Neigh {
		return &netlink.Neigh{
			LinkIndex: index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT,
			HardwareAddr: mac[:], IP: to.AsSlice(),
		}
	}
	want := map[[6]byte]netip.Addr{}
	for _, e := range far {
		want[hardwareAddress(e.Name)] = e.Outer
	}
	for mac, to := range want {
		if have[mac] != to {
			if err := h.NeighSet(entry(mac, to)); err != nil {
				return err
			}
		}
	}
	for mac, to := range have {
		if _, stays := want[mac]; !stays {
			if err := h.NeighDel(entry(mac, to)); err != nil {
				return err
			}
		}
	}
	return nil
}

// probe returns the far ends as neighbours, and makes the kernel probe those that have not answered recently.
func (t *Tunnel) probe(ctx context.Context, h *netlink.Handle, index int, far []End) (out []Neighbour, err error) {
	states, err := states(ctx, h, index)
	if err != nil {
		return nil, err
	}
	before := maps.Clone(t.answered)
	clear(t.answered)
	for _, e := range far {
		n := Neighbour{Addr: e.Inner, Device: Device{t.name, index}, MAC: hardwareAddress(e.Name)}
		n.Resolved = before[e.Inner]
		probe := &netlink.Neigh{LinkIndex: index, IP: e.Inner.AsSlice(), State: netlink.NUD_PROBE}
		probe.HardwareAddr = n.MAC[:]
		switch state := states[e.Inner]; {
		case state&(netlink.NUD_REACHABLE|netlink.NUD_DELAY) != 0:
			n.Resolved, probe = true, nil
		case state&netlink.NUD_STALE != 0: // NTF_USE makes the kernel probe it
			probe = &netlink.Neigh{LinkIndex: index, IP: probe.IP, Flags: netlink.NTF_USE}
		case state&netlink.NUD_PROBE != 0:
			probe = nil
		case state != 0:
			n.Resolved = false
		}
		t.answered[e.Inner] = n.Resolved
		if probe != nil {
			if err := h.NeighSet(probe); err != nil {
				return nil, err
			}
		}
		out = append(out, n)
	}
	return out, nil
}

// states returns the states of the neighbours on an interface.
func states(ctx context.Context, h *netlink.Handle, index int) (map[netip.Addr]int, error) {
	out := map[netip.Addr]int{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := netns.List(ctx, func() ([]netlink.Neigh, error) { return h.NeighList(index, family) })
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			if a, ok := netip.AddrFromSlice(e.IP); ok && len(e.HardwareAddr) == 6 {
				out[a.Unmap()] = e.State
			}
		}
	}
	return out, nil
}

// Remove deletes the interface and its routing rule, and reports whether the interface existed.
func (t *Tunnel) Remove() (bool, error) {
	if t.removed {
		return false, nil
	}
	clear(t.answered)
	h, err := netns.Handle(t.netns, unix.NETLINK_ROUTE)
	if err != nil {
		return false, fmt.Errorf("open route netlink: %w", err)
	}
	defer h.Close()
	err = h.RuleDel(t.rule())
	var link netlink.Link
	if err == nil || errors.Is(err, unix.ENOENT) {
		link, err = h.LinkByName(t.name)
	}
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		t.removed = true
		return false, nil
	}
	if err == nil {
		err = h.LinkDel(link)
	}
	if err != nil {
		return false, fmt.Errorf("remove the tunnel %s: %w", t.name, err)
	}
	t.removed = true
	return true, nil
}

// rule returns the routing rule that selects table TunnelNetwork for packets with this output interface.
func (t *Tunnel) rule() *netlink.Rule {
	r := netlink.NewRule()
	r.OifName, r.Table, r.Priority, r.Family = t.name, TunnelNetwork, TunnelNetwork, unix.AF_INET
	return r
}
