// Package slots computes how the connections to a port of a Service are divided into slots, each with a backend. The
// same backends with the same weights have the same slots on every node and in every plane.
package slots

import (
	"net/netip"
)

const (
	mostTurns = 256     // slots of a backend
	mostSlots = 1 << 16 // of a pool, about, unless it has more backends
)

// Weighted returns slots for random choices: each backend has as many as its weight, next to each other. Weights are at
// least 1. They are divided by what they have in common, and large ones are scaled down to about the same proportions.
func Weighted(backends []netip.AddrPort, weight func(netip.AddrPort) uint16) []netip.AddrPort {
	list := turns(backends, weight)
	slots := make([]netip.AddrPort, 0, sum(list))
	for i, n := range list {
		for range n {
			slots = append(slots, backends[i])
		}
	}
	return slots
}

// Count returns how many slots Weighted returns.
func Count(backends []netip.AddrPort, weight func(netip.AddrPort) uint16) int {
	return sum(turns(backends, weight))
}

// turns returns how many slots each backend has in Weighted.
func turns(backends []netip.AddrPort, weight func(netip.AddrPort) uint16) []int {
	list := make([]int, len(backends))
	divisor, most := 0, 0
	for i, b := range backends {
		list[i] = int(weight(b))
		divisor, most = gcd(divisor, list[i]), max(most, list[i])
	}
	if most/divisor > mostTurns {
		scale(list, mostTurns, most)
	} else {
		scale(list, 1, divisor)
	}
	if total, room := sum(list), max(mostSlots, len(list)); total > room {
		scale(list, room, total)
	}
	return list
}

func sum(list []int) (total int) {
	for _, n := range list {
		total += n
	}
	return total
}

// scale multiplies numbers by a/b, and rounds down. None becomes 0.
func scale(list []int, a, b int) {
	for i := range list {
		list[i] = max(1, list[i]*a/b)
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
