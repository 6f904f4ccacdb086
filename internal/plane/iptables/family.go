package iptables

import (
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
)

// table is a table that the plane has rules in.
type table uint8

// The tables, in the order in which they are written: what refuses is there
// before what leads past it goes.
const (
	filter table = iota
	nat
	mangle // has only what kube-proxy left
)

// String returns the name.
func (t table) String() string { return [...]string{"filter", "nat", "mangle"}[t] }

func everyTable() []table { return []table{filter, nat, mangle} }

// family is one row of all that differs between IPv4 and IPv6.
type family struct {
	ip          route.Family
	kernel      iptables.Family
	program     string // that lists the rules
	loopbackNet string // where NodePorts are not served, unless asked for
	unreachable string // what refused clients are told
	allOnes     string // the mask of a whole address
}

func rows(enabled []route.Family) []family {
	var all []family
	for _, ip := range enabled {
		if ip == route.IPv4 {
			all = append(all, family{ip, iptables.IPv4, "iptables", "127.0.0.0/8", "icmp-port-unreachable", "255.255.255.255"})
			continue
		}
		ones := strings.TrimSuffix(strings.Repeat("ffff:", 8), ":")
		all = append(all, family{ip, iptables.IPv6, "ip6tables", "::1/128", "icmp6-port-unreachable", ones})
	}
	return all
}

// loopback reports whether NodePorts are served at 127.0.0.0/8.
func (f *family) loopback(host *route.Host) bool {
	return f.ip == route.IPv4 && host.NodePorts.Loopback4()
}

// pods are the sources that count as pods, in one rule each.
func (f *family) pods(host *route.Host) []source {
	d := host.Detector
	switch {
	case d.Interface != "":
		return []source{{iface: d.Interface}}
	case d.Prefix != "":
		return []source{{iface: d.Prefix + "+"}}
	}
	var list []source
	for _, cidr := range d.PodCIDRs {
		if route.FamilyOf(cidr.Addr()) == f.ip {
			list = append(list, source{cidr: cidr.String()})
		}
	}
	return list
}

// outside says how a rule marks packets that do not come from pods: as one rule
// excludes one range at most, several have a chain that does.
func (f *family) outside(host *route.Host) (from source, target string) {
	pods := f.pods(host)
	if len(pods) != 1 {
		return source{}, markOutside
	}
	from = pods[0]
	from.not = true
	return from, markMasq
}

// nodeIPs are the addresses that serve NodePorts besides all, or where not all
// do.
func (f *family) nodeIPs(host *route.Host) []netip.Addr {
	var list []netip.Addr
	for _, a := range host.NodePorts.Addrs {
		if route.FamilyOf(a) == f.ip {
			list = append(list, a)
		}
	}
	return list
}
