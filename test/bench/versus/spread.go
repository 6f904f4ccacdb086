//go:build linux

package main

import (
	"slices"
	"time"
)

// spread is how long something took that was done often.
type spread struct {
	P50, P90, P99, Max time.Duration
	N                  int
}

func spreadOf(took []time.Duration) spread {
	if len(took) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(took))
	n := len(sorted)
	return spread{
		P50: sorted[n/2], P90: sorted[n*90/100], P99: sorted[n*99/100], Max: sorted[n-1], N: n,
	}
}
