package relay

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/list"
)

// Balancer chooses backends for the connections of one Service port, and counts them. It is safe for concurrent use.
type Balancer struct {
	plan     atomic.Pointer[plan]
	affinity affinity
	counts   counts
	now      func() time.Time
	random   func() float64 // returns a number from 0 to 1

	mu      sync.Mutex // of changes
	engines []*Engine  // that have used the Balancer
}

// counts has an atomic counter for each field of Counts.
type counts struct {
	open, connections, received, sent, retries, failures atomic.Int64
}

// plan is a Target and what is computed from it.
type plan struct {
	*Target
	pools  []*pool
	listed map[netip.AddrPort]*load // of the backends of all pools, including weight 0
	left   map[netip.AddrPort]*load // of backends that have left, but have connections
}

// load is how many connections a backend has.
type load struct {
	open atomic.Int64
}

// NewBalancer returns a Balancer with a target.
func NewBalancer(t *Target) *Balancer {
	b := &Balancer{now: time.Now, random: rand.Float64}
	b.plan.Store(&plan{Target: &Target{}})
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
	p := &plan{Target: t, listed: map[netip.AddrPort]*load{}, left: map[netip.AddrPort]*load{}}
	for i, backends := range t.Pools {
		var members []member
		for _, backend := range backends {
			l := cmp.Or(p.listed[backend.Addr], before.load(backend.Addr), &load{})
			p.listed[backend.Addr] = l
			if backend.Weight > 0 {
				members = append(members, member{Backend: backend, load: l})
			}
		}
		old := &pool{}
		if i < len(before.pools) {
			old = before.pools[i]
		}
		p.pools = append(p.pools, old.next(t.Scheduler, members, b.random))
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
		Retries: c.retries.Load(), Failures: c.failures.Load(),
	}
}

// Open returns how many connections and flows each backend of the target has.
func (b *Balancer) Open() map[netip.AddrPort]int {
	p := b.plan.Load()
	open := make(map[netip.AddrPort]int, len(p.listed))
	for addr, l := range p.listed {
		open[addr] = int(l.open.Load())
	}
	return open
}

// pick chooses a backend of a pool for a client. It avoids backends that were tried, unless there is
// no other. It returns false if the pool has no backend that gets connections.
func (b *Balancer) pick(client netip.Addr, pool int, tried []netip.AddrPort) (netip.AddrPort, bool) {
	p := b.plan.Load()
	if pool >= len(p.pools) || len(p.pools[pool].members) == 0 {
		return netip.AddrPort{}, false
	}
	q := p.pools[pool]
	if p.Affinity == 0 {
		return q.choose(client, tried), true
	}
	now := b.now()
	if addr, ok := b.affinity.get(client, now.Add(-p.Affinity)); ok {
		if _, ok := q.index[addr]; ok && !slices.Contains(tried, addr) {
			b.affinity.put(client, addr, now)
			return addr, true
		}
	}
	addr := q.choose(client, tried)
	b.affinity.put(client, addr, now)
	return addr, true
}

// reached records that a connection to a backend was made, or is being made. The caller must call ended in the end.
func (b *Balancer) reached(addr netip.AddrPort) { b.change(addr, 1) }

// failed records that a backend refused a connection of a client or did not answer.
func (b *Balancer) failed(client netip.Addr, addr netip.AddrPort) { b.affinity.drop(client, addr) }

// ended records that a connection to a backend, which reached has recorded, has ended.
func (b *Balancer) ended(addr netip.AddrPort) { b.change(addr, -1) }

// change adds to the load of a backend, which is never negative.
func (b *Balancer) change(addr netip.AddrPort, n int64) {
	l := b.plan.Load().load(addr)
	if l == nil {
		return // it left before it had connections
	}
	if l.open.Add(n) < 0 {
		l.open.Add(-n)
	}
}

// Shares returns how probable it is that each backend of a pool gets the next connection of a client: now, with its
// affinity and the connections that are open.
func (b *Balancer) Shares(client netip.Addr, pool int) map[netip.AddrPort]float64 {
	p := b.plan.Load()
	if pool >= len(p.pools) {
		return nil
	}
	shares := map[netip.AddrPort]float64{}
	for _, backend := range p.Pools[pool] {
		shares[backend.Addr] = 0
	}
	if addr, ok := b.affinity.get(client, b.now().Add(-p.Affinity)); ok && p.Affinity > 0 {
		if _, ok := p.pools[pool].index[addr]; ok {
			shares[addr] = 1
			return shares
		}
	}
	p.pools[pool].share(client, shares)
	return shares
}

