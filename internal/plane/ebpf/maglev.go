package ebpf

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
)

// tableSizes are the sizes of Maglev tables: primes. A table has at least a hundred slots for each backend, so that shares differ by
// a hundredth at most, up to 655 backends. A Service that grows beyond the size of its table gets another one, and most of its
// clients other backends.
func tableSizes() []int { return []int{509, 1021, 4093, 16381, 65521} }

func tableSize(backends int) int {
	sizes := tableSizes()
	for _, n := range sizes {
		if n >= 100*backends {
			return n
		}
	}
	return sizes[len(sizes)-1]
}

// maglev returns a table in which each backend has as many slots as its weight is of all weights. A backend that comes or goes changes
// few slots besides its own. Backends take slots in turn, in an order of their own (Eisenbud et al., "Maglev: A Fast and Reliable Software Network
// Load Balancer", NSDI 2016, section 3.4). One with a smaller weight leaves turns out.
func maglev(backends []netip.AddrPort, weight func(netip.AddrPort) uint16) []netip.AddrPort {
	table := make([]netip.AddrPort, tableSize(len(backends)))
	takers := make([]taker, len(backends))
	most := 0
	for i, b := range backends {
		takers[i] = newTaker(b, len(table))
		most = max(most, int(weight(b)))
	}
	for left := len(table); ; {
		for i, b := range backends {
			t := &takers[i]
			if t.credit += int(weight(b)); t.credit < most {
				continue
			}
			t.credit -= most
			table[t.next(table)] = b
			if left--; left == 0 {
				return table
			}
		}
	}
}

// taker visits all slots of a table, in an order that depends on the backend.
type taker struct{ at, step, credit int }

func newTaker(b netip.AddrPort, size int) taker {
	a := b.Addr().As16()
	sum := sha256.Sum256(binary.BigEndian.AppendUint16(a[:], b.Port()))
	first, second := binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])
	return taker{at: int(first % uint64(size)), step: int(second%uint64(size-1)) + 1}
}

// next returns the next slot that is free.
func (t *taker) next(table []netip.AddrPort) int {
	for table[t.at].IsValid() {
		t.at = (t.at + t.step) % len(table)
	}
	return t.at
}
