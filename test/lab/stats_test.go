//go:build linux

package lab

import (
	"math/rand/v2"
	"testing"
)

func TestSamplesReachEveryBackend(t *testing.T) {
	for k, want := range map[int]int{1: 35, 2: 35, 3: 60, 5: 111} {
		if got := Samples(k); got != want {
			t.Errorf("%d backends: %d connections, want %d", k, got, want)
		}
	}
}

func TestBounds(t *testing.T) {
	if lo, hi := Bounds(400, 0.5); lo != 136 || hi != 264 {
		t.Errorf("400 times a half: %d to %d", lo, hi)
	}
	if lo, hi := Bounds(10, 0.5); lo != 0 || hi != 10 {
		t.Errorf("10 attempts: %d to %d, want no restriction", lo, hi)
	}
	for p, want := range map[float64]int{0: 0, 1: 10} {
		if lo, hi := Bounds(10, p); lo != want || hi != want {
			t.Errorf("10 attempts with the probability %v: %d to %d", p, lo, hi)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	lo, hi := Bounds(300, 1.0/3)
	for range 10000 {
		hits := 0
		for range 300 {
			if random.IntN(3) == 0 {
				hits++
			}
		}
		if hits < lo || hits > hi {
			t.Fatalf("%d of 300 is out of %d to %d", hits, lo, hi)
		}
	}
}

func TestChance(t *testing.T) {
	for text, want := range map[string]float64{"1/4": 0.25, "12.5%": 0.125, "100.0%": 1, "0/3": 0} {
		if got, err := Chance(text); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "1", "x/3", "1/x", "x%"} {
		if got, err := Chance(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}
