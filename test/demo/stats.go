//go:build linux

package main

import (
	"math"
	"slices"
	"time"
)

// quantile returns the q-th quantile of some times, which get sorted.
func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(len(times)-1, int(q*float64(len(times))))]
}

// unfair is the chance below which a spread is called unbalanced. With the dozen
// spreads of one run, an honest balancer is accused once in a million runs.
const unfair = 5e-8

// chance returns how likely a fair balancer gives a spread at least as uneven:
// Pearson's test. Backends that got nothing count as well.
func chance(counts []int) float64 {
	total := 0
	for _, n := range counts {
		total += n
	}
	if total == 0 || len(counts) < 2 {
		return 1
	}
	expected := float64(total) / float64(len(counts))
	var x float64
	for _, n := range counts {
		x += (float64(n) - expected) * (float64(n) - expected) / expected
	}
	return survival(x/2, float64(len(counts)-1)/2)
}

// survival is the upper regularised gamma function Q(a, x) for a a multiple of
// one half, by its recurrence.
func survival(x, a float64) float64 {
	if a == math.Trunc(a) {
		sum, term := 0.0, 1.0
		for k := 1.0; k <= a; k++ {
			sum += term
			term *= x / k
		}
		return math.Exp(-x) * sum
	}
	q, step := math.Erfc(math.Sqrt(x)), 0.5
	for ; step < a; step++ {
		up, _ := math.Lgamma(step + 1)
		q += math.Exp(step*math.Log(max(x, math.SmallestNonzeroFloat64)) - x - up)
	}
	return q
}
