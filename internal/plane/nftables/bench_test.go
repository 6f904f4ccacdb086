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
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
)

// sizes are numbers of services; each has three endpoints.
var sizes = []int{1_000, 10_000, 100_000}

// crowd returns a table of n services.
func crowd(n int) *route.Table {
	t := &route.Table{
		Services: map[cluster.Name]*route.Service{},
		Host:     route.Host{NodePorts: route.NodePorts{All4: true}, ServiceCIDRs: planetest.Prefixes("172.16.0.0/12")},
	}
	for i := range n {
		svc := member(i, 0, 1, 2)
		t.Services[svc.Name] = svc
	}
	return t
}

// member returns the i-th service, with these backends.
func member(i int, backends ...int) *route.Service {
	p := route.Port{Name: "http", Protocol: cluster.TCP, Family: route.IPv4}
	way := route.Way{Verdict: route.Balance}
	p.Frontends = []route.Frontend{{
		Kind: route.ClusterIP, Addr: netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)}),
		Port: 80, Pods: way, Node: way, Others: way,
	}}
	for _, b := range backends {
		p.Cluster = append(p.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(16*b) + byte(i>>16), byte(i >> 8), byte(i)}), 8080))
	}
	name := cluster.Name{Namespace: fmt.Sprintf("namespace-%d", i%100), Name: fmt.Sprintf("service-%d", i)}
	return &route.Service{Name: name, Ports: []route.Port{p}}
}

// affinity makes Services remember their clients.
func affinity(services ...*route.Service) {
	for _, svc := range services {
		if svc != nil {
			svc.Ports[0].Affinity = 3 * time.Hour
		}
	}
}

// BenchmarkChange is one change, from what differs to the kernel's answer. It
// must cost the same whatever the number of services.
func BenchmarkChange(b *testing.B) { benchmarkChange(b, func(...*route.Service) {}) }

// BenchmarkStickyChange is the same where all Services remember their clients.
func BenchmarkStickyChange(b *testing.B) { benchmarkChange(b, affinity) }

func benchmarkChange(b *testing.B, alter func(...*route.Service)) {
	b.Helper()
	const i = 500
	changes := []struct {
		name  string
		there []*route.Service // one after the other, round and round
	}{
		{"replace", []*route.Service{member(i, 0, 1, 3), member(i, 0, 1, 2)}},
		{"scale", []*route.Service{member(i, 0, 1, 2, 3), member(i, 0, 1, 2)}}, // others have four, too
		{"scale-to-new-count", []*route.Service{member(i, 0, 1, 2, 3, 4, 5, 6), member(i, 0, 1, 2)}},
		{"delete-and-add", []*route.Service{nil, member(i, 0, 1, 2)}},
	}
	for _, n := range sizes {
		table := crowd(n)
		four := member(7, 0, 1, 2, 3)
		table.Services[four.Name] = four
		alter(slices.Collect(maps.Values(table.Services))...)
		conn, _ := realKernel(b)
		p := load(b, conn, route.Change{Table: table}, route.IPv4)
		for _, c := range changes {
			alter(c.there...)
			b.Run(fmt.Sprintf("%s/services=%d", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				at := c.there[len(c.there)-1]
				name := at.Name
				for k := 0; b.Loop(); k++ {
					touch := route.Touch{Name: name, Old: at, New: c.there[k%len(c.there)]}
					if at = touch.New; at == nil {
						delete(table.Services, name)
					} else {
						table.Services[name] = at
					}
					plan := p.Plan(route.Change{Table: table, Touched: []route.Touch{touch}})
					if err := plan.Apply(context.Background()); err != nil {
						b.Fatal(err)
					}
				}
				last := c.there[len(c.there)-1]
				if at != last { // as the next one wants it
					plan := p.Plan(route.Change{Table: table, Touched: []route.Touch{{Name: name, Old: at, New: last}}})
					if err := plan.Apply(context.Background()); err != nil {
						b.Fatal(err)
					}
					table.Services[name] = last
				}
			})
		}
		settled(b, conn, table, route.IPv4)
	}
}

// BenchmarkColdLoad is a start with an empty kernel, BenchmarkRestart one that
// finds everything in place.
func BenchmarkColdLoad(b *testing.B) { benchmarkColdLoad(b, func(...*route.Service) {}) }

// BenchmarkStickyColdLoad is the same where all Services remember their clients.
func BenchmarkStickyColdLoad(b *testing.B) { benchmarkColdLoad(b, affinity) }

func benchmarkColdLoad(b *testing.B, alter func(...*route.Service)) {
	b.Helper()
	for _, n := range sizes {
		table := crowd(n)
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
		table := crowd(n)
		conn, _ := realKernel(b)
		load(b, conn, route.Change{Table: table}, route.IPv4)
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				settled(b, conn, table, route.IPv4)
			}
		})
	}
}
