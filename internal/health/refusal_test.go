package health

import (
	"testing"
	"testing/synctest"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// A node whose kernel refuses most Services, or one that every node needs, gets no new connections. The process is
// alive: a restart would not help.
func TestRefusedServices(t *testing.T) {
	vital := cluster.Name{Namespace: "default", Name: "kubernetes"}
	for _, c := range []struct {
		sync   proxy.Sync
		ready  bool
		reason string
	}{
		{proxy.Sync{Known: 10}, true, ""},
		{proxy.Sync{Refused: 1, Known: 10}, true, "the kernel refuses the rules of 1 of 10 Services"},
		{proxy.Sync{Refused: 5, Known: 10}, true, "the kernel refuses the rules of 5 of 10 Services"},
		{proxy.Sync{Refused: 6, Known: 10}, false, "the kernel refuses the rules of 6 of 10 Services"},
		{proxy.Sync{Refused: 10, Known: 10}, false, "the kernel refuses the rules of 10 of 10 Services"},
		{
			proxy.Sync{Refused: 1, Known: 10, Vital: vital},
			false,
			"the kernel refuses the rules of 1 of 10 Services, including Service default/kubernetes",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := cluster.NewStore()
			listed := store.Feed()
			store.SetNode(&cluster.Node{Name: "a"})
			listed()
			tracker := New(Options{Store: store, Families: both(), SyncPeriod: period})
			if err := tracker.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			store.Take()
			store.MarkWritten()
			tracker.Observe(c.sync)
			if v := tracker.Verdict(); (v.Summary().State == Healthy) != c.ready || v.Serving() != c.ready || !v.Live ||
				v.Refusal.String() != c.reason {
				t.Errorf("%+v: %+v, %s", c.sync, v, v.Refusal)
			}
			tracker.Observe(proxy.Sync{Known: 10})
			if v := tracker.Verdict(); v.Summary().State != Healthy || v.Refusal.String() != "" {
				t.Errorf("after %+v the kernel takes all: %+v", c.sync, v)
			}
		})
	}
}
