//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

const bridge = "lan"

// network makes the network between the control plane and the nodes: a bridge.
func (c *control) network() error {
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}); err != nil {
		return fmt.Errorf("make a bridge: %w", err)
	}
	return errors.Join(setUp("lo"), configure(bridge, 1), forwarding())
}

// plugIn connects the namespace of a node's process with the bridge; its end is eth0.
func plugIn(name string, pid int) error {
	lan, err := netlink.LinkByName(bridge)
	if err != nil {
		return err
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: lan.Attrs().Index},
		PeerName:  "eth0", PeerNamespace: netlink.NsPid(pid),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("connect %s: %w", name, err)
	}
	return setUp(name)
}

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// configure gives an interface the addresses of the nth machine.
func configure(name string, n int) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, prefix := range lan(n) {
		address := &netlink.Addr{IPNet: ipNet(prefix), Flags: nodad}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add %s: %w", prefix, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// nodad is IFA_F_NODAD: an IPv6 address that serves at once.
const nodad = 0x2

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// forwarding makes a namespace a router.
func forwarding() error {
	return errors.Join(
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
		os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
}

// addRoutes adds routes through the nth machine.
func addRoutes(n int, to []string) error {
	for _, text := range to {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		for _, via := range lan(n) {
			if via.Addr().Is4() != prefix.Addr().Is4() {
				continue
			}
			route := &netlink.Route{Dst: ipNet(prefix), Gw: via.Addr().AsSlice()}
			if err := netlink.RouteAdd(route); err != nil {
				return fmt.Errorf("add a route to %s: %w", prefix, err)
			}
		}
	}
	return nil
}
