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

// uplink is the main interface of nodes and pods. A node's additional addresses are on spare, so
// that the kernel prefers the first address as source: it searches interfaces in their order.
const uplink, spare = "eth0", "eth1"

// joinNode adds a node to the LAN. The first node is the default route of the others. The caller holds the lock.
func (w *topology) joinNode(h *Host) error {
	outside := w.nodes[0]
	c := &vethPair{nearName: fmt.Sprintf("lan%d", w.serial.Add(1)), farName: uplink}
	if err := outside.connect(h.machine, c); err != nil {
		return err
	}
	br, err := outside.link(lan)
	if err != nil {
		return err
	}
	if err := outside.attach(c.near, br); err != nil {
		return err
	}
	if err := h.assignNode(c.far); err != nil {
		return err
	}
	if err := w.addNeighbours(h, c.far, br); err != nil {
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
		if err := h.routePod(a, pod.node); err != nil {
			return err
		}
	}
	return nil
}

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

// addNeighbours adds neighbour entries between a node and all others on the LAN.
func (w *topology) addNeighbours(h *Host, eth, br netlink.Link) error {
	for _, own := range []netip.Addr{h.addrs4, h.addrs6} {
		if !own.IsValid() {
			continue
		}
		router := parse(routerAddr4)[0]
		if own.Is6() {
			router = parse(routerAddr6)[0]
		}
		err := errors.Join(
			h.setNeighbour(eth, router, br.Attrs().HardwareAddr),
			w.nodes[0].setNeighbour(br, own, eth.Attrs().HardwareAddr),
		)
		for _, m := range w.nodes[1:] {
			link, linkErr := m.link(uplink)
			if linkErr != nil {
				return linkErr
			}
			err = errors.Join(err, m.setNeighbour(link, own, eth.Attrs().HardwareAddr))
			if other := m.lanAddr(own); other.IsValid() {
				err = errors.Join(err, h.setNeighbour(eth, other, link.Attrs().HardwareAddr))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *topology) routeNode(h *Host, eth, br netlink.Link) error {
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
			err := errors.Join(h.addRoute(eth, defaultPrefix(router), router), outside.addRoute(br, defaultPrefix(router), own))
			if err != nil {
				return err
			}
			continue
		}
		if err := h.routeViaNodeA(eth, router); err != nil {
			return err
		}
	}
	return nil
}

// directTable is the routing table for a node's own packets to clients outside.
const directTable = 100

// routeViaNodeA sets the routes of another node: all go through node A, which therefore sees both directions of
// connections between that node's pods and the outside. Only the node's own packets to clients outside, and their
// packets to the node, go directly.
func (h *Host) routeViaNodeA(eth netlink.Link, router netip.Addr) error {
	first := h.world.nodes[1].lanAddr(router)
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
	return errors.Join(h.addRoute(eth, defaultPrefix(router), first), h.links.RuleAdd(rule), h.links.RouteAdd(direct))
}

func (m *machine) lanAddr(like netip.Addr) netip.Addr {
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

// joinPod connects a pod to its node and adds routes to it on all machines. The caller holds the lock.
func (w *topology) joinPod(h *Host) error {
	h.inner = fmt.Sprintf("%s%06x", w.options.VethPrefix, w.serial.Add(1))
	c := &vethPair{nearName: h.inner, farName: uplink}
	if err := h.node.connect(h.machine, c); err != nil {
		return err
	}
	side := c.near
	if w.options.Bridge != "" {
		br, err := h.node.link(w.options.Bridge)
		if err != nil {
			return err
		}
		if err := h.node.attach(c.near, br); err != nil {
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

// addPodAddr adds an address to a pod; ends are the node's and the pod's interface.
func (w *topology) addPodAddr(pod *machine, a netip.Addr, ends [2]netlink.Link) error {
	node, eth := ends[0], ends[1]
	err := errors.Join(
		pod.assign(eth, hostPrefix(a)),
		pod.setNeighbour(eth, gateway(a), node.Attrs().HardwareAddr),
		pod.addRoute(eth, defaultPrefix(a), gateway(a)),
		pod.node.setNeighbour(node, a, eth.Attrs().HardwareAddr),
		pod.node.addRoute(node, hostPrefix(a), netip.Addr{}),
	)
	if err != nil {
		return err
	}
	w.pods[a] = pod
	for _, m := range w.nodes {
		if m == pod.node {
			continue
		}
		if err := m.routePod(a, pod.node); err != nil {
			return err
		}
	}
	return nil
}

// routePod adds a route for a pod's address to the pod's node; on the outside host, to node A.
func (m *machine) routePod(pod netip.Addr, node *machine) error {
	if m.outside {
		node = m.world.nodes[1]
	}
	link, err := m.link(m.lanLink())
	if err != nil {
		return err
	}
	return m.addRoute(link, hostPrefix(pod), node.lanAddr(pod))
}

// removeRoutes deletes the routes of the others to a removed pod or node.
func (w *topology) removeRoutes(gone *machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = slices.DeleteFunc(w.nodes, func(m *machine) bool { return m == gone })
	for a, pod := range w.pods {
		if pod != gone {
			continue
		}
		delete(w.pods, a)
		for _, m := range w.nodes {
			_ = m.links.RouteDel(&netlink.Route{Dst: ipnet(hostPrefix(a))}) // an error means that it was deleted with its link
		}
	}
}
