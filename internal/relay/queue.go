package relay

import (
	"cmp"
	"container/heap"
	"slices"
)

// queue is a heap of the members of a pool, ordered by value/weight and then by turn.
type queue struct {
	members     []Backend
	value, turn []uint64 // by member
	order       []int    // the heap
	at          []int    // where a member is in order
}

func newQueue(m members, value []uint64) queue {
	q := queue{members: m.backends, value: value, turn: make([]uint64, len(value))}
	for i := range value {
		q.order, q.at = append(q.order, i), append(q.at, i)
	}
	heap.Init(&q)
	return q
}

// compare compares value/weight of two members.
func (q *queue) compare(i, j int) int {
	return cmp.Compare(q.value[i]*uint64(q.members[j].Weight), q.value[j]*uint64(q.members[i].Weight))
}

// first returns the first member except those to skip. These are few, and not all.
func (q *queue) first(skip []int) int {
	if len(skip) == 0 {
		return q.order[0]
	}
	// Below each skipped member the two children are candidates.
	best, candidates := -1, []int{0}
	for len(candidates) > 0 {
		n := candidates[0]
		candidates = candidates[1:]
		switch {
		case n >= len(q.order):
		case slices.Contains(skip, q.order[n]):
			candidates = append(candidates, 2*n+1, 2*n+2)
		case best < 0 || q.Less(n, best):
			best = n
		}
	}
	return q.order[best]
}

// Len implements heap.Interface.
func (q *queue) Len() int { return len(q.order) }

// Less implements heap.Interface.
func (q *queue) Less(a, b int) bool {
	i, j := q.order[a], q.order[b]
	return cmp.Or(q.compare(i, j), cmp.Compare(q.turn[i], q.turn[j])) < 0
}

// Swap implements heap.Interface.
func (q *queue) Swap(a, b int) {
	q.order[a], q.order[b] = q.order[b], q.order[a]
	q.at[q.order[a]], q.at[q.order[b]] = a, b
}

// Push implements heap.Interface. A queue does not grow.
func (*queue) Push(any) {}

// Pop implements heap.Interface. A queue does not shrink.
func (*queue) Pop() any { return nil }
