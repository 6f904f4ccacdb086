package ebpf

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// balancing implements Balance and Shares of plane.Opened. It is safe for concurrent use. The zero value has neither
// open connections nor new backends.
type balancing struct {
	sockets     func() ([]bpf.Socket, error) // connected UDP sockets
	connections func(context.Context, func(netip.AddrPort) bool) (sockdiag.Connections, error)
	loads       func() (map[netip.AddrPort]bpf.Load, error)
	parts       func() (map[bpf.Member]uint32, error)
	packets     func(plane.Connection) plane.Shares // of connections that packets decide; nil: by weight

	mu   sync.Mutex
	at   time.Time // when open was counted
	open map[cluster.Protocol]map[netip.AddrPort]int
}

// maxCountAge is how long openConnections returns the same counts: counting reads all sockets, and one answer may
// need many ports.
const maxCountAge = time.Second

// openConnections returns the open connections of this node, by protocol and backend. For UDP
// it counts connected sockets.
func (b *balancing) openConnections(ctx context.Context) (map[cluster.Protocol]map[netip.AddrPort]int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open != nil && time.Since(b.at) < maxCountAge {
		return b.open, nil
	}
	tcp, udp := map[netip.AddrPort]int{}, map[netip.AddrPort]int{}
	connections, err := b.connections(ctx, func(netip.AddrPort) bool { return true })
	if err != nil {
		return nil, err
	}
	for at, clients := range connections {
		for _, n := range clients {
			tcp[at] += n
		}
	}
	sockets, err := b.sockets()
	if err != nil {
		return nil, err
	}
	for _, s := range sockets {
		udp[s.Backend]++
	}
	b.open, b.at = map[cluster.Protocol]map[netip.AddrPort]int{cluster.TCP: tcp, cluster.UDP: udp}, time.Now()
	return b.open, nil
}

// balance implements Balance of plane.Opened.
func (b *balancing) balance(ctx context.Context, svc *route.Service, port int, _ *route.Host) (plane.Balance, error) {
	p := &svc.Ports[port]
	answer := plane.Balance{}
	open, err := b.openConnections(ctx)
	if err != nil {
		return answer, err
	}
	for _, pool := range []route.Pool{route.Cluster, route.Local} {
		for _, at := range p.Backends(pool) {
			answer[at] = plane.Balanced{Weight: uint32(p.Weight(at)), Active: open[p.Protocol][at]}
		}
	}
	return answer, nil
}
