package iptables

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// table is a table that the plane has rules in.
type table uint8

// The tables, in the order in which they are written: rules that refuse packets are
// added before rules that lead to backends are deleted.
const (
	filter table = iota
	nat
	mangle // only to remove what others left
)

// String returns the name.
func (t table) String() string { return [...]string{"filter", "nat", "mangle"}[t] }

func everyTable() []table { return []table{filter, nat, mangle} }

// family has everything that differs between IPv4 and IPv6.
type family struct {
	ip        route.Family
	kernel    iptables.Family
	counting  bool // rules count with nfacct
	entrances []entrance
	listener  netip.Addr // valid: the variant of PortalsKind

	ledger   *ledger.Ledger[key, string]
	restorer restorer
	written
	large bool // there are many endpoints: rules for single endpoints have no comments
}

// written is the state that the last plan left in the kernel, as far as the Services do not determine it.
type written struct {
	endpoints int             // approximate number for all ports
	rules     [mangle + 1]int // number of our rules, by table
	guarded   bool            // KUBE-FIREWALL has the guard
}

// manyEndpoints is the number of endpoints from which on kube-proxy writes no comments in
// rules for single endpoints. A comment is a match, and after any change the kernel
// validates all reachable rules (nf_tables_api.c, nft_table_validate).
const manyEndpoints = 1000

// endpointsOf counts the endpoints of a Service.
func (f *family) endpointsOf(svc *route.Service) int {
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

// endpointComment returns the comment of a rule for a single endpoint.
func (f *family) endpointComment(text string) string {
	if f.large {
		return ""
	}
	return text
}

// families returns the families that the host supports.
func families(opt Options) []*family {
	var list []*family
	for _, ip := range opt.Families {
		f := &family{ip: ip, kernel: iptables.Family(ip), counting: opt.Accounting != nil, entrances: entrances()}
		for _, a := range opt.Listeners {
			if route.FamilyOf(a) == ip {
				f.listener, f.entrances = a, portals()
			}
		}
		list = append(list, f)
	}
	return list
}

// loopback reports whether NodePorts are served at 127.0.0.0/8.
func (f *family) loopback(host *route.Host) bool {
	return f.ip == route.IPv4 && host.NodePorts.Loopback4()
}

// pods returns the matches of packets from pods. Each takes one rule.
func (f *family) pods(host *route.Host) []string {
	return f.kernel.Sources(host.Detector.Interface, host.Detector.Prefix, host.Detector.PodCIDRs)
}

// outside returns the source and the target of a rule that marks packets from outside of
// the pods. A rule can exclude only one range, so several ranges have a chain of their own.
// If every source is a pod there is no target: the kernel refuses a rule that cannot match.
func (f *family) outside(host *route.Host) (from, target string) {
	pods := f.pods(host)
	switch {
	case len(pods) != 1:
		return "", markOutside
	case pods[0] == "":
		return "", ""
	}
	return "! " + pods[0], markMasq
}
