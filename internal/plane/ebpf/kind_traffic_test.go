package ebpf

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// portWithPools returns a port with backends in both pools.
func portWithPools(all *route.Snapshot) (svc *route.Service, port *route.Port) {
	for svc := range all.Services() {
		for i := range svc.Ports {
			if p := &svc.Ports[i]; p.Protocol == cluster.TCP && len(p.Cluster) > 0 && len(p.Local) > 0 && p.Affinity == 0 {
				return svc, p
			}
		}
	}
	return nil, nil
}

// A port has the connections that were decided, and those that are open to its backends, each backend once, and those
// that the packet plane counts. A former backend has connections, but no live ones.
func TestTrafficOfPorts(t *testing.T) {
	compiler := route.NewCompiler(route.Options{NodeName: "a"})
	compiler.Compile(planetest.EveryShape().Take())
	all := compiler.Snapshot()
	svc, p := portWithPools(all)
	if p == nil {
		t.Fatal("no port with backends in both pools")
	}
	id, backend, former := p.ID(svc.Name), p.Local[0], netip.MustParseAddrPort("10.9.9.9:80")
	ports := newPoolPorts()
	ports.Applied(route.Change{Touched: []route.Touch{{Name: svc.Name, New: svc}}})
	cluster1, local := poolID(svc.Name, p, route.Cluster), poolID(svc.Name, p, route.Local)
	count := newCounter(fakeCounters{
		pools: map[bpf.Pool]uint64{cluster1: 6, local: 3},
		backends: map[bpf.Member]uint64{
			{Pool: cluster1, Backend: backend}: 2, {Pool: cluster1, Backend: former}: 4, {Pool: local, Backend: backend}: 3,
			{Pool: bpf.Pool{1}, Backend: backend}: 9, // of a Service that is gone
		},
	}, ports)
	sums := &traffic{
		sums: count.sums, backends: count.backends,
		open: func(context.Context) (map[cluster.Protocol]map[netip.AddrPort]int, error) {
			return map[cluster.Protocol]map[netip.AddrPort]int{cluster.TCP: {backend: 3, former: 1}}, nil
		},
	}
	want := func(what string, all plane.Counted, err error, want plane.PortTraffic) {
		t.Helper()
		if diff := cmp.Diff(want, all[id]); diff != "" || err != nil {
			t.Errorf("%s: %v, -want +got:\n%s", what, err, diff)
		}
		for other, n := range all {
			if other != id && n.Traffic[plane.Connections] > 0 {
				t.Errorf("%s: %s has %v", what, other, n)
			}
		}
	}
	of := func(connections, live uint64) plane.BackendTraffic {
		return plane.BackendTraffic{Connections: connections, Live: live}
	}
	got, err := sums.counted(t.Context(), all)
	want("the packet plane does not count", got, err, plane.PortTraffic{
		Traffic:  plane.Traffic{plane.Connections: 9, plane.Live: 3},
		Backends: map[netip.AddrPort]plane.BackendTraffic{backend: of(5, 3), former: of(4, 0)},
	})
	outside := netip.MustParseAddrPort("10.9.9.8:80")
	sums.packets = func(context.Context, *route.Snapshot) (plane.Counted, error) {
		return plane.Counted{id: {
			Traffic:  plane.Traffic{plane.Connections: 10, plane.Live: 1, plane.Failures: 2},
			Backends: map[netip.AddrPort]plane.BackendTraffic{backend: of(7, 1), outside: of(3, 0)},
		}}, nil
	}
	got, err = sums.counted(t.Context(), all)
	want("both count", got, err, plane.PortTraffic{
		Traffic:  plane.Traffic{plane.Connections: 19, plane.Live: 4, plane.Failures: 2},
		Backends: map[netip.AddrPort]plane.BackendTraffic{backend: of(12, 4), former: of(4, 0), outside: of(3, 0)},
	})
	failed := errors.New("no conntrack")
	sums.packets = func(context.Context, *route.Snapshot) (plane.Counted, error) { return nil, failed }
	if _, err := sums.counted(t.Context(), all); !errors.Is(err, failed) {
		t.Errorf("an error of the packet plane is %v", err)
	}
}

// A port that only the packet plane serves has its numbers, and the sum of backends that it does not know is none.
func TestTrafficOfPacketsOnly(t *testing.T) {
	sums := plane.PortTraffic{Traffic: plane.Traffic{plane.Connections: 3}}
	want := plane.PortTraffic{
		Traffic: plane.Traffic{plane.Connections: 3}, Backends: map[netip.AddrPort]plane.BackendTraffic{},
	}
	if diff := cmp.Diff(want, add(plane.PortTraffic{}, sums)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
