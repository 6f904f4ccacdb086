package kernelspace

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// Load bounds the contents of one write.
func Load() plane.Load {
	return plane.Load{
		Piece: 1000, Cost: func(p *route.Port) int { return 2*len(p.Frontends) + max(len(p.Cluster), len(p.Local)) },
	}
}

// renderer renders one Service.
type renderer struct {
	*Plane
	state   *state
	host    *route.Host
	entries []entry
	remotes map[netip.Addr]bool // that entries has
}

// render returns the entries of a Service; nil if svc is nil. They depend only on the arguments, the options, and what
// Refresh read about the host.
func (p *Plane) render(svc *route.Service, host *route.Host) []entry {
	if svc == nil || p.writer.state == nil {
		return nil
	}
	r := renderer{Plane: p, state: p.writer.state, host: host, remotes: map[netip.Addr]bool{}}
	for i := range svc.Ports {
		r.port(&svc.Ports[i])
	}
	return r.entries
}

func (r *renderer) port(p *route.Port) {
	protocol := protocolOf(p.Protocol)
	if protocol == 0 || p.Family == route.IPv6 && !r.state.dualStack() {
		return
	}
	r.healthChecks(p)
	for i := range p.Frontends {
		f := &p.Frontends[i]
		way := f.Others
		if f.Kind == route.ClusterIP {
			way = f.Pods
			r.clusterIP(f.Addr)
		}
		if way.Verdict != route.Balance {
			continue // HNS neither refuses nor drops
		}
		backends := ofOnePort(p.Backends(way.Pool))
		for _, addr := range r.addresses(f, p.Family) {
			k := key{class: classOf(f.Kind), addr: addr, family: p.Family, protocol: protocol, port: f.Port}
			r.balancer(k, value{flags: r.flags(p, f, way), source: r.source(p, backends)}, p, backends)
		}
	}
}

// here reports whether a backend is on this node, so that its endpoint belongs to the CNI.
func here(p *route.Port, a netip.Addr) bool {
	return contains(p.Here, a) && !contains(p.Unplaced, a)
}

// contains reports whether a sorted list has an address. A Service may have very many.
func contains(sorted []netip.Addr, a netip.Addr) bool {
	_, has := slices.BinarySearchFunc(sorted, a, netip.Addr.Compare)
	return has
}

// clusterIP adds the remote endpoint of a clusterIP, which an overlay network needs.
func (r *renderer) clusterIP(a netip.Addr) {
	if r.state.overlay() && r.state.hostMAC != "" && r.state.nodeIP.IsValid() {
		r.entries = append(r.entries, entry{Key: key{class: vip, addr: a}})
	}
}

// healthChecks adds a load balancer for the health checks of each load balancer address. It leads to
// the endpoint of this node, at the health check node port of the Service or the port of the health server.
func (r *renderer) healthChecks(p *route.Port) {
	root, port := r.state.roots[p.Family], cmp.Or(p.HealthPort, r.opt.HealthPort)
	if !root.IsValid() || port == 0 {
		return
	}
	preserve := p.PreserveDestination && p.HealthPort != 0 // otherwise Services share it
	for i := range p.Frontends {
		f := &p.Frontends[i]
		taken := f.Port == port && p.Protocol == cluster.TCP
		if f.Kind != route.LoadBalancer || f.Others.Verdict == route.Reject || taken {
			continue
		}
		r.entries = append(r.entries, entry{
			Key: key{class: healthCheck, addr: f.Addr, family: p.Family, protocol: uint8(cluster.TCP), port: port},
			Value: value{
				target: port, endpoints: root.String(), source: r.source(p, nil),
				flags: hns.Flags{IPv6: p.Family == route.IPv6, UseMux: preserve, PreserveDIP: preserve},
			},
		})
	}
}

// balancer adds a load balancer, and before it the remote endpoints of its backends.
func (r *renderer) balancer(k key, v value, p *route.Port, backends []netip.AddrPort) {
	if len(backends) == 0 {
		return
	}
	for _, b := range backends {
		if !here(p, b.Addr()) && !r.remotes[b.Addr()] {
			r.remotes[b.Addr()] = true
			r.entries = append(r.entries, entry{Key: key{class: remote, addr: b.Addr()}})
		}
	}
	v.target, v.endpoints = backends[0].Port(), join(backends)
	r.entries = append(r.entries, entry{Key: k, Value: v})
}

// ofOnePort returns the backends with the most common port: a load balancer leads to one.
func ofOnePort(backends []netip.AddrPort) []netip.AddrPort {
	other := func(b netip.AddrPort) bool { return b.Port() != backends[0].Port() }
	if !slices.ContainsFunc(backends, other) {
		return backends
	}
	count := map[uint16]int{}
	for _, b := range backends {
		count[b.Port()]++
	}
	var port uint16
	for p, n := range count {
		if n > count[port] || n == count[port] && p < port {
			port = p
		}
	}
	return slices.DeleteFunc(slices.Clone(backends), func(b netip.AddrPort) bool { return b.Port() != port })
}

// join returns the addresses of backends as they are in a value.
func join(backends []netip.AddrPort) string {
	list := make([]string, len(backends))
	for i, b := range backends {
		list[i] = b.Addr().String()
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), " ")
}

// addresses returns the addresses of a frontend: an invalid one for all of this host.
func (r *renderer) addresses(f *route.Frontend, family route.Family) []netip.Addr {
	if f.Kind != route.NodePort {
		return []netip.Addr{f.Addr}
	}
	if r.host.NodePorts.All(family) {
		return []netip.Addr{{}}
	}
	return slices.DeleteFunc(slices.Clone(r.host.NodePorts.Addrs), func(a netip.Addr) bool {
		return route.FamilyOf(a) != family || a.IsLoopback()
	})
}

// flags returns the flags that kube-proxy sets. One differs: NodePorts of Services with preserve-destination use
// direct server return, as their connections stay on this node.
func (r *renderer) flags(p *route.Port, f *route.Frontend, way route.Action) hns.Flags {
	has := r.state.features
	preserve := f.Kind == route.LoadBalancer && p.PreserveDestination && has.DSR
	direct := f.Kind == route.ClusterIP && r.opt.DSR || f.Kind != route.ClusterIP && way.Pool == route.Local
	return hns.Flags{
		DSR:         has.DSR && direct,
		IPv6:        p.Family == route.IPv6,
		External:    f.Kind != route.ClusterIP,
		LocalRouted: f.Kind == route.NodePort,
		UseMux:      preserve,
		PreserveDIP: preserve,
		Affinity:    has.SessionAffinity && p.Affinity != 0,
	}
}

// source returns the source of connections with source NAT: the source VIP, except that in an overlay
// network backends outside of pods get the address of the node.
func (r *renderer) source(p *route.Port, backends []netip.AddrPort) netip.Addr {
	out := r.opt.SourceVIP
	for _, b := range backends {
		a := b.Addr()
		if node := r.state.provider(a); r.state.overlay() && !here(p, a) && (!node.IsValid() || node == a) {
			out = r.state.nodeIP
		}
	}
	if !out.IsValid() || route.FamilyOf(out) != p.Family {
		return netip.Addr{}
	}
	return out
}

func classOf(k route.FrontendKind) class {
	return [...]class{
		route.ClusterIP: clusterIP, route.NodePort: nodePort, route.ExternalIP: externalIP, route.LoadBalancer: ingressIP,
	}[k]
}

// protocolOf returns the number of a protocol that HNS balances; 0: it does not.
func protocolOf(p cluster.Protocol) uint8 {
	if p == cluster.TCP || p == cluster.UDP {
		return uint8(p)
	}
	return 0
}
