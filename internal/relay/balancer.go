package relay

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Balancer chooses backends for the connections of one Service port, and counts them. It is safe
// for concurrent use.
type Balancer struct {
	target   atomic.Pointer[Target]
	plan     atomic.Pointer[plan]
	affinity affinity
	counts   counts
	now      func() time.Time
	random   func(n uint64) uint64 // returns a number below n

	mu      sync.Mutex // of changes
	engines []*Engine  // that have used the Balancer
}

// counts has an atomic counter for each field of Counts.
type counts struct {
	open, connections, received, sent, retries, failures, refused atomic.Int64
}

// plan is a Target in a form that is fast to use.
type plan struct {
	affinity time.Duration
	pools    []*pool
	listed   map[netip.AddrPort]*load // of the backends of all pools, including weight 0
	left     map[netip.AddrPort]*load // of backends that have left, but have connections
}

// load is how many connections a backend has.
type load struct {
	open atomic.Int64
}

// pool is the backends of a pool with a weight.
type pool struct {
	scheduler
	members members
	index   map[netip.AddrPort]int
}

// members are backends of a pool, all with a weight, and their loads.
type members struct {
	backends []Backend
	loads    []*load
}

// NewBalancer returns a Balancer with a target.
func NewBalancer(t *Target) *Balancer {
	b := &Balancer{now: time.Now, random: rand.Uint64N}
	b.plan.Store(&plan{})
	b.target.Store(&Target{})
	b.Set(t)
	return b
}

// subscribe makes the Balancer notify an Engine of backends that have left.
func (b *Balancer) subscribe(e *Engine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.affinity.limit(&e.remembered)
	if !slices.Contains(b.engines, e) {
		b.engines = append(b.engines, e)
	}
}

// Forget removes the clients of affinity of a Balancer that is not used any more: they count for the limit of all
// Balancers.
func (b *Balancer) Forget() { b.affinity.keep(nil) }

// Set changes the target. Connections to backends that are in no pool any more drain.
func (b *Balancer) Set(t *Target) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.plan.Load()
	p := b.compile(t, before)
	b.target.Store(t)
	b.plan.Store(p)
	var gone []netip.AddrPort
	for addr := range before.listed {
		if p.listed[addr] == nil {
			gone = append(gone, addr)
		}
	}
	if len(gone) == 0 {
		return
	}
	b.affinity.keep(p.listed)
	for _, e := range b.engines {
		e.system.left(b, gone)
	}
}

// compile returns the plan for a target, which keeps the loads and turns of the plan before it.
func (b *Balancer) compile(t *Target, before *plan) *plan {
	p := &plan{affinity: t.Affinity, listed: map[netip.AddrPort]*load{}, left: map[netip.AddrPort]*load{}}
	for i, backends := range t.Pools {
		q := &pool{index: make(map[netip.AddrPort]int, len(backends))}
		for _, backend := range backends {
			l := cmp.Or(p.listed[backend.Addr], before.load(backend.Addr), &load{})
			p.listed[backend.Addr] = l
			if backend.Weight == 0 {
				continue
			}
			q.index[backend.Addr] = len(q.members.backends)
			q.members.backends = append(q.members.backends, backend)
			q.members.loads = append(q.members.loads, l)
		}
		var old scheduler
		if i < len(before.pools) {
			old = before.pools[i].scheduler
		}
		q.scheduler = newScheduler(t.Scheduler, q.members, old, b.random)
		p.pools = append(p.pools, q)
	}
	for _, loads := range []map[netip.AddrPort]*load{before.listed, before.left} {
		for addr, l := range loads {
			if p.listed[addr] == nil && l.open.Load() > 0 {
				p.left[addr] = l
			}
		}
	}
	return p
}

// load returns the load of a backend; nil if it is not known.
func (p *plan) load(addr netip.AddrPort) *load { return cmp.Or(p.listed[addr], p.left[addr]) }

// has reports whether a backend is in a pool.
func (b *Balancer) has(addr netip.AddrPort) bool { return b.plan.Load().listed[addr] != nil }

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
func (b *Balancer) pick(client netip.Addr, pool int, tried []netip.AddrPort) (netip.AddrPort, bool) {
	p := b.plan.Load()
	if pool >= len(p.pools) || len(p.pools[pool].members.backends) == 0 {
		return netip.AddrPort{}, false
	}
	q := p.pools[pool]
	if p.affinity == 0 {
		return q.choose(client, tried), true
	}
	now := b.now()
	if addr, ok := b.affinity.get(client, now.Add(-p.affinity)); ok {
		if _, ok := q.index[addr]; ok && !slices.Contains(tried, addr) {
			b.affinity.put(client, addr, now)
			return addr, true
		}
	}
	addr := q.choose(client, tried)
	b.affinity.put(client, addr, now)
	return addr, true
}

// choose returns a backend that was not tried, or if all were, any.
func (q *pool) choose(client netip.Addr, tried []netip.AddrPort) netip.AddrPort {
	var skip []int
	for _, addr := range tried {
		if i, ok := q.index[addr]; ok && !slices.Contains(skip, i) {
			skip = append(skip, i)
		}
	}
	if len(skip) == len(q.members.backends) {
		skip = nil
	}
	return q.members.backends[q.pick(client, skip)].Addr
}

// reached records that a connection of a client to a backend was made, or is being made. The caller
// must call ended in the end.
func (b *Balancer) reached(_ netip.Addr, addr netip.AddrPort) { b.change(addr, 1) }

// failed records that a backend refused a connection of a client or did not answer.
func (b *Balancer) failed(client netip.Addr, addr netip.AddrPort) { b.affinity.drop(client, addr) }

// ended records that a connection to a backend, which reached has recorded, has ended.
func (b *Balancer) ended(addr netip.AddrPort) { b.change(addr, -1) }

// change adds to the load of a backend, which is never negative.
func (b *Balancer) change(addr netip.AddrPort, n int64) {
	p := b.plan.Load()
	l := p.load(addr)
	if l == nil {
		return // it left before it had connections
	}
	if l.open.Add(n) < 0 {
		l.open.Add(-n)
	}
	for _, q := range p.pools {
		if i, ok := q.index[addr]; ok {
			q.changed(i)
		}
	}
}

// Share is the probability that a backend gets a connection.
type Share struct {
	Addr        netip.AddrPort
	Probability float64
}

// Shares returns the backends of a pool, and how probable it is that the next connection of a client
// goes to each of them: now, with its affinity and the connections that are open.
func (b *Balancer) Shares(client netip.Addr, pool int) []Share {
	p, target := b.plan.Load(), b.target.Load()
	if pool >= len(p.pools) || pool >= len(target.Pools) {
		return nil
	}
	q := p.pools[pool]
	shares := make([]Share, len(target.Pools[pool]))
	probability := q.shares(client)
	if addr, ok := b.affinity.get(client, b.now().Add(-p.affinity)); ok && p.affinity > 0 {
		if i, ok := q.index[addr]; ok {
			clear(probability)
			probability[i] = 1
		}
	}
	for i, backend := range target.Pools[pool] {
		shares[i].Addr = backend.Addr
		if j, ok := q.index[backend.Addr]; ok {
			shares[i].Probability = probability[j]
		}
	}
	return shares
}
