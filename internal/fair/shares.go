// Package fair decides which connection ends when there are too many, so that no client takes all.
package fair

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/list"
)

// Seat is an element in the list of the connections or flows of a client.
type Seat struct {
	list.Element[*Seat]
	Owner  Owner
	Used   atomic.Int64 // when the flow was last used
	placed int64        // the value of Used when the seat was put at the end of the list
	holder *share       // nil: it has no seat
}

// Owner is a connection or flow that can be ended in favour of another one. by is the loop of that
// one. Its own seat is released already.
type Owner interface{ Evict(by any) }

// share is the flows of one address, or of all addresses of a network.
type share struct {
	list.Element[*share]
	ranking          // of the addresses of a network
	in      *ranking // where the share is
	network *share   // of an address; nil: none
	addr    netip.Addr
	seats   list.Element[*Seat] // of an address; the first is likely to be unused for longest
	count   int
}

// ranking orders clients by their number of flows.
type ranking struct {
	clients map[netip.Addr]*share
	ranks   []*list.Element[*share] // by number
	most    int                     // the highest rank that has clients
}

// Options for New. Times are in any unit, from any moment on.
type Options struct {
	Limit int64 // of flows
	Idle  int64 // how long a flow must be unused to be idle

	// Always makes a new flow end another one, even if all clients have equally many and none is idle.
	Always bool
}

// Shares divides a limited number of connections or flows, here called flows, fairly among clients. If all
// are taken, the client with most flows loses the one that it has not used for longest, to a client with
// fewer; among clients with equally many, only an idle flow ends for a new one. An attacker commonly has a
// whole network of IPv6, so a network is one client. As the pods of a node are often in one network, its
// addresses divide its share in the same way. It is safe for concurrent use.
type Shares struct {
	mu   sync.Mutex
	opt  Options
	open int64
	ranking
}

// New returns Shares without flows.
func New(o Options) *Shares { return &Shares{opt: o} }

// networkBits is the length of the prefix of a network.
const networkBits = 64

// maxVisits bounds how many clients and flows a search for an idle one visits.
const maxVisits = 16

// Resize changes the limit. It closes no flow, even if more are open.
func (s *Shares) Resize(limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opt.Limit = limit
}

// Count returns how many are open, and how many there may be.
func (s *Shares) Count() (open, limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open, s.opt.Limit
}

// Network returns the first address of a client's network of IPv6, and an address of IPv4 as it is.
func Network(client netip.Addr) netip.Addr {
	if client.Is4() {
		return client
	}
	return netip.PrefixFrom(client, networkBits).Masked().Addr()
}

// Take gives a flow of a client a seat. If it must end another flow for that, it returns that seat. It returns
// false if the client cannot have another flow.
func (s *Shares) Take(client netip.Addr, flow *Seat, now int64) (evicted *Seat, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= s.opt.Limit {
		if evicted = s.victim(client, now); evicted == nil {
			return nil, false
		}
		s.leave(evicted)
	}
	s.place(client, flow, now)
	return evicted, true
}

// Adopt gives a flow of a client a seat, even if all are taken: it was open before.
func (s *Shares) Adopt(client netip.Addr, flow *Seat, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place(client, flow, now)
}

func (s *Shares) place(client netip.Addr, flow *Seat, now int64) {
	s.open++
	c := s.share(Network(client))
	if client.Is6() {
		of := c
		c = of.share(client)
		c.network = of
	}
	flow.holder, flow.Item, flow.placed = c, flow, now
	flow.Used.Store(now)
	c.seats.Push(&flow.Element)
	for ; c != nil; c = c.network {
		c.in.rank(c, c.count+1)
	}
}

// Replace ends a flow so that a client can use its seat. It returns nil if the client cannot have another flow.
func (s *Shares) Replace(client netip.Addr, now int64) *Seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.victim(client, now)
	if v != nil {
		s.leave(v)
	}
	return v
}

// Release gives a seat back.
func (s *Shares) Release(flow *Seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if flow.holder != nil {
		s.leave(flow)
	}
}

func (s *Shares) leave(flow *Seat) {
	c := flow.holder
	flow.Element.Remove()
	flow.holder = nil
	s.open--
	for ; c != nil; c = c.network {
		c.in.rank(c, c.count-1)
	}
}

// share returns the share of a client. A new one has no rank yet.
func (r *ranking) share(client netip.Addr) *share {
	c := r.clients[client]
	if c == nil {
		c = &share{addr: client, in: r}
		c.Item = c
		if r.clients == nil {
			r.clients = map[netip.Addr]*share{}
		}
		r.clients[client] = c
	}
	return c
}

// rank adds a client to the list of clients with the same number of flows.
func (r *ranking) rank(c *share, count int) {
	c.Element.Remove()
	c.count = count
	if count == 0 {
		delete(r.clients, c.addr)
	} else {
		for len(r.ranks) <= count {
			r.ranks = append(r.ranks, &list.Element[*share]{})
		}
		r.ranks[count].Push(&c.Element)
	}
	r.most = max(r.most, count)
	for r.most > 0 && r.ranks[r.most].Empty() {
		r.most--
	}
}

// victim chooses the flow that ends for a new one of a client; nil: none.
func (s *Shares) victim(client netip.Addr, now int64) *Seat {
	if s.most == 0 {
		return nil
	}
	r := &s.ranking
	for _, key := range []netip.Addr{Network(client), client} {
		has := 0
		c := r.clients[key]
		if c != nil {
			has = c.count
		}
		if r.most > has+1 {
			return r.ranks[r.most].Next.Item.oldest(now - s.opt.Idle)
		}
		if c == nil {
			break
		}
		r = &c.ranking // which is empty in IPv4
	}
	if s.opt.Always {
		return s.top(Network(client)).oldest(now - s.opt.Idle)
	}
	top := s.ranks[s.most]
	for range maxVisits {
		c := top.Next
		if v := c.Item.oldest(now - s.opt.Idle); now-v.Used.Load() >= s.opt.Idle {
			return v
		}
		c.Remove()
		top.Push(c) // after all others
	}
	return nil
}

// top returns a client with most flows: this one, if it has as many as any other.
func (r *ranking) top(client netip.Addr) *share {
	if c := r.clients[client]; c != nil && c.count == r.most {
		return c
	}
	return r.ranks[r.most].Next.Item
}

// oldest returns a flow of a client, or of the address in a network that has most, which has not been used for long:
// an idle one, not used after idle, or else the one unused for longest, if only a few were used since the last call.
// It puts no idle flow at the end of the list: calls in quick succession would soon find only flows in use.
func (c *share) oldest(idle int64) *Seat {
	if c.most > 0 {
		c = c.ranks[c.most].Next.Item
	}
	best := c.seats.Next.Item
	for range min(maxVisits, c.count) {
		e := c.seats.Next.Item
		used := e.Used.Load()
		if used == e.placed || used <= idle {
			return e
		}
		if used < best.Used.Load() {
			best = e
		}
		e.placed = used
		e.Element.Remove()
		c.seats.Push(&e.Element)
	}
	return best
}
