package ebpf

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// balancing implements Balance and Shares of plane.Opened. It is safe for concurrent use.
type balancing struct {
	sockets func(protocol uint8) ([]bpf.Socket, error)
	node    string

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

// shares implements Shares of plane.Opened. It returns nil for connections that are left to packets, or whose backends have equal chances.
func (b *balancing) shares(by plane.Passage, client netip.Addr) map[netip.AddrPort]float64 {
	p := &by.Service.Ports[by.Port]
	if !atSocket(by) || schedulerOf(p) == bpf.ByChance && len(p.Weights) == 0 {
		return nil
	}
	slots := slotsOf(p, by.Way.Pool)
	switch schedulerOf(p) {
	case bpf.ByHash:
		hash := bpf.PodHash(client)
		if by.Node {
			hash = bpf.NodeHash(b.node)
		}
		slots = []netip.AddrPort{slots[int(hash)%len(slots)]}
	case bpf.ByLoad:
		slots = b.least(by, slots)
	case bpf.ByChance:
	}
	shares := map[netip.AddrPort]float64{}
	for _, at := range slots {
		shares[at] += 1 / float64(len(slots))
	}
	return shares
}

// least returns the backends with the fewest open connections for their weight. If they cannot be counted, it returns all backends.
func (b *balancing) least(by plane.Passage, backends []netip.AddrPort) []netip.AddrPort {
	p := &by.Service.Ports[by.Port]
	open, err := b.openConnections()
	if err != nil {
		return backends
	}
	load := func(at netip.AddrPort) float64 {
		return float64(open[bpf.Member{Pool: poolOf(by.Service.Name, p, by.Way.Pool), Backend: at}]+1) / float64(p.Weight(at))
	}
	lowest := slices.MinFunc(backends, func(x, y netip.AddrPort) int { return int(1e6 * (load(x) - load(y))) })
	return slices.DeleteFunc(slices.Clone(backends), func(at netip.AddrPort) bool { return load(at) > load(lowest) })
}
