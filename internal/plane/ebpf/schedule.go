package ebpf

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
)

// schedulerOf returns the scheduler of a port by its name: one of IPVS, or maglev. It returns ByChance for names that only other planes know.
func schedulerOf(p *route.Port) bpf.Scheduler {
	switch p.Scheduler {
	case "maglev", "mh", "sh":
		return bpf.ByHash
	case "lc", "wlc", "p2c":
		return bpf.ByLoad
	}
	return bpf.ByChance
}

// schedulerName returns the name of a scheduler in answers.
func schedulerName(s bpf.Scheduler) string { return [...]string{"random", "maglev", "lc"}[s] }

// slotsOf returns the backends of the slots of a pool. A backend of weight 0 has none.
func slotsOf(p *route.Port, pool route.Pool) []netip.AddrPort {
	used := usedBackends(p, pool)
	switch {
	case len(used) == 0, schedulerOf(p) == bpf.ByLoad: // the slots have the weights
		return used
	case schedulerOf(p) == bpf.ByHash:
		return maglev(used, p.Weight)
	case len(p.Weights) == 0:
		return used
	}
	return repeat(used, p.Weight)
}

// slotCount returns the length of slotsOf.
func slotCount(p *route.Port, pool route.Pool) int {
	used := usedBackends(p, pool)
	switch {
	case len(used) == 0, schedulerOf(p) == bpf.ByLoad:
		return len(used)
	case schedulerOf(p) == bpf.ByHash:
		return tableSize(len(used))
	case len(p.Weights) == 0:
		return len(used)
	}
	n := 0
	for _, t := range turns(used, p.Weight) {
		n += t
	}
	return n
}

// usedBackends returns the backends of a pool whose weight is not 0.
func usedBackends(p *route.Port, pool route.Pool) []netip.AddrPort {
	backends := p.Backends(pool)
	if len(p.Weights) == 0 {
		return backends
	}
	var used []netip.AddrPort
	for _, b := range backends {
		if p.Weight(b) > 0 {
			used = append(used, b)
		}
	}
	return used
}

// repeat returns a list that contains each backend in proportion to its weight.
func repeat(backends []netip.AddrPort, weight func(netip.AddrPort) uint16) []netip.AddrPort {
	var slots []netip.AddrPort
	for i, n := range turns(backends, weight) {
		for range n {
			slots = append(slots, backends[i])
		}
	}
	return slots
}

const (
	mostTurns = 256     // slots of a backend
	mostSlots = 1 << 16 // of a pool, about, unless it has more backends
)

// turns returns how many slots each backend gets. It scales large weights down, to about the same proportions.
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
	total := 0
	for _, n := range list {
		total += n
	}
	if room := max(mostSlots, len(list)); total > room {
		scale(list, room, total)
	}
	return list
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
