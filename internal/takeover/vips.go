package takeover

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/text"

	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
)

// ServiceDevice is the interface that kube-proxy puts the addresses of Services on.
// They are not the node's own.
const ServiceDevice = "kube-ipvs0"

const device = ServiceDevice

// vips is what kube-proxy's ipvs mode left, besides rules of iptables.
type vips struct {
	Idle    []ipvs.Server // kube-proxy's, without connections
	Busy    []busy        // kube-proxy's, with connections that would end with them
	Held    []held        // addresses that programs of this host have connections from
	Foreign []ipvs.Server // of others, or not to be told from theirs
	Unknown bool          // whether there may be more, or with connections
	Device  bool          // whether there is kube-ipvs0
	Addrs   []netip.Addr  // on it
	Sets    []string      // ipsets
	AtOnce  bool          // connections do not count
}

// busy is a virtual server that is in use.
type busy struct {
	ipvs.Server
	Connections int
}

// held is an address that is in use.
type held struct {
	netip.Addr
	Connections int
}

// defaultNodePort tells the ports that an API server gives if not told others.
func defaultNodePort(port uint16) bool { return port >= 30000 && port <= 32767 }

// among returns what tells whether a port is one of those.
func among(ports []uint16) func(uint16) bool {
	known := map[uint16]bool{}
	for _, p := range ports {
		known[p] = true
	}
	return func(port uint16) bool { return known[port] }
}

// owned says which virtual servers are kube-proxy's: those at the addresses on
// its interface, and those for node ports at the node's own. The others may be
// anybody's.
func (v vips) owned(servers []ipvs.Server, local []netip.Addr, nodePort func(uint16) bool) (theirs, foreign []ipvs.Server) {
	for _, s := range servers {
		service := slices.Contains(v.Addrs, s.Addr)
		node := slices.Contains(local, s.Addr) && !s.Addr.IsLoopback() && nodePort(s.Port)
		if s.Mark == 0 && (service || node) {
			theirs = append(theirs, s)
			continue
		}
		foreign = append(foreign, s)
	}
	return theirs, foreign
}

// hold notes which addresses are in use, given the connections of this host's
// programs by their local address.
func (v vips) hold(connections map[netip.Addr]int) vips {
	v.Held = nil
	for _, a := range v.Addrs {
		if n := connections[a]; n > 0 {
			v.Held = append(v.Held, held{a, n})
		}
	}
	return v
}

// inUse says whether connections would end if all was removed, or may.
func (v vips) inUse() bool { return len(v.Busy)+len(v.Held) > 0 || v.Unknown }

// unused are the addresses on the interface that nobody needs.
func (v vips) unused() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(v.Addrs), func(a netip.Addr) bool {
		return slices.ContainsFunc(v.Busy, func(b busy) bool { return b.Server.Addr == a }) ||
			slices.ContainsFunc(v.Held, func(h held) bool { return h.Addr == a })
	})
}

// atOnce does not wait for connections to end.
func (v vips) atOnce() vips {
	for _, b := range v.Busy {
		v.Idle = append(slices.Clip(v.Idle), b.Server)
	}
	v.Busy, v.AtOnce = nil, true
	return v
}

// kubeSet says whether an ipset is kube-proxy's, by its name: that of IPv6 is
// derived from that of IPv4, and cut to what the kernel takes. Others begin
// theirs with KUBE- too.
func kubeSet(name string) bool {
	const longest = 31
	return slices.ContainsFunc(setNames(), func(own string) bool {
		six := "KUBE-6-" + strings.TrimPrefix(own, "KUBE-")
		return name == own || name == six[:min(len(six), longest)]
	})
}

func setNames() []string {
	return []string{
		"KUBE-LOOP-BACK", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL",
		"KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER-LOCAL", "KUBE-LOAD-BALANCER-FW",
		"KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR",
		"KUBE-NODE-PORT-TCP", "KUBE-NODE-PORT-LOCAL-TCP", "KUBE-NODE-PORT-UDP", "KUBE-NODE-PORT-LOCAL-UDP",
		"KUBE-NODE-PORT-SCTP-HASH", "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
		"KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-IPVS-IPS",
	}
}

// entry is what there is to remove.
func (v vips) entry() Entry {
	var parts []string
	if n := len(v.Idle) + len(v.Busy); n > 0 {
		parts = append(parts, text.Count(n, "virtual server"))
	}
	count := len(v.Idle) + len(v.Busy) + len(v.Sets)
	if v.Device {
		parts = append(parts, fmt.Sprintf("interface %s with %s", device, text.Count(len(v.Addrs), "address")))
		count++
	}
	if len(v.Sets) > 0 {
		parts = append(parts, text.Count(len(v.Sets), "ipset"))
	}
	return Entry{Mechanism: IPVS, Count: count, What: strings.Join(parts, ", ")}
}

// left says what is not to be removed, and why.
func (v vips) left() []Entry {
	var out []Entry
	if n := len(v.Busy); n > 0 {
		sum := 0
		for _, b := range v.Busy {
			sum += b.Connections
		}
		out = append(out, Entry{Mechanism: IPVS, Count: n, What: fmt.Sprintf("%s, as long as connections go through (now %d): %s",
			text.Count(n, "virtual server"), sum, some(v.Busy))})
	}
	if n := len(v.Held); n > 0 {
		sum := 0
		for _, h := range v.Held {
			sum += h.Connections
		}
		out = append(out, Entry{Mechanism: IPVS, Count: n, What: fmt.Sprintf("%s, as long as programs of this node have connections from there (now %d): %s",
			text.Count(n, "address"), sum, some(v.Held))})
	}
	if v.Unknown {
		out = append(out, Entry{Mechanism: IPVS, Count: 1, What: "virtual servers, until all of kube-proxy's are known"})
	}
	if v.inUse() {
		out = append(out, Entry{Mechanism: IPVS, Count: 1, What: fmt.Sprintf("interface %s and what there is in iptables, until then", device)})
	}
	if n := len(v.Foreign); n > 0 {
		out = append(out, Entry{Mechanism: IPVS, Count: n, What: fmt.Sprintf("%s not known as kube-proxy's: %s", text.Count(n, "virtual server"), some(v.Foreign))})
	}
	return out
}

// some names the first few.
func some[S fmt.Stringer](all []S) string {
	const few = 3
	var names []string
	for _, s := range all[:min(len(all), few)] {
		names = append(names, s.String())
	}
	text := strings.Join(names, ", ")
	if more := len(all) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
