package route

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// claim is an address, port and protocol, which at most one Service can own. A NodePort claims the unspecified address
// of its family. It has no pointers and is small, as there is one for every frontend in the cluster.
type claim struct {
	addr     [16]byte
	port     uint16
	protocol cluster.Protocol
}

// candidate is a frontend that a Service asks for.
type candidate struct {
	claim  claim
	addr   netip.Addr // invalid for NodePort
	kind   FrontendKind
	family Family
	port   int // index in the ports of the Service; noPort: the health check port
	twin   int // index of the first port with the same claim; same as port: no earlier one
}

// eachPort calls do with the frontends that a Service asks for, port by port: first all ports in the first family. The
// lists are in the memory of room, and each is valid until do returns.
func eachPort(room *[]candidate, svc *cluster.Service, families []Family, do func([]candidate)) {
	if svc.Ignored != "" {
		return
	}
	twins := twinsOf(svc)
	for _, f := range families {
		var few [8]address
		addrs := appendAddresses(few[:0], svc, f)
		if len(addrs) == 0 {
			continue
		}
		for i, p := range svc.Ports {
			list := reuse(*room)
			twin := twins.first(portKey{number: p.Port, protocol: p.Protocol}, i)
			for _, a := range addrs {
				list = append(list, candidate{
					claim: claim{a.addr.As16(), p.Port, p.Protocol},
					addr:  a.addr, kind: a.kind, family: f, port: i, twin: twin,
				})
			}
			if p.NodePort != 0 && svc.Type != cluster.ClusterIP {
				list = append(list, candidate{
					claim: claim{f.Unspecified().As16(), p.NodePort, p.Protocol},
					kind:  NodePort, family: f, port: i, twin: twins.first(portKey{p.NodePort, p.Protocol, true}, i),
				})
			}
			do(list)
			*room = list
		}
	}
}

// countPorts returns how many ports a Service has, counted once in each family that it has a ClusterIP of.
func countPorts(svc *cluster.Service, families []Family) int {
	n := 0
	for _, f := range families {
		if f.In(svc.ClusterIPs) {
			n += len(svc.Ports)
		}
	}
	return n
}

// noPort stands for the index of a port where there is none.
const noPort = -1

// appendHealthPorts adds the health check node port that a Service asks for, in each family that it has. It cannot be
// the NodePort of another Service, as the proxy itself answers there.
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
		if !f.In(svc.ClusterIPs) {
			continue
		}
		list = append(list, candidate{
			claim: claim{f.Unspecified().As16(), number, cluster.TCP},
			kind:  healthCheck, family: f, port: noPort, twin: twin,
		})
	}
	return list
}

type address struct {
	addr netip.Addr
	kind FrontendKind
}

// appendAddresses adds the addresses of a Service in a family, each once; none if it has no ClusterIP of the family. An
// address that is both a load balancer IP and an external IP counts as the former, so that its source ranges hold.
func appendAddresses(list []address, svc *cluster.Service, f Family) []address {
	seen := map[netip.Addr]struct{}{}
	for _, of := range [...]struct {
		kind  FrontendKind
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

// twins has the index of the first port of a Service with each number and protocol; nil for a Service of one port.
type twins map[portKey]int

type portKey struct {
	number   uint16
	protocol cluster.Protocol
	nodePort bool // number is a NodePort
}

func twinsOf(svc *cluster.Service) twins {
	if len(svc.Ports) < 2 {
		return nil
	}
	first := make(twins, len(svc.Ports))
	for i, p := range slices.Backward(svc.Ports) {
		first[portKey{number: p.Port, protocol: p.Protocol}] = i
		if p.NodePort != 0 {
			first[portKey{p.NodePort, p.Protocol, true}] = i
		}
	}
	return first
}

// first returns the index of the first port with the number of port i.
func (t twins) first(k portKey, i int) int {
	if t == nil {
		return i
	}
	return t[k]
}

// guard says which clients may use the load balancer addresses of a Service in a family.
type guard struct {
	restricted bool
	allow      []netip.Prefix
}

// guardOf returns which clients the source ranges admit. A range of all addresses admits every client; a list without
// a range of the family admits none. A node in the ranges may also connect from the Service's own address, which some
// clusters assign to the node, so that the kernel chooses it as source (S-85).
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

// outermost returns the prefixes of a family that lie in no other one, masked, in their order, each once.
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

type ways struct{ pods, node, others Action }

func same(w Action) ways { return ways{w, w, w} }

// supply summarizes the endpoints of a Port.
type supply struct {
	local int  // backends in the local pool
	any   bool // an endpoint on any node is usable
}

// internalWays returns the ways of ClusterIPs. Connections of clients that are not pods get source NAT, so that answers
// return through this node. Without a detector the proxy cannot recognize pods, and no connection gets it.
func internalWays(svc *cluster.Service, s supply, f Family, v *view) ways {
	if !s.any {
		return same(Action{Verdict: Reject})
	}
	way := Action{Pool: Cluster, Masquerade: v.masqueradeAll}
	if svc.InternalLocal {
		way.Pool = Local
	}
	if way.Pool == Local && s.local == 0 {
		return same(Action{Verdict: Drop})
	}
	out := same(way)
	if v.detector.Detects(f) {
		out.node.Masquerade, out.others.Masquerade = true, true
	}
	return out
}

// externalWays returns the ways of NodePorts, external IPs and load balancer IPs. With externalTrafficPolicy Local,
// pods and the node itself still reach all backends, as if they had used the ClusterIP.
func externalWays(svc *cluster.Service, s supply, f Family, v *view) ways {
	if !s.any {
		return same(Action{Verdict: Reject})
	}
	if !externalLocal(svc) {
		return same(Action{Pool: Cluster, Masquerade: true})
	}
	return localWays(s, f, v)
}

// localWays returns the ways of connections that stay on this node, except connections of its own clients.
func localWays(s supply, f Family, v *view) ways {
	out := ways{
		pods:   Action{Pool: Cluster},
		node:   Action{Pool: Cluster, Masquerade: true},
		others: Action{Pool: Local},
	}
	if s.local == 0 {
		out.others = Action{Verdict: Drop}
	}
	if !v.detector.Detects(f) {
		out.pods = out.others
	}
	return out
}

// externalLocal reports whether externalTrafficPolicy Local applies: the Service has addresses for external clients.
func externalLocal(svc *cluster.Service) bool {
	return svc.ExternalLocal && (svc.Type != cluster.ClusterIP || len(svc.ExternalIPs) > 0)
}
