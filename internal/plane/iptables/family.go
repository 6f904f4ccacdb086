package iptables

import (
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
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
	counting    bool   // rules count with nfacct

	ledger *ledger.Ledger[key, string]
	belief
	large bool // there are many endpoints, and rules about single ones have no comments
}

// belief is what the last plan left in the kernel, beyond what follows from the
// Services.
type belief struct {
	endpoints int          // of all ports, about
	rules     [nat + 1]int // that are ours, by table
	guarded   []key        // the guards that are there

	// behind are the rules of others that end a packet's way, and came after our
	// jumps when last read.
	behind map[key][]string
}

// many is from how many endpoints on kube-proxy leaves out the comments of rules
// about single ones. Each is a match that the kernel looks at: after any change it
// walks all rules that a packet can come to (nf_tables_api.c, nft_table_validate).
const many = 1000

// size counts the endpoints of a Service.
func (f *family) size(svc *route.Service) int {
	n := 0
	if svc == nil {
		return n
	}
	for i := range svc.Ports {
		if p := &svc.Ports[i]; p.Family == f.ip {
			n += max(len(p.Cluster), len(p.Local))
		}
	}
	return n
}

// aside is the comment of a rule about a single endpoint.
func (f *family) aside(parts ...string) string {
	if f.large {
		return ""
	}
	return comment(parts...)
}

func rows(opt Options) []*family {
	var all []*family
	for _, ip := range opt.Families {
		if ip == route.IPv4 {
			all = append(all, &family{
				ip: ip, kernel: iptables.IPv4, program: "iptables", loopbackNet: "127.0.0.0/8",
				unreachable: "icmp-port-unreachable", allOnes: "255.255.255.255", counting: opt.Accounting != nil,
			})
			continue
		}
		ones := strings.TrimSuffix(strings.Repeat("ffff:", 8), ":")
		all = append(all, &family{
			ip: ip, kernel: iptables.IPv6, program: "ip6tables", loopbackNet: "::1/128",
			unreachable: "icmp6-port-unreachable", allOnes: ones, counting: opt.Accounting != nil,
		})
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
// excludes one range at most, several have a chain that does. Where everybody is
// a pod there is no target: the kernel takes no rule that matches nobody.
func (f *family) outside(host *route.Host) (from source, target string) {
	pods := f.pods(host)
	switch {
	case len(pods) != 1:
		return source{}, markOutside
	case strings.HasSuffix(pods[0].cidr, "/0"):
		return source{}, ""
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
