package ebpf

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

// schedulerOf returns the scheduler of a port.
func schedulerOf(p *route.Port) bpf.Scheduler {
	return [...]bpf.Scheduler{route.Random: bpf.ByChance, route.Hash: bpf.ByHash, route.Least: bpf.ByLoad}[p.Method()]
}

// newPool returns the pool of some backends of a port.
func newPool(p *route.Port, backends []netip.AddrPort) pool {
	weighted := backends
	if len(p.Weights) > 0 {
		weighted = nil
		for _, b := range backends {
			if p.Weight(b) > 0 {
				weighted = append(weighted, b)
			}
		}
	}
	pool := pool{backends: backends, weighted: weighted, slots: len(weighted)}
	switch scheduler := schedulerOf(p); {
	case len(weighted) == 0, scheduler == bpf.ByLoad: // the slots have the weights
	case scheduler == bpf.ByHash:
		pool.slots = slots.Size(len(weighted))
	case len(p.Weights) > 0:
		pool.slots = slots.Count(weighted, p.Weight)
	}
	return pool
}

// table returns the backend of each slot of a pool.
func (p *port) table(pool *pool) []netip.AddrPort {
	switch {
	case len(pool.weighted) == 0:
		return nil
	case p.scheduler == bpf.ByHash:
		return slots.Maglev(pool.weighted, p.Weight)
	case p.scheduler == bpf.ByLoad, len(p.Weights) == 0:
		return pool.weighted
	}
	return slots.Weighted(pool.weighted, p.Weight)
}

// ramps are the new backends that start slowly, by the window of their slow start.
type ramps map[time.Duration][]bpf.Member

// add adds the backends that a change adds to a Service. The first backends of a pool do not start slowly: no others
// could take their share.
func (r ramps) add(old, current *route.Service) {
	before := map[bpf.Pool][]netip.AddrPort{}
	for _, p := range portsOf(old) {
		for i := range p.pools {
			before[p.pools[i].id] = p.pools[i].backends
		}
	}
	for _, p := range portsOf(current) {
		for i := range p.pools {
			pool := &p.pools[i]
			if old := before[pool.id]; p.SlowStart > 0 && len(old) > 0 {
				r[p.SlowStart] = append(r[p.SlowStart], added(pool, old)...)
			}
		}
	}
}

// added returns the backends of a pool that it did not have before.
func added(pool *pool, before []netip.AddrPort) (list []bpf.Member) {
	for _, b := range pool.backends {
		if _, had := slices.BinarySearchFunc(before, b, netip.AddrPort.Compare); !had {
			list = append(list, bpf.Member{Pool: pool.id, Backend: b})
		}
	}
	return list
}
