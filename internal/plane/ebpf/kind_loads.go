package ebpf

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/work"
)

const (
	// countPeriod is the time between two counts of connections. A count takes longer with more of them, and the period
	// is at least countFactor times as long.
	countPeriod = 2 * time.Second
	countFactor = 50

	// wholeWeight is how many connections of a pod to a backend have their whole weight. Further ones weigh no
	// more than the connections of all other clients together: no pod can keep the others from a backend.
	wholeWeight = 64
)

// loadMap are the loads of backends in the kernel: bpf.Conn.
type loadMap interface {
	Loads() (map[netip.AddrPort]bpf.Load, error)
	SetLoads(counted map[netip.AddrPort]uint32, before map[netip.AddrPort]bpf.Load) error
}

// loads keeps the loads of the backends of Services with least connections: it counts the connections of this node,
// and programs add the connections that they decide until the next count. So an error of a count ends with the next
// one, whichever sockets and programs the connections have.
type loads struct {
	*work.Loop

	kernel loadMap
	count  func(context.Context, func(netip.AddrPort) bool) (sockdiag.Connections, error)

	mu       sync.Mutex
	services serviceSets[netip.AddrPort] // backends
}

func newLoads(
	kernel loadMap, count func(context.Context, func(netip.AddrPort) bool) (sockdiag.Connections, error),
	failed func(error),
) *loads {
	l := &loads{kernel: kernel, count: count}
	l.Loop = work.New(l.update, failed)
	return l
}

// Applied implements plane.Follower.
func (l *loads) Applied(change route.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.services.apply(change, byLoad) {
		l.Wake()
	}
}

// byLoad returns the backends of a Service that are chosen by their load.
func byLoad(svc *route.Service) map[netip.AddrPort]bool {
	all := map[netip.AddrPort]bool{}
	for _, p := range portsOf(svc) {
		for i := range p.pools {
			for _, b := range p.pools[i].backends {
				if p.scheduler == bpf.ByLoad {
					all[b] = true
				}
			}
		}
	}
	return all
}

// update counts connections, and writes the loads. It returns the time until the next count; 0: no backend needs one.
func (l *loads) update(ctx context.Context) (next time.Duration, err error) {
	began := time.Now()
	l.mu.Lock()
	backends := l.services.all()
	l.mu.Unlock()
	before, err := l.kernel.Loads()
	if err != nil {
		return 0, err
	}
	if len(backends) == 0 && len(before) == 0 {
		return 0, nil
	}
	var open sockdiag.Connections
	if len(backends) > 0 {
		if open, err = l.count(ctx, func(at netip.AddrPort) bool { return backends[at] }); err != nil {
			return 0, err
		}
	}
	counted := make(map[netip.AddrPort]uint32, len(backends))
	for at := range backends {
		counted[at] = weigh(open[at])
	}
	if err := l.kernel.SetLoads(counted, before); err != nil || len(backends) == 0 {
		return 0, err
	}
	return max(countPeriod, countFactor*time.Since(began)), nil
}

// weigh returns the load of a backend with these connections, by network namespace.
func weigh(open map[uint64]int) uint32 {
	sum := 0
	for _, n := range open {
		sum += n
	}
	load := 0
	for ns, n := range open {
		if ns != sockdiag.OfNode {
			n = min(n, max(wholeWeight, sum-n))
		}
		load += n
	}
	return uint32(load)
}
