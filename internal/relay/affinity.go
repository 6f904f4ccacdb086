package relay

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/list"
)

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
