package relay

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
)

// pool is the backends of a pool that have a weight. It is safe for concurrent use.
type pool struct {
	scheduler Scheduler
	index     map[netip.AddrPort]int // in members

	mu      sync.Mutex
	members []member
	now     float64 // the latest deadline of a member that was chosen
	choices uint64  // how many there were
}

// member is a backend of a pool.
type member struct {
	Backend
	load     *load
	hash     uint64  // of its address
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
	return n
}

// choose returns the backend for a connection of a client, if possible one that was not tried. The pool has members.
func (q *pool) choose(client netip.Addr, tried []netip.AddrPort) netip.AddrPort {
	q.mu.Lock()
	defer q.mu.Unlock()
	hash := hashClient(client)
	m := q.first(hash, tried)
	if m == nil {
		m = q.first(hash, nil)
	}
	q.now = max(q.now, m.deadline)
	m.deadline += 1 / float64(m.Weight)
	q.choices++
	m.chosen = q.choices
	return m.Addr
}

// first returns the member with the lowest rank except some backends, and of several the one that was not chosen for
// the longest time; nil: there is none.
func (q *pool) first(client uint64, except []netip.AddrPort) *member {
	var first *member
	var lowest float64
	for i := range q.members {
		m := &q.members[i]
		if slices.Contains(except, m.Addr) {
			continue
		}
		rank := q.rank(m, client)
		if first == nil || rank < lowest || rank == lowest && m.chosen < first.chosen {
			first, lowest = m, rank
		}
	}
	return first
}

// rank returns the rank of a member for a client. The scheduler chooses the lowest.
func (q *pool) rank(m *member, client uint64) float64 {
	switch q.scheduler {
	case LeastConnections:
		return float64(m.load.open.Load()+1) / float64(m.Weight) // with the connection to choose for
	case SourceHash:
		return m.distance(client)
	case RoundRobin:
	}
	return m.deadline
}

// share sets the probability of each member for the next connection of a client.
func (q *pool) share(client netip.Addr, shares map[netip.AddrPort]float64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	hash, lowest, total := hashClient(client), math.Inf(1), 0.0
	ranks := make([]float64, len(q.members))
	for i := range q.members {
		ranks[i] = q.rank(&q.members[i], hash)
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

// distance returns the distance of a client from the member by rendezvous hashing: the nearest of several members is
// each with a probability in proportion to its weight. It depends on addresses only, so that all nodes choose the same
// member, and if a member comes or goes, only clients of this member move.
func (m *member) distance(client uint64) float64 {
	uniform := (float64(mix(client^m.hash)>>12) + 0.5) / (1 << 52) // from 0 to 1
	return -math.Log(uniform) / float64(m.Weight)
}

// hashClient returns a hash of the address of a client.
func hashClient(a netip.Addr) uint64 {
	b := a.As16()
	return mix(mix(binary.BigEndian.Uint64(b[:8])) + binary.BigEndian.Uint64(b[8:]))
}

// hashMember returns a hash of the address of a backend.
func hashMember(a netip.AddrPort) uint64 {
	return mix(bits.RotateLeft64(hashClient(a.Addr()), 17) + uint64(a.Port()))
}

// mix spreads the bits of a number (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
