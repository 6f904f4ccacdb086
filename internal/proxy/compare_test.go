package proxy

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A requested comparison does not wait for the retry after failures: the edit that it was
// requested for may have caused them.
func TestAComparisonDoesNotWaitForTheRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		for range 8 { // until the next retry is more than 10 s away
			w.plane.applyErrs = append(w.plane.applyErrs, errors.New("table is gone"))
		}
		w.listed()
		w.advance(10 * time.Second)
		before := len(w.syncs)
		if before != 8 || w.syncs[before-1].Err == nil {
			t.Fatalf("%d attempts, the last with %v, want 8 that fail", before, w.syncs[before-1].Err)
		}
		w.compare(ForeignEdit)
		w.advance(0)
		if after := len(w.syncs); after != before+1 || w.syncs[after-1].Err != nil {
			t.Errorf("%d attempts after the request, want one more, which succeeds", after)
		}
	})
}

// MinPeriod also holds for comparisons.
func TestAComparisonWaitsForMinPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(o *Options) { o.MinPeriod = time.Second })
		w.listed()
		w.advance(0)
		w.compare(ForeignEdit)
		w.advance(time.Second - 1)
		if len(w.syncs) != 1 {
			t.Errorf("%d writes before MinPeriod is over, want 1", len(w.syncs))
		}
		w.advance(1)
		if len(w.syncs) != 2 {
			t.Errorf("%d writes after MinPeriod, want 2", len(w.syncs))
		}
	})
}
