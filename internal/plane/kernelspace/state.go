package kernelspace

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/route"
)

// state is the result of the last Refresh, updated by the writer.
type state struct {
	features  hns.Features
	network   hns.Network
	endpoints map[netip.Addr]hns.Endpoint // in the network; one of this host before a remote one
	hidden    map[string]hns.Endpoint     // remote ones at the address of another one, by ID
	elsewhere map[string]bool             // the IDs of endpoints in other networks
	balancers map[key]balancer            // of this plane
	uses      map[string]int              // by the ID of an endpoint: how many of these refer to it
	kept      map[string]bool             // endpoints to which load balancers of other programs refer
	roots     map[route.Family]netip.Addr // of the endpoint of this node that gets health checks
	nodeIP    netip.Addr                  // of this node; invalid: not known
	hostMAC   string                      // of the interface with nodeIP
	sourceVIP netip.Addr                  // of the options
}

// balancer is a load balancer in HNS.
type balancer struct {
	id  string
	ids []string // of its endpoints
	value
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
	s.endpoints, s.hidden, s.elsewhere = map[netip.Addr]hns.Endpoint{}, map[string]hns.Endpoint{}, map[string]bool{}
	for _, e := range list {
		if e.Network != s.network.ID {
			s.elsewhere[e.ID] = true
			continue
		}
		for _, a := range e.Addrs {
			s.setEndpoint(a, e)
		}
	}
}

// setEndpoint stores the endpoint with an address.
func (s *state) setEndpoint(a netip.Addr, e hns.Endpoint) {
	old, has := s.endpoints[a]
	switch {
	case has && e.Remote && e.ID != old.ID: // of two remote ones, the first stays
		s.hidden[e.ID] = e
		return
	case has && old.Remote && !e.Remote:
		s.hidden[old.ID] = old
	}
	s.endpoints[a] = e
}

// class returns the class of an endpoint that this plane, an earlier run, or kube-proxy created; false if
// another program created it.
func (s *state) class(e hns.Endpoint) (class, bool) {
	switch {
	case len(e.Addrs) != 1:
		return 0, false
	case e.Name == sourceName, s.kubeProxySource(e):
		return source, true
	case e.Remote && isRemoteMAC(e.MAC, e.Addrs[0]):
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

// isRemoteMAC reports whether a MAC address is that of a remote endpoint with an address: kube-proxy's form, or that of
// earlier versions of this plane, which did not reverse the bytes of IPv6 addresses.
func isRemoteMAC(mac string, a netip.Addr) bool {
	b := a.AsSlice()
	b = b[len(b)-4:]
	return sameMAC(mac, hns.MAC(a)) || sameMAC(mac, fmt.Sprintf("02-11-%02X-%02X-%02X-%02X", b[0], b[1], b[2], b[3]))
}

// owned reports whether this plane may delete an endpoint: no load balancer of another program refers to it.
func (s *state) owned(e hns.Endpoint) bool {
	_, ours := s.class(e)
	return ours && !s.kept[e.ID]
}

// misfit reports whether an endpoint at the address of an entry is of another class, and has to be replaced. A backend may have the
// address of the source VIP or of a clusterIP, and uses its endpoint.
func (s *state) misfit(k key, e hns.Endpoint) bool {
	class, _ := s.class(e)
	return s.owned(e) && class != k.class && (k.class == source || k.class == vip && class == remote)
}

// isHostMAC reports whether the interface of this node has a MAC address.
func (s *state) isHostMAC(mac string) bool { return s.hostMAC != "" && sameMAC(mac, s.hostMAC) }

func sameMAC(a, b string) bool {
	return strings.EqualFold(strings.ReplaceAll(a, ":", "-"), strings.ReplaceAll(b, ":", "-"))
}

// setBalancers stores all load balancers except those for endpoints in other networks: it adopts those of an earlier run and
// of kube-proxy. Their endpoints may be gone, for example after the network was replaced.
func (s *state) setBalancers(list []hns.LoadBalancer) {
	s.kept, s.uses = map[string]bool{}, map[string]int{}
	addrs := map[string]netip.Addr{} // by ID, of the endpoints to which load balancers should refer
	for a, e := range s.endpoints {
		addrs[e.ID] = a
	}
	slices.SortFunc(list, func(a, b hns.LoadBalancer) int { return int(a.Target) - int(b.Target) })
	for _, l := range list {
		here := func(id string) bool { return addrs[id].IsValid() || s.hidden[id].Remote }
		elsewhere := func(id string) bool { return s.elsewhere[id] }
		if !slices.ContainsFunc(l.Endpoints, here) && slices.ContainsFunc(l.Endpoints, elsewhere) {
			for _, id := range l.Endpoints {
				s.kept[id] = true
			}
			continue
		}
		k, v := s.entryOf(l, addrs)
		s.store(k, balancer{l.ID, l.Endpoints, v})
	}
}

// store stores a load balancer in place of the one with its key.
func (s *state) store(k key, b balancer) {
	s.drop(k)
	s.balancers[k] = b
	for _, id := range b.ids {
		s.uses[id]++
	}
}

// drop removes a load balancer, if there is one.
func (s *state) drop(k key) {
	for _, id := range s.balancers[k].ids {
		if s.uses[id]--; s.uses[id] == 0 {
			delete(s.uses, id)
		}
	}
	delete(s.balancers, k)
}

func (s *state) entryOf(l hns.LoadBalancer, addrs map[string]netip.Addr) (key, value) {
	family := route.IPv4
	if l.Flags.IPv6 || l.VIP.Is6() {
		family = route.IPv6
	}
	k := key{class: frontend, addr: l.VIP, family: family, protocol: l.Protocol, port: l.Port}
	if _, has := s.balancers[k]; has {
		k.target = l.Target
	}
	if _, has := s.balancers[k]; has {
		k = k.place()
		k.class, k.id = unknown, l.ID
	}
	var names []string
	for _, id := range l.Endpoints {
		name := id // of an endpoint that is gone or hidden
		if a, has := addrs[id]; has {
			name = a.String()
		}
		names = append(names, name)
	}
	slices.Sort(names)
	v := value{target: l.Target, endpoints: strings.Join(names, " "), source: l.SourceVIP, flags: l.Flags, other: l.Other}
	return k, v
}

// ids returns the IDs of all endpoints.
func (s *state) ids() map[string]bool {
	all := maps.Clone(s.elsewhere)
	for _, e := range s.endpoints {
		all[e.ID] = true
	}
	for id := range s.hidden {
		all[id] = true
	}
	return all
}
