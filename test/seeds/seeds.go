// Package seeds chooses the seeds of tests that make random events, and how many rounds long tests have. By default a
// test runs a fifth of them, and a quick test (-short) a fifth of those. With SEEDS=all in the environment it runs all,
// and with SEED=17 that seed only. Long tests are not among the quick tests.
package seeds

import (
	"iter"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The parts of the seeds and rounds that run by default and in quick tests: one of so many.
const (
	part      = 5
	quickPart = 25
)

// Long leaves a test out of the quick tests, because it takes seconds. make check and make test run it.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds: make check and make test run it")
	}
}

// Of returns the seeds to run of the seeds 0 to n-1. If the test fails with a seed, Of logs which one it was and how
// to run it alone, and no other seed follows.
func Of(t testing.TB, n int) iter.Seq[uint64] {
	t.Helper()
	first, end := uint64(0), uint64(Rounds(t, n))
	if text := os.Getenv("SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			t.Fatalf("SEED: %v", err)
		}
		first, end = seed, seed+1
	}
	return func(yield func(uint64) bool) {
		for seed := first; seed < end && run(t, seed, yield); seed++ {
			continue
		}
	}
}

// Rounds returns the part of n that runs, at least 1.
func Rounds(t testing.TB, n int) int {
	t.Helper()
	text := os.Getenv("SEEDS")
	switch {
	case text == "all":
		return n
	case text != "":
		t.Fatalf("SEEDS is %q, want all or nothing", text)
		return 0
	case testing.Short():
		return max(1, n/quickPart)
	default:
		return max(1, n/part)
	}
}

// run runs a test with a seed, and reports whether the next seed should follow.
func run(t testing.TB, seed uint64, test func(uint64) bool) bool {
	t.Helper()
	if t.Failed() {
		return test(seed) // whose fault a failure is cannot be told apart
	}
	defer func() { // t.Fatal ends the goroutine
		if t.Failed() {
			t.Logf("seed %d; to repeat it: SEED=%d go test -run '%s'", seed, seed, pattern(t.Name()))
		}
	}()
	return test(seed) && !t.Failed()
}

// pattern returns the regular expression of go test for one test.
func pattern(name string) string {
	names := strings.Split(name, "/")
	for i, n := range names {
		names[i] = "^" + regexp.QuoteMeta(n) + "$"
	}
	return strings.Join(names, "/")
}
