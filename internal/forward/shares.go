package forward

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// seat is the place of a flow among the flows of its client.
type seat struct {
	link[*seat]
	used   atomic.Int64 // when the flow was last used
	placed int64        // what used was when the seat was put at the end of the list
	holder *share       // nil: it has no seat
	owner  evicter
}

// evicter is a flow that can be ended for another one, whose loop is given. Its seat is released already.
type evicter interface{ evict(by any) }

// share are the flows of one client address.
type share struct {
	link[*share]
	addr  netip.Addr
	seats link[*seat] // the first is likely to be unused for longest
	count int
}

// shares divides a limited number of flows fairly among client addresses. If all are taken, the
// client with most flows loses the one that it has not used for longest, to a client with fewer; among clients with
// equally many, only an idle flow ends for a new one. It is safe for concurrent use.
type shares struct {
	quota *quota
	idle  int64 // how long a flow must be unused to be idle

	mu      sync.Mutex
	clients map[netip.Addr]*share
	ranks   []link[*share] // clients by their number of flows
	most    int            // the highest rank that has clients
}

// maxLooks bounds how many clients and flows are looked at to find one that is idle.
const maxLooks = 16

func newShares(q *quota, idle int64) *shares {
	return &shares{quota: q, idle: idle, clients: map[netip.Addr]*share{}, ranks: make([]link[*share], 1)}
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
	s.quota.open.Add(1)
	c := s.clients[client]
	if c == nil {
		c = &share{addr: client}
		c.item = c
		s.clients[client] = c
	}
	flow.holder, flow.item, flow.placed = c, flow, now
	flow.used.Store(now)
	c.seats.push(&flow.link)
	s.rank(c, c.count+1)
	return evicted, true
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
	s.rank(c, c.count-1)
}

// rank puts a client among those with a number of flows.
func (s *shares) rank(c *share, count int) {
	c.link.remove()
	c.count = count
	if count == 0 {
		delete(s.clients, c.addr)
	} else {
		s.room(count)
		s.ranks[count].push(&c.link)
	}
	s.most = max(s.most, count)
	for s.most > 0 && s.ranks[s.most].empty() {
		s.most--
	}
}

// room makes the rank of a number of flows exist.
func (s *shares) room(count int) {
	if count < len(s.ranks) {
		return
	}
	grown := make([]link[*share], 2*count)
	for i := range s.ranks {
		for head := &s.ranks[i]; !head.empty(); {
			e := head.next
			e.remove()
			grown[i].push(e)
		}
	}
	s.ranks = grown
}

// victim chooses the flow that ends for a new one of a client; nil: none.
func (s *shares) victim(client netip.Addr, now int64) *seat {
	has := 0
	if c := s.clients[client]; c != nil {
		has = c.count
	}
	if s.most == 0 {
		return nil
	}
	top := &s.ranks[s.most]
	if s.most > has+1 {
		return top.next.item.oldest()
	}
	for range maxLooks {
		c := top.next
		if v := c.item.oldest(); now-v.used.Load() >= s.idle {
			return v
		}
		c.remove()
		top.push(c) // after all others
	}
	return nil
}

// oldest returns a flow that has not been used for long: the one unused for longest, if only a few were
// used since it was called last.
func (c *share) oldest() *seat {
	best := c.seats.next.item
	for range min(maxLooks, c.count) {
		e := c.seats.next.item
		used := e.used.Load()
		if used == e.placed {
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
