//go:build linux

package conformance

import "math"

// alarm is the greatest probability with which one look at a random balance
// may fail although all is well. A run looks fewer than ten thousand times, so
// that less than one run in a million fails for nothing.
const alarm = 1e-10

// samples is how many connections hit each of k backends, or miss none of
// those that they should not hit but do half of the time.
func samples(k int) int {
	const least = 35 // 2^-35 < alarm
	if k < 2 {
		return least
	}
	missOne := math.Log1p(-1 / float64(k))
	return max(least, int(math.Ceil(math.Log(alarm/float64(k))/missOne)))
}

// bounds are how often something of probability p happens in n attempts: less
// than lo or more than hi is less likely than alarm.
func bounds(n int, p float64) (lo, hi int) {
	return quantile(n, p), n - quantile(n, 1-p)
}

// quantile is the greatest count that is not undercut with a probability of
// half an alarm, by the binomial distribution.
func quantile(n int, p float64) int {
	sum := 0.0
	for k := range n + 1 {
		sum += math.Exp(logChoose(n, k) + float64(k)*math.Log(p) + float64(n-k)*math.Log1p(-p))
		if sum > alarm/2 {
			return k
		}
	}
	return n
}

func logChoose(n, k int) float64 {
	lg := func(x int) float64 {
		v, _ := math.Lgamma(float64(x + 1))
		return v
	}
	return lg(n) - lg(k) - lg(n-k)
}
