package health

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// While the data plane waits for something, the process is alive, as a restart would not help, and gets no
// traffic, also if it has served before.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := "the network does not exist"
		store := cluster.NewStore()
		listed := store.Feed()
		store.SetNode(&cluster.Node{Name: "a"})
		listed()
		tracker := New(Options{Store: store, Families: both(), SyncPeriod: period, Waiting: func() string { return waits }})
		if err := tracker.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		store.Take()
		store.MarkWritten()
		for _, want := range []bool{false, true, false} {
			if v := tracker.Verdict(); v.Waiting != waits || !v.Live || (v.Summary().State == Healthy) != want ||
				v.Serving() != want {
				t.Errorf("waits %q: %+v", waits, v)
			}
			tracker.Observe(proxy.Sync{})
			if waits == "" {
				waits = "the network was deleted"
			} else {
				waits = ""
			}
		}
	})
}
