package ebpf

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	// countPeriod is the time between two counts of connections. A count takes longer with more of them, and the period is at least
	// countFactor times as long.
	countPeriod = 2 * time.Second
	countFactor = 50

	// wholeWeight is how many connections of a pod to a backend have their whole weight. Beyond it they weigh no more than those
	// of all other clients together: no pod can keep the others from a backend.
	wholeWeight = 64
)

// loadMap are the loads of backends in the kernel: bpf.Conn.
type loadMap interface {
	Loads() (map[netip.AddrPort]bpf.Load, error)
	SetLoads(counted map[netip.AddrPort]uint32, before map[netip.AddrPort]bpf.Load) error
}

// loads keeps the loads of the backends of Services with least connections: it counts the connections of this node, and programs add those
// that they decide until the next count. So an error of a count ends with the next one, whichever sockets and programs the connections have.
type loads struct {
	kernel loadMap
	count  func(context.Context, func(netip.AddrPort) bool) (sockdiag.Connections, error)
	failed func(error)
	wake   chan struct{} // after a change of the backends

	mu       sync.Mutex
	services map[cluster.Name]map[netip.AddrPort]bool // nil: no change was applied yet
}

func newLoads(kernel loadMap, count func(context.Context, func(netip.AddrPort) bool) (sockdiag.Connections, error), failed func(error)) *loads {
	return &loads{kernel: kernel, count: count, failed: failed, wake: make(chan struct{}, 1)}
}

// Applied implements plane.Follower.
func (l *loads) Applied(change route.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.services == nil {
		l.services = map[cluster.Name]map[netip.AddrPort]bool{}
		for name, svc := range change.Table.Services { // also those that the kernel has refused
			l.set(name, svc)
		}
	}
	for _, t := range change.Touched {
		l.set(t.Name, t.New)
	}
}

// set replaces the backends of a Service.
func (l *loads) set(name cluster.Name, svc *route.Service) {
	backends := byLoad(svc)
	if len(backends) == 0 && l.services[name] == nil {
		return
	}
	if l.services[name] = backends; len(backends) == 0 {
		delete(l.services, name)
	}
	select {
	case l.wake <- struct{}{}:
	default: // Run wakes anyway
	}
}

// byLoad returns the backends of a Service that are chosen by their load.
func byLoad(svc *route.Service) map[netip.AddrPort]bool {
	if svc == nil {
		return nil
	}
	all := map[netip.AddrPort]bool{}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if !decidable(p) || schedulerOf(p) != bpf.ByLoad {
			continue
		}
		for _, pool := range []route.Pool{route.Cluster, route.Local} {
			for _, b := range p.Backends(pool) {
				all[b] = true
			}
		}
	}
	return all
}

// Run counts until the context ends, and returns nil then.
func (l *loads) Run(ctx context.Context) error {
	failed := once(l.failed)
	for {
		began := time.Now()
		some, err := l.update(ctx)
		if ctx.Err() == nil {
			failed(err)
		}
		var next <-chan time.Time
		if some {
			next = time.After(max(countPeriod, countFactor*time.Since(began)))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-next:
		}
	}
}

// update counts connections, and writes the loads. It returns false if no backend needs one.
func (l *loads) update(ctx context.Context) (some bool, err error) {
	backends := l.backends()
	before, err := l.kernel.Loads()
	if err != nil {
		return true, err
	}
	if len(backends) == 0 && len(before) == 0 {
		return false, nil
	}
	var open sockdiag.Connections
	if len(backends) > 0 {
		if open, err = l.count(ctx, func(at netip.AddrPort) bool { return backends[at] }); err != nil {
			return true, err
		}
	}
	counted := make(map[netip.AddrPort]uint32, len(backends))
	for at := range backends {
		counted[at] = weigh(open[at])
	}
	return len(backends) > 0, l.kernel.SetLoads(counted, before)
}

func (l *loads) backends() map[netip.AddrPort]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[netip.AddrPort]bool{}
	for _, backends := range l.services {
		for at := range backends {
			all[at] = true
		}
	}
	return all
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
