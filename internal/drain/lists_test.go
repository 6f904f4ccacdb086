package drain

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// 100,000 connections take a few listings, in whatever order they end, and the wait ends soon after the last.
func TestManyConnections(t *testing.T) {
	const n = 100_000
	for name, order := range map[string]func(i int) uint32{
		"the oldest first": func(i int) uint32 { return uint32(i + 1) },
		"the newest first": func(i int) uint32 { return uint32(n - i) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ct := &table{}
				for i := range n {
					ct.begin(tcp(i))
				}
				result := begin(t, NewWaits(waiter(ct), never), Longest)
				synctest.Wait()
				for i := range n {
					ct.close(order(i))
					if i%1000 == 0 {
						time.Sleep(time.Second)
					}
				}
				last := time.Now()
				got := <-result
				if late := time.Since(last); got.err != nil || !got.Drained || late > 2*lookEvery {
					t.Errorf("drained %t, %v, %s after the last connection", got.Drained, got.err, late)
				}
				const twoFamilies, most = 2, 5 // ln(n)/ln(256) is 2; 5 is far beyond what chance gives
				if ct.listed > twoFamilies*most {
					t.Errorf("%d listings", ct.listed)
				}
			})
		})
	}
}

// When time is up and more connections are open than a wait follows, their number is an estimate.
func TestManyConnectionsAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		ct := &table{}
		for i := range n {
			ct.begin(tcp(i))
		}
		result := begin(t, NewWaits(waiter(ct), never), time.Minute)
		synctest.Wait()
		for i := range n / 2 {
			ct.close(uint32(2*i + 1))
		}
		got := <-result
		if got.err != nil || got.Drained || !got.About || got.Live < n/4 || got.Live > 3*n/4 || len(got.Flows) == 0 {
			t.Errorf("%d of %d left, about: %t, %v", got.Live, n/2, got.About, got.err)
		}
	})
}

// Waits that begin together share a listing. Listings take 1 % of a CPU in the long run; a wait that gets none in its
// time returns an error.
func TestListingsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ct := &table{takes: burst}
		w := NewWaits(waiter(ct), never)
		<-begin(t, w, 3*burst) // an earlier one, which takes all of the burst
		first := ct.listed
		began := time.Now()
		for range 3 {
			if _, err := w.Wait(t.Context(), pod, time.Second); !errors.Is(err, ErrMany) {
				t.Errorf("a wait for less than the time until the next listing ends with %v", err)
			}
		}
		var all []<-chan ended
		for range 10 {
			all = append(all, begin(t, w, Longest))
		}
		for _, result := range all {
			if got := <-result; got.err != nil || !got.Drained {
				t.Errorf("got %+v, want drained", got)
			}
		}
		if ct.listed != 2*first || time.Since(began) < (share/2)*burst {
			t.Errorf("%d listings after %d, in %s", ct.listed-first, first, time.Since(began))
		}
	})
}
