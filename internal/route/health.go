package route

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Health is what a load balancer is told that asks, at a port of its own,
// whether this node has endpoints of a Service (spec.healthCheckNodePort).
type Health struct {
	Port  uint16
	Local []LocalCount // one of each family that the Service has, IPv4 first
}

// LocalCount says how many different addresses of ready endpoints a Service has
// on this node in a family, over all its ports. Endpoints on their way out do
// not count, also where they are all that is left and take traffic (S-150).
type LocalCount struct {
	Family    Family
	Endpoints int
}

// Count returns the number of the family; false if the Service has none of it.
func (h *Health) Count(f Family) (int, bool) {
	if h == nil {
		return 0, false
	}
	for _, l := range h.Local {
		if l.Family == f {
			return l.Endpoints, true
		}
	}
	return 0, false
}

func (h *Health) equal(g *Health) bool {
	if h == nil || g == nil {
		return h == g
	}
	return h.Port == g.Port && slices.Equal(h.Local, g.Local)
}

// health returns nil for a Service that nobody asks about.
func (b *builder) health(st state) *Health {
	svc := st.service
	if svc.HealthCheckNodePort == 0 || svc.Type != cluster.LoadBalancer || !externalLocal(svc) {
		return nil
	}
	h := &Health{Port: svc.HealthCheckNodePort}
	for _, f := range b.view.families {
		if slices.ContainsFunc(svc.ClusterIPs, func(a netip.Addr) bool { return FamilyOf(a) == f }) {
			h.Local = append(h.Local, LocalCount{f, b.readyHere(st, f)})
		}
	}
	return h
}

// readyHere counts the addresses of ready endpoints on this node.
func (b *builder) readyHere(st state, f Family) int {
	var addrs []netip.Addr
	for _, p := range st.service.Ports {
		var n int
		b.choices, n = gather(b.choices[:0], st.slices, backendKey{p.Name, p.Protocol, f})
		for i := range b.choices[:n] {
			if c := &b.choices[i]; c.Endpoint.Ready && b.view.local(c.Endpoint) {
				addrs = append(addrs, c.Backend.Addr())
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return len(slices.Compact(addrs))
}
