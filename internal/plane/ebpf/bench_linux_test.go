package ebpf_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// services is a cluster whose Services have three endpoints each.
func services(n, generation int) *cluster.Store {
	s := cluster.NewStore()
	s.SetNode(planetest.NewNode("10.180.0.0/24", "fd00:10:180::/64"))
	for i := range n {
		name := cluster.Name{Namespace: "ns", Name: fmt.Sprint("svc-", i)}
		s.SetService(&cluster.Service{
			Name:       name,
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, byte(30 + i/62_500), byte(i / 250 % 250), byte(1 + i%250)})},
			Ports:      []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
		})
		sl := &cluster.Slice{Name: name, Service: name, Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}}}
		for k := range 3 {
			sl.Endpoints = append(sl.Endpoints,
				planetest.Endpoint(fmt.Sprintf("10.%d.%d.%d", 190+k+generation, i/250%250, 1+i%250), "b"))
		}
		s.SetSlice(sl)
	}
	return s
}

func open(b *testing.B, host *lab.Host) plane.Plane {
	b.Helper()
	kerneltest.NeedPrograms(b)
	kind := ebpf.Kind(nftables.Kind())
	setup := plane.Setup{
		Config: &config.Config{
			MasqueradeMark: 0x4000, EBPF: config.EBPF{Dir: filepath.Join(lab.BPFFS(b), "sluice"), Cgroup: host.Cgroup()},
		},
		NetNS: host.NetNSFD(), Families: route.Families(), Log: slog.New(slog.DiscardHandler),
	}
	opened, err := kind.Open(b.Context(), setup)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		for _, k := range []plane.Kind{kind, nftables.Kind()} {
			if _, err := k.Remove(context.Background(), setup); err != nil {
				b.Error(err)
			}
		}
		_ = opened.Close() // nothing is left to lose
	})
	return opened.Plane
}

func write(b *testing.B, p plane.Plane, c route.Change) {
	b.Helper()
	if err := p.Plan(c).Apply(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkChange replaces the endpoints of one Service of many, in maps and rules.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n, " Services"), func(b *testing.B) {
			l := lab.New(b, lab.Options{Cgroups: true})
			p := open(b, l.NodeA)
			if err := p.Refresh(b.Context()); err != nil {
				b.Fatal(err)
			}
			first := planetest.Compile(services(n, 0), route.Options{})
			began := time.Now()
			write(b, p, first)
			load := time.Since(began)
			name := cluster.Name{Namespace: "ns", Name: "svc-5"}
			was, is := first.Table.Services[name], planetest.Compile(services(10, 3), route.Options{}).Table.Services[name]
			for b.Loop() {
				first.Table.Services[name] = is
				write(b, p, route.Change{Table: first.Table, Touched: []route.Touch{{Name: name, Old: was, New: is}}})
				was, is = is, was
			}
			b.ReportMetric(load.Seconds(), "first-load-s")
		})
	}
}
