package drain

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// 100,000 connections take a few listings, in whatever order they end, and the wait ends soon after the last
// connection.
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
				result := begin(t, NewWaits(options(ct), ignore), MaxWait)
				synctest.Wait()
				for i := range n {
					ct.close(order(i))
					if i%1000 == 0 {
						time.Sleep(time.Second)
					}
				}
				last := time.Now()
				got := <-result
				if late := time.Since(last); got.err != nil || !got.Drained || late > 2*pollPeriod {
					t.Errorf("drained %t, %v, %s after the last connection", got.Drained, got.err, late)
				}
				const twoFamilies, most = 2, 5 // expected: ln(n)/ln(256), about 2
				if ct.listed > twoFamilies*most {
					t.Errorf("%d listings, want %d at most", ct.listed, twoFamilies*most)
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
		result := begin(t, NewWaits(options(ct), ignore), time.Minute)
		synctest.Wait()
		for i := range n / 2 {
			ct.close(uint32(2*i + 1))
		}
		got := <-result
		if got.err != nil || got.Drained || !got.Estimated || got.Live < n/4 || got.Live > 3*n/4 || len(got.Flows) == 0 {
			t.Errorf("%d of %d left, estimated: %t, %v", got.Live, n/2, got.Estimated, got.err)
		}
	})
}

// Waits that begin together share a listing. Listings take 1 % of a CPU on average. A wait whose deadline comes before
// its first listing returns an error.
func TestListingsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ct := &table{takes: burst}
		w := NewWaits(options(ct), ignore)
		<-begin(t, w, 3*burst) // uses the whole burst
		first := ct.listed
		began := time.Now()
		for range 3 {
			if _, err := w.Wait(t.Context(), pod, time.Second); !errors.Is(err, ErrTooMany) {
				t.Errorf("a wait that ends before the next listing returns %v, want %v", err, ErrTooMany)
			}
		}
		var all []<-chan ended
		for range 10 {
			all = append(all, begin(t, w, MaxWait))
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
