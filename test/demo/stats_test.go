//go:build linux

package main

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	times := []time.Duration{5, 1, 4, 2, 3}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 3, 0.99: 5, 1: 5} {
		if got := quantile(times, q); got != want {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("of nothing: %d", got)
	}
}

// Known values of the chi-square distribution.
func TestSurvival(t *testing.T) {
	for _, c := range []struct {
		chi2, freedom, want float64
	}{
		{3.841, 1, 0.05},
		{5.991, 2, 0.05},
		{7.815, 3, 0.05},
		{9.488, 4, 0.05},
		{11.070, 5, 0.05},
		{6.635, 1, 0.01},
		{9.210, 2, 0.01},
		{13.277, 4, 0.01},
		{0, 1, 1},
		{0, 2, 1},
		{0, 3, 1},
	} {
		if got := survival(c.chi2/2, c.freedom/2); math.Abs(got-c.want) > c.want/500 {
			t.Errorf("chi2 %v with %v degrees of freedom: %v, want %v", c.chi2, c.freedom, got, c.want)
		}
	}
}

func TestChance(t *testing.T) {
	for _, c := range []struct {
		counts []int
		fair   bool
	}{
		{[]int{100, 100, 100}, true},
		{[]int{86, 96, 118}, true},
		{[]int{480}, true}, // alone it has to be
		{[]int{0, 0, 0}, true},
		{[]int{150, 150, 0}, false},
		{[]int{300, 0, 0}, false},
		{[]int{160, 80, 60}, false},
		{[]int{1, 250, 250, 250, 250}, false},
	} {
		if got := chance(c.counts); got >= unfair != c.fair {
			t.Errorf("%v: chance %v, want fair: %t", c.counts, got, c.fair)
		}
	}
}

func TestFairBalancersAreNotAccused(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	least := 1.0
	for range 20000 {
		counts := make([]int, 3)
		for range 300 {
			counts[random.IntN(3)]++
		}
		least = min(least, chance(counts))
	}
	if least < 1e-6 {
		t.Errorf("of 20,000 fair spreads one had a chance of %v: the estimate is off", least)
	}
}
