package inspect

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/traffic"
)

// listed is a conntrack table with a listing.
type listed struct {
	listing traffic.Listing
	err     error
	lists   int
}

func (l *listed) Listing(context.Context, *route.Snapshot) (*traffic.Listing, error) {
	l.lists++
	if l.err != nil {
		return nil, l.err
	}
	return &l.listing, nil
}

func (l *listed) Load() (entries, limit uint64, err error) {
	return l.listing.Held, l.listing.Limit, l.err
}

// webFlows are the entries of port http of default/web, of which one is to a former backend.
func webFlows() *listed {
	web := name("default", "web")
	return &listed{listing: traffic.Listing{
		At: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC), Entries: 100, Held: 101, Limit: 150, Accounted: true,
		Ports: map[route.PortID]traffic.PortFlows{{Service: web, Name: "http", Protocol: cluster.TCP}: {
			Flows: traffic.Flows{Entries: 40, Live: 31, Sent: 2048, Received: 9000},
			Backends: map[netip.AddrPort]traffic.Flows{
				netip.MustParseAddrPort("10.244.1.5:8080"):  {Entries: 39, Live: 31},
				netip.MustParseAddrPort("10.244.9.99:8080"): {Entries: 1},
			},
		}},
		Clients: []traffic.Client{
			{Addr: netip.MustParseAddr("10.244.1.9"), Entries: 30, Live: 30, Service: web},
			{Addr: netip.MustParseAddr("203.0.113.9"), Entries: 20, Live: 1},
		},
	}}
}

// tracked starts a world with these flows, whose plane counts nothing.
func tracked(t *testing.T, flows Flows) *world {
	t.Helper()
	w := start(t, func(_ *world, o *Options) { o.Flows = flows })
	w.load()
	return w
}

// Live connections are known although the plane does not count.
func TestTrafficOfConntrack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := tracked(t, webFlows())
		backends := must(w.BackendTraffic(t.Context(), Filter{}))
		named := must(w.BackendTraffic(t.Context(), Filter{Namespace: "default", Name: "web"}))
		golden(t, "conntrack.txt", []byte(tabulate(must(w.Traffic(t.Context(), Filter{})), true)+"\n"+
			tabulate(backends, false)+"\n"+tabulate(named, true)+"\n"+
			tabulate(must(w.Clients(t.Context(), Filter{})), false)+"\n"+
			tabulate(must(w.Clients(t.Context(), Filter{Name: "web"})), false)))
	})
}

// Each backend has the connections that the plane counts, and those that failed.
func TestTrafficOfBackends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := netip.MustParseAddrPort("10.244.1.5:8080")
		w := start(t, func(_ *world, o *Options) {
			o.Meter = traffic.NewMeter(traffic.MeterOptions{
				Traffic: func(_ context.Context, all *route.Snapshot) (plane.Counted, error) {
					p := &all.Service(name("default", "web")).Ports[0]
					return plane.Counted{p.ID(name("default", "web")): {
						Traffic:  plane.Traffic{plane.Connections: 7},
						Backends: map[netip.AddrPort]plane.BackendTraffic{at: {Connections: 4}},
					}}, nil
				},
				Failed: func() map[plane.Target]plane.Failed {
					return map[plane.Target]plane.Failed{{Protocol: cluster.TCP, Backend: at}: {Unanswered: 2, Refused: 1}}
				},
			})
		})
		w.load()
		all := must(w.BackendTraffic(t.Context(), Filter{}))
		i := slices.IndexFunc(all, func(v Traffic) bool { return v.Backend == at })
		want := plane.Traffic{plane.Connections: 4, plane.Unanswered: 2, plane.Refusals: 1}
		if i < 0 || !reflect.DeepEqual(all[i].Signals, want) || all[i].Conntrack != nil {
			t.Errorf("got %+v, want %v of %s", all, want, at)
		}
		services := must(w.Services(t.Context(), Filter{Namespace: "default", Name: "web", Counts: true}))
		golden(t, "services-counted.txt", []byte(tabulate(services, true)))
	})
}

// A client or a Service that holds more than a quarter of a table that is more than half full is named to the
// administrator. The status, which everybody may read, has no address.
func TestPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flows := webFlows()
		w := tracked(t, flows)
		const full = "of the conntrack table, which is 67% full; when it is full, new connections are dropped"
		got, err := w.Conntrack(t.Context())
		want := Conntrack{
			At: flows.listing.At, Entries: 101, Limit: 150, Accounted: true,
			Warnings: []string{"client 10.244.1.9 holds 30% " + full, "Service default/web holds 40% " + full},
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		want.Warnings[0] = "one client (sluice top clients names it) holds 30% " + full
		warnings := w.Status(t.Context()).Warnings
		if n := len(warnings); n < 2 || !slices.Equal(warnings[n-2:], want.Warnings) {
			t.Errorf("got %q, want %q", warnings, want.Warnings)
		}
	})
}

// A status lists the table only if it is more than half full, and nobody is blamed for a table that is not.
func TestNoPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []uint64{202, 0} {
			flows := webFlows()
			flows.listing.Limit = limit
			w := tracked(t, flows)
			if w.Status(t.Context()); flows.lists > 0 {
				t.Errorf("limit %d: the table was listed", limit)
			}
			if got, err := w.Conntrack(t.Context()); err != nil || got.Warnings != nil {
				t.Errorf("limit %d: got %+v, %v", limit, got, err)
			}
		}
	})
}

// Without a listing there are no clients, and the reason is part of the answer about the table.
func TestConntrackThatCannotBeListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := tracked(t, &listed{err: errors.New("no such module")})
		if _, err := w.Clients(t.Context(), Filter{}); err == nil || err.Error() != "list clients: no such module" {
			t.Error(err)
		}
		if got, err := w.Conntrack(t.Context()); err != nil || got.Error != "no such module" {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}
