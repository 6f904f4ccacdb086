package route

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// claim is an address, port and protocol that at most one Service can have. A
// NodePort is the claim of the unspecified address of its family. It has no
// pointers and is small, as there is one for every front in the cluster.
type claim struct {
	addr     [16]byte
	port     uint16
	protocol cluster.Protocol
}

// candidate is a front that a Service asks for.
type candidate struct {
	claim  claim
	addr   netip.Addr // invalid for NodePort
	kind   Kind
	family Family
	port   int // index in the ports of the Service; noPort: of the Service itself
	twin   int // index of an earlier port that asks for the same; as port: none
}

// appendCandidates adds all fronts that a Service asks for: the first family
// first, then in the order of its ports.
func appendCandidates(list []candidate, svc *cluster.Service, families []Family) []candidate {
	if svc.Ignored != "" {
		return list
	}
	twins := twinsOf(svc)
	for _, f := range families {
		var few [8]address
		addrs := appendAddresses(few[:0], svc, f)
		if len(addrs) == 0 {
			continue
		}
		for i, p := range svc.Ports {
			twin := twins.port(i, p)
			for _, a := range addrs {
				list = append(list, candidate{
					claim: claim{a.addr.As16(), p.Port, p.Protocol},
					addr:  a.addr, kind: a.kind, family: f, port: i, twin: twin,
				})
			}
			if p.NodePort == 0 || svc.Type == cluster.ClusterIP {
				continue
			}
			list = append(list, candidate{
				claim: claim{anyAddr(f).As16(), p.NodePort, p.Protocol},
				kind:  NodePort, family: f, port: i, twin: twins.nodePort(i, p),
			})
		}
	}
	return list
}

// noPort stands for the index of a port where there is none.
const noPort = -1

// appendHealthPorts adds the health check port that a Service asks for, in each
// family that it has. It is a NodePort like others, except that the node answers
// there.
func appendHealthPorts(list []candidate, svc *cluster.Service, families []Family) []candidate {
	if !asksForHealth(svc) {
		return list
	}
	number, twin := svc.HealthCheckNodePort, noPort
	same := func(p cluster.ServicePort) bool { return p.NodePort == number && p.Protocol == cluster.TCP }
	if i := slices.IndexFunc(svc.Ports, same); i >= 0 {
		twin = i
	}
	for _, f := range families {
		if !hasFamily(svc.ClusterIPs, f) {
			continue
		}
		list = append(list, candidate{
			claim: claim{anyAddr(f).As16(), number, cluster.TCP},
			kind:  healthCheck, family: f, port: noPort, twin: twin,
		})
	}
	return list
}

func hasFamily(addrs []netip.Addr, f Family) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return FamilyOf(a) == f })
}

type address struct {
	addr netip.Addr
	kind Kind
}

// appendAddresses adds the addresses of a Service in a family, each once; none
// without a ClusterIP of the family. An address that is both a load balancer's
// and an external IP keeps its source ranges.
func appendAddresses(list []address, svc *cluster.Service, f Family) []address {
	seen := map[netip.Addr]struct{}{}
	for _, of := range [...]struct {
		kind  Kind
		addrs []netip.Addr
	}{{ClusterIP, svc.ClusterIPs}, {LoadBalancer, svc.LoadBalancerIPs}, {ExternalIP, svc.ExternalIPs}} {
		for _, a := range of.addrs {
			if _, twice := seen[a]; twice || FamilyOf(a) != f {
				continue
			}
			seen[a] = struct{}{}
			list = append(list, address{addr: a, kind: of.kind})
		}
		if len(list) == 0 {
			return list
		}
	}
	return list
}

