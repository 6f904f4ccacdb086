package traffic

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// counted returns the Listing of the entries.
func counted(routes *route.Snapshot, tracking plane.Tracking, entries ...conntrack.Entry) *Listing {
	f := newFlows(routes, tracking)
	for _, e := range entries {
		f.add(e)
	}
	return f.listing()
}

func with(e conntrack.Entry, change func(*conntrack.Entry)) conntrack.Entry {
	change(&e)
	return e
}

const (
	synSent  conntrack.State = 1
	timeWait conntrack.State = 7
)

// An entry counts for the Service whose frontend is its destination, clusterIP or node port, and for the backend that
// answers, including former backends. Closed and unanswered connections are entries, but not live. Entries without a
// Service count for their client only.
func TestFlows(t *testing.T) {
	routes := services(t, []string{"web"}, web1, web2)
	const former = "10.244.3.3"
	got := counted(routes, plane.Translated,
		to(client, webIP, web1),
		with(to(client, webIP, web1), func(e *conntrack.Entry) { e.Sent, e.Received, e.Accounted = 10, 1000, true }),
		with(to(client, webIP, web2), func(e *conntrack.Entry) { e.State = synSent }),
		with(to(client, webIP, web2), func(e *conntrack.Entry) { e.State = timeWait }),
		with(to("203.0.113.9", "192.168.0.2", web2), func(e *conntrack.Entry) { e.OrigDst = at("192.168.0.2", 30080) }),
		to(client, webIP, former),
		with(to(client, "10.0.0.1", web1), func(e *conntrack.Entry) { e.OrigDst = at("10.0.0.1", 8443) }), // of a host port
		direct("10.244.1.7", web1),
	)
	web := cluster.Name{Namespace: "default", Name: "web"}
	want := &Listing{
		Entries: 8, Accounted: true,
		Ports: map[route.PortID]PortFlows{named("web"): {
			Flows: Flows{Entries: 6, Live: 4, Sent: 10, Received: 1000},
			Backends: map[netip.AddrPort]Flows{
				at(web1, 8080):   {Entries: 2, Live: 2, Sent: 10, Received: 1000},
				at(web2, 8080):   {Entries: 3, Live: 1},
				at(former, 8080): {Entries: 1, Live: 1},
			},
		}},
		Clients: []Client{
			{netip.MustParseAddr(client), 6, 4, web},
			{netip.MustParseAddr("10.244.1.7"), 1, 1, cluster.Name{}},
			{netip.MustParseAddr("203.0.113.9"), 1, 1, web},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if name, n := got.Heaviest(); name != web || n != 6 || got.Share(n) != 0.75 {
		t.Errorf("got %s with %d, a share of %v", name, n, got.Share(n))
	}
}

// If the plane connects sockets to backends, connections count once, for the first Service by name that has the
// backend.
func TestFlowsOfSockets(t *testing.T) {
	routes := services(t, []string{"web", "api"}, web1)
	got := counted(routes, plane.Untranslated, direct(client, web1), to(client, webIP, web1), direct(client, "10.9.9.9"))
	one := PortFlows{Flows{Entries: 1, Live: 1}, map[netip.AddrPort]Flows{at(web1, 8080): {Entries: 1, Live: 1}}}
	want := map[route.PortID]PortFlows{named("api"): one, named("web"): one}
	if !reflect.DeepEqual(got.Ports, want) {
		t.Errorf("got %+v\nwant %+v", got.Ports, want)
	}
}

// A relay has two connections for one of a client. The connection from the client to the relay has no backend.
func TestFlowsOfARelay(t *testing.T) {
	routes := services(t, []string{"web"}, web1)
	got := counted(routes, plane.Relayed, to(client, webIP, "192.168.0.2"), direct("192.168.0.2", web1))
	want := map[route.PortID]PortFlows{named("web"): {
		Flows{Entries: 2, Live: 2}, map[netip.AddrPort]Flows{at(web1, 8080): {Entries: 1, Live: 1}},
	}}
	if !reflect.DeepEqual(got.Ports, want) {
		t.Errorf("got %+v\nwant %+v", got.Ports, want)
	}
}

func TestAnEmptyTable(t *testing.T) {
	got := counted(services(t, nil), plane.Translated)
	if name, n := got.Heaviest(); n != 0 || name != (cluster.Name{}) || got.Share(5) != 0 || len(got.Clients) > 0 {
		t.Errorf("got %+v", got)
	}
}
