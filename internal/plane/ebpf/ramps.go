package ebpf

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
)

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
