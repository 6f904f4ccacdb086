// Package divert delivers packets with a mark to sockets of this host, whatever their
// destination. It adds a routing rule for the mark, and a routing table with one local route.
package divert

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// Family is an IP family.
type Family int

// The families.
const (
	IPv4 Family = unix.AF_INET
	IPv6 Family = unix.AF_INET6
)

func both() []Family { return []Family{IPv4, IPv6} }

// The numbers by which the rule and the route are recognized, also those of an earlier run. The
// rule comes before those of network plugins.
const (
	table    = 5383
	priority = 83
	protocol = 83
)

// loopback is the index of the loopback interface in every namespace (LOOPBACK_IFINDEX in
// net/flow.h of Linux).
const loopback = 1

// Diverter changes the routing of one network namespace. A socket is open only during a call.
type Diverter struct{ netns int }

// New returns access to the network namespace of a file descriptor; 0: the current one.
func New(netns int) *Diverter { return &Diverter{netns} }

// Ensure adds what is missing to deliver packets of the families with the mark, and removes the
// rules for other marks and in other families. It changes nothing if everything is there.
func (d *Diverter) Ensure(mark uint32, families ...Family) error {
	return d.with(func(h *netlink.Handle) error {
		for _, f := range families {
			if err := ensure(h, f, mark); err != nil {
				return fmt.Errorf("deliver marked packets to this host: %w", err)
			}
		}
		for _, f := range both() {
			if slices.Contains(families, f) {
				continue
			}
			if _, err := remove(h, f); err != nil {
				return fmt.Errorf("stop delivering marked packets: %w", err)
			}
		}
		return nil
	})
}

// Remove removes all rules and routes, also those of earlier runs, and returns how many.
func (d *Diverter) Remove() (removed int, err error) {
	err = d.with(func(h *netlink.Handle) error {
		var errs []error
		for _, f := range both() {
			n, err := remove(h, f)
			removed += n
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	return removed, err
}

func (d *Diverter) with(use func(*netlink.Handle) error) error {
	h, err := netns.Handle(d.netns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	return use(h)
}

func ensure(h *netlink.Handle, f Family, mark uint32) error {
	if err := h.RouteReplace(route(f)); err != nil {
		return fmt.Errorf("add route: %w", err)
	}
	found, err := rules(h, f)
	if err != nil {
		return err
	}
	exists := false
	for _, r := range found {
		if r.Mark == mark && r.Mask != nil && *r.Mask == mark && r.Priority == priority {
			exists = true
			continue
		}
		if err := h.RuleDel(&r); err != nil {
			return fmt.Errorf("delete rule: %w", err)
		}
	}
	if exists {
		return nil
	}
	r := netlink.NewRule()
	r.Family, r.Table, r.Priority, r.Protocol, r.Mark, r.Mask = int(f), table, priority, protocol, mark, &mark
	if err := h.RuleAdd(r); err != nil {
		return fmt.Errorf("add rule: %w", err)
	}
	return nil
}

// route is "local default dev lo".
func route(f Family) *netlink.Route {
	all := net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if f == IPv6 {
		all = net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &netlink.Route{
		Family: int(f), Table: table, Protocol: protocol, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		LinkIndex: loopback, Dst: &all,
	}
}

// rules returns our rules of a family.
func rules(h *netlink.Handle, f Family) ([]netlink.Rule, error) {
	list, err := h.RuleListFiltered(int(f), &netlink.Rule{Table: table}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	var ours []netlink.Rule
	for _, r := range list {
		if r.Protocol == protocol {
			r.Family = int(f)
			ours = append(ours, r)
		}
	}
	return ours, nil
}

// remove removes the rules of a family first: without them nothing uses the route.
func remove(h *netlink.Handle, f Family) (removed int, err error) {
	found, err := rules(h, f)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, r := range found {
		if err := h.RuleDel(&r); err != nil {
			return removed, fmt.Errorf("delete rule: %w", err)
		}
		removed++
	}
	routes, err := h.RouteListFiltered(int(f), &netlink.Route{Table: table, Protocol: protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return removed, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if err := h.RouteDel(&r); err != nil {
			return removed, fmt.Errorf("delete route: %w", err)
		}
		removed++
	}
	return removed, nil
}
