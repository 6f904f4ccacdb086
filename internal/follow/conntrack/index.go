package conntrack

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	kernel "github.com/sluice-proxy/sluice/internal/kernel/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
)

// key is where clients reach a Service. Without an address it is a NodePort
// on every local address.
type key struct {
	family   route.Family
	protocol uint8
	addr     netip.Addr
	port     uint16
}

// keyOf is where a flow goes.
func keyOf(e kernel.Entry) key {
	return key{route.FamilyOf(e.OrigDst.Addr()), e.Protocol, e.OrigDst.Addr(), e.OrigDst.Port()}
}

// everywhere is the key of the NodePort with this one's family, protocol and port.
func (k key) everywhere() key {
	k.addr = netip.Addr{}
	return k
}

// front is what is behind a key now.
type front struct {
	owner    cluster.Name
	nodePort bool
	serving  []netip.AddrPort // sorted
}

func (f front) exists() bool { return f.owner != (cluster.Name{}) }

// index is the newest applied state, as far as UDP flows are held against it.
// It does no I/O.
type index struct {
	services  map[cluster.Name]*route.Service // those with UDP ports
	fronts    map[key]front
	nodePorts route.NodePorts
	local     map[netip.Addr]struct{}
}

func newIndex() *index {
	return &index{
		services: map[cluster.Name]*route.Service{},
		fronts:   map[key]front{},
	}
}

// apply takes a change over and returns what has to be looked for because of
// it. It compares with what it was told before, not with Touch.Old.
func (x *index) apply(c route.Change) work {
	before := map[key]front{}
	touched, nodePorts := c.Touched, x.nodePorts
	if c.Table != nil {
		nodePorts = c.Table.Host.NodePorts
	}
	if !x.nodePorts.Equal(nodePorts) {
		touched = append(x.others(touched), touched...)
	}
	x.forget(touched, before)
	x.nodePorts = nodePorts
	for _, t := range touched {
		x.learn(t.New, before)
	}
	w, compared := work{}, comparison{}
	for k, old := range before {
		w.add(k, compared.fronts(old, x.fronts[k]))
	}
	return w
}

// others touches every Service that is not touched, and leaves it as it is.
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

// forget takes out the fronts of the touched Services; before keeps what was
// there. All go before any come: a front may move from one Service to another.
func (x *index) forget(touched []route.Touch, before map[key]front) {
	for _, t := range touched {
		s, ok := x.services[t.Name]
		if !ok {
			continue
		}
		delete(x.services, t.Name)
		for k := range x.frontsOf(s) {
			if f := x.fronts[k]; f.owner == t.Name {
				before[k] = f
				delete(x.fronts, k)
			}
		}
	}
}

func (x *index) learn(s *route.Service, before map[key]front) {
	isUDP := func(p route.Port) bool { return p.Protocol == cluster.UDP }
	if s == nil || !slices.ContainsFunc(s.Ports, isUDP) {
		return
	}
	x.services[s.Name] = s
	for k, f := range x.frontsOf(s) {
		if _, ok := before[k]; !ok {
			before[k] = x.fronts[k]
		}
		x.fronts[k] = f
	}
}

// frontsOf returns the UDP fronts of a Service, each under the keys where the
// host serves it.
func (x *index) frontsOf(s *route.Service) map[key]front {
	fronts := map[key]front{}
	for _, p := range s.Ports {
		if p.Protocol != cluster.UDP {
			continue
		}
		f := front{owner: s.Name, serving: p.Serving}
		for _, where := range p.Fronts {
			f.nodePort = where.Kind == route.NodePort
			for _, a := range x.addrs(where, p.Family) {
				fronts[key{p.Family, kernel.UDP, a, where.Port}] = f
			}
		}
	}
	return fronts
}

// addrs returns the addresses of a front; the invalid one for all local ones.
func (x *index) addrs(where route.Front, family route.Family) []netip.Addr {
	if where.Kind != route.NodePort {
		return []netip.Addr{where.Addr}
	}
	if x.nodePorts.All(family) {
		return []netip.Addr{{}}
	}
	var addrs []netip.Addr
	for _, a := range x.nodePorts.Addrs {
		if route.FamilyOf(a) == family {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// setLocal takes over the local addresses. Flows to one that is new may have
// been on their way elsewhere: NodePorts that serve it take them over.
func (x *index) setLocal(addrs []netip.Addr) work {
	grown := map[route.Family]bool{}
	local := make(map[netip.Addr]struct{}, len(addrs))
	for _, a := range addrs {
		if a.IsLoopback() {
			continue // NodePorts are on it only where it is named
		}
		local[a] = struct{}{}
		if _, ok := x.local[a]; !ok {
			grown[route.FamilyOf(a)] = true
		}
	}
	x.local = local
	w := work{}
	if len(grown) == 0 {
		return w
	}
	for k := range x.fronts {
		if !k.addr.IsValid() && grown[k.family] {
			w.add(k, need{all: true})
		}
	}
	return w
}

// everything asks for all flows to all fronts.
func (x *index) everything() work {
	w := work{}
	for k := range x.fronts {
		w[k] = need{all: true}
	}
	return w
}

// stale reports whether a flow must go, by the newest state. Only flows to a
// front that w names are looked at.
func (x *index) stale(e kernel.Entry, w work) bool {
	if e.Protocol != kernel.UDP {
		return stuck(e, w)
	}
	here := keyOf(e)
	n := w[here]
	f, served := x.fronts[here]
	if x.isLocal(e) {
		n = n.merge(w[here.everywhere()])
		if !served {
			f, served = x.fronts[here.everywhere()]
		}
	}
	switch {
	case n.none():
		return false
	case !served:
		// Nothing is at the address now, or something that is not ours. What was
		// never translated goes where it should.
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

// isLocal reports whether the flow goes to an address that serves the NodePorts
// of every local address. Link-local addresses are not unique; but a flow that
// was translated has been recognised by the host as its own.
func (x *index) isLocal(e kernel.Entry) bool {
	a := e.OrigDst.Addr()
	if a.IsLinkLocalUnicast() && e.Translated() {
		return true
	}
	_, ok := x.local[a]
	return ok
}
