package page

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/traffic"
)

// flooded is a conntrack table that one client fills with connections to a Service.
type flooded struct{ service cluster.Name }

func (f flooded) Listing(context.Context, *route.Snapshot) (*traffic.Listing, error) {
	id := route.PortID{Service: f.service, Name: "http", Protocol: cluster.TCP}
	return &traffic.Listing{
		Entries: 900, Held: 900, Limit: 1000,
		Ports:   map[route.PortID]traffic.PortFlows{id: {Flows: traffic.Flows{Entries: 800, Live: 700}}},
		Clients: []traffic.Client{{Addr: netip.MustParseAddr("203.0.113.9"), Entries: 800, Live: 700, Service: f.service}},
	}, nil
}

func (flooded) Load() (entries, limit uint64, err error) { return 900, 1000, nil }

// The page lists the busiest ports and clients, and warns of those who hold the conntrack table. Who connects from
// elsewhere does not see addresses of clients.
func TestTrafficOnThePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(o *inspect.Options) {
			o.Flows = flooded{cluster.Name{Namespace: "default", Name: "web"}}
			o.Opened.Traffic = func(_ context.Context, all *route.Snapshot) (plane.Counted, error) {
				counted := plane.Counted{}
				for svc := range all.Services() {
					counted[svc.Ports[0].ID(svc.Name)] = plane.PortTraffic{Traffic: plane.Traffic{plane.Connections: 12345}}
				}
				return counted, nil
			}
		})
		w.add("default", "idle", "10.96.0.9", 1)
		w.add("default", "web", "10.96.0.80", 1)
		w.serves()
		body, _ := w.get("/")
		for _, want := range []string{"12345", "700", "88.9%", "203.0.113.9", "holds 89% of the conntrack table"} {
			if !strings.Contains(body, want) {
				t.Errorf("the page does not have %q", want)
			}
		}
		traffic := body[strings.Index(body, `id="traffic"`):strings.Index(body, `id="services"`)]
		if strings.Index(traffic, ">web<") > strings.Index(traffic, ">idle<") {
			t.Errorf("the busiest is not the first:\n%s", traffic)
		}
		public := w.ask("GET", "/", from{"192.168.0.2:10249", "node-a:10249"}).Body.String()
		if strings.Contains(public, "203.0.113.9") || !strings.Contains(public, "one client (sluice top clients names it)") {
			t.Errorf("the page for everybody is\n%s", public)
		}
	})
}

// A mode that counts nothing says so.
func TestNoTrafficOnThePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("default", "web", "10.96.0.80", 1)
		w.serves()
		if body, _ := w.get("/"); !strings.Contains(body, "mode memory does not count the connections of Services") {
			t.Errorf("got %s", body)
		}
	})
}
