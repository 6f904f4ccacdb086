package conntrack

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	kernel "github.com/sluice-proxy/sluice/internal/kernel/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
)

// At a ClusterIP nobody else answers; at other addresses somebody may, and a
// handshake with him is given the time until the second look.
func TestHandshakesElsewhere(t *testing.T) {
	const (
		stuck, begins = "6 10.0.0.1:7 > 10.96.0.10:80", "6 10.0.0.1:7 > 203.0.113.5:80"
		web           = "web/tcp: 10.96.0.10:80 lb:203.0.113.5:80 = 10.1.0.1:80"
	)
	synctest.Test(t, func(t *testing.T) {
		table := &kernel.Fake{}
		f := running(t, table, nil)
		mustCreate(t, table, stuck, begins)
		f.Applied(change(t, allLocal(), web))
		synctest.Wait()
		if d := cmp.Diff([]string{begins}, contents(t, table)); d != "" {
			t.Errorf("at first (-want +got):\n%s", d)
		}
		time.Sleep(secondLook + time.Millisecond)
		synctest.Wait()
		if left := contents(t, table); len(left) != 0 {
			t.Errorf("later: %v", left)
		}
		looks := f.Stats().Looks
		time.Sleep(time.Hour)
		if again := f.Stats().Looks; again != looks || looks != 2 {
			t.Errorf("%d looks, an hour later %d, want 2", looks, again)
		}
	})
}

// After a repair every flow may be wrong that was made before it.
func TestRepaired(t *testing.T) {
	const (
		dns, lost   = "17 10.0.0.1:7 > 10.96.0.10:53 via 10.1.0.1:53", "17 10.0.0.2:7 > 10.96.0.10:53"
		begun, fine = "6 10.0.0.1:7 > 10.96.0.11:80", "6 10.0.0.2:7 > 10.96.0.11:80 via 10.1.0.1:80"
	)
	table := &kernel.Fake{}
	f := New(Options{Table: table})
	c := change(t, allLocal(), "dns: 10.96.0.10:53 = 10.1.0.1:53", "web/tcp: 10.96.0.11:80 = 10.1.0.1:80")
	c.Table.Services = map[cluster.Name]*route.Service{}
	for _, touched := range c.Touched {
		c.Table.Services[touched.Name] = touched.New
	}
	f.Applied(c)
	settle(t, f)
	mustCreate(t, table, dns, lost, begun, fine)
	f.Applied(route.Change{Table: c.Table})
	settle(t, f)
	if n := len(contents(t, table)); n != 4 {
		t.Errorf("%d flows are left where nothing happened, want 4", n)
	}
	f.Repaired(c.Table)
	settle(t, f)
	if d := cmp.Diff([]string{dns, fine}, contents(t, table)); d != "" {
		t.Errorf("after a repair (-want +got):\n%s", d)
	}
}
