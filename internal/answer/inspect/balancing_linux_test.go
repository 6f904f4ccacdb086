package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// counting starts a world whose kernel counts connections: it balances each backend of a port
// with weight 3, and one more that is no endpoint drains.
func counting(t *testing.T, err error) *world {
	t.Helper()
	w := start(t, func(_ *world, o *Options) {
		o.Plane.AnyScheduler, o.Plane.SchedulerName = true, func(*route.Port) string { return "wlc" }
		o.Opened.Balance = func(_ context.Context, svc *route.Service, port int, _ *route.Host) (plane.Balance, error) {
			b := plane.Balance{}
			for _, at := range svc.Ports[port].Cluster {
				b[at] = plane.Balanced{Weight: 3, Active: 2, Inactive: 5}
			}
			b[netip.MustParseAddrPort("10.9.9.9:99")] = plane.Balanced{Active: 1}
			return b, err
		}
	})
	w.load()
	return w
}

func backendTable(w *world, f Filter, wide bool) string {
	return tabulate(must(w.Backends(w.t.Context(), f)), wide)
}

// In a mode whose kernel counts connections, backends have columns for that, and a query for a
// Service lists those that only drain.
func TestBackendsOfAKernelThatCountsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := counting(t, nil)
		narrow, wide := backendTable(w, Filter{Name: "web"}, false), backendTable(w, Filter{Name: "web"}, true)
		golden(t, "balancing.txt", []byte(narrow+"\n"+wide))
		if all := backendTable(w, Filter{}, false); strings.Contains(all, "10.9.9.9") || !strings.Contains(all, "wlc") {
			t.Errorf("a query for all Services lists\n%s", all)
		}
		for _, b := range must(w.Backends(t.Context(), Filter{Name: "web"})) {
			text, err := json.Marshal(b)
			drains := b.Address == netip.MustParseAddr("10.9.9.9")
			has := strings.Contains(string(text),
				`"balancing":{"scheduler":"wlc","weight":0,"counted":true,"activeConnections":1,"inactiveConnections":0}`)
			if err != nil || drains != has {
				t.Errorf("%s, %v", text, err)
			}
		}
	})
}

// If the kernel cannot be read, the backends are listed with the reason.
func TestBackendsOfAKernelThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := counting(t, errors.New("no buffer space"))
		list := must(w.Backends(t.Context(), Filter{}))
		for _, b := range list {
			if b.Balancing == nil || b.Balancing.Error != "no buffer space" || b.Balancing.Weight != nil {
				t.Errorf("%s: %+v", b.Address, b.Balancing)
			}
		}
		if table := backendTable(w, Filter{}, false); len(list) == 0 || strings.Count(table, "?") != 3*len(list) {
			t.Errorf("table\n%s", table)
		}
	})
}

// Without a name, too, a Service without backends is listed, with the reason for each endpoint.
func TestPortWithoutBackends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.load()
		w.between(func() {
			name := cluster.Name{Namespace: "default", Name: "empty"}
			w.store.SetSlice(&cluster.Slice{
				Name: cluster.Name{Namespace: "default", Name: "empty-1"}, Service: name,
				Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
				Endpoints: []cluster.Endpoint{{Addr: netip.MustParseAddr("10.244.1.9"), Node: "node-a"}},
			})
		})
		for _, f := range []Filter{{}, {Namespace: "default"}, {Name: "empty"}} {
			i := slices.IndexFunc(must(w.Backends(t.Context(), f)), func(b Backend) bool { return b.Service == "empty" })
			if i < 0 {
				t.Errorf("%+v does not list the endpoint", f)
				continue
			}
			b := must(w.Backends(t.Context(), f))[i]
			if len(b.Pools) > 0 || b.LeftOut["cluster"] != "not ready" || b.Endpoint == nil || b.Endpoint.Node != "node-a" {
				t.Errorf("%+v lists %+v", f, b)
			}
		}
	})
}
