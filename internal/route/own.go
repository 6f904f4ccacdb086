package route

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Listener is a TCP port that the proxy itself listens on.
type Listener struct {
	At   netip.AddrPort // an unspecified address stands for every address of both families
	Name string         // for people: "health server (healthzBindAddress)"
}

// covers reports whether connections to an address of this node reach the listener.
func (l Listener) covers(a netip.Addr) bool {
	return l.At.Addr() == a || l.At.Addr().IsUnspecified()
}

func (l Listener) reason() string {
	return fmt.Sprintf("left out, as it would hide this proxy's %s, which listens on %s; use another port", l.Name, l.At)
}

// own has the addresses of the node and the listeners of the proxy, which Services may hide.
type own struct {
	node      string
	addrs     map[netip.Addr]bool // without loopback addresses
	listeners []Listener
	nodePorts NodePorts
}

func ownOf(opt Options, facts *cluster.Facts, host Host) own {
	o := own{
		node: "this node", addrs: map[netip.Addr]bool{}, listeners: opt.Listeners, nodePorts: host.NodePorts,
	}
	addrs := facts.Local
	if facts.Node != nil {
		o.node = "node " + facts.Node.Name
		addrs = slices.Concat(addrs, facts.Node.Addresses)
	}
	for _, a := range addrs {
		if !a.IsLoopback() {
			o.addrs[a.WithZone("")] = true
		}
	}
	return o
}

// hide reports whether a NodePort with the number of a listener would be served where the listener listens.
func (n NodePorts) hide(l Listener, f Family) bool {
	at := l.At.Addr()
	if at.IsUnspecified() {
		return n.ServeAny(f)
	}
	return FamilyOf(at) == f && n.Serve(at)
}

// hiddenBy returns the listener that a frontend would hide; false: none.
func (o *own) hiddenBy(c candidate) (Listener, bool) {
	if c.claim.protocol != cluster.TCP {
		return Listener{}, false
	}
	for _, l := range o.listeners {
		if l.At.Port() != c.claim.port {
			continue
		}
		hides := l.covers(c.addr) && (o.addrs[c.addr] || l.At.Addr() == c.addr)
		if c.kind == NodePort {
			hides = o.nodePorts.hide(l, c.family)
		}
		if hides {
			return l, true
		}
	}
	return Listener{}, false
}

// problems reports ClusterIPs that are addresses of the node. External and load balancer IPs often are on purpose.
func (o *own) problems(svc *cluster.Service, families []Family) []Problem {
	var list []Problem
	for _, a := range svc.ClusterIPs {
		if o.addrs[a] && slices.Contains(families, FamilyOf(a)) {
			list = append(list, Problem{
				Object: "Service " + svc.Name.String(), Field: "spec.clusterIPs", Value: a.String(),
				Reason: "is an address of " + o.node + ": the ports of the Service hide the node's own listeners on them, " +
					"and all other ports lead to the node; use an address that no node has",
			})
		}
	}
	return list
}

// changed returns the addresses of the node that only one of two states has.
func (o *own) changed(p own) map[netip.Addr]bool {
	changed := maps.Clone(o.addrs)
	for a := range p.addrs {
		if o.addrs[a] {
			delete(changed, a)
		} else {
			changed[a] = true
		}
	}
	return changed
}

// uses reports whether a Service has one of the addresses.
func uses(svc *cluster.Service, addrs map[netip.Addr]bool) bool {
	if len(addrs) == 0 {
		return false
	}
	has := func(a netip.Addr) bool { return addrs[a] }
	return slices.ContainsFunc(svc.ClusterIPs, has) || slices.ContainsFunc(svc.ExternalIPs, has) ||
		slices.ContainsFunc(svc.LoadBalancerIPs, has)
}
