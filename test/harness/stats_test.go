package harness

import "testing"

func TestOutside(t *testing.T) {
	for n, want := range map[int]int{1: 0, 5: 0, 6: 0, 8: 0, 9: 1, 11: 1, 12: 2, 15: 3, 20: 5, 25: 7, 300: 132} {
		if got := Outside(n); got != want {
			t.Errorf("of %d values %d at each end are outside, want %d", n, got, want)
		}
	}
}
