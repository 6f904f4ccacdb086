package inspect

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Backend is one backend of a port of a Service.
type Backend struct {
	ServicePort

	Address netip.Addr `json:"address"`
	Target  uint16     `json:"targetPort,omitempty"` // 0: its EndpointSlice has no such port

	// Pools are the pools that contain it: "cluster", "local". LeftOut has the reason for each other pool in use.
	Pools   []string          `json:"pools,omitempty"`
	LeftOut map[string]string `json:"leftOut,omitempty"`

	// Standing describes what happens to a backend as connections to it failed; empty: nothing.
	Standing string `json:"standing,omitempty"`

	State  Programming `json:"state"` // of the Service
	Reason string      `json:"reason,omitempty"`

	Endpoint *Endpoint `json:"endpoint,omitempty"`

	Balancing *Balancing `json:"balancing,omitempty"` // nil in modes that neither weigh nor count
}

// Endpoint is what an EndpointSlice contains about a backend.
type Endpoint struct {
	Slice       string `json:"endpointSlice"`
	Node        string `json:"node,omitempty"`
	Ready       bool   `json:"ready"`
	Serving     bool   `json:"serving"`
	Terminating bool   `json:"terminating"`
}

// Backends lists the backends of the Services that a filter matches, sorted by Service, port and address. It lists the
// endpoints that are left out, with the reason, if the filter has a name, and of ports without backends.
func (i *Inspector) Backends(ctx context.Context, f Filter) (iter.Seq[Backend], error) {
	s, err := i.selectServices(ctx, f)
	if err != nil {
		return nil, err
	}
	return route.Yielding(func(yield func(Backend) bool) {
		for _, svc := range s.services {
			for p := range svc.Ports {
				for _, b := range i.balanced(ctx, s, svc, p) {
					if !yield(b) {
						return
					}
				}
			}
		}
	}), nil
}

// backendKey identifies a backend of a port: several endpoints may have one address.
type backendKey struct {
	at       netip.AddrPort
	endpoint *cluster.Endpoint
}

// common returns the fields that all backends of a port share.
func (s *selection) common(svc *route.Service, p *route.Port) Backend {
	b := Backend{ServicePort: servicePort(svc, p)}
	b.State, b.Reason = s.state(svc)
	return b
}

// backends lists the backends of a port, whichever pools they are in.
func (s *selection) backends(svc *route.Service, p *route.Port) []Backend {
	common := s.common(svc, p)
	var list []Backend
	known := map[backendKey]int{}
	for _, pool := range poolsOf(p) {
		for _, c := range s.choices(svc, p, pool) {
			if c.Reason == route.WrongFamily {
				continue // it belongs to the port of the other family
			}
			key := backendKey{c.Backend, c.Endpoint}
			i, found := known[key]
			if !found {
				i = len(list)
				known[key], list = i, append(list, common)
			}
			list[i].add(c, pool.String())
		}
	}
	slices.SortStableFunc(list, func(a, b Backend) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Target, b.Target))
	})
	return list
}

// choices returns the endpoints of a pool, with those that are left out if the query names the Service, or if the port
// has no backends.
func (s *selection) choices(svc *route.Service, p *route.Port, pool route.Pool) []route.Choice {
	all := s.Routes.Explain(svc.Name, p, pool)
	if len(all) == 0 { // of a Service that is to be removed
		for _, b := range p.Backends(pool) {
			all = append(all, route.Choice{Backend: b, Reason: route.Chosen})
		}
	}
	inUse := func(pool route.Pool) bool { return len(p.Backends(pool)) > 0 }
	if s.filter.detailed() || !slices.ContainsFunc(poolsOf(p), inUse) {
		return all
	}
	return slices.DeleteFunc(all, func(c route.Choice) bool {
		return c.Reason != route.Chosen && c.Reason != route.Ejected
	})
}

