package inspect

import (
	"cmp"
	"context"
	"iter"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Backend is one backend of a port of a Service.
type Backend struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	PortName  string `json:"portName,omitempty"` // of the Service port
	Port      uint16 `json:"port,omitempty"`     // of the Service; 0: another Service has its addresses
	Protocol  string `json:"protocol"`

	Address netip.Addr `json:"address"`
	Target  uint16     `json:"targetPort,omitempty"` // 0: its EndpointSlice has no such port

	// Pools are those it is in: "cluster", "local". LeftOut says why it is not
	// in another one that is used.
	Pools   []string          `json:"pools,omitempty"`
	LeftOut map[string]string `json:"leftOut,omitempty"`

	State  Programming `json:"state"` // of the Service
	Reason string      `json:"reason,omitempty"`

	Endpoint *Endpoint `json:"endpoint,omitempty"` // only for Services asked for by name
}

// Endpoint is what an EndpointSlice says of a backend.
type Endpoint struct {
	Slice       string `json:"endpointSlice"`
	Node        string `json:"node,omitempty"`
	Ready       bool   `json:"ready"`
	Serving     bool   `json:"serving"`
	Terminating bool   `json:"terminating"`
}

// Backends lists the backends of the Services that a filter chooses, sorted by
// Service, port and address. Those left out, with the reason, are only listed
// for Services asked for by name.
func (i *Inspector) Backends(ctx context.Context, f Filter) (iter.Seq[Backend], error) {
	s, err := i.look(ctx, f)
	if err != nil {
		return nil, err
	}
	if f.Name != "" {
		s.explain()
	}
	return route.Yielding(func(yield func(Backend) bool) {
		for _, svc := range s.services {
			for p := range svc.Ports {
				if !each(s.backends(svc, &svc.Ports[p]), yield) {
					return
				}
			}
		}
	}), nil
}

// each yields a list.
func each[T any](list []T, yield func(T) bool) bool {
	for _, v := range list {
		if !yield(v) {
			return false
		}
	}
	return true
}

// backends lists those of a port.
func (s *sight) backends(svc *route.Service, p *route.Port) []Backend {
	state, reason := s.state(svc)
	m := merged{
		like: Backend{
			Namespace: svc.Name.Namespace, Service: svc.Name.Name,
			PortName: p.Name, Port: number(p), Protocol: p.Protocol.String(),
			State: state, Reason: reason,
		},
		at: map[place]int{},
	}
	pools, explained := s.choices[p]
	for _, pool := range poolsOf(p) {
		if !explained {
			m.used(p.Backends(pool), pool)
			continue
		}
		for _, c := range pools[pool] {
			m.choice(c, pool)
		}
	}
	slices.SortStableFunc(m.list, func(a, b Backend) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Target, b.Target))
	})
	return m.list
}

// place tells backends apart: entries for one address may be several.
type place struct {
	backend  netip.AddrPort
	endpoint any // *cluster.Endpoint
}

// merged is the backends of a port, in whichever pools they are.
type merged struct {
	like Backend
	list []Backend
	at   map[place]int
}

// backend returns the entry of a place, made if need be.
func (m *merged) backend(at place) *Backend {
	i, known := m.at[at]
	if !known {
		i = len(m.list)
		m.at[at] = i
		b := m.like
		b.Address, b.Target = at.backend.Addr(), at.backend.Port()
		m.list = append(m.list, b)
	}
	return &m.list[i]
}

func (m *merged) used(backends []netip.AddrPort, pool route.Pool) {
	for _, at := range backends {
		b := m.backend(place{backend: at})
		b.Pools = append(b.Pools, poolName(pool))
	}
}

func (m *merged) choice(c route.Choice, pool route.Pool) {
	if c.Reason == route.WrongFamily {
		return // it is one of the other family's port
	}
	b := m.backend(place{c.Backend, c.Endpoint})
	b.Endpoint = &Endpoint{
		Slice: c.Slice.Name.Name, Node: c.Endpoint.Node,
		Ready: c.Endpoint.Ready, Serving: c.Endpoint.Serving, Terminating: c.Endpoint.Terminating,
	}
	if c.Reason == route.Chosen {
		b.Pools = append(b.Pools, poolName(pool))
		return
	}
	if b.LeftOut == nil {
		b.LeftOut = map[string]string{}
	}
	b.LeftOut[poolName(pool)] = c.Reason.String()
}
