package relay

import (
	"container/heap"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// scheduler chooses members of a pool, by index. It is safe for concurrent use.
type scheduler interface {
	// pick chooses a member for a client, except those to skip, which are not all.
	pick(client netip.Addr, skip []int) int

	// changed is called after the load of a member has changed.
	changed(i int)

	// shares returns the probability of each member for the next connection of a client.
	shares(client netip.Addr) []float64
}

// newScheduler returns a scheduler for members; old is the one that it replaces, or nil. random
// returns a number below its argument.
func newScheduler(s Scheduler, m members, old scheduler, random func(uint64) uint64) scheduler {
	switch s {
	case LeastConnections:
		return newLeast(m)
	case SourceHash:
		return newTree(m)
	case RoundRobin:
	}
	for _, b := range m.backends {
		if b.Weight != m.backends[0].Weight {
			return newWeighted(m, random)
		}
	}
	c := &cycle{count: len(m.backends)}
	if before, ok := old.(*cycle); ok {
		c.next.Store(before.next.Load())
	} else {
		c.next.Store(random(1 << 32)) // not all nodes begin with the same backend
	}
	return c
}

// cycle chooses members of equal weight in turn.
type cycle struct {
	next  atomic.Uint64
	count int
}

// pick implements scheduler.
func (c *cycle) pick(_ netip.Addr, skip []int) int {
	i := int(c.next.Add(1) % uint64(c.count))
	for slices.Contains(skip, i) {
		i = (i + 1) % c.count
	}
	return i
}

// changed implements scheduler.
func (*cycle) changed(int) {}

// shares implements scheduler.
func (c *cycle) shares(netip.Addr) []float64 {
	return slices.Repeat([]float64{1 / float64(max(c.count, 1))}, c.count)
}

// weighted chooses members in turn, in proportion to their weights: each has deadlines at a distance
// of 1/weight, and the member with the next deadline is chosen. The first deadlines are random within
// that distance, so that after each change of the backends every member has its share at once.
type weighted struct {
	mu    sync.Mutex
	total float64
	queue queue
}

// deadlineUnit is the distance of deadlines: 1/weight is deadlineUnit/weight.
const deadlineUnit = 1 << 10

func newWeighted(m members, random func(uint64) uint64) *weighted {
	w := &weighted{total: m.total()}
	deadlines := make([]uint64, len(m.backends))
	for i := range deadlines {
		deadlines[i] = random(deadlineUnit)
	}
	w.queue = newQueue(m, deadlines)
	return w
}

// pick implements scheduler.
func (w *weighted) pick(_ netip.Addr, skip []int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.queue.first(skip)
	w.queue.value[i] += deadlineUnit
	heap.Fix(&w.queue, w.queue.at[i])
	return i
}

// changed implements scheduler.
func (*weighted) changed(int) {}

// shares implements scheduler.
func (w *weighted) shares(netip.Addr) []float64 {
	shares := make([]float64, len(w.queue.members))
	for i, b := range w.queue.members {
		shares[i] = float64(b.Weight) / w.total
	}
	return shares
}

// total returns the sum of the weights.
func (m members) total() float64 {
	total := 0
	for _, b := range m.backends {
		total += int(b.Weight)
	}
	return float64(total)
}

// least chooses the member with the fewest connections for its weight, and of several the one that was
// not chosen for the longest time.
type least struct {
	mu    sync.Mutex
	loads []*load
	queue queue
	turn  uint64
}

func newLeast(m members) *least {
	value := make([]uint64, len(m.backends))
	for i, l := range m.loads {
		value[i] = uint64(l.open.Load()) + 1 // with the one to choose for
	}
	return &least{loads: m.loads, queue: newQueue(m, value)}
}

// pick implements scheduler.
func (l *least) pick(_ netip.Addr, skip []int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.queue.first(skip)
	l.turn++
	l.queue.turn[i] = l.turn
	heap.Fix(&l.queue, l.queue.at[i])
	return i
}

// changed implements scheduler.
func (l *least) changed(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.value[i] = uint64(max(l.loads[i].open.Load(), 0)) + 1
	heap.Fix(&l.queue, l.queue.at[i])
}

// shares implements scheduler. Members with equally few connections have equal shares.
func (l *least) shares(netip.Addr) []float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	shares := make([]float64, len(l.loads))
	var first []int
	for i := range shares {
		if l.queue.compare(i, l.queue.order[0]) == 0 {
			first = append(first, i)
		}
	}
	for _, i := range first {
		shares[i] = 1 / float64(len(first))
	}
	return shares
}
