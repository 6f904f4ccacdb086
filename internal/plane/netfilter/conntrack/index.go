package conntrack

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	kernel "github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
)

// key is an address and port where clients reach a Service. Without an address it is a NodePort on every local address.
type key struct {
	family   route.Family
	protocol uint8
	addr     netip.Addr
	port     uint16
}

// keyOf returns the destination of a flow.
func keyOf(e kernel.Entry) key {
	return key{route.FamilyOf(e.OrigDst.Addr()), e.Protocol, e.OrigDst.Addr(), e.OrigDst.Port()}
}

// everywhere is the key of the NodePort with this one's family, protocol and port.
func (k key) everywhere() key {
	k.addr = netip.Addr{}
	return k
}

// frontend is the present state of a key.
type frontend struct {
	owner    cluster.Name
	nodePort bool
	serving  []netip.AddrPort // sorted
}

func (f frontend) exists() bool { return f.owner != (cluster.Name{}) }

// index is the last applied state that decides whether UDP flows are stale. It does no I/O.
type index struct {
	services  map[cluster.Name]*route.Service // those with UDP ports
	frontends map[key]frontend
	nodePorts route.NodePorts
	local     map[netip.Addr]struct{}
}

func newIndex() *index {
	return &index{
		services:  map[cluster.Name]*route.Service{},
		frontends: map[key]frontend{},
	}
}

// apply applies a change and returns the work for it. It compares with the last applied state, not with Touch.Old.
func (x *index) apply(c route.Change) flows {
	before := map[key]frontend{}
	touched, nodePorts := c.Touched, x.nodePorts
	if c.Table != nil {
		nodePorts = c.Table.Host.NodePorts
	}
	if !x.nodePorts.Equal(nodePorts) {
		touched = append(x.others(touched), touched...)
	}
	x.remove(touched, before)
	x.nodePorts = nodePorts
	for _, t := range touched {
		x.add(t.New, before)
	}
	w, compared := flows{}, comparison{}
	for k, old := range before {
		w.add(k, compared.frontends(old, x.frontends[k]))
	}
	return w
}

// others adds an unchanged Touch for every Service that is not touched.
func (x *index) others(touched []route.Touch) []route.Touch {
	services := maps.Clone(x.services)
	for _, t := range touched {
		delete(services, t.Name)
	}
	others := make([]route.Touch, 0, len(services))
	for name, s := range services {
		others = append(others, route.Touch{Name: name, New: s})
	}
	return others
}

// remove removes the frontends of the touched Services and keeps their state in before. It removes all before any is
// added, as a frontend may move from one Service to another.
func (x *index) remove(touched []route.Touch, before map[key]frontend) {
	for _, t := range touched {
		s, ok := x.services[t.Name]
		if !ok {
			continue
		}
		delete(x.services, t.Name)
		for k := range x.frontendsOf(s) {
			if f := x.frontends[k]; f.owner == t.Name {
				before[k] = f
				delete(x.frontends, k)
			}
		}
	}
}

// add adds the frontends of a Service and keeps earlier states that are not in before yet.
func (x *index) add(s *route.Service, before map[key]frontend) {
	isUDP := func(p route.Port) bool { return p.Protocol == cluster.UDP }
	if s == nil || !slices.ContainsFunc(s.Ports, isUDP) {
		return
	}
	x.services[s.Name] = s
	for k, f := range x.frontendsOf(s) {
		if _, ok := before[k]; !ok {
			before[k] = x.frontends[k]
		}
		x.frontends[k] = f
	}
}

// frontendsOf returns the UDP frontends of a Service, each under the keys where the host serves it.
func (x *index) frontendsOf(s *route.Service) map[key]frontend {
	frontends := map[key]frontend{}
	for _, p := range s.Ports {
		if p.Protocol != cluster.UDP {
			continue
		}
		f := frontend{owner: s.Name, serving: p.Serving}
		for _, where := range p.Frontends {
			f.nodePort = where.Kind == route.NodePort
			for _, a := range x.addrs(where, p.Family) {
				frontends[key{p.Family, kernel.UDP, a, where.Port}] = f
			}
		}
	}
	return frontends
}

// addrs returns the addresses of a frontend; the invalid one for all local ones.
func (x *index) addrs(where route.Frontend, family route.Family) []netip.Addr {
	if where.Kind != route.NodePort {
		return []netip.Addr{where.Addr}
	}
	if x.nodePorts.All(family) {
		return []netip.Addr{{}}
	}
	return x.nodePorts.Of(family)
}

