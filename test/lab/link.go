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

// lan is the bridge on the outside host to which all nodes are attached.
const lan = "br0"

// gateways are the default gateways of pods. A permanent neighbour entry resolves them to the
// node, so pods do not wait for ARP.
var gateways = [...]netip.Addr{netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")}

func gateway(like netip.Addr) netip.Addr {
	if like.Is4() {
		return gateways[0]
	}
	return gateways[1]
}

func defaultPrefix(like netip.Addr) netip.Prefix {
	if like.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func ipnet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// subnet returns the subnet of a node's address on the LAN.
func subnet(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(a, 24)
	}
	return netip.PrefixFrom(a, 64)
}

// route sets up the outside host: the bridge of the LAN, its addresses, and rules against loops,
// so that packets without a specific route that node A sends there are not sent back to it.
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
		if err := m.assign(lo, hostPrefix(a)); err != nil {
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

// assign adds an address to a link and waits until it is usable.
func (m *machine) assign(link netlink.Link, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: ipnet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := m.links.AddrAdd(link, a); err != nil {
		return fmt.Errorf("give %s to %s of %s: %w", p, link.Attrs().Name, m.name, err)
	}
	return m.awaitLocal(p.Addr())
}

// addRoute adds a route to p over a link, with a next hop if that is valid.
func (m *machine) addRoute(link netlink.Link, p netip.Prefix, next netip.Addr) error {
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
	return m.awaitRoute(p)
}

// awaitRoute waits until a new route is in use: those of IPv6 are not while the kernel has not noticed the carrier of
// their link.
func (m *machine) awaitRoute(p netip.Prefix) error {
	to := p.Addr()
	if to.Is4() {
		return nil
	}
	if to.IsUnspecified() {
		to = netip.MustParseAddr("2001:db8:ffff::1")
	}
	err := retry(func() (bool, error) {
		_, err := m.links.RouteGet(to.AsSlice())
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return fmt.Errorf("wait for the route %s of %s: %w", p, m.name, err)
	}
	return nil
}

// setNeighbour adds a permanent neighbour entry to a machine.
func (m *machine) setNeighbour(link netlink.Link, a netip.Addr, mac net.HardwareAddr) error {
	err := m.links.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("set neighbour %s of %s: %w", a, m.name, err)
	}
	return nil
}

// mac returns a unique hardware address.
func (w *topology) mac() net.HardwareAddr {
	n := w.serial.Add(1)
	return net.HardwareAddr{2, 0x51, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

// vethPair is a veth pair between two machines.
type vethPair struct {
	near, far         netlink.Link
	nearName, farName string
}

func (m *machine) attach(link, bridge netlink.Link) error {
	if err := m.links.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("put %s of %s on %s: %w", link.Attrs().Name, m.name, bridge.Attrs().Name, err)
	}
	return m.awaitUp(bridge)
}

// connect creates a veth pair from m to another machine and brings it up.
func (m *machine) connect(to *machine, c *vethPair) error {
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

// The kernel completes some operations after it has acknowledged them; packets sent before that are lost, and
// retransmitted only a second later. retry polls with pauses that grow from firstPause to maxPause. On a busy machine,
// which removes network namespaces meanwhile, an address has taken more than five seconds.
const (
	firstPause   = 50 * time.Microsecond
	maxPause     = 5 * time.Millisecond
	readyTimeout = time.Minute
)

func retry(done func() (bool, error)) error {
	pause := firstPause
	for deadline := time.Now().Add(readyTimeout); time.Now().Before(deadline); time.Sleep(pause) {
		if ok, err := done(); ok || err != nil {
			return err
		}
		pause = min(2*pause, maxPause)
	}
	return fmt.Errorf("not ready after %v", readyTimeout)
}

// awaitUp waits until a link with a carrier is operational.
func (m *machine) awaitUp(link netlink.Link) error {
	err := retry(func() (bool, error) {
		now, err := m.links.LinkByIndex(link.Attrs().Index)
		return err == nil && now.Attrs().OperState == netlink.OperUp, err
	})
	if err != nil {
		return fmt.Errorf("wait for %s of %s: %w", link.Attrs().Name, m.name, err)
	}
	return nil
}

// awaitLocal waits until the machine routes an address to itself.
func (m *machine) awaitLocal(a netip.Addr) error {
	err := retry(func() (bool, error) {
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