func anyAddr(f Family) netip.Addr {
	if f == IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// twins finds the ports of a Service that ask for the same.
type twins struct {
	ports, nodePorts map[portKey]int // index of the first port that asks for it
}

type portKey struct {
	number   uint16
	protocol cluster.Protocol
}

// twinsOf looks at all ports of a Service once. A Service of one port has none.
func twinsOf(svc *cluster.Service) twins {
	if len(svc.Ports) < 2 {
		return twins{}
	}
	t := twins{make(map[portKey]int, len(svc.Ports)), map[portKey]int{}}
	for i, p := range svc.Ports {
		setFirst(t.ports, portKey{p.Port, p.Protocol}, i)
		if p.NodePort != 0 {
			setFirst(t.nodePorts, portKey{p.NodePort, p.Protocol}, i)
		}
	}
	return t
}

func setFirst(first map[portKey]int, k portKey, i int) {
	if _, known := first[k]; !known {
		first[k] = i
	}
}

// port returns the index of the first port with the number of port i.
func (t twins) port(i int, p cluster.ServicePort) int {
	if t.ports == nil {
		return i
	}
	return t.ports[portKey{p.Port, p.Protocol}]
}

// nodePort returns the index of the first port with the node port of port i.
func (t twins) nodePort(i int, p cluster.ServicePort) int {
	if t.nodePorts == nil {
		return i
	}
	return t.nodePorts[portKey{p.NodePort, p.Protocol}]
}

// guard are the clients that may use the load balancer addresses of a Service in a
// family.
type guard struct {
	restricted bool
	allow      []netip.Prefix
}

// guardOf returns the clients that the source ranges admit. A range with every
// address removes the limit; a list without a range of the family admits no
// client. A node in the ranges may also connect from the Service's own address,
// which some setups bind to the node, so that the kernel chooses it as source (S-85).
func guardOf(svc *cluster.Service, f Family, v *view) guard {
	if !svc.Restricted {
		return guard{}
	}
	allow := outermost(svc.SourceRanges, f)
	if len(allow) > 0 && allow[0].Bits() == 0 {
		return guard{}
	}
	if !v.inside(allow) {
		return guard{restricted: true, allow: allow}
	}
	for _, a := range svc.LoadBalancerIPs {
		if FamilyOf(a) == f {
			allow = append(allow, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return guard{restricted: true, allow: outermost(allow, f)}
}

// outermost returns the prefixes of a family, masked, in their order, each once
// and without those that lie in another.
func outermost(prefixes []netip.Prefix, f Family) []netip.Prefix {
	left := map[netip.Prefix]bool{}
	for _, p := range ofFamilies(prefixes, []Family{f}) {
		left[p] = true
	}
	list := make([]netip.Prefix, 0, len(left))
	for _, p := range prefixes {
		if p = p.Masked(); left[p] {
			list = append(list, p)
			delete(left, p)
		}
	}
	return slices.Clip(list)
}

// ways are the treatments of a connection, by its source.
type ways struct{ pods, node, others Way }

func same(w Way) ways { return ways{w, w, w} }

// supply summarizes the endpoints of a Port.
type supply struct {
	local int  // backends in the local pool
	any   bool // some endpoint somewhere takes traffic
}

// internalWays decide for ClusterIPs. Clients that are not pods get the node's
// address as source, so that answers return through this node. Without a detector
// the proxy cannot recognize pods, and no client gets it.
func internalWays(svc *cluster.Service, s supply, f Family, v *view) ways {
	if !s.any {
		return same(Way{Verdict: Reject})
	}
	way := Way{Pool: Cluster, Masquerade: v.masqueradeAll}
	if svc.InternalLocal {
		way.Pool = Local
	}
	if way.Pool == Local && s.local == 0 {
		return same(Way{Verdict: Drop})
	}
	out := same(way)
	if v.detector.Detects(f) {
		out.node.Masquerade, out.others.Masquerade = true, true
	}
	return out
}

// externalWays decide for NodePorts, external IPs and load balancers. Under the
// Local policy pods and the node itself reach every backend, as if they had
// used the ClusterIP, whatever is on this node.
func externalWays(svc *cluster.Service, s supply, f Family, v *view) ways {
	if !s.any {
		return same(Way{Verdict: Reject})
	}
	if !externalLocal(svc) {
		return same(Way{Pool: Cluster, Masquerade: true})
	}
	out := ways{
		pods:   Way{Pool: Cluster},
		node:   Way{Pool: Cluster, Masquerade: true},
		others: Way{Pool: Local},
	}
	if s.local == 0 {
		out.others = Way{Verdict: Drop}
	}
	if !v.detector.Detects(f) {
		out.pods = out.others
	}
	return out
}

// externalLocal reports whether externalTrafficPolicy Local counts: only for
// Services meant to be reached from outside.
func externalLocal(svc *cluster.Service) bool {
	return svc.ExternalLocal && (svc.Type != cluster.ClusterIP || len(svc.ExternalIPs) > 0)
}
