package slots

import (
	"math"
	"net/netip"
)

// Load is a backend of a pool with least connections. Weight is at least 1.
type Load struct {
	At     netip.AddrPort
	Weight uint16
	Live   int // connections
}

const (
	perBackend = 16   // slots of a backend on average, so that it can get between a small part and most connections
	enough     = 2048 // slots of a pool, from which on backends have fewer

	// Level aims at the share of a backend with an even load divided by a power of its load, but at no more than farthest
	// times as much or as little. It goes a part of the way each time. The share follows from the connections of this
	// moment alone, so it does not swing for long, however long connections last (TestLeastSettles).
	steepness = 2
	farthest  = 8
	stride    = 0.3

	// Level leaves slots as they are unless it would move this part of an average share from or to one backend: the counts
	// of few connections vary by chance.
	threshold = 1. / 8
)

// LeastSize returns how many slots so many backends have for least connections. One backend needs no choice.
func LeastSize(backends int) int {
	if backends < 2 {
		return backends
	}
	return backends * min(perBackend, max(2, enough/backends))
}

// Fit returns slots that only these backends have, which are not empty, and each has one at least. It changes as few of
// the slots before as possible, and gives a new backend the share of its weight.
func Fit(before []netip.AddrPort, loads []Load) []netip.AddrPort {
	have, fit := portions(before, loads)
	if fit {
		return before
	}
	return assign(before, loads, have)
}

// Level returns the slots that Fit does, with some of them moved from backends with many connections for their weight
// to those with few. It is called about once a second.
func Level(before []netip.AddrPort, loads []Load) []netip.AddrPort {
	have, fit := portions(before, loads)
	live, weight, all := 0., 0., 0.
	for _, l := range loads {
		live, weight = live+float64(l.Live), weight+float64(l.Weight)
	}
	goal := make([]float64, len(loads))
	for i, l := range loads {
		even := live * float64(l.Weight) / weight
		load := (float64(l.Live) + 1) / (even + 1)
		goal[i] = float64(l.Weight) * min(farthest, max(1./farthest, math.Pow(load, -steepness)))
		all += goal[i]
	}
	for i := range goal {
		have[i] += stride * (goal[i]/all - have[i])
	}
	after := assign(before, loads, have)
	if fit && float64(most(before, after)) < threshold*float64(len(after))/float64(len(loads)) {
		return before
	}
	return after
}

// most returns the most slots that one backend gets or loses.
func most(before, after []netip.AddrPort) (n int) {
	gets := map[netip.AddrPort]int{}
	for i := range after {
		gets[before[i]]--
		gets[after[i]]++
	}
	for _, by := range gets {
		n = max(n, by, -by)
	}
	return n
}

// portions returns the part of the slots that each backend has, or is due by its weight, and whether the slots fit the
// backends.
func portions(slots []netip.AddrPort, loads []Load) (parts []float64, fit bool) {
	count, known, weight := map[netip.AddrPort]int{}, 0, 0.
	for _, at := range slots {
		count[at]++
	}
	parts, fit = make([]float64, len(loads)), len(slots) == LeastSize(len(loads))
	for _, l := range loads {
		weight += float64(l.Weight)
		known += count[l.At]
		fit = fit && count[l.At] > 0
	}
	for i, l := range loads {
		if parts[i] = float64(count[l.At]) / float64(max(1, len(slots))); parts[i] == 0 {
			parts[i] = float64(l.Weight) / weight
		}
	}
	return parts, fit && known == len(slots)
}

// assign returns slots of which each backend has about its part. Backends keep the slots that they had, unless those
// are too many.
func assign(before []netip.AddrPort, loads []Load, parts []float64) []netip.AddrPort {
	left := map[netip.AddrPort]int{}
	for i, n := range apportion(parts, LeastSize(len(loads))) {
		left[loads[i].At] = n
	}
	after := make([]netip.AddrPort, LeastSize(len(loads)))
	for i, at := range before[:min(len(before), len(after))] {
		if left[at] > 0 {
			after[i] = at
			left[at]--
		}
	}
	next := 0
	for i := range after {
		if after[i].IsValid() {
			continue
		}
		for left[loads[next].At] == 0 {
			next++
		}
		after[i] = loads[next].At
		left[loads[next].At]--
	}
	return after
}

// apportion divides n by parts of a whole, of which none gets 0. It rounds sums, so errors do not add up.
func apportion(parts []float64, n int) []int {
	total := 0.
	for _, p := range parts {
		total += p
	}
	counts, sum, given := make([]int, len(parts)), 0., 0
	for i, p := range parts {
		sum += p
		counts[i] = 1 + int(math.Round(sum/total*float64(n-len(parts)))) - given
		given += counts[i] - 1
	}
	return counts
}
