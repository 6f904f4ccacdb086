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

// add adds the backends that a change adds to a Service. The first backends of a pool do not start slowly: no others could take their share.
func (r *ramps) add(old, current *route.Service) {
	if old == nil || current == nil {
		return
	}
	for i := range current.Ports {
		p := &current.Ports[i]
		before := slices.IndexFunc(old.Ports, func(q route.Port) bool {
			return q.Name == p.Name && q.Protocol == p.Protocol && q.Family == p.Family
		})
		if p.SlowStart == 0 || before < 0 {
			continue
		}
		for _, pool := range []route.Pool{route.Cluster, route.Local} {
			for _, b := range added(old.Ports[before].Backends(pool), p.Backends(pool)) {
				if *r == nil {
					*r = ramps{}
				}
				(*r)[p.SlowStart] = append((*r)[p.SlowStart], bpf.Member{Pool: poolOf(current.Name, p, pool), Backend: b})
			}
		}
	}
}

// added returns the backends that a change adds to a pool; none if the pool was empty.
func added(old, current []netip.AddrPort) (list []netip.AddrPort) {
	if len(old) == 0 {
		return nil
	}
	for _, b := range current {
		if _, had := slices.BinarySearchFunc(old, b, netip.AddrPort.Compare); !had {
			list = append(list, b)
		}
	}
	return list
}
