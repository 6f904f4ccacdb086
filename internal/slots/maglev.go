package slots

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
)

// tableSizes returns the sizes of Maglev tables, which are primes. Up to 655 backends a table has at least a hundred
// slots for each, so that shares differ by a hundredth at most. If a Service grows beyond its table, it gets the next
// one, and most of its clients get other backends.
func tableSizes() []int { return []int{509, 1021, 4093, 16381, 65521} }

// Size returns the size of the Maglev table of so many backends. One backend needs no table.
func Size(backends int) int {
	if backends == 1 {
		return 1
	}
	sizes := tableSizes()
	for _, n := range sizes {
		if n >= 100*backends {
			return n
		}
	}
	return sizes[len(sizes)-1]
}

// Maglev returns a table for hashes of clients, in which the number of slots of each backend is proportional to its
// weight. An added or removed backend changes few slots of others. Backends take slots in turn, each in its own order
// (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016, section 3.4). A backend
// with a smaller weight skips turns.
func Maglev(backends []netip.AddrPort, weight func(netip.AddrPort) uint16) []netip.AddrPort {
	table := make([]netip.AddrPort, Size(len(backends)))
	permutations := make([]permutation, len(backends))
	weights := bounded(backends, weight)
	for i, b := range backends {
		permutations[i] = newPermutation(b, len(table))
	}
	for left := len(table); ; {
		for i, b := range backends {
			p := &permutations[i]
			if p.credit += weights[i]; p.credit < mostTurns {
				continue
			}
			p.credit -= mostTurns
			table[p.next(table)] = b
			if left--; left == 0 {
				return table
			}
		}
	}
}

// bounded returns the weights scaled so that the largest one is mostTurns. Without that a table would take as many
// rounds as it has slots.
func bounded(backends []netip.AddrPort, weight func(netip.AddrPort) uint16) []int {
	weights := make([]int, len(backends))
	for i, b := range backends {
		weights[i] = int(weight(b))
	}
	scale(weights, mostTurns, max(1, slices.Max(weights)))
	return weights
}

// permutation visits all slots of a table, in an order that depends on the backend.
type permutation struct {
	at, step int
	credit   int // of weight; a turn costs the largest weight
}

func newPermutation(b netip.AddrPort, size int) permutation {
	a := b.Addr().As16()
	sum := sha256.Sum256(binary.BigEndian.AppendUint16(a[:], b.Port()))
	first, second := binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])
	return permutation{at: int(first % uint64(size)), step: int(second%uint64(max(1, size-1))) + 1}
}

// next returns the next free slot.
func (p *permutation) next(table []netip.AddrPort) int {
	for table[p.at].IsValid() {
		p.at = (p.at + p.step) % len(table)
	}
	return p.at
}