// maxAffinity is how many clients a Balancer remembers. If there are more, it forgets the one that has
// made no connection for the longest time.
const maxAffinity = 1 << 16

// maxRemembered is how many clients all Balancers of an Engine remember, which take some 100 MB. If there are
// more, each Balancer forgets a client for a new one, but may always have keptAffinity.
const (
	maxRemembered = 1 << 19
	keptAffinity  = 1 << 6
)

// quota is how many clients there are, and may be.
type quota struct {
	limit int64
	open  atomic.Int64
}

// affinity remembers the backends of clients. The zero value is ready to use.
type affinity struct {
	mu      sync.Mutex
	all     *quota // of the clients of all Balancers; nil: no limit
	clients map[netip.Addr]*list.Element[sticky]
	list    list.Element[sticky] // the oldest first
}

// sticky is the backend of a client.
type sticky struct {
	client  netip.Addr
	backend netip.AddrPort
	used    time.Time
}

// get returns the backend of a client that has made a connection since a time.
func (a *affinity) get(client netip.Addr, since time.Time) (netip.AddrPort, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.list.Empty() && !a.list.Next.Item.used.After(since) {
		a.remove(a.list.Next)
	}
	s := a.clients[client]
	if s == nil {
		return netip.AddrPort{}, false
	}
	return s.Item.backend, true
}

// put records a connection of a client to a backend.
func (a *affinity) put(client netip.Addr, backend netip.AddrPort, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.clients == nil {
		a.clients = map[netip.Addr]*list.Element[sticky]{}
	}
	s := a.clients[client]
	if s == nil {
		if s = (&list.Element[sticky]{}); a.full() {
			s = a.list.Next
			a.remove(s)
		}
		a.clients[client] = s
		a.count(1)
	}
	s.Remove() // from its old place in the list
	s.Item = sticky{client, backend, now}
	a.list.Push(s)
}

// drop forgets a client, if its backend is this one.
func (a *affinity) drop(client netip.Addr, backend netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.clients[client]; s != nil && s.Item.backend == backend {
		a.remove(s)
	}
}

// keep forgets the clients of backends that are not listed.
func (a *affinity) keep(listed map[netip.AddrPort]*load) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.clients {
		if listed[s.Item.backend] == nil {
			a.remove(s)
		}
	}
}

// remove forgets a client.
func (a *affinity) remove(s *list.Element[sticky]) {
	s.Remove()
	delete(a.clients, s.Item.client)
	a.count(-1)
}

// full reports whether a client must be forgotten before another one is remembered.
func (a *affinity) full() bool {
	n := len(a.clients)
	return n == maxAffinity || n >= keptAffinity && a.all != nil && a.all.open.Load() >= a.all.limit
}

// count adds to the number of the clients of all Balancers.
func (a *affinity) count(n int) {
	if a.all != nil {
		a.all.open.Add(int64(n))
	}
}

// limit makes the clients count for a quota; only the first one has an effect.
func (a *affinity) limit(all *quota) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = all
		a.count(len(a.clients))
	}
}

// Client is the backend of a client by affinity.
type Client struct {
	Addr    netip.Addr
	Backend netip.AddrPort
	Idle    time.Duration // since its last connection
}

// Clients returns which clients the Balancer remembers for affinity, the one that is idle for longest first.
func (b *Balancer) Clients() []Client {
	now := b.now()
	b.affinity.mu.Lock()
	defer b.affinity.mu.Unlock()
	list := make([]Client, 0, len(b.affinity.clients))
	for s := b.affinity.list.Next; s != nil && s != &b.affinity.list; s = s.Next {
		list = append(list, Client{s.Item.client, s.Item.backend, now.Sub(s.Item.used)})
	}
	return list
}

// Remember adds clients that another Balancer returned (Clients).
func (b *Balancer) Remember(list []Client) {
	now := b.now()
	for _, c := range list {
		b.affinity.put(c.Addr, c.Backend, now.Add(-c.Idle))
	}
}
