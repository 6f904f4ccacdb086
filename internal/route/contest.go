package route

import (
	"container/heap"
	"slices"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// contest is a heap of the Services that ask for one claim, with the owner at the root.
// Adding or removing one of n Services takes O(log n) time.
type contest struct {
	claim claim
	queue []*cluster.Service

	// positions has the index of each Service in queue. It is nil while the queue is
	// short enough to be searched: most contests have two Services, and there may be one
	// for every port of a large Service.
	positions map[*cluster.Service]int

	// holder is the owner, for goroutines other than the one of the Compiler. It is valid while several Services ask for
	// the claim.
	holder atomic.Pointer[cluster.Service]
}

// maxSearched is the length up to which a queue has no positions.
const maxSearched = 16

func newContest(k claim, owner *cluster.Service) *contest {
	return &contest{claim: k, queue: []*cluster.Service{owner}}
}

func (c *contest) owner() *cluster.Service { return c.queue[0] }

func (c *contest) add(svc *cluster.Service) {
	heap.Push(c, svc)
	c.holder.Store(c.owner())
	if c.positions != nil || len(c.queue) <= maxSearched {
		return
	}
	c.positions = make(map[*cluster.Service]int, len(c.queue))
	for i, s := range c.queue {
		c.positions[s] = i
	}
}

// remove removes a Service. At least one other one remains.
func (c *contest) remove(svc *cluster.Service) {
	at, known := c.positions[svc]
	if !known {
		at = slices.Index(c.queue, svc)
	}
	heap.Remove(c, at)
	c.holder.Store(c.owner())
}

// Len implements heap.Interface.
func (c *contest) Len() int { return len(c.queue) }

// Less implements heap.Interface.
func (c *contest) Less(i, j int) bool { return c.claim.precedence(c.queue[i], c.queue[j]) < 0 }

// Swap implements heap.Interface.
func (c *contest) Swap(i, j int) {
	c.queue[i], c.queue[j] = c.queue[j], c.queue[i]
	if c.positions != nil {
		c.positions[c.queue[i]], c.positions[c.queue[j]] = i, j
	}
}

// Push implements heap.Interface.
func (c *contest) Push(svc any) {
	s := svc.(*cluster.Service)
	if c.positions != nil {
		c.positions[s] = len(c.queue)
	}
	c.queue = append(c.queue, s)
}

// Pop implements heap.Interface.
func (c *contest) Pop() any {
	last := len(c.queue) - 1
	s := c.queue[last]
	c.queue[last] = nil
	c.queue = c.queue[:last]
	delete(c.positions, s)
	return s
}
