package forward

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// Balancer chooses backends for the connections of one Service port, and counts them. It is safe
// for concurrent use.
type Balancer struct {
	target atomic.Pointer[Target]
	counts counts

	mu      sync.Mutex
	next    int
	engines []*Engine // that have used the Balancer
}

// counts has an atomic counter for each field of Counts.
type counts struct {
	open, connections, received, sent, retries, failures, refused atomic.Int64
}

// NewBalancer returns a Balancer with a target.
func NewBalancer(t *Target) *Balancer {
	b := &Balancer{}
	b.target.Store(t)
	return b
}

// subscribe makes the Balancer tell an Engine which backends have left.
func (b *Balancer) subscribe(e *Engine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.engines, e) {
		b.engines = append(b.engines, e)
	}
}

// Set changes the target. Connections to backends that are in no pool any more drain.
func (b *Balancer) Set(t *Target) { b.target.Store(t) }

// Counts returns the counters.
func (b *Balancer) Counts() Counts {
	c := &b.counts
	return Counts{
		Open: c.open.Load(), Connections: c.connections.Load(), Received: c.received.Load(), Sent: c.sent.Load(),
		Retries: c.retries.Load(), Failures: c.failures.Load(), Refused: c.refused.Load(),
	}
}

// pick chooses a backend of a pool for a client. It avoids backends that were tried, unless there is
// no other. It returns false if the pool has no backend that gets connections.
func (b *Balancer) pick(_ netip.Addr, pool int, tried []netip.AddrPort) (netip.AddrPort, bool) {
	backends := b.target.Load().Pools[pool]
	if len(backends) == 0 {
		return netip.AddrPort{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for range backends {
		b.next++
		if at := backends[b.next%len(backends)].Addr; !slices.Contains(tried, at) {
			return at, true
		}
	}
	return backends[b.next%len(backends)].Addr, true
}

// reached records that a client's connection to a backend was made.
func (b *Balancer) reached(netip.Addr, netip.AddrPort) {}

// failed records that a backend refused a connection of a client or did not answer.
func (b *Balancer) failed(netip.Addr, netip.AddrPort) {}

// ended records that a connection to a backend, which reached has recorded, has ended.
func (b *Balancer) ended(netip.AddrPort) {}
