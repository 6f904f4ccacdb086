package ipvs

import (
	"context"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Traffic returns what the kernel counts of the ports of Services that have had connections. It is safe for concurrent
// use.
func (p *Plane) Traffic(ctx context.Context, all *route.Snapshot) (map[route.PortID]plane.Traffic, error) {
	owners, err := p.owners(ctx, all)
	if err != nil {
		return nil, err
	}
	return p.traffic(ctx, owners)
}

func (p *Plane) traffic(
	ctx context.Context, owners map[ipvs.Server]route.PortID,
) (map[route.PortID]plane.Traffic, error) {
	listed, err := p.kernel.Servers.List(ctx)
	if err != nil {
		return nil, err
	}
	var used []ipvs.Server
	out := map[route.PortID]plane.Traffic{}
	for _, s := range listed {
		id, known := owners[s.Server]
		if !known || s.Connections == 0 { // then it has no destination with connections
			continue
		}
		if out[id] == nil {
			out[id] = plane.Traffic{plane.Live: 0}
		}
		out[id].Add(plane.Traffic{plane.Connections: s.Connections, plane.Received: s.Received, plane.Sent: s.Sent})
		used = append(used, s.Server)
	}
	lists, err := p.kernel.Servers.Destinations(ctx, used...)
	if err != nil {
		return nil, err
	}
	for i, destinations := range lists {
		id := owners[used[i]]
		for _, d := range destinations {
			out[id][plane.Live] += uint64(d.Active)
			if id.Protocol == cluster.UDP { // IPVS has no active flows
				out[id][plane.Live] += uint64(d.Inactive)
			}
		}
	}
	return out, nil
}

// owners returns the ports of Services by their virtual servers.
func (p *Plane) owners(ctx context.Context, all *route.Snapshot) (map[ipvs.Server]route.PortID, error) {
	var names []string
	for _, f := range p.opt.Families {
		names = append(names, setName(f, circuits))
	}
	sets, err := p.kernel.Sets.List(ctx, names)
	if err != nil {
		return nil, err
	}
	known, out := newMarks(), map[ipvs.Server]route.PortID{}
	for svc := range all.Services() {
		known.adopt(svc, &all.Host, sets)
		for i := range svc.Ports {
			port := &svc.Ports[i]
			for j := range port.Frontends {
				f := &port.Frontends[j]
				for _, at := range addresses(&all.Host, port, f) {
					out[ipvs.Server{Addr: at, Protocol: uint8(port.Protocol), Port: f.Port}] = port.ID(svc.Name)
				}
			}
		}
	}
	for mark, id := range known.owner {
		out[ipvs.Server{Addr: id.Family.Unspecified(), Mark: mark}] = id
	}
	return out, nil
}
