package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// largeService returns a Service with this number of ports, each with 50 external addresses.
func largeService(ports int) *route.Service {
	svc := &route.Service{Name: cluster.Name{Namespace: "shop", Name: "wide"}}
	way := route.Action{Verdict: route.Balance}
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

// A comparison writes Services that do not fit into one restore after all others.
func TestAComparisonWritesLargeServicesLast(t *testing.T) {
	large, small := largeService(10), largeService(1)
	large.Name.Name, small.Name.Name = "a-large", "b-small"
	table := &route.Table{Services: map[cluster.Name]*route.Service{large.Name: large, small.Name: small}}
	fake, first := newFake(), ""
	load(t, faulty{fake, &planetest.Faults{Room: 500, After: func() {
		for _, name := range []string{"a-large", "b-small"} {
			if first == "" && strings.Contains(fake.String(), name+":p0 external IP") {
				first = name
			}
		}
	}}}, route.Change{Table: table})
	if first != "b-small" {
		t.Errorf("the first Service with its frontends is %q", first)
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
