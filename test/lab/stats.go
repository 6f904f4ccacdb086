//go:build linux

package lab

import "math"

// alarm bounds the probability that one check of a random balance fails although
// the balance is fair. A run makes fewer than ten thousand checks, so less than
// one run in a million fails for no reason.
const alarm = 1e-10

// Samples returns how many connections reach each of k backends, if the balance
// is random and fair: fewer may miss one by chance.
func Samples(k int) int {
	const least = 35 // 2^-35 < alarm
	if k < 2 {
		return least
	}
	missOne := math.Log1p(-1 / float64(k))
	return max(least, int(math.Ceil(math.Log(alarm/float64(k))/missOne)))
}

// Bounds returns how often an event of probability p happens in n attempts, by
// the binomial distribution: a count outside of [lo, hi] shows another probability.
func Bounds(n int, p float64) (lo, hi int) {
	return binomialQuantile(n, p), n - binomialQuantile(n, 1-p)
}

// binomialQuantile returns the lowest count that has at least a probability of
// alarm/2 to be reached or undercut.
func binomialQuantile(n int, p float64) int {
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
