package conntrack

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/conntracktest"
)

// After a repair every flow may be wrong that was made before it.
func TestRepaired(t *testing.T) {
	const (
		dns, lost   = "17 10.0.0.1:7 > 10.96.0.10:53 via 10.1.0.1:53", "17 10.0.0.2:7 > 10.96.0.10:53"
		begun, fine = "6 10.0.0.1:7 > 10.96.0.11:80", "6 10.0.0.2:7 > 10.96.0.11:80 via 10.1.0.1:80"
	)
	table := &conntracktest.Table{}
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

// A zone is somebody's own: what is in it is not ours to end.
func TestHandshakesInAZone(t *testing.T) {
	table := &conntracktest.Table{}
	f := New(Options{Table: table})
	e := flow(t, "6 10.0.0.1:7 > 10.96.0.11:80")
	e.Zone = 7
	if err := table.Create(e); err != nil {
		t.Fatal(err)
	}
	f.Applied(change(t, allLocal(), "web/tcp: 10.96.0.11:80 = 10.1.0.1:80"))
	settle(t, f)
	if left := contents(t, table); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// What is no more is not looked for a second time.
func TestHandshakesWhereAServiceEnded(t *testing.T) {
	const stuck = "6 10.0.0.1:7 > 10.96.0.10:80"
	synctest.Test(t, func(t *testing.T) {
		table := &conntracktest.Table{}
		f := running(t, table, nil)
		first := change(t, allLocal(), "web/tcp: 10.96.0.10:80 = 10.1.0.1:80")
		f.Applied(first)
		synctest.Wait()
		f.Applied(following(first, change(t, allLocal(), "-web")))
		mustCreate(t, table, stuck)
		time.Sleep(time.Minute)
		if d := cmp.Diff([]string{stuck}, contents(t, table)); d != "" {
			t.Errorf("flows (-want +got):\n%s", d)
		}
	})
}
