package kernelspace

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// state is the result of the last Refresh, updated by the writer.
type state struct {
	features  hns.Features
	network   hns.Network
	endpoints map[netip.Addr]hns.Endpoint // in the network; one of this host before a remote one
	unfit     map[string]hns.Endpoint     // of this plane, which another one replaces, by ID
	here      map[string]bool             // the IDs of endpoints in the network
	elsewhere map[string]bool             // the IDs of endpoints in other networks
	found     map[key][]found             // load balancers that Refresh has read, by place
	differs   bool                        // one of them is not as it was written
	waiting   map[key]bool                // endpoints that no Service needs, and to which load balancers still refer
	balancers map[key]hns.LoadBalancer    // of this plane: as written, or as a comparison found them
	roots     map[route.Family]netip.Addr // of the endpoint of this node that gets health checks
	nodeIP    netip.Addr                  // of this node; invalid: not known
	hostMAC   string                      // of the interface with nodeIP
	sourceVIP netip.Addr                  // of the options
}

// found is a load balancer that Refresh has read.
type found struct {
	hns.LoadBalancer
	differs bool // from what this plane wrote
}

func (s *state) overlay() bool { return s.network.Type.Is(hns.Overlay) }

// dualStack reports whether IPv6 is served beside IPv4.
func (s *state) dualStack() bool { return s.features.DualStack && !s.overlay() }

// provider returns the address of the node that has an endpoint of an overlay network; invalid: no
// remote subnet contains it.
func (s *state) provider(a netip.Addr) netip.Addr {
	for _, r := range s.network.Remote {
		if r.Prefix.Contains(a) || r.Provider == a {
			return r.Provider
		}
	}
	return netip.Addr{}
}

// findRoots sets the addresses of the endpoint with a name, one of each family that it has.
func (s *state) findRoots(name string) {
	s.roots = map[route.Family]netip.Addr{}
	for a, e := range s.endpoints {
		f := route.FamilyOf(a)
		if had := s.roots[f]; name != "" && strings.EqualFold(e.Name, name) && (!had.IsValid() || a.Less(had)) {
			s.roots[f] = a
		}
	}
}

func (s *state) setEndpoints(list []hns.Endpoint) {
	s.endpoints, s.unfit = map[netip.Addr]hns.Endpoint{}, map[string]hns.Endpoint{}
	s.here, s.elsewhere = map[string]bool{}, map[string]bool{}
	for _, e := range list {
		if e.Network != s.network.ID {
			s.elsewhere[e.ID] = true
			continue
		}
		s.here[e.ID] = true
		for _, a := range e.Addrs {
			s.setEndpoint(a, e)
		}
	}
}

// setEndpoint stores the endpoint with an address. Of two remote ones the first stays, and one of a container
// replaces a remote one.
func (s *state) setEndpoint(a netip.Addr, e hns.Endpoint) {
	old, has := s.endpoints[a]
	switch {
	case has && e.Remote:
		s.retire(e)
		return
	case has && old.Remote:
		s.retire(old)
	}
	s.endpoints[a] = e
}

// retire notes an endpoint that another one replaces, if it belongs to this plane.
func (s *state) retire(e hns.Endpoint) {
	if _, ours := s.class(e); ours {
		s.unfit[e.ID] = e
	}
}

// retireUnfit retires the endpoints that are not as this plane creates them. Some addresses are reserved for
// endpoints of a class: a backend may have such an address too, and uses its endpoint.
func (s *state) retireUnfit(reserved map[netip.Addr]class) {
	for a, e := range s.endpoints {
		c, ours := s.class(e)
		want, is := reserved[a]
		if !is {
			want = c
		}
		node := s.node(c, a)
		if ours && (want != c || node.IsValid() && e.Provider != node || c == vip && !s.isHostMAC(e.MAC)) {
			s.unfit[e.ID] = e
			delete(s.endpoints, a)
		}
	}
}

// node returns the address of the node of an endpoint; invalid: it needs none.
func (s *state) node(c class, a netip.Addr) netip.Addr {
	if !s.overlay() || c == source {
		return netip.Addr{}
	}
	if node := s.provider(a); c == remote && node.IsValid() {
		return node
	}
	return s.nodeIP
}

// class returns the class of an endpoint that this plane, an earlier run, or kube-proxy created; false if
// another program created it.
func (s *state) class(e hns.Endpoint) (class, bool) {
	switch {
	case len(e.Addrs) != 1:
		return 0, false
	case e.Name == sourceName, s.kubeProxySource(e):
		return source, true
	case e.Remote && sameMAC(e.MAC, hns.MAC(e.Addrs[0])):
		return remote, true
	case e.Remote && s.overlay() && (s.isHostMAC(e.MAC) || s.nodeIP.IsValid() && e.Provider == s.nodeIP):
		return vip, true
	}
	return 0, false
}

// kubeProxySource reports whether an endpoint is that of the source VIP as kube-proxy makes it: without a name.
func (s *state) kubeProxySource(e hns.Endpoint) bool {
	return s.overlay() && !e.Remote && e.Name == "" && e.Addrs[0] == s.sourceVIP && s.isHostMAC(e.MAC)
}

// isHostMAC reports whether the interface of this node has a MAC address.
func (s *state) isHostMAC(mac string) bool { return s.hostMAC != "" && sameMAC(mac, s.hostMAC) }

func sameMAC(a, b string) bool {
	return strings.EqualFold(strings.ReplaceAll(a, ":", "-"), strings.ReplaceAll(b, ":", "-"))
}

// setBalancers stores the load balancers that were read, except those for endpoints in other networks: it adopts
// those of an earlier run and of kube-proxy. Their endpoints may be gone, for example after the network was replaced.
func (s *state) setBalancers(list []hns.LoadBalancer, written map[key]hns.LoadBalancer) {
	here := func(id string) bool { return s.here[id] }
	elsewhere := func(id string) bool { return s.elsewhere[id] }
	wrote := map[string]hns.LoadBalancer{}
	for _, l := range written {
		wrote[l.ID] = l
	}
	s.found, s.balancers, s.waiting = map[key][]found{}, map[key]hns.LoadBalancer{}, map[key]bool{}
	for _, l := range list {
		if !slices.ContainsFunc(l.Endpoints, here) && slices.ContainsFunc(l.Endpoints, elsewhere) {
			continue
		}
		was, did := wrote[l.ID]
		at := keyOf(l).place()
		differs := did && !only(was, here).Same(only(l, here))
		s.found[at] = append(s.found[at], found{l, differs})
		s.differs = s.differs || differs
	}
}

// only returns a load balancer with those endpoints that exist: HNS removes others when a container ends.
func only(l hns.LoadBalancer, exists func(string) bool) hns.LoadBalancer {
	l.Endpoints = slices.DeleteFunc(slices.Clone(l.Endpoints), func(id string) bool { return !exists(id) })
	return l
}

// document returns the load balancer of an entry, with the backends that HNS has, and the addresses of the others.
func (s *state) document(k key, v value) (l hns.LoadBalancer, missing []netip.Addr) {
	l = hns.LoadBalancer{
		VIP: k.addr, Protocol: k.protocol, Port: k.port, Target: v.target, SourceVIP: v.source, Flags: v.flags,
	}
	for text := range strings.FieldsSeq(v.endpoints) {
		a := netip.MustParseAddr(text) // join wrote it
		if e, has := s.endpoints[a]; has {
			l.Endpoints = append(l.Endpoints, e.ID)
		} else {
			missing = append(missing, a)
		}
	}
	return l, missing
}
