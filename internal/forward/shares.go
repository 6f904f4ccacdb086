package forward

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// seat is an element in the list of the connections or flows of a client.
type seat struct {
	link[*seat]
	used   atomic.Int64 // when the flow was last used
	placed int64        // what used was when the seat was put at the end of the list
	holder *share       // nil: it has no seat
	owner  evicter
}

// evicter is a connection or flow that can be ended in favour of another one. by is the loop of that
// one. Its own seat is released already.
type evicter interface{ evict(by any) }

// share is the flows of one address, or of all addresses of a network.
type share struct {
	link[*share]
	ranking          // of the addresses of a network
	in      *ranking // where the share is
	network *share   // of an address; nil: none
	addr    netip.Addr
	seats   link[*seat] // of an address; the first is likely to be unused for longest
	count   int
}

// ranking orders clients by their number of flows.
type ranking struct {
	clients map[netip.Addr]*share
	ranks   []link[*share] // by number
	most    int            // the highest rank that has clients
}

// shares divides a limited number of connections or flows, here called flows, fairly among clients. If all
// are taken, the client with most flows loses the one that it has not used for longest, to a client with
// fewer; among clients with equally many, only an idle flow ends for a new one. An attacker commonly has a
// whole network of IPv6, so a network is one client. As the pods of a node are often in one network, its
// addresses divide its share in the same way. It is safe for concurrent use.
type shares struct {
	quota *quota
	idle  int64 // how long a flow must be unused to be idle

	mu sync.Mutex
	ranking
}

// networkBits is the length of the prefix of a network.
const networkBits = 64

// maxVisits bounds how many clients and flows a search for an idle one visits.
const maxVisits = 16

func newShares(q *quota, idle int64) *shares {
	return &shares{quota: q, idle: idle}
}

// resize changes how many there may be. If there are more, those that are open stay.
func (s *shares) resize(limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quota.limit = limit
}

// limit returns how many there may be.
func (s *shares) limit() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quota.limit
}

// network returns the first address of a client's network of IPv6, and an address of IPv4 as it is.
func network(client netip.Addr) netip.Addr {
	if client.Is4() {
		return client
	}
	return netip.PrefixFrom(client, networkBits).Masked().Addr()
}

// take gives a flow of a client a seat. If it must end another flow for that, it returns that seat. It returns
// false if the client cannot have another flow.
func (s *shares) take(client netip.Addr, flow *seat, now int64) (evicted *seat, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quota.open.Load() >= s.quota.limit {
		if evicted = s.victim(client, now); evicted == nil {
			return nil, false
		}
		s.leave(evicted)
	}
	s.place(client, flow, now)
	return evicted, true
}

// adopt gives a flow of a client a seat, also if all are taken: it was open before.
func (s *shares) adopt(client netip.Addr, flow *seat, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place(client, flow, now)
}

func (s *shares) place(client netip.Addr, flow *seat, now int64) {
	s.quota.open.Add(1)
	c := s.share(network(client))
	if client.Is6() {
		of := c
		c = of.share(client)
		c.network = of
	}
	flow.holder, flow.item, flow.placed = c, flow, now
	flow.used.Store(now)
	c.seats.push(&flow.link)
	for ; c != nil; c = c.network {
		c.in.rank(c, c.count+1)
	}
}

// replace ends a flow so that a client can use what that flow held. It returns nil if the client
// cannot have another flow.
func (s *shares) replace(client netip.Addr, now int64) *seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.victim(client, now)
	if v != nil {
		s.leave(v)
	}
	return v
}

// release gives a seat back.
func (s *shares) release(flow *seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if flow.holder != nil {
		s.leave(flow)
	}
}

func (s *shares) leave(flow *seat) {
	c := flow.holder
	flow.link.remove()
	flow.holder = nil
	s.quota.release()
	for ; c != nil; c = c.network {
		c.in.rank(c, c.count-1)
	}
}

// share returns the share of a client. A new one has no rank yet.
func (r *ranking) share(client netip.Addr) *share {
	c := r.clients[client]
	if c == nil {
		c = &share{addr: client, in: r}
		c.item = c
		if r.clients == nil {
			r.clients = map[netip.Addr]*share{}
		}
		r.clients[client] = c
	}
	return c
}

// rank puts a client among those with a number of flows.
func (r *ranking) rank(c *share, count int) {
	c.link.remove()
	c.count = count
	if count == 0 {
		delete(r.clients, c.addr)
	} else {
		r.room(count)
		r.ranks[count].push(&c.link)
	}
	r.most = max(r.most, count)
	for r.most > 0 && r.ranks[r.most].empty() {
		r.most--
	}
}

// room makes the rank of a number of flows exist.
func (r *ranking) room(count int) {
	if count < len(r.ranks) {
		return
	}
	grown := make([]link[*share], 2*count)
	for i := range r.ranks {
		for head := &r.ranks[i]; !head.empty(); {
			e := head.next
			e.remove()
			grown[i].push(e)
		}
	}
	r.ranks = grown
}

// victim chooses the flow that ends for a new one of a client; nil: none.
func (s *shares) victim(client netip.Addr, now int64) *seat {
	if s.most == 0 {
		return nil
	}
	r := &s.ranking
	for _, key := range []netip.Addr{network(client), client} {
		has := 0
		c := r.clients[key]
		if c != nil {
			has = c.count
		}
		if r.most > has+1 {
			return r.ranks[r.most].next.item.oldest(now - s.idle)
		}
		if c == nil {
			break
		}
		r = &c.ranking // which is empty in IPv4
	}
	top := &s.ranks[s.most]
	for range maxVisits {
		c := top.next
		if v := c.item.oldest(now - s.idle); now-v.used.Load() >= s.idle {
			return v
		}
		c.remove()
		top.push(c) // after all others
	}
	return nil
}

// oldest returns a flow of a client, or of the address in a network that has most, which has not been used
// for long: an idle one, not used after idle, or else the one unused for longest, if only a few were used since the last
// call. It puts no idle flow at the end of the list: calls in quick succession would soon find only flows in use.
func (c *share) oldest(idle int64) *seat {
	if c.most > 0 {
		c = c.ranks[c.most].next.item
	}
	best := c.seats.next.item
	for range min(maxVisits, c.count) {
		e := c.seats.next.item
		used := e.used.Load()
		if used == e.placed || used <= idle {
			return e
		}
		if used < best.used.Load() {
			best = e
		}
		e.placed = used
		e.link.remove()
		c.seats.push(&e.link)
	}
	return best
}
