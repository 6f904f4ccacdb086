package relay

import (
	"math"
	"net/netip"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/internal/slots"
)

// pool is the backends of a pool that have a weight. It is safe for concurrent use.
type pool struct {
	scheduler Scheduler
	index     map[netip.AddrPort]int // in members
	table     []uint32               // SourceHash: the member of each slot

	mu      sync.Mutex
	members []member
	now     float64 // the latest deadline of a member that was chosen
	choices uint64  // how many there were
}

// member is a backend of a pool.
type member struct {
	Backend
	load     *load
	deadline float64 // RoundRobin chooses the earliest, and adds 1/weight to it
	chosen   uint64  // the number of the last choice of this member
}

// next returns the pool that replaces this one. Members that stay keep their turns. The deadlines of new ones are
// random, so that each has its share at once, and not all nodes begin with the same backend.
func (q *pool) next(s Scheduler, members []member, random func() float64) *pool {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := &pool{
		scheduler: s, index: make(map[netip.AddrPort]int, len(members)), members: members, now: q.now, choices: q.choices,
	}
	for i := range members {
		m := &members[i]
		n.index[m.Addr] = i
		turn := 1 / float64(m.Weight)
		m.deadline = q.now + random()*turn
		if j, stays := q.index[m.Addr]; stays && s == q.scheduler {
			m.chosen = q.members[j].chosen
			m.deadline = min(q.members[j].deadline, q.now+turn) // its weight may have become greater
		}
	}
	n.fill()
	return n
}

// fill computes the table.
func (q *pool) fill() {
	if q.scheduler != SourceHash || len(q.members) == 0 {
		return
	}
	backends := make([]netip.AddrPort, len(q.members))
	for i, m := range q.members {
		backends[i] = m.Addr
	}
	table := slots.Maglev(backends, func(at netip.AddrPort) uint16 { return q.members[q.index[at]].Weight })
	q.table = make([]uint32, len(table))
	for i, at := range table {
		q.table[i] = uint32(q.index[at])
	}
}

// choose returns the backend for a connection of a client, if possible one that was not tried. The pool has members.
func (q *pool) choose(client netip.Addr, tried []netip.AddrPort) netip.AddrPort {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := q.first(client, tried)
	if m == nil {
		m = q.first(client, nil)
	}
	q.now = max(q.now, m.deadline)
	m.deadline += 1 / float64(m.Weight)
	q.choices++
	m.chosen = q.choices
	return m.Addr
}

// hashed returns the member at the slot of a client, or else at the next one, except some backends; nil: there is none.
func (q *pool) hashed(client netip.Addr, except []netip.AddrPort) *member {
	at := slots.Of(client, len(q.table))
	for i := range q.table {
		m := &q.members[q.table[(at+i)%len(q.table)]]
		if !slices.Contains(except, m.Addr) {
			return m
		}
	}
	return nil
}

// first returns the member with the lowest rank except some backends, and of several the one that was not chosen for
// the longest time; with SourceHash the one of the client. Nil: there is none.
func (q *pool) first(client netip.Addr, except []netip.AddrPort) *member {
	if q.scheduler == SourceHash {
		return q.hashed(client, except)
	}
	var first *member
	var lowest float64
	for i := range q.members {
		m := &q.members[i]
		if slices.Contains(except, m.Addr) {
			continue
		}
		rank := q.rank(m)
		if first == nil || rank < lowest || rank == lowest && m.chosen < first.chosen {
			first, lowest = m, rank
		}
	}
	return first
}

// rank returns the rank of a member. The scheduler chooses the lowest.
func (q *pool) rank(m *member) float64 {
	if q.scheduler == LeastConnections {
		return float64(m.load.open.Load()+1) / float64(m.Weight) // with the connection to choose for
	}
	return m.deadline
}

// share sets the probability of each member for the next connection of a client.
func (q *pool) share(client netip.Addr, shares map[netip.AddrPort]float64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.scheduler == SourceHash {
		q.shareByHash(client, shares)
		return
	}
	lowest, total := math.Inf(1), 0.0
	ranks := make([]float64, len(q.members))
	for i := range q.members {
		ranks[i] = q.rank(&q.members[i])
		lowest = min(lowest, ranks[i])
	}
	for i, m := range q.members {
		switch {
		case q.scheduler == RoundRobin:
			shares[m.Addr] = float64(m.Weight)
		case ranks[i] == lowest:
			shares[m.Addr] = 1
		}
		total += shares[m.Addr]
	}
	for _, m := range q.members {
		shares[m.Addr] /= total
	}
}

// shareByHash is share for SourceHash. If the client is not known, the probabilities are the shares of the table.
func (q *pool) shareByHash(client netip.Addr, shares map[netip.AddrPort]float64) {
	if client.IsValid() && len(q.table) > 0 {
		shares[q.hashed(client, nil).Addr] = 1
		return
	}
	for _, i := range q.table {
		shares[q.members[i].Addr] += 1 / float64(len(q.table))
	}
}
