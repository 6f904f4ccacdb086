package ebpf

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
)

// ramps are the backends that are new, by the time that their share takes to grow.
type ramps map[time.Duration][]bpf.Member

// add adds the backends that a Service has since a change, if it has had others: the first ones of a Service share all of it.
func (r *ramps) add(old, is *route.Service) {
	if old == nil || is == nil {
		return
	}
	for i := range is.Ports {
		p := &is.Ports[i]
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
				(*r)[p.SlowStart] = append((*r)[p.SlowStart], bpf.Member{Pool: poolOf(is.Name, p, pool), Backend: b})
			}
		}
	}
}

// added returns the backends that a pool has since a change; none if it was empty.
func added(old, is []netip.AddrPort) (list []netip.AddrPort) {
	if len(old) == 0 {
		return nil
	}
	for _, b := range is {
		if _, had := slices.BinarySearchFunc(old, b, netip.AddrPort.Compare); !had {
			list = append(list, b)
		}
	}
	return list
}
