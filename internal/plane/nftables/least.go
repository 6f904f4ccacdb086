package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

// Least connections: rules choose a slot at random, and backends with few connections have many slots. Whenever
// connections were counted, a plan also moves slots. Any slots with the right backends are right, so a start and a
// comparison keep those in the kernel.

// least reports whether backends with few connections get more new ones.
func least(p *route.Port) bool { return p.Affinity == 0 && p.Method() == route.Least }

// Live are open connections of this node, counted by backend, and the Services whose slots may move, as the kernel
// holds them.
type Live struct {
	Services    map[cluster.Name]*route.Service
	Connections map[plane.Target]int
}

// touch returns the Services that a change touches, and those whose slots may move. It leaves out those that the kernel
// holds in another state than the table, and all if the host changes.
func (l *Live) touch(c *route.Change) []route.Touch {
	if l == nil || c.OldHost != nil {
		return c.Touched
	}
	all, touched := slices.Clone(c.Touched), map[cluster.Name]bool{}
	for _, t := range c.Touched {
		touched[t.Name] = true
	}
	for _, name := range slices.SortedFunc(maps.Keys(l.Services), cluster.Name.Compare) {
		if svc := l.Services[name]; !touched[name] && svc == c.InKernel(name) {
			all = append(all, route.Touch{Name: name, Old: svc, New: svc})
		}
	}
	return all
}

// loads returns the backends of a pool with their connections.
func (l Live) loads(p *route.Port, backends []netip.AddrPort) []slots.Load {
	loads := make([]slots.Load, len(backends))
	for i, b := range backends {
		live := l.Connections[plane.Target{Protocol: p.Protocol, Backend: b}]
		loads[i] = slots.Load{At: b, Weight: p.Weight(b), Live: live}
	}
	return loads
}

// Shares implements plane.Opened.
func (p *Plane) Shares(by plane.Connection) plane.Shares {
	port := &by.Service.Ports[by.Port]
	p.learning.Lock()
	table := p.history.ports[port.ID(by.Service.Name)].pools[by.Way.Pool]
	p.learning.Unlock()
	if !least(port) || len(table) == 0 {
		return shares(by)
	}
	return sharesOf(port, table, by.Client)
}

// level returns the slots of a port with least connections that had these before.
func (p pools) level(port *route.Port, live *Live) (next pools) {
	for pool, before := range p {
		backends := weighted(port, route.Pool(pool))
		switch {
		case len(backends) == 0:
		case live == nil:
			next[pool] = slices.Clone(slots.Fit(before, Live{}.loads(port, backends)))
		default:
			next[pool] = slots.Level(before, live.loads(port, backends))
		}
	}
	return next
}
