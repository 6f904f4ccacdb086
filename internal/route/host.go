package route

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// compileHost returns the policy of the whole node.
func compileHost(opt Options, facts *cluster.Facts) (Host, []Problem) {
	ports, problems := nodePorts(opt, facts)
	return Host{
		Detector:      detector(opt, facts.Node),
		MasqueradeAll: opt.MasqueradeAll,
		NodePorts:     ports,
		Local:         opt.listLocal(facts.Local),
		Primary:       primaries(facts.Node, opt.families()),
		ServiceCIDRs:  ofFamilies(facts.ServiceCIDRs, opt.families()),
	}, problems
}

// primaries returns the primary address of a node in each of the families.
func primaries(node *cluster.Node, families []Family) (list []netip.Addr) {
	for _, f := range families {
		if a, ok := primary(node, f); ok {
			list = append(list, a)
		}
	}
	return list
}

func detector(opt Options, node *cluster.Node) Detector {
	switch opt.Detector.Kind {
	case NoDetector:
	case DetectClusterCIDR:
		return Detector{PodCIDRs: ofFamilies(opt.Detector.CIDRs, opt.families())}
	case DetectNodeCIDR:
		if node != nil {
			return Detector{PodCIDRs: ofFamilies(node.PodCIDRs, opt.families())}
		}
	case DetectBridge:
		return Detector{Interface: opt.Detector.Interface}
	case DetectInterfacePrefix:
		return Detector{Prefix: opt.Detector.Interface}
	}
	return Detector{}
}

// ofFamilies returns the prefixes of these families, masked, sorted, none inside another; nil if there are none.
func ofFamilies(prefixes []netip.Prefix, families []Family) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range prefixes {
		if p.IsValid() && slices.Contains(families, FamilyOf(p.Addr())) {
			list = append(list, p.Masked())
		}
	}
	return simplify(list)
}

// simplify sorts prefixes in place, and deletes prefixes inside another one.
func simplify(list []netip.Prefix) []netip.Prefix {
	slices.SortFunc(list, netip.Prefix.Compare)
	kept := list[:0]
	for _, p := range list {
		// A prefix is sorted directly after the one that it lies in.
		if n := len(kept); n > 0 && kept[n-1].Contains(p.Addr()) {
			continue
		}
		kept = append(kept, p)
	}
	return slices.Clip(kept)
}

// nodePorts returns the addresses that the entries of nodePortAddresses stand for. If a
// keyword stands for no address of a family, this family serves no NodePorts.
func nodePorts(opt Options, facts *cluster.Facts) (NodePorts, []Problem) {
	var ports NodePorts
	for _, f := range opt.families() {
		if opt.NodePorts.all(f) {
			ports.All4 = ports.All4 || f == IPv4
			ports.All6 = ports.All6 || f == IPv6
			continue
		}
		if !opt.NodePorts.Primary {
			continue
		}
		if addr, ok := opt.primary(facts.Node, f); ok {
			ports.Addrs = append(ports.Addrs, addr)
		}
	}
	noPrimary := opt.NodePorts.Primary && len(ports.Addrs) == 0 && !ports.All4 && !ports.All6
	ports.All127 = ports.All4 && opt.NodePorts.Loopback == LoopbackIncluded
	ports.Loopback6 = opt.NodePorts.ServesLoopback6() && slices.Contains(opt.families(), IPv6)
	ports.Addrs = append(ports.Addrs, opt.localAddrs(facts.Local)...)
	ports.Addrs = slices.DeleteFunc(ports.Addrs, ports.implied)
	slices.SortFunc(ports.Addrs, netip.Addr.Compare)
	ports.Addrs = slices.Compact(ports.Addrs)
	if len(ports.Addrs) == 0 {
		ports.Addrs = nil
	}
	if noPrimary {
		return ports, []Problem{noAddress(opt, ports)}
	}
	return ports, nil
}

// implied reports whether an address serves NodePorts without being in Addrs.
func (n NodePorts) implied(a netip.Addr) bool {
	if a.IsLoopback() {
		return n.All127 && a.Is4()
	}
	return n.All(FamilyOf(a))
}

// noAddress is the problem of a node without any address. That a node has no address of one family is no problem.
func noAddress(opt Options, ports NodePorts) Problem {
	where := ""
	if len(ports.Addrs) > 0 {
		where = " at its primary address"
	}
	return Problem{
		Object: "Node " + opt.NodeName,
		Field:  nodeAddresses,
		Reason: fmt.Sprintf("NodePorts are not served%s: node %s has no address; "+
			"add a Node with an address, or set nodePortAddresses (--nodeport-addresses)", where, opt.NodeName),
	}
}

