//go:build linux

package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddAddr adds an address to the host, which all others can reach, until the test ends or DelAddr removes it.
func (h *Host) AddAddr(a netip.Addr) {
	h.t.Helper()
	h.world.mu.Lock()
	defer h.world.mu.Unlock()
	if err := h.addAddr(a); err != nil {
		h.t.Fatalf("add address: %v", err)
	}
	h.t.Cleanup(func() {
		h.world.mu.Lock()
		defer h.world.mu.Unlock()
		_ = h.delAddr(a) // an error means that it has been removed
	})
}

func (h *Host) addAddr(a netip.Addr) error {
	link, err := h.link(h.ownLink())
	if err != nil {
		return err
	}
	if h.node == nil {
		return errors.Join(h.assign(link, hostPrefix(a)), h.addOutsideRoute(a))
	}
	side, err := h.node.link(h.podSide())
	if err != nil {
		return err
	}
	return h.world.addPodAddr(h.machine, a, [2]netlink.Link{side, link})
}

// DelAddr removes any address from the host.
func (h *Host) DelAddr(a netip.Addr) {
	h.t.Helper()
	h.world.mu.Lock()
	defer h.world.mu.Unlock()
	if err := h.delAddr(a); err != nil {
		h.t.Fatalf("%v", err)
	}
}

func (h *Host) delAddr(a netip.Addr) error {
	link, err := h.link(h.ownLink())
	if err != nil {
		return err
	}
	p := hostPrefix(a)
	if h.node == nil && a == h.Addr(a) && !h.outside {
		p = subnet(a)
		if link, err = h.link(uplink); err != nil {
			return err
		}
	}
	if err := h.links.AddrDel(link, &netlink.Addr{IPNet: ipnet(p)}); err != nil {
		return fmt.Errorf("take %s from %s: %w", a, h.name, err)
	}
	return nil
}

// ownLink returns the interface for additional addresses of the host.
func (h *Host) ownLink() string {
	switch {
	case h.outside:
		return "lo"
	case h.node == nil:
		return spare
	}
	return uplink
}

// addOutsideRoute adds a route for an address of a node to the outside host.
func (h *Host) addOutsideRoute(a netip.Addr) error {
	next := h.lanAddr(a)
	if h.outside || a == next {
		return nil
	}
	outside := h.world.nodes[0]
	br, err := outside.link(lan)
	if err != nil {
		return err
	}
	return outside.addRoute(br, hostPrefix(a), next)
}

// AddLink adds an interface without a peer to a node, with addresses that the outside can reach,
// until the test ends or DelLink removes it.
func (h *Host) AddLink(name string, addrs ...netip.Addr) {
	h.t.Helper()
	h.world.mu.Lock()
	defer h.world.mu.Unlock()
	if err := h.addLink(name, addrs); err != nil {
		h.t.Fatalf("add interface %s to %s: %v", name, h.name, err)
	}
	h.t.Cleanup(func() { _ = h.delLink(name) }) // an error means that it has been removed
}

// addLink creates a veth pair with both ends on the host: not every kernel has the dummy device,
// and a veth has a carrier.
func (h *Host) addLink(name string, addrs []netip.Addr) error {
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: h.world.mac()},
		PeerName:  fmt.Sprintf("nil%d", h.world.serial.Add(1)),
	}
	if err := h.links.LinkAdd(veth); err != nil {
		return err
	}
	peer, err := h.link(veth.PeerName)
	if err != nil {
		return err
	}
	if err := errors.Join(h.links.LinkSetUp(peer), h.links.LinkSetUp(veth), h.awaitUp(veth)); err != nil {
		return err
	}
	for _, a := range addrs {
		if err := errors.Join(h.assign(veth, hostPrefix(a)), h.addOutsideRoute(a)); err != nil {
			return err
		}
	}
	return nil
}

// DelLink deletes an interface of the host.
func (h *Host) DelLink(name string) {
	h.t.Helper()
	if err := h.delLink(name); err != nil {
		h.t.Fatalf("%v", err)
	}
}

func (h *Host) delLink(name string) error {
	link, err := h.link(name)
	if err != nil {
		return err
	}
	if err := h.links.LinkDel(link); err != nil {
		return fmt.Errorf("delete %s of %s: %w", name, h.name, err)
	}
	return nil
}

// Interface returns the name of a node's interface to the LAN, or, for a pod, of the interface on its node.
func (h *Host) Interface() string {
	if h.node != nil {
		return h.inner
	}
	return h.lanLink()
}

// lanLink returns the machine's interface to the LAN.
func (m *machine) lanLink() string {
	if m.outside {
		return lan
	}
	return uplink
}

// podSide returns the interface of the node that has the route to the pod and is its gateway.
func (m *machine) podSide() string {
	if b := m.world.options.Bridge; b != "" {
		return b
	}
	return m.inner
}

// Sysctl sets a kernel parameter in the host's namespace, given by its path below /proc/sys, such
// as "net/netfilter/nf_conntrack_udp_timeout".
func (h *Host) Sysctl(path, value string) {
	h.t.Helper()
	if err := h.do(func() error { return writeSysctl(path, value) }); err != nil {
		h.t.Fatalf("%s: %v", h.name, err)
	}
}

// Route adds or replaces the host's route to p, with next hop next.
func (h *Host) Route(p netip.Prefix, next netip.Addr) {
	h.t.Helper()
	link, err := h.link(h.lanLink())
	if err == nil {
		err = h.addRoute(link, p, next)
	}
	if err != nil {
		h.t.Fatalf("%v", err)
	}
	h.t.Cleanup(func() {
		_ = h.links.RouteDel(&netlink.Route{Dst: ipnet(p), Gw: next.AsSlice(), Protocol: unix.RTPROT_BOOT})
	})
}