// setLocal sets the local addresses and returns the work for new ones: their flows may
// have been forwarded before, and belong to NodePorts now.
func (x *index) setLocal(addrs []netip.Addr) flows {
	grown := map[route.Family]bool{}
	local := make(map[netip.Addr]struct{}, len(addrs))
	for _, a := range addrs {
		if a.IsLoopback() {
			continue // serves NodePorts only if the configuration names it
		}
		local[a] = struct{}{}
		if _, ok := x.local[a]; !ok {
			grown[route.FamilyOf(a)] = true
		}
	}
	x.local = local
	w := flows{}
	if len(grown) == 0 {
		return w
	}
	for k := range x.frontends {
		if !k.addr.IsValid() && grown[k.family] {
			w.add(k, need{all: true})
		}
	}
	return w
}

// everything returns the work for all flows to all frontends.
func (x *index) everything() flows {
	w := flows{}
	for k := range x.frontends {
		w[k] = need{all: true}
	}
	return w
}

// stale reports whether a flow must end, by the last applied state. Flows to frontends that are not in w stay.
func (x *index) stale(e kernel.Entry, w flows) bool {
	if e.Protocol != kernel.UDP {
		return stuck(e, w)
	}
	here := keyOf(e)
	n := w[here]
	f, served := x.frontends[here]
	if x.isLocal(e) {
		n = n.merge(w[here.everywhere()])
		if !served {
			f, served = x.frontends[here.everywhere()]
		}
	}
	switch {
	case n.none():
		return false
	case !served:
		// No Service has the address now. A flow that was never translated keeps its own destination.
		return e.Translated() && (n.all || contains(n.gone, e.ReplySrc))
	case len(f.serving) == 0 && f.nodePort:
		return e.Translated() // the rest may belong to a server of this host
	}
	return !contains(f.serving, e.ReplySrc)
}

// contains reports whether a sorted list has a backend.
func contains(sorted []netip.AddrPort, b netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(sorted, b, netip.AddrPort.Compare)
	return ok
}

// isLocal reports whether the flow goes to an address that serves the NodePorts of every local address. Link-local
// addresses are not unique; but a flow that was translated has been recognised by the host as its own.
func (x *index) isLocal(e kernel.Entry) bool {
	a := e.OrigDst.Addr()
	if a.IsLinkLocalUnicast() && e.Translated() {
		return true
	}
	_, ok := x.local[a]
	return ok
}

// handshakes returns the ClusterIPs that are balanced now and were not before: TCP and
// SCTP handshakes may be stuck there. ended are those that are no longer balanced.
func handshakes(c route.Change) (started flows, ended []key) {
	started = flows{}
	for _, t := range c.Touched {
		for k := range balanced(t.New) {
			started[k] = need{all: true}
		}
	}
	for _, t := range c.Touched {
		for k := range balanced(t.Old) {
			if _, still := started[k]; !still {
				ended = append(ended, k)
			}
			delete(started, k)
		}
	}
	return started, ended
}

// balanced yields the ClusterIPs of a Service over TCP and SCTP that are balanced over backends. No host answers at a
// ClusterIP itself. At other addresses a host may answer by a route that this node does not know.
func balanced(s *route.Service) iter.Seq[key] {
	return func(yield func(key) bool) {
		if s == nil {
			return
		}
		for _, p := range s.Ports {
			for _, f := range p.Frontends {
				if p.Protocol == cluster.UDP || f.Kind != route.ClusterIP || !balances(f) {
					continue
				}
				if !yield(key{p.Family, uint8(p.Protocol), f.Addr, f.Port}) {
					return
				}
			}
		}
	}
}

func balances(f route.Frontend) bool {
	return f.Pods.Verdict == route.Balance || f.Node.Verdict == route.Balance || f.Others.Verdict == route.Balance
}

// stuck reports whether a TCP or SCTP handshake cannot complete: it has no answer, and
// its entry leaves retransmissions untranslated.
func stuck(e kernel.Entry, w flows) bool {
	_, ours := w[keyOf(e)]
	return ours && e.Opening() && e.Zone == 0 && !e.Answered() && !e.Translated() && e.ReplySrc == e.OrigDst
}
