package route

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Health is the answer to health checks of load balancers: how many endpoints a Service has on this node.
type Health struct {
	Port  uint16
	Local []LocalCount // one of each family that the Service has, IPv4 first
}

// LocalCount is how many distinct addresses of ready endpoints a Service has on this node in a family, over all its
// ports. Terminating endpoints do not count, even if they are the only ones left and receive traffic (S-150).
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

// Equal reports whether two answers are equal; both may be nil.
func (h *Health) Equal(g *Health) bool {
	if h == nil || g == nil {
		return h == g
	}
	return h.Port == g.Port && slices.Equal(h.Local, g.Local)
}

// asksForHealth reports whether a Service has a health check node port.
func asksForHealth(svc *cluster.Service) bool {
	return svc.Ignored == "" && len(svc.Ports) > 0 && svc.HealthCheckNodePort != 0 &&
		svc.Type == cluster.LoadBalancer && externalLocal(svc)
}

// health returns nil for a Service without a health check node port of its own. It adds ports of others to b.lost.
func (b *builder) health(st state, claims *claims) *Health {
	if !asksForHealth(st.service) {
		return nil
	}
	var h *Health
	var few [2]candidate
	for _, c := range appendHealthPorts(few[:0], st.service, b.view.families) {
		if c.lost(st.service, claims) {
			b.lost = append(b.lost, c)
			continue
		}
		if h == nil {
			h = &Health{Port: st.service.HealthCheckNodePort}
		}
		h.Local = append(h.Local, LocalCount{c.family, b.readyHere(st, c.family)})
	}
	return h
}

// readyHere counts the addresses of ready endpoints on this node.
func (b *builder) readyHere(st state, f Family) int {
	addrs := map[netip.Addr]struct{}{}
	for _, p := range st.service.Ports {
		b.choices = b.supplies.candidates(b.choices[:0], backendKey{portName{p.Name, p.Protocol}, f})
		for i := range b.choices {
			if c := &b.choices[i]; c.Endpoint.Ready && b.view.local(c.Endpoint) {
				addrs[c.Backend.Addr()] = struct{}{}
			}
		}
	}
	return len(addrs)
}
