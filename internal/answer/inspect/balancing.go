package inspect

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Balancing is how the kernel balances connections to a backend.
type Balancing struct {
	Scheduler string `json:"scheduler,omitempty"`

	// Weight is nil if the kernel does not have the backend. With 0 it gets no new connections.
	Weight   *uint32 `json:"weight,omitempty"`
	Active   int     `json:"activeConnections"`
	Inactive int     `json:"inactiveConnections"` // that the kernel remembers
	Error    string  `json:"error,omitempty"`     // why the kernel could not be read
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
	list := s.backends(svc, p)
	if i.opt.Opened.Balance == nil {
		return list
	}
	kernel, err := i.opt.Opened.Balance(ctx, svc, port, &s.Routes.Host)
	if err != nil {
		for n := range list {
			list[n].Balancing = &Balancing{Error: err.Error()}
		}
		return list
	}
	for n := range list {
		at := netip.AddrPortFrom(list[n].Address, list[n].Target)
		list[n].Balancing = balancing(kernel, at)
		delete(kernel.Backends, at)
	}
	if !s.filter.detailed() {
		return list
	}
	pool := poolsOf(p)[0].String()
	for _, at := range slices.SortedFunc(maps.Keys(kernel.Backends), netip.AddrPort.Compare) {
		b := s.common(svc, p)
		b.Address, b.Target = at.Addr(), at.Port()
		b.LeftOut, b.Balancing = map[string]string{pool: drains}, balancing(kernel, at)
		if kernel.Backends[at].Weight > 0 {
			b.LeftOut[pool] = foreign
		}
		list = append(list, b)
	}
	return list
}

func balancing(of plane.Balance, at netip.AddrPort) *Balancing {
	b, has := of.Backends[at]
	if !has {
		return &Balancing{Scheduler: of.Scheduler}
	}
	return &Balancing{Scheduler: of.Scheduler, Weight: &b.Weight, Active: b.Active, Inactive: b.Inactive}
}
