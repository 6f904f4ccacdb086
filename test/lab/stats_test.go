//go:build linux

package lab

import (
	"math/rand/v2"
	"testing"
)

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