func (b *Backend) add(c route.Choice, pool string) {
	b.Address, b.Target = c.Backend.Addr(), c.Backend.Port()
	if e := c.Endpoint; e != nil {
		b.Endpoint = &Endpoint{c.Slice.Name.Name, e.Node, e.Ready, e.Serving, e.Terminating}
	}
	b.Standing = explain.Standing(c.Share, time.Now())
	switch {
	case c.Reason == route.Chosen:
		b.Pools = append(b.Pools, pool)
	case b.LeftOut == nil:
		b.LeftOut = map[string]string{pool: explain.Reason(c, time.Now())}
	default:
		b.LeftOut[pool] = explain.Reason(c, time.Now())
	}
}

// poolsOf returns the pools that frontends of a port use; if none uses one, the cluster
// pool, so that the reasons for that can be listed.
func poolsOf(p *route.Port) []route.Pool {
	switch {
	case !p.Uses(route.Local):
		return []route.Pool{route.Cluster}
	case !p.Uses(route.Cluster):
		return []route.Pool{route.Local}
	}
	return []route.Pool{route.Cluster, route.Local}
}

// Balancing is how connections to a backend are balanced.
type Balancing struct {
	Scheduler string `json:"scheduler,omitempty"`
	Note      string `json:"schedulerNote,omitempty"` // as that of a Port

	// Weight is nil if the kernel does not have the backend. With 0 it gets no new connections.
	Weight   *uint32 `json:"weight,omitempty"`
	Counted  bool    `json:"counted,omitempty"` // the mode counts connections
	Active   *int    `json:"activeConnections,omitempty"`
	Inactive *int    `json:"inactiveConnections,omitempty"` // that the kernel remembers
	Error    string  `json:"error,omitempty"`               // why the kernel could not be read
}

// These are why a backend that is no endpoint is listed.
const (
	drains  = "no longer an endpoint: its connections drain"
	foreign = "no endpoint, but the kernel has it"
)

// balanced lists the backends of a port with what the kernel knows about them, and in a query
// for a Service by name also those that only the kernel has.
func (i *Inspector) balanced(ctx context.Context, s *selection, svc *route.Service, port int) []Backend {
	p := &svc.Ports[port]
	list, by := s.backends(svc, p), s.Plane.Scheduling(p)
	if i.opt.Opened.Balance == nil {
		return weighted(list, p, by)
	}
	kernel, err := i.opt.Opened.Balance(ctx, svc, port, &s.Routes.Host)
	if err != nil {
		for n := range list {
			list[n].Balancing = &Balancing{Scheduler: by.Name, Note: by.Note, Counted: true, Error: err.Error()}
		}
		return list
	}
	of := func(at netip.AddrPort) *Balancing {
		out := &Balancing{Scheduler: by.Name, Note: by.Note, Counted: true}
		if b, has := kernel[at]; has {
			out.Weight, out.Active, out.Inactive = &b.Weight, &b.Active, &b.Inactive
		}
		return out
	}
	for n := range list {
		at := netip.AddrPortFrom(list[n].Address, list[n].Target)
		list[n].Balancing = of(at)
		delete(kernel, at)
	}
	if !s.filter.detailed() {
		return list
	}
	pool := poolsOf(p)[0].String()
	for _, at := range slices.SortedFunc(maps.Keys(kernel), netip.AddrPort.Compare) {
		b := s.common(svc, p)
		b.Address, b.Target = at.Addr(), at.Port()
		b.LeftOut, b.Balancing = map[string]string{pool: drains}, of(at)
		if kernel[at].Weight > 0 {
			b.LeftOut[pool] = foreign
		}
		list = append(list, b)
	}
	return list
}

// weighted adds scheduler and weights to backends of a port, in a mode that counts no connections.
func weighted(list []Backend, p *route.Port, by plane.Scheduling) []Backend {
	if by.Name == "" {
		return list
	}
	for n := range list {
		b := &list[n]
		b.Balancing = &Balancing{Scheduler: by.Name, Note: by.Note}
		if len(b.Pools) > 0 {
			w := uint32(p.Weight(netip.AddrPortFrom(b.Address, b.Target)))
			b.Balancing.Weight = &w
		}
	}
	return list
}
