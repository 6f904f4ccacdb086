package userspace

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Balance returns how a port of a Service is balanced. It is safe for concurrent use.
func (p *Plane) Balance(_ context.Context, svc *route.Service, port int, _ *route.Host) (plane.Balance, error) {
	at := &svc.Ports[port]
	b := plane.Balance{Scheduler: schedulerName(p.schedulerOf(at)), Backends: map[netip.AddrPort]plane.Balanced{}}
	if balancer := p.sockets.balancer(at.ID(svc.Name)); balancer != nil {
		for to, open := range balancer.Open() {
			b.Backends[to] = plane.Balanced{Weight: uint32(at.Weight(to)), Active: open}
		}
	}
	return b, nil
}

// Shares returns how probable it is now that each backend gets the next connection of a client. It is
// safe for concurrent use.
func (p *Plane) Shares(by plane.Connection) plane.Shares {
	shares := plane.Shares{Of: map[netip.AddrPort]float64{}, How: "with the chances that the next connection has"}
	if b := p.sockets.balancer(by.Service.Ports[by.Port].ID(by.Service.Name)); b != nil {
		shares.Of = b.Shares(by.Client, int(by.Way.Pool))
	}
	return shares
}

// balancer returns the balancer of a port; nil: it has none.
func (s *sockets) balancer(id route.PortID) *relay.Balancer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.balancers[id]
}

// Sockets lists the open sockets, sorted. It is safe for concurrent use.
func (p *Plane) Sockets() []plane.Socket {
	s := p.sockets
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(s.open), key.compare)
	list := make([]plane.Socket, 0, len(keys))
	for _, k := range keys {
		socket := k.socket(s.values[k])
		if b := s.balancers[k.port]; b != nil {
			socket.Open = b.Counts().Open
		}
		list = append(list, socket)
	}
	return list
}
