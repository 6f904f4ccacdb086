package takeover

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/text"
)

// vips has the leftovers of kube-proxy's ipvs mode outside of iptables.
type vips struct {
	Idle      []ipvs.Server           // kube-proxy's, without connections
	Busy      []ipvs.Server           // kube-proxy's, with connections that would end with them
	Held      []netip.Addr            // addresses from which programs of this host have connections
	Foreign   []ipvs.Server           // of other programs, or not identified as kube-proxy's
	Unknown   bool                    // not all of kube-proxy's virtual servers and their connections could be listed
	Device    bool                    // there is kube-ipvs0
	Addrs     []netip.Addr            // on it
	Sets      []string                // ipsets
	Frontends map[ipvs.Server]bool    // for clients outside of the cluster, in sets
	NodePorts map[uint16]bool         // in sets
	Marked    map[uint32][]netip.Addr // the addresses of packets that have a mark of Sluice's
	Immediate bool                    // do not wait for connections to end
}

// split returns kube-proxy's virtual servers and all others. kube-proxy has them at addresses on its interface, at
// frontends in its sets, and at NodePorts of the node's own addresses. Sluice's beside them count as kube-proxy's.
func (v vips) split(servers []ipvs.Server, local []netip.Addr) (owned, foreign []ipvs.Server) {
	for _, s := range servers {
		service := slices.Contains(v.Addrs, s.Addr) || v.Frontends[s]
		node := slices.Contains(local, s.Addr) && !s.Addr.IsLoopback() && v.NodePorts[s.Port]
		if s.Mark == 0 && (service || node) || s.Own() {
			owned = append(owned, s)
		} else {
			foreign = append(foreign, s)
		}
	}
	return owned, foreign
}

// inUse reports whether removing everything would end connections, or may.
func (v vips) inUse() bool { return len(v.Busy)+len(v.Held) > 0 || v.Unknown }

// unused returns the addresses on the interface that no connection needs.
func (v vips) unused() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(v.Addrs), func(a netip.Addr) bool {
		return slices.Contains(v.Held, a) || slices.ContainsFunc(v.Busy, func(b ipvs.Server) bool {
			return b.Addr == a || b.Mark != 0 && slices.Contains(v.Marked[b.Mark], a)
		})
	})
}

// kubeSet reports whether an ipset has a name of kube-proxy's. The name for IPv6 is derived from that for IPv4, and
// truncated to the length that the kernel allows. Sets of other programs begin with KUBE- too.
func kubeSet(name string) bool {
	const longest = 31
	return slices.ContainsFunc(setNames(), func(own string) bool {
		six := "KUBE-6-" + strings.TrimPrefix(own, "KUBE-")
		return name == own || name == six[:min(len(six), longest)]
	})
}

// shortCuts is the set of Sluice's mode ipvs that gives packets their mark.
const shortCuts = "KUBE-SLUICE-SHORT-CUT"

// nodePortSet is in the names of sets with NodePorts.
const nodePortSet = "-NODE-PORT-"

func setNames() []string {
	return []string{
		"KUBE-LOOP-BACK", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL",
		"KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER-LOCAL", "KUBE-LOAD-BALANCER-FW",
		"KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR",
		"KUBE-NODE-PORT-TCP", "KUBE-NODE-PORT-LOCAL-TCP", "KUBE-NODE-PORT-UDP", "KUBE-NODE-PORT-LOCAL-UDP",
		"KUBE-NODE-PORT-SCTP-HASH", "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
		"KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-IPVS-IPS",
		"KUBE-SLUICE-DROP", "KUBE-SLUICE-NO-LOCAL", shortCuts, // of Sluice in this mode
	}
}

// entry describes the objects to remove.
func (v vips) entry() Entry {
	var parts []string
	if n := len(v.Idle) + len(v.Busy); n > 0 {
		parts = append(parts, text.Count(n, "virtual server"))
	}
	count := len(v.Idle) + len(v.Busy) + len(v.Sets)
	if v.Device {
		parts = append(parts, fmt.Sprintf("interface %s with %s", ServiceDevice, text.Count(len(v.Addrs), "address")))
		count++
	}
	if len(v.Sets) > 0 {
		parts = append(parts, text.Count(len(v.Sets), "ipset"))
	}
	return Entry{Mechanism: IPVS, Count: count, What: strings.Join(parts, ", ")}
}

// left returns a few words for each kind of objects that stay, with the reason.
func (v vips) left() (lines []string) {
	if n := len(v.Busy); n > 0 {
		lines = append(lines, text.Count(n, "virtual server")+", as long as connections go through")
	}
	if n := len(v.Held); n > 0 {
		lines = append(lines, text.Count(n, "address")+" of "+ServiceDevice+
			", as long as programs of this node have connections from there")
	}
	if v.Unknown {
		lines = append(lines, "the virtual servers, until all of kube-proxy's are known")
	}
	if v.inUse() {
		lines = append(lines, "interface "+ServiceDevice+" and kube-proxy's rules in iptables, until then")
	}
	if n := len(v.Foreign); n > 0 {
		lines = append(lines, text.Count(n, "virtual server")+" not known as kube-proxy's")
	}
	return lines
}
