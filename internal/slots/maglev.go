package slots

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
)

// tableSizes returns the sizes of Maglev tables, which are primes. There are few, because most clients get other
// backends when a Service grows beyond its table. With two hundred slots for each backend, up to 327 of them, one that
// leaves moves less than a hundredth of the clients of others.
func tableSizes() []int { return []int{2039, 16381, 65521} }

// Size returns the size of the Maglev table of so many backends. One backend needs no table.
func Size(backends int) int {
	if backends == 1 {
		return 1
	}
	sizes := tableSizes()
	for _, n := range sizes {
		if n >= 200*backends {
			return n
		}
	}
	return sizes[len(sizes)-1]
}

// Maglev returns a table for hashes of clients, in which the number of slots of each backend is proportional to its
// weight, to within a slot. An added or removed backend changes few slots of others.
//
// Each backend visits all slots in its own order (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load
// Balancer", NSDI 2016, section 3.4), all of them in step, and takes each free slot until it has its number. There it
// waits for the next step if a slot is taken, in place of going on to a free one: so a slot depends on the backends
// that visit it early, and a change of one moves half as many slots of others.
func Maglev(backends []netip.AddrPort, weight func(netip.AddrPort) uint16) []netip.AddrPort {
	return MaglevOf(Size(len(backends)), backends, weight)
}

// MaglevOf is Maglev with a table of another size, which is a prime.
func MaglevOf(size int, backends []netip.AddrPort, weight func(netip.AddrPort) uint16) []netip.AddrPort {
	table := make([]netip.AddrPort, size)
	visitors := newVisitors(backends, weight, len(table))
	for len(visitors) > 0 {
		waiting := visitors[:0]
		for _, v := range visitors {
			if v.left > 0 && !table[v.at].IsValid() {
				table[v.at] = v.backend
				v.left--
			}
			if v.at = (v.at + v.step) % len(table); v.left > 0 {
				waiting = append(waiting, v)
			}
		}
		visitors = waiting
	}
	return table
}

// visitor is a backend that visits all slots of a table, in an order that depends on the backend.
type visitor struct {
	backend  netip.AddrPort
	at, step int
	left     int // slots that it is to take
}

// newVisitors divides a table among backends. Each gets at least a slot if there are not more backends than slots.
func newVisitors(backends []netip.AddrPort, weight func(netip.AddrPort) uint16, size int) []visitor {
	weights, total := make([]int, len(backends)), 0
	for i, b := range backends {
		weights[i] = int(weight(b))
		total += weights[i]
	}
	enough := 2 * total / size // for a slot, of the greater total that follows
	total = 0
	for i := range weights {
		weights[i] = max(weights[i], enough)
		total += weights[i]
	}
	list, sum, taken := make([]visitor, len(backends)), 0, 0
	for i, b := range backends {
		sum += weights[i]
		end := sum * size / total
		list[i] = newVisitor(b, end-taken, size)
		taken = end
	}
	return list
}

func newVisitor(b netip.AddrPort, slots, size int) visitor {
	a := b.Addr().As16()
	sum := sha256.Sum256(binary.BigEndian.AppendUint16(a[:], b.Port()))
	first, second := binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])
	return visitor{b, int(first % uint64(size)), 1 + int(second%uint64(max(1, size-1))), slots}
}
