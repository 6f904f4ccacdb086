package metrics

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// policies are the values of the label traffic_policy.
func policies() []string { return []string{"internal", "external"} }

// sizes are what is counted of Services. They can be added up.
type sizes struct {
	services, backends int
	noLocal            [2][2]int // ports without endpoints here: by policy, then family
}

func (a sizes) plus(b sizes, sign int) sizes {
	a.services += sign * b.services
	a.backends += sign * b.backends
	for policy := range a.noLocal {
		for family := range a.noLocal[policy] {
			a.noLocal[policy][family] += sign * b.noLocal[policy][family]
		}
	}
	return a
}

// services sums up the Services that are in the kernel.
type services struct {
	mu   sync.Mutex
	sum  sizes
	room []backend
}

// backend tells one from another: TCP and UDP to the same are two.
type backend struct {
	protocol cluster.Protocol
	addr     netip.AddrPort
}

func (b backend) compare(c backend) int {
	if b.protocol != c.protocol {
		return int(b.protocol) - int(c.protocol)
	}
	return b.addr.Compare(c.addr)
}

// Applied implements proxy.Follower. It looks at what changed and at nothing
// else.
func (m *Metrics) Applied(c route.Change) {
	s := &m.services
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range c.Touched {
		s.sum = s.sum.plus(s.of(t.Old), -1).plus(s.of(t.New), +1)
	}
}

// of counts one Service.
func (s *services) of(svc *route.Service) sizes {
	if svc == nil || len(svc.Ports) == 0 {
		return sizes{}
	}
	out := sizes{services: 1}
	s.room = s.room[:0]
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for _, pool := range [...][]netip.AddrPort{p.Cluster, p.Local} {
			for _, addr := range pool {
				s.room = append(s.room, backend{p.Protocol, addr})
			}
		}
		for policy, without := range noLocal(p) {
			out.noLocal[policy][familyIndex(p.Family)] += truth(without)
		}
	}
	slices.SortFunc(s.room, backend.compare)
	out.backends = len(slices.Compact(s.room))
	return out
}

// noLocal tells of each policy whether it keeps the port from endpoints that
// are elsewhere only: that alone makes a route drop.
func noLocal(p *route.Port) [2]bool {
	var without [2]bool
	for _, f := range p.Fronts {
		if f.Others.Verdict != route.Drop {
			continue
		}
		policy := 1
		if f.Kind == route.ClusterIP {
			policy = 0
		}
		without[policy] = true
	}
	return without
}

func familyIndex(f route.Family) int {
	return truth(f == route.IPv6)
}

func (m *Metrics) sizes() sizes {
	m.services.mu.Lock()
	defer m.services.mu.Unlock()
	return m.services.sum
}

func (m *Metrics) serviceCount(_ Readings, p put)  { p(float64(m.sizes().services)) }
func (m *Metrics) endpointCount(_ Readings, p put) { p(float64(m.sizes().backends)) }

func (m *Metrics) noLocal(_ Readings, p put) {
	sum := m.sizes()
	for policy, name := range policies() {
		for _, f := range m.opt.Families {
			p(float64(sum.noLocal[policy][familyIndex(f)]), name, f.String())
		}
	}
}
