package forward

import (
	"cmp"
	"net/netip"
	"slices"
	"sort"
)

// two draws two different members at random, by weight, and chooses the one with fewer connections for
// its weight; of equals the one that was drawn first.
type two struct {
	members members
	sums    []uint64 // the sum of the weights up to a member and with it
	random  func(uint64) uint64
}

func newTwo(m members, random func(uint64) uint64) *two {
	t := &two{members: m, random: random}
	sum := uint64(0)
	for _, b := range m.backends {
		sum += uint64(b.Weight)
		t.sums = append(t.sums, sum)
	}
	return t
}

// pick implements scheduler.
func (t *two) pick(_ netip.Addr, skip []int) int {
	skip = slices.Sorted(slices.Values(skip))
	a := t.draw(skip)
	if len(skip)+1 == len(t.sums) {
		return a
	}
	at, _ := slices.BinarySearch(skip, a)
	b := t.draw(slices.Insert(skip, at, a))
	if t.compare(b, a) < 0 {
		return b
	}
	return a
}

// draw returns a random member, by weight, except those to skip, which are in order.
func (t *two) draw(skip []int) int {
	total := t.sums[len(t.sums)-1]
	for _, i := range skip {
		total -= t.weight(i)
	}
	n := t.random(total)
	for _, i := range skip {
		if n >= t.sums[i]-t.weight(i) { // the sum before the member, without those skipped before it
			n += t.weight(i)
		}
	}
	return sort.Search(len(t.sums), func(i int) bool { return t.sums[i] > n })
}

func (t *two) weight(i int) uint64 { return uint64(t.members.backends[i].Weight) }

// compare compares the connections of two members for their weights.
func (t *two) compare(i, j int) int {
	load := func(i int) uint64 { return uint64(max(t.members.loads[i].open.Load(), 0)) + 1 }
	return cmp.Compare(load(i)*t.weight(j), load(j)*t.weight(i))
}

// changed implements scheduler.
func (*two) changed(int) {}

// shares implements scheduler. With weights w of the sum T, i and then j are drawn with the probability
// w(i)/T * w(j)/(T-w(i)). A member wins against all with more connections, and against its equals if it is
// drawn first.
func (t *two) shares(netip.Addr) []float64 {
	shares := make([]float64, len(t.sums))
	if len(shares) < 2 {
		return slices.Repeat([]float64{1}, len(shares))
	}
	total := float64(t.sums[len(t.sums)-1])
	order := make([]int, len(shares))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return t.compare(j, i) }) // the busiest first
	var worse, worseSecond float64                                        // sums of w and of w/(T-w)
	for len(order) > 0 {
		equals := 1
		for equals < len(order) && t.compare(order[0], order[equals]) == 0 {
			equals++
		}
		var equal, equalSecond float64
		for _, i := range order[:equals] {
			w := float64(t.weight(i))
			equal += w
			equalSecond += w / (total - w)
		}
		for _, i := range order[:equals] {
			w := float64(t.weight(i))
			first := w / total * (worse + equal - w) / (total - w)
			shares[i] = first + w/total*worseSecond
		}
		worse += equal
		worseSecond += equalSecond
		order = order[equals:]
	}
	return shares
}
