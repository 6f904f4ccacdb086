package ebpf

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// balancing implements Balance and Shares of plane.Opened. It is safe for concurrent use. The zero value has neither open connections nor
// new backends.
type balancing struct {
	sockets func(protocol uint8) ([]bpf.Socket, error)
	parts   func() (map[bpf.Member]uint32, error)

	mu   sync.Mutex
	at   time.Time          // when open was counted
	open map[bpf.Member]int // open connections by backend
}

// maxCountAge is how long openConnections returns the same counts: counting reads all sockets, and one answer may need many ports.
const maxCountAge = time.Second

// openConnections returns the open connections by backend: all of UDP, and of TCP those among the newest sockets.
func (b *balancing) openConnections() (map[bpf.Member]int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open != nil && time.Since(b.at) < maxCountAge {
		return b.open, nil
	}
	open := map[bpf.Member]int{}
	for _, protocol := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
		all, err := b.sockets(uint8(protocol))
		if err != nil {
			return nil, err
		}
		for _, s := range all {
			open[bpf.Member{Pool: s.Pool, Backend: s.Backend}]++
		}
	}
	b.open, b.at = open, time.Now()
	return open, nil
}

// balance implements Balance of plane.Opened.
func (b *balancing) balance(_ context.Context, svc *route.Service, port int, _ *route.Host) (plane.Balance, error) {
	p := &svc.Ports[port]
	answer := plane.Balance{Scheduler: schedulerName(schedulerOf(p)), Backends: map[netip.AddrPort]plane.Balanced{}}
	open, err := b.openConnections()
	if err != nil {
		return answer, err
	}
	for _, pool := range []route.Pool{route.Cluster, route.Local} {
		for _, at := range p.Backends(pool) {
			backend := answer.Backends[at]
			backend.Weight = uint32(p.Weight(at))
			backend.Active += open[bpf.Member{Pool: poolOf(svc.Name, p, pool), Backend: at}]
			answer.Backends[at] = backend
		}
	}
	return answer, nil
}
