package inspect

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

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