const nodeAddresses = "status.addresses"

// IsNoAddress reports whether a problem of Compile is that NodePorts are not served because the node has no address.
func IsNoAddress(p Problem) bool { return p.Field == nodeAddresses }

func (o Options) primary(node *cluster.Node, f Family) (netip.Addr, bool) {
	if o.Primary.IsValid() && FamilyOf(o.Primary) == f {
		return o.Primary, true
	}
	return primary(node, f)
}

func primary(node *cluster.Node, f Family) (netip.Addr, bool) {
	if node == nil {
		return netip.Addr{}, false
	}
	for _, a := range node.Addresses {
		if FamilyOf(a) == f {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// all reports whether every address serves NodePorts: an entry says so, or there is none for the family (S-61).
func (o NodePortOptions) all(f Family) bool {
	if o.All {
		return true
	}
	mine := 0
	for _, p := range o.CIDRs {
		if FamilyOf(p.Addr()) != f {
			continue
		}
		if p.Bits() == 0 {
			return true
		}
		mine++
	}
	return mine == 0 && !o.Primary && !o.Localhost
}

// loopback are the only loopback addresses that can serve NodePorts.
func loopback() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8) }

// ServesLoopback reports whether NodePorts may be served on an address in 127.0.0.0/8.
func (o NodePortOptions) ServesLoopback() bool {
	switch {
	case o.Loopback == LoopbackNever:
		return false
	case o.Localhost, o.Loopback == LoopbackIncluded && o.all(IPv4):
		return true
	}
	lo := loopback()
	return slices.ContainsFunc(o.CIDRs, func(p netip.Prefix) bool {
		return p.Overlaps(lo) && (p.Bits() >= lo.Bits() || o.Loopback == LoopbackIncluded)
	})
}

// ServesLoopback6 reports whether NodePorts are served on ::1: only if an entry names it.
func (o NodePortOptions) ServesLoopback6() bool {
	only := netip.PrefixFrom(netip.IPv6Loopback(), 128)
	return o.Loopback != LoopbackNever && (o.Localhost || slices.Contains(o.CIDRs, only))
}

// localAddrs returns the addresses of this host that the CIDRs and the keyword localhost name, without ::1.
func (o Options) localAddrs(local []netip.Addr) []netip.Addr {
	var list []netip.Addr
	if o.NodePorts.Localhost && o.NodePorts.Loopback != LoopbackNever && slices.Contains(o.families(), IPv4) {
		list = append(list, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	for _, a := range o.served(local) {
		if o.NodePorts.names(a) {
			list = append(list, a)
		}
	}
	return list
}

// listLocal returns the addresses of this host that the data plane needs.
func (o Options) listLocal(local []netip.Addr) []netip.Addr {
	if !o.ListLocal {
		return nil
	}
	list := o.served(local)
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// served returns the addresses of the families that are served, without their zones.
func (o Options) served(addrs []netip.Addr) []netip.Addr {
	var list []netip.Addr
	for _, a := range addrs {
		if slices.Contains(o.families(), FamilyOf(a)) {
			list = append(list, a.WithZone(""))
		}
	}
	return list
}

func (o NodePortOptions) names(a netip.Addr) bool {
	if a.IsLoopback() {
		return o.namesLoopback(a)
	}
	return slices.ContainsFunc(o.CIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// namesLoopback reports whether a loopback address serves NodePorts. Wider CIDRs count only for LoopbackIncluded.
func (o NodePortOptions) namesLoopback(a netip.Addr) bool {
	lo := loopback()
	if !lo.Contains(a) || o.Loopback == LoopbackNever {
		return false
	}
	return o.Localhost || slices.ContainsFunc(o.CIDRs, func(p netip.Prefix) bool {
		return p.Contains(a) && (p.Bits() >= lo.Bits() || o.Loopback == LoopbackIncluded)
	})
}

// Equal reports whether the same addresses serve NodePorts.
func (n NodePorts) Equal(m NodePorts) bool {
	return n.All4 == m.All4 && n.All6 == m.All6 && n.All127 == m.All127 && n.Loopback6 == m.Loopback6 &&
		slices.Equal(n.Addrs, m.Addrs)
}
