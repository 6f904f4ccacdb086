package ipvs

import (
	"context"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Balance returns how the kernel balances a port of a Service. It is safe for concurrent use.
func (p *Plane) Balance(ctx context.Context, svc *route.Service, port int, host *route.Host) (plane.Balance, error) {
	one := &route.Service{Name: svc.Name, Ports: svc.Ports[port : port+1]}
	known := newMarks()
	if of := &one.Ports[0]; slices.ContainsFunc(of.Frontends, func(f route.Frontend) bool { return divided(of, &f) }) {
		sets, err := p.kernel.Sets.List(ctx, []string{setName(of.Family, circuits)})
		if err != nil {
			return plane.Balance{}, err
		}
		known.adopt(one, host, sets)
	}
	b := plane.Balance{Backends: map[netip.AddrPort]plane.Balanced{}}
	var servers []ipvs.Server
	for _, e := range render(one, host, p.opt.Scheduler, known) {
		if e.Key.class == server {
			servers = append(servers, e.Key.server)
			b.Scheduler = e.Value.settings.Scheduler
		}
	}
	lists, err := p.kernel.Servers.Destinations(ctx, servers...)
	for _, list := range lists {
		for _, d := range list {
			sum := b.Backends[d.At]
			b.Backends[d.At] = plane.Balanced{
				Weight: max(sum.Weight, d.Weight), Active: sum.Active + d.Active, Inactive: sum.Inactive + d.Inactive,
			}
		}
	}
	return b, err
}
