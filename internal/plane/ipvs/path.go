package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Balance returns what the kernel knows about the backends of a port of a Service. It is safe for concurrent use.
func (p *Plane) Balance(ctx context.Context, svc *route.Service, port int, host *route.Host) (plane.Balance, error) {
	one := &route.Service{Name: svc.Name, Ports: svc.Ports[port : port+1]}
	known := newMarks()
	if of := &one.Ports[0]; slices.ContainsFunc(of.Frontends, func(f route.Frontend) bool { return divided(of, &f) }) {
		sets, err := p.kernel.Sets.List(ctx, []string{setName(of.Family, circuits)})
		if err != nil {
			return nil, err
		}
		known.adopt(one, host, sets)
	}
	b := plane.Balance{}
	var servers []ipvs.Server
	for _, e := range render(one, host, known) {
		if e.Key.class == server {
			servers = append(servers, e.Key.server)
		}
	}
	lists, err := p.kernel.Servers.Destinations(ctx, servers...)
	for _, list := range lists {
		for _, d := range list {
			sum := b[d.At]
			b[d.At] = plane.Balanced{
				Weight: max(sum.Weight, d.Weight), Active: sum.Active + d.Active, Inactive: sum.Inactive + d.Inactive,
			}
		}
	}
	return b, err
}

// shares returns the shares of all clients if a hash chooses, as the kernel does not say what it chooses for one.
// Everything else follows from the weights.
func shares(by plane.Connection) plane.Shares {
	p := &by.Service.Ports[by.Port]
	if p.Method() != route.Hash {
		return plane.Shares{}
	}
	s, total := plane.Shares{Of: map[netip.AddrPort]float64{}, How: "by a hash of the client, about by weight"}, 0.0
	for _, b := range p.Backends(by.Way.Pool) {
		s.Of[b] = float64(p.Weight(b))
		total += s.Of[b]
	}
	for b := range s.Of {
		s.Of[b] /= max(1, total)
	}
	return s
}

// Path returns the chains and the virtual server that the first packet of a connection passes.
func Path(p plane.Connection) []string {
	port := &p.Service.Ports[p.Port]
	f := &port.Frontends[p.Frontend]
	switch {
	case p.KeptOut:
		return []string{"filter KUBE-PROXY-FIREWALL"}
	case p.Way.Verdict == route.Drop:
		return []string{"filter KUBE-IPVS-FILTER"}
	}
	var path []string
	if p.Way.Verdict == route.Balance && p.Inside && divided(port, f) {
		path = append(path, "mangle KUBE-IPVS-SHORT-CUT")
	}
	path = append(path, "nat KUBE-SERVICES")
	if f.Addr.IsValid() {
		server := ipvs.Server{Addr: f.Addr, Protocol: uint8(port.Protocol), Port: f.Port}
		path = append(path, "virtual server "+server.String())
	} else {
		path = append(path, fmt.Sprintf("virtual server %s NodePort %d", port.Protocol, f.Port))
	}
	if p.Backend.IsValid() {
		path = append(path, "destination "+p.Backend.String())
	}
	return path
}
