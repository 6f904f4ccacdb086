package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// largeService returns a Service with this number of ports, each with 50 external
// addresses.
func largeService(ports int) *route.Service {
	svc := &route.Service{Name: cluster.Name{Namespace: "shop", Name: "wide"}}
	way := route.Way{Verdict: route.Balance}
	for n := range ports {
		p := route.Port{
			Name: fmt.Sprint("p", n), Protocol: cluster.TCP, Family: route.IPv4,
			Cluster: []netip.AddrPort{netip.MustParseAddrPort("10.180.0.1:8080")},
		}
		for i := range 50 {
			p.Frontends = append(p.Frontends, route.Frontend{
				Kind: route.ExternalIP, Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), Port: uint16(n + 1), Pods: way,
				Node: way, Others: way,
			})
		}
		svc.Ports = append(svc.Ports, p)
	}
	return svc
}

// Pieces of a Service are written and deleted without errors, also if a shared chain is
// written as a whole between them, and nothing is left at the end.
func TestALargeServiceInPieces(t *testing.T) {
	kernel := newFake()
	p := newPlane(kernel)
	table := &route.Table{Services: map[cluster.Name]*route.Service{}}
	write := func(change route.Change) {
		t.Helper()
		if err := p.Plan(change).Apply(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	write(route.Change{Table: table})
	queue := plane.NewQueue(plane.Load{Cost: linesOf, Piece: 200})
	drain := func(t route.Touch) (pieces int) {
		for queue.Add(t); !queue.Empty(); pieces++ {
			write(route.Change{Table: table, Touched: queue.Next(), Underway: queue.Underway()})
		}
		return pieces
	}
	svc := largeService(7)
	table.Services[svc.Name] = svc
	added := drain(route.Touch{Name: svc.Name, New: svc})
	delete(table.Services, svc.Name)
	deleted := drain(route.Touch{Name: svc.Name, Old: svc})
	if added < 3 || deleted < 3 {
		t.Errorf("written in %d pieces and deleted in %d, want more", added, deleted)
	}
	other := newPlane(kernel)
	if err := other.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	if plan := other.Plan(route.Change{Table: table}); plan.Steps() != 0 {
		t.Errorf("rules are left:\n%s", plan)
	}
}

// A comparison of a large Service leaves out ports that are new to the kernel, except one
// that takes over a frontend from another port: the frontend is served at every moment.
func TestAComparisonWritesMovedFrontends(t *testing.T) {
	for _, frontend := range []route.Frontend{
		{Kind: route.ClusterIP, Addr: netip.MustParseAddr("172.30.0.1"), Port: 80},
		{Kind: route.ExternalIP, Addr: netip.MustParseAddr("198.51.100.1"), Port: 80},
		{Kind: route.NodePort, Port: 30080},
	} {
		for _, verdicts := range [][2]route.Verdict{
			{route.Balance, route.Balance}, {route.Reject, route.Balance}, {route.Balance, route.Drop},
		} {
			t.Run(fmt.Sprint(frontend.Kind, verdicts), func(t *testing.T) {
				moveFrontend(t, frontend, verdicts[0], verdicts[1])
			})
		}
	}
}

func moveFrontend(t *testing.T, moved route.Frontend, before, after route.Verdict) {
	port := func(name string, v route.Verdict, f route.Frontend) route.Port {
		way := route.Way{Verdict: v}
		f.Pods, f.Node, f.Others = way, way, way
		return route.Port{
			Name: name, Protocol: cluster.TCP, Family: route.IPv4, Frontends: []route.Frontend{f},
			Cluster: []netip.AddrPort{netip.MustParseAddrPort("10.180.0.1:8080")},
		}
	}
	other := func(n uint16) route.Frontend {
		return route.Frontend{Kind: route.ExternalIP, Addr: netip.MustParseAddr("198.51.100.9"), Port: n}
	}
	old := &route.Service{
		Name: cluster.Name{Namespace: "shop", Name: "web"}, Ports: []route.Port{port("from", before, moved)},
	}
	svc := &route.Service{Name: old.Name, Ports: []route.Port{
		port("from", route.Balance, other(1)), port("to", after, moved), port("new", route.Balance, other(2)),
	}}
	table := &route.Table{
		Host: route.Host{NodePorts: route.NodePorts{All4: true}}, Services: map[cluster.Name]*route.Service{old.Name: old},
	}
	fake := newFake()
	load(t, fake, route.Change{Table: table})

	audit := newAudit(fake)
	audit.seen = []tables{audit.read()}
	p := newPlane(faulty{fake, &planetest.Faults{Room: 1, After: audit.Note}})
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	table.Services[svc.Name] = svc
	plan := p.Plan(route.Change{Table: table, Partly: true}).(*Plan)
	if err := plan.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	var written []string
	for _, part := range plan.Left() {
		for i := range part.Ports {
			written = append(written, part.Ports[i].Name)
		}
		rest := p.Plan(route.Change{Table: table, Touched: []route.Touch{{Name: svc.Name, Old: part, New: svc}}})
		if err := rest.Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(written, []string{"to"}) {
		t.Errorf("the comparison wrote the ports %q, want to", written)
	}
	if err := audit.check(); err != nil {
		t.Error(err)
	}
	checkSettled(t, fake, table)
}

func TestExcess(t *testing.T) {
	endpoints := func(n int) *route.Service {
		svc := largeService(1)
		svc.Ports[0].Cluster = make([]netip.AddrPort, n)
		return svc
	}
	for _, tt := range []struct {
		name string
		svc  *route.Service
		size string
	}{
		{"200 ports of 50 addresses", largeService(200), ""},
		{"201 ports of 50 addresses", largeService(201), "10050 addresses with ports and source ranges for them"},
		{"5,000 endpoints", endpoints(5000), ""},
		{"5,001 endpoints", endpoints(5001), `5001 endpoints of port "p0"`},
	} {
		size, limit := Excess(tt.svc)
		if size != tt.size || (limit == "") != (size == "") {
			t.Errorf("%s: size %q, limit %q; want size %q", tt.name, size, limit, tt.size)
		}
	}
}
