package harness

import "math"

// Outside returns how many of n sorted values at each end are outside of an interval that has the true median with a
// probability of 95%: each value is above the median with 1/2, so the number of those above it has a binomial
// distribution. With fewer than six values the interval has all, and a lower probability.
func Outside(n int) int {
	const risk = 0.05 / 2 // at each end
	k, below, choose := 0, 0.0, math.Pow(0.5, float64(n))
	for {
		if below += choose; below > risk {
			return max(k-1, 0)
		}
		k++
		choose *= float64(n-k+1) / float64(k)
	}
}
