package ebpf

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
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
	backends := p.Backends(pool)
	if len(p.Weights) == 0 && schedulerOf(p) != bpf.ByHash {
		return backends
	}
	var used []netip.AddrPort
	for _, b := range backends {
		if p.Weight(b) > 0 {
			used = append(used, b)
		}
	}
	switch {
	case len(used) == 0, schedulerOf(p) == bpf.ByLoad: // the slots have the weights
		return used
	case schedulerOf(p) == bpf.ByHash:
		return maglev(used, p.Weight)
	}
	return repeat(used, p.Weight)
}

// mostTurns is the maximum number of slots of a backend.
const mostTurns = 256

// mostSlots is about how many slots a pool has at most, unless it has more backends.
const mostSlots = 1 << 16

// repeat returns a list that contains each backend in proportion to its weight. It scales large weights down, to about the same proportions.
func repeat(backends []netip.AddrPort, weight func(netip.AddrPort) uint16) []netip.AddrPort {
	divisor, most := 0, 0
	for _, b := range backends {
		divisor = gcd(divisor, int(weight(b)))
		most = max(most, int(weight(b)))
	}
	turns := func(b netip.AddrPort) int { return int(weight(b)) / divisor }
	if most/divisor > mostTurns {
		turns = func(b netip.AddrPort) int { return max(1, int(weight(b))*mostTurns/most) }
	}
	total := 0
	for _, b := range backends {
		total += turns(b)
	}
	if share := max(1, total/max(mostSlots, len(backends))); share > 1 {
		all := turns
		turns = func(b netip.AddrPort) int { return max(1, all(b)/share) }
	}
	var slots []netip.AddrPort
	for _, b := range backends {
		for range turns(b) {
			slots = append(slots, b)
		}
	}
	return slots
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
