//go:build linux

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// uplink is a node's and a pod's interface to the others. A node's further
// addresses are on spare, so that the kernel, asked for an address, prefers the
// first: it looks through interfaces in their order.
const uplink, spare = "eth0", "eth1"

// joinNode puts a node on the LAN. The first node is the one others send to
// what they have no route for. The world is locked.
func (w *world) joinNode(h *Host) error {
	outside := w.nodes[0]
	c := &cable{nearName: fmt.Sprintf("lan%d", w.serial.Add(1)), farName: uplink}
	if err := outside.connect(h.machine, c); err != nil {
		return err
	}
	br, err := outside.link(lan)
	if err != nil {
		return err
	}
	if err := outside.enslave(c.near, br); err != nil {
		return err
	}
	if err := h.assignNode(c.far); err != nil {
		return err
	}
	if err := w.introduce(h, c.far, br); err != nil {
		return err
	}
	if err := w.routeNode(h, c.far, br); err != nil {
		return err
	}
	if err := h.addBridge(w.options.Bridge); err != nil {
		return err
	}
	w.nodes = append(w.nodes, h.machine)
	for a, pod := range w.pods {
		if err := h.reach(a, pod.node); err != nil {
			return err
		}
	}
	return nil
}

// assignNode gives a node its addresses.
func (h *Host) assignNode(eth netlink.Link) error {
	h.addrs4, h.addrs6 = h.Addr4(), h.Addr6()
	var further []netip.Addr
	for _, a := range h.addrs {
		if a != h.Addr(a) {
			further = append(further, a)
			continue
		}
		if err := h.assign(eth, subnet(a)); err != nil {
			return err
		}
	}
	return h.addLink(spare, further)
}

// introduce tells a node and all others on the LAN each other's hardware
// addresses.
func (w *world) introduce(h *Host, eth, br netlink.Link) error {
	for _, own := range []netip.Addr{h.addrs4, h.addrs6} {
		if !own.IsValid() {
			continue
		}
		router := parse(routerAddr4)[0]
		if own.Is6() {
			router = parse(routerAddr6)[0]
		}
		err := errors.Join(
			h.knows(eth, router, br.Attrs().HardwareAddr),
			w.nodes[0].knows(br, own, eth.Attrs().HardwareAddr),
		)
		for _, m := range w.nodes[1:] {
			link, linkErr := m.link(uplink)
			if linkErr != nil {
				return linkErr
			}
			err = errors.Join(err, m.knows(link, own, eth.Attrs().HardwareAddr))
			if other := m.reachedAt(own); other.IsValid() {
				err = errors.Join(err, h.knows(eth, other, link.Attrs().HardwareAddr))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *world) routeNode(h *Host, eth, br netlink.Link) error {
	outside := w.nodes[0]
	first := len(w.nodes) == 1
	for _, router := range parse(routerAddr4, routerAddr6) {
		own := h.addrs4
		if router.Is6() {
			own = h.addrs6
		}
		if !own.IsValid() {
			continue
		}
		if first {
			err := errors.Join(h.via(eth, anything(router), router), outside.via(br, anything(router), own))
			if err != nil {
				return err
			}
			continue
		}
		if err := h.viaFirst(eth, router); err != nil {
			return err
		}
	}
	return nil
}

// directTable holds a node's own way to clients on the outside.
const directTable = 100

// viaFirst routes another node: all through the node under test, which so sees
// both directions of what its pods have to do with the outside. Only what the
// node itself says to clients goes straight to them, as they do to it.
func (h *Host) viaFirst(eth netlink.Link, router netip.Addr) error {
	first := h.world.nodes[1].reachedAt(router)
	clients, family := netip.MustParsePrefix("203.0.113.0/24"), unix.AF_INET
	if router.Is6() {
		clients, family = netip.MustParsePrefix("2001:db8:113::/64"), unix.AF_INET6
	}
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = family, directTable, directTable
	rule.IifName, rule.Dst = "lo", ipnet(clients)
	direct := &netlink.Route{
		LinkIndex: eth.Attrs().Index, Dst: ipnet(clients), Gw: router.AsSlice(), Table: directTable,
	}
	return errors.Join(h.via(eth, anything(router), first), h.links.RuleAdd(rule), h.links.RouteAdd(direct))
}

func (m *machine) reachedAt(like netip.Addr) netip.Addr {
	if like.Is4() {
		return m.addrs4
	}
	return m.addrs6
}

func (m *machine) addBridge(name string) error {
	if name == "" {
		return nil
	}
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: m.world.mac()}}
	if err := m.links.LinkAdd(br); err != nil {
		return fmt.Errorf("add bridge %s to %s: %w", name, m.name, err)
	}
	return m.links.LinkSetUp(br)
}

// joinPod connects a pod to its node and tells everybody where it is. The world
// is locked.
func (w *world) joinPod(h *Host) error {
	h.inner = fmt.Sprintf("%s%06x", w.options.VethPrefix, w.serial.Add(1))
	c := &cable{nearName: h.inner, farName: uplink}
	if err := h.node.connect(h.machine, c); err != nil {
		return err
	}
	side := c.near
	if w.options.Bridge != "" {
		br, err := h.node.link(w.options.Bridge)
		if err != nil {
			return err
		}
		if err := h.node.enslave(c.near, br); err != nil {
			return err
		}
		side = br
	}
	for _, a := range h.addrs {
		if err := w.addPodAddr(h.machine, a, [2]netlink.Link{side, c.far}); err != nil {
			return err
		}
	}
	return nil
}

// addPodAddr gives a pod an address; ends are the node's and the pod's interface.
func (w *world) addPodAddr(pod *machine, a netip.Addr, ends [2]netlink.Link) error {
	node, eth := ends[0], ends[1]
	err := errors.Join(
		pod.assign(eth, alone(a)),
		pod.knows(eth, gateway(a), node.Attrs().HardwareAddr),
		pod.via(eth, anything(a), gateway(a)),
		pod.node.knows(node, a, eth.Attrs().HardwareAddr),
		pod.node.via(node, alone(a), netip.Addr{}),
	)
	if err != nil {
		return err
	}
	w.pods[a] = pod
	for _, m := range w.nodes {
		if m == pod.node {
			continue
		}
		if err := m.reach(a, pod.node); err != nil {
			return err
		}
	}
	return nil
}

// reach routes a pod's address to the node that the pod is on; from the outside,
// to the node under test.
func (m *machine) reach(pod netip.Addr, node *machine) error {
	if m.outside {
		node = m.world.nodes[1]
	}
	link, err := m.link(m.lanLink())
	if err != nil {
		return err
	}
	return m.via(link, alone(pod), node.reachedAt(pod))
}

// forget takes a pod or node that ends out of what the others know.
func (w *world) forget(gone *machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = slices.DeleteFunc(w.nodes, func(m *machine) bool { return m == gone })
	for a, pod := range w.pods {
		if pod != gone {
			continue
		}
		delete(w.pods, a)
		for _, m := range w.nodes {
			_ = m.links.RouteDel(&netlink.Route{Dst: ipnet(alone(a))}) // gone with its link: fine
		}
	}
}
