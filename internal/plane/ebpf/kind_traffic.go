package ebpf

import (
	"context"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// traffic implements Traffic of plane.Opened from the connections that were decided at sockets, those that are open,
// and what the packet plane counts of all others.
type traffic struct {
	sums     func() (map[route.PortID]uint64, error)
	backends func() (map[route.PortID]map[netip.AddrPort]uint64, error)
	open     func(context.Context) (map[cluster.Protocol]map[netip.AddrPort]int, error)
	packets  func(context.Context, *route.Snapshot) (plane.Counted, error) // nil: it does not count
}

// counted returns the traffic of all ports.
func (t *traffic) counted(ctx context.Context, all *route.Snapshot) (plane.Counted, error) {
	out, err := t.atSockets(ctx, all)
	if err != nil || t.packets == nil {
		return out, err
	}
	translated, err := t.packets(ctx, all)
	if err != nil {
		return nil, err
	}
	for id, more := range translated {
		out[id] = add(out[id], more)
	}
	return out, nil
}

// atSockets returns the traffic that was decided at sockets.
func (t *traffic) atSockets(ctx context.Context, all *route.Snapshot) (plane.Counted, error) {
	sums, err := t.sums()
	if err != nil {
		return nil, err
	}
	decided, err := t.backends()
	if err != nil {
		return nil, err
	}
	open, err := t.open(ctx)
	if err != nil {
		return nil, err
	}
	out := plane.Counted{}
	for svc := range all.Services() {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			id := p.ID(svc.Name)
			backends := backendsOf(p, decided[id], open[p.Protocol])
			if sums[id] == 0 && len(backends) == 0 {
				continue
			}
			sum := plane.Traffic{plane.Connections: sums[id], plane.Live: 0}
			for _, b := range backends {
				sum[plane.Live] += b.Live
			}
			out[id] = plane.PortTraffic{Traffic: sum, Backends: backends}
		}
	}
	return out, nil
}

// backendsOf returns the traffic of the backends of a port that have any. Of former backends no connections are live,
// as their addresses may belong to other pods now.
func backendsOf(
	p *route.Port, decided map[netip.AddrPort]uint64, open map[netip.AddrPort]int,
) map[netip.AddrPort]plane.BackendTraffic {
	all := map[netip.AddrPort]plane.BackendTraffic{}
	for at, n := range decided {
		all[at] = plane.BackendTraffic{Connections: n}
	}
	for _, at := range slices.Concat(p.Cluster, p.Local) {
		if n := open[at]; n > 0 {
			all[at] = plane.BackendTraffic{Connections: decided[at], Live: uint64(n)}
		}
	}
	return all
}

// add returns the sum of the traffic of a port at sockets and in packets.
func add(sockets, packets plane.PortTraffic) plane.PortTraffic {
	sum := plane.PortTraffic{Traffic: plane.Traffic{}, Backends: map[netip.AddrPort]plane.BackendTraffic{}}
	for _, t := range []plane.PortTraffic{sockets, packets} {
		sum.Add(t.Traffic)
		for at, n := range t.Backends {
			was := sum.Backends[at]
			sum.Backends[at] = plane.BackendTraffic{Connections: was.Connections + n.Connections, Live: was.Live + n.Live}
		}
	}
	return sum
}
