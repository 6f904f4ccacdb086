//go:build linux

package lab

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// maxFalseFailure bounds the probability that a check of random balancing fails although it is uniform. A run makes
// fewer than ten thousand checks, so fewer than one run in a million fails by chance.
const maxFalseFailure = 1e-10

// Samples returns after how many connections each of k backends has been reached, if balancing is
// random and uniform: with fewer, one may be missed by chance.
func Samples(k int) int {
	const least = 35 // 2^-35 < alarm
	if k < 2 {
		return least
	}
	missOne := math.Log1p(-1 / float64(k))
	return max(least, int(math.Ceil(math.Log(maxFalseFailure/float64(k))/missOne)))
}

// Bounds returns how often an event of probability p happens in n attempts, by the binomial
// distribution. A count outside [lo, hi] shows that the probability is another.
func Bounds(n int, p float64) (lo, hi int) {
	switch {
	case p <= 0:
		return 0, 0
	case p >= 1:
		return n, n
	}
	return binomialQuantile(n, p), n - binomialQuantile(n, 1-p)
}

// Chance returns the value of a chance as sluice explain prints it: "1/3" or "33.3%".
func Chance(text string) (float64, error) {
	if percent, is := strings.CutSuffix(text, "%"); is {
		p, err := strconv.ParseFloat(percent, 64)
		return p / 100, err
	}
	of, total, _ := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(of, 64)
	d, err2 := strconv.ParseFloat(total, 64)
	return n / d, errors.Join(err, err2)
}

// binomialQuantile returns the lowest count k for which the probability of at most k is more than maxFalseFailure/2.
func binomialQuantile(n int, p float64) int {
	sum := 0.0
	for k := range n + 1 {
		sum += math.Exp(logChoose(n, k) + float64(k)*math.Log(p) + float64(n-k)*math.Log1p(-p))
		if sum > maxFalseFailure/2 {
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
