package nftables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// sizes are numbers of Services.
var sizes = []int{1_000, 10_000, 100_000}

// manyServices returns a table with n Services, each with three endpoints.
func manyServices(n int) *route.Table {
	t := &route.Table{
		Services: map[cluster.Name]*route.Service{},
		Host:     route.Host{NodePorts: route.NodePorts{All4: true}, ServiceCIDRs: planetest.Prefixes("172.16.0.0/12")},
	}
	for i := range n {
		svc := numberedService(i, 0, 1, 2)
		t.Services[svc.Name] = svc
	}
	return t
}

// numberedService returns the i-th Service, with these backends.
func numberedService(i int, backends ...int) *route.Service {
	p := route.Port{Name: "http", Protocol: cluster.TCP, Family: route.IPv4}
	way := route.Action{Verdict: route.Balance}
	p.Frontends = []route.Frontend{{
		Kind: route.ClusterIP, Addr: netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)}),
		Port: 80, Pods: way, Node: way, Others: way,
	}}
	for _, b := range backends {
		p.Cluster = append(p.Cluster,
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(16*b) + byte(i>>16), byte(i >> 8), byte(i)}), 8080))
	}
	name := cluster.Name{Namespace: fmt.Sprintf("namespace-%d", i%100), Name: fmt.Sprintf("service-%d", i)}
	return &route.Service{Name: name, Ports: []route.Port{p}}
}

// affinity gives Services session affinity.
func affinity(services ...*route.Service) {
	for _, svc := range services {
		if svc != nil {
			svc.Ports[0].Affinity = 3 * time.Hour
		}
	}
}

// weights gives the endpoints of Services different weights.
func weights(services ...*route.Service) {
	for _, svc := range services {
		if svc != nil {
			p := &svc.Ports[0]
			p.Weights = map[netip.AddrPort]uint16{p.Cluster[0]: 3, p.Cluster[1]: 2}
		}
	}
}

// BenchmarkChange measures one change, from the difference to the reply of the kernel. The
// time must not depend on the number of Services.
func BenchmarkChange(b *testing.B) { benchmarkChange(b, func(...*route.Service) {}) }

// BenchmarkStickyChange measures the same if all Services have session affinity.
func BenchmarkStickyChange(b *testing.B) { benchmarkChange(b, affinity) }

func benchmarkChange(b *testing.B, alter func(...*route.Service)) {
	b.Helper()
	const i = 500
	changes := []struct {
		name   string
		states []*route.Service // of the Service, repeated in this order
	}{
		{"replace", []*route.Service{numberedService(i, 0, 1, 3), numberedService(i, 0, 1, 2)}},
		{"scale", []*route.Service{numberedService(i, 0, 1, 2, 3), numberedService(i, 0, 1, 2)}}, // another Service has four
		{"scale-to-new-count", []*route.Service{numberedService(i, 0, 1, 2, 3, 4, 5, 6), numberedService(i, 0, 1, 2)}},
		{"delete-and-add", []*route.Service{nil, numberedService(i, 0, 1, 2)}},
	}
	for _, n := range sizes {
		table := manyServices(n)
		four := numberedService(7, 0, 1, 2, 3)
		table.Services[four.Name] = four
		alter(slices.Collect(maps.Values(table.Services))...)
		conn, _ := realKernel(b)
		p := load(b, conn, route.Change{Table: table}, route.IPv4)
		for _, c := range changes {
			alter(c.states...)
			b.Run(fmt.Sprintf("%s/services=%d", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				current := c.states[len(c.states)-1]
				name := current.Name
				for k := 0; b.Loop(); k++ {
					touch := route.Touch{Name: name, Old: current, New: c.states[k%len(c.states)]}
					if current = touch.New; current == nil {
						delete(table.Services, name)
					} else {
						table.Services[name] = current
					}
					plan := p.Plan(route.Change{Table: table, Touched: []route.Touch{touch}})
					if err := plan.Apply(context.Background()); err != nil {
						b.Fatal(err)
					}
				}
				last := c.states[len(c.states)-1]
				if current != last { // restore the state that the next benchmark expects
					plan := p.Plan(route.Change{Table: table, Touched: []route.Touch{{Name: name, Old: current, New: last}}})
					if err := plan.Apply(context.Background()); err != nil {
						b.Fatal(err)
					}
					table.Services[name] = last
				}
			})
		}
		checkSettled(b, conn, table, route.IPv4)
	}
}

// BenchmarkTenChange measures the replacement of one of the ten backends of a Service among others, at random and by a
// hash of the client.
func BenchmarkTenChange(b *testing.B) {
	table := manyServices(1_000)
	ten, other := numberedService(7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9), numberedService(7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10)
	for _, scheduler := range []string{"random", "maglev"} {
		ten.Ports[0].Scheduler, other.Ports[0].Scheduler = scheduler, scheduler
		table.Services[ten.Name] = ten
		conn, _ := realKernel(b)
		p := load(b, conn, route.Change{Table: table}, route.IPv4)
		b.Run(scheduler, func(b *testing.B) {
			for now, next := ten, other; b.Loop(); now, next = next, now {
				table.Services[ten.Name] = next
				touched := []route.Touch{{Name: ten.Name, Old: now, New: next}}
				if err := p.Plan(route.Change{Table: table, Touched: touched}).Apply(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkColdLoad measures a start with an empty kernel, BenchmarkRestart one with a kernel that has everything.
func BenchmarkColdLoad(b *testing.B) { benchmarkColdLoad(b, func(...*route.Service) {}) }

// BenchmarkStickyColdLoad measures the same if all Services have session affinity.
func BenchmarkStickyColdLoad(b *testing.B) { benchmarkColdLoad(b, affinity) }

// BenchmarkWeightedColdLoad measures the same if all Services have weights.
func BenchmarkWeightedColdLoad(b *testing.B) { benchmarkColdLoad(b, weights) }

func benchmarkColdLoad(b *testing.B, alter func(...*route.Service)) {
	b.Helper()
	for _, n := range sizes {
		table := manyServices(n)
		alter(slices.Collect(maps.Values(table.Services))...)
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				conn, _ := realKernel(b)
				b.StartTimer()
				load(b, conn, route.Change{Table: table}, route.IPv4)
			}
		})
	}
}

func BenchmarkRestart(b *testing.B) {
	for _, n := range sizes {
		table := manyServices(n)
		conn, _ := realKernel(b)
		load(b, conn, route.Change{Table: table}, route.IPv4)
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				checkSettled(b, conn, table, route.IPv4)
			}
		})
	}
}
