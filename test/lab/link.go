//go:build linux

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// lan is the bridge on the outside that all nodes hang on.
const lan = "br0"

// gateways is what a pod sends everything to; the node answers for it by a
// fixed neighbour entry, so no pod waits for ARP.
var gateways = [...]netip.Addr{netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")}

func gateway(like netip.Addr) netip.Addr {
	if like.Is4() {
		return gateways[0]
	}
	return gateways[1]
}

func anything(like netip.Addr) netip.Prefix {
	if like.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func ipnet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func alone(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// subnet is the part of the LAN an address of a node is in.
func subnet(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(a, 24)
	}
	return netip.PrefixFrom(a, 64)
}

// route makes the outside: the LAN's bridge, its addresses, and no loops. What
// node A sends there without a route of its own is not sent back to it.
func (m *machine) route() error {
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: lan, HardwareAddr: m.world.mac()}}
	if err := m.links.LinkAdd(br); err != nil {
		return fmt.Errorf("add bridge: %w", err)
	}
	if err := m.links.LinkSetUp(br); err != nil {
		return fmt.Errorf("bring bridge up: %w", err)
	}
	for _, a := range parse(routerAddr4, routerAddr6) {
		if err := m.assign(br, subnet(a)); err != nil {
			return err
		}
	}
	lo, err := m.links.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	for _, a := range parse(outsideAddr4, outsideAddr6, blockedAddr4, blockedAddr6) {
		if err := m.assign(lo, alone(a)); err != nil {
			return err
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if err := m.stopLoops(family); err != nil {
			return err
		}
	}
	return nil
}

func (m *machine) stopLoops(family int) error {
	known := netlink.NewRule()
	known.Family, known.Priority, known.Table, known.SuppressPrefixlen = family, 100, unix.RT_TABLE_MAIN, 0
	unknown := netlink.NewRule()
	unknown.Family, unknown.Priority, unknown.IifName, unknown.Type = family, 200, lan, unix.FR_ACT_BLACKHOLE
	return errors.Join(m.links.RuleAdd(known), m.links.RuleAdd(unknown))
}

// assign gives a link an address that is usable at once.
func (m *machine) assign(link netlink.Link, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: ipnet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := m.links.AddrAdd(link, a); err != nil {
		return fmt.Errorf("give %s to %s of %s: %w", p, link.Attrs().Name, m.name, err)
	}
	return m.awaitOwn(p.Addr())
}

// via sends what goes to p over the link, to a neighbour if there is one.
func (m *machine) via(link netlink.Link, p netip.Prefix, next netip.Addr) error {
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipnet(p)}
	if next.IsValid() {
		r.Gw = next.AsSlice()
		r.SetFlag(netlink.FLAG_ONLINK)
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := m.links.RouteReplace(r); err != nil {
		return fmt.Errorf("route %s of %s: %w", p, m.name, err)
	}
	return nil
}

// knows tells a machine the hardware address of a neighbour.
func (m *machine) knows(link netlink.Link, a netip.Addr, mac net.HardwareAddr) error {
	err := m.links.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("set neighbour %s of %s: %w", a, m.name, err)
	}
	return nil
}

// mac is a hardware address that no other interface of the lab has.
func (w *world) mac() net.HardwareAddr {
	n := w.serial.Add(1)
	return net.HardwareAddr{2, 0x51, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

// cable is a veth pair between two machines; far is its name and end at to.
type cable struct {
	near, far         netlink.Link
	nearName, farName string
}

// enslave puts a link on a bridge.
func (m *machine) enslave(link, bridge netlink.Link) error {
	if err := m.links.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("put %s of %s on %s: %w", link.Attrs().Name, m.name, bridge.Attrs().Name, err)
	}
	return m.awaitUp(bridge)
}

// connect lays a cable from m to another machine and brings it up.
func (m *machine) connect(to *machine, c *cable) error {
	veth := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: c.nearName, HardwareAddr: m.world.mac()},
		PeerName:         c.farName,
		PeerHardwareAddr: m.world.mac(),
		PeerNamespace:    netlink.NsFd(to.fd),
	}
	if err := m.links.LinkAdd(veth); err != nil {
		return fmt.Errorf("connect %s and %s: %w", m.name, to.name, err)
	}
	far, err := to.links.LinkByName(c.farName)
	if err != nil {
		return fmt.Errorf("find %s of %s: %w", c.farName, to.name, err)
	}
	c.near, c.far = veth, far
	err = errors.Join(m.links.LinkSetUp(veth), to.links.LinkSetUp(far))
	return errors.Join(err, m.awaitUp(veth), to.awaitUp(far))
}

// The kernel finishes some things after it has answered; packets sent before that
// are lost, and are repeated only a second later. settled tries again after a pause
// that grows from settleFirst to settleLast.
const (
	settleFirst = 50 * time.Microsecond
	settleLast  = 5 * time.Millisecond
	settleLimit = 5 * time.Second
)

func settled(done func() (bool, error)) error {
	pause := settleFirst
	for deadline := time.Now().Add(settleLimit); time.Now().Before(deadline); time.Sleep(pause) {
		if ok, err := done(); ok || err != nil {
			return err
		}
		pause = min(2*pause, settleLast)
	}
	return fmt.Errorf("not ready after %v", settleLimit)
}

// awaitUp waits until a link with a carrier sends packets.
func (m *machine) awaitUp(link netlink.Link) error {
	err := settled(func() (bool, error) {
		now, err := m.links.LinkByIndex(link.Attrs().Index)
		return err == nil && now.Attrs().OperState == netlink.OperUp, err
	})
	if err != nil {
		return fmt.Errorf("wait for %s of %s: %w", link.Attrs().Name, m.name, err)
	}
	return nil
}

// awaitOwn waits until packets to an address stay on the machine.
func (m *machine) awaitOwn(a netip.Addr) error {
	err := settled(func() (bool, error) {
		routes, err := m.links.RouteGet(a.AsSlice())
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			return false, nil
		}
		return len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL, err
	})
	if err != nil {
		return fmt.Errorf("wait for %s of %s: %w", a, m.name, err)
	}
	return nil
}

func (m *machine) link(name string) (netlink.Link, error) {
	link, err := m.links.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find %s of %s: %w", name, m.name, err)
	}
	return link, nil
}
