package ebpf

import (
	"context"
	"maps"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

func TestConnectionsAreCounted(t *testing.T) {
	table := planetest.Compile(planetest.EveryShape(), route.Options{}).Table
	name := cluster.Name{Namespace: "ns", Name: "svc-15"}
	svc := table.Services[name]
	var tcp *route.Port
	for i := range svc.Ports {
		if p := &svc.Ports[i]; p.Protocol == cluster.TCP && p.Family == route.IPv4 {
			tcp = p
		}
	}
	if tcp == nil || tcp.Affinity != 0 {
		t.Fatalf("no port without affinity: %v", svc)
	}
	c := newCounter(func() (map[bpf.Pool]uint64, error) {
		return map[bpf.Pool]uint64{poolID(name, tcp, route.Cluster): 3, poolID(name, tcp, route.Local): 4, {1}: 9}, nil
	})
	r := metricstest.Registry(c)
	c.Applied(route.Change{Touched: []route.Touch{{Name: name, New: svc}}})
	want := `sluice_ebpf_connections_total` +
		`{ip_family="IPv4", namespace="ns", port="tcp", protocol="tcp", service="svc-15"} 7`
	if got := metricstest.Values(t, r, ""); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	c.Applied(route.Change{Touched: []route.Touch{{Name: name, Old: svc}}})
	if got := metricstest.Values(t, r, ""); got != "" {
		t.Errorf("got\n%s\nfor a Service that is gone", got)
	}
}

func TestMapsAreMeasured(t *testing.T) {
	p := newPressure(func() ([]bpf.Usage, error) {
		return []bpf.Usage{
			{Map: "slots", Entries: 3, Max: 1024, Bytes: 4096}, {Map: "connections", Entries: -1, Max: 65536, Bytes: -1},
		}, nil
	})
	want := `sluice_ebpf_map_bytes{map="slots"} 4096
sluice_ebpf_map_entries{map="slots"} 3
sluice_ebpf_map_max_entries{map="connections"} 65536
sluice_ebpf_map_max_entries{map="slots"} 1024`
	if got := metricstest.Values(t, metricstest.Registry(p), ""); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A port has the connections that were decided, and those that are open to its backends, each backend once.
func TestTrafficOfPorts(t *testing.T) {
	compiler := route.NewCompiler(route.Options{NodeName: "a"})
	compiler.Compile(planetest.EveryShape().Take())
	all, id := compiler.Snapshot(), route.PortID{}
	var backend netip.AddrPort
	for svc := range all.Services() {
		for i := range svc.Ports {
			if p := &svc.Ports[i]; p.Protocol == cluster.TCP && len(p.Cluster) > 0 && len(p.Local) > 0 {
				id, backend = p.ID(svc.Name), p.Local[0]
			}
		}
	}
	got, err := traffic(t.Context(), all,
		func() (map[route.PortID]uint64, error) { return map[route.PortID]uint64{id: 7}, nil },
		func(context.Context) (map[cluster.Protocol]map[netip.AddrPort]int, error) {
			return map[cluster.Protocol]map[netip.AddrPort]int{cluster.TCP: {backend: 3}}, nil
		})
	if want := (plane.Traffic{plane.Connections: 7, plane.Live: 3}); err != nil || !maps.Equal(got[id].Traffic, want) {
		t.Errorf("%s: got %v, %v, want %v", id, got[id], err, want)
	}
	for other, n := range got {
		if other != id && n.Traffic[plane.Connections] > 0 {
			t.Errorf("%s has %v", other, n)
		}
	}
}
