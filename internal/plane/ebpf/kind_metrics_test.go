package ebpf

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// fakeCounters are numbers of connections.
type fakeCounters struct {
	pools    map[bpf.Pool]uint64
	backends map[bpf.Member]uint64
}

func (c fakeCounters) Counts() (map[bpf.Pool]uint64, error)          { return c.pools, nil }
func (c fakeCounters) BackendCounts() (map[bpf.Member]uint64, error) { return c.backends, nil }

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
	ports := newPoolPorts()
	c := newCounter(fakeCounters{
		pools: map[bpf.Pool]uint64{poolID(name, tcp, route.Cluster): 3, poolID(name, tcp, route.Local): 4, {1}: 9},
	}, ports)
	r := metricstest.Registry(c)
	ports.Applied(route.Change{Touched: []route.Touch{{Name: name, New: svc}}})
	want := `sluice_ebpf_connections_total` +
		`{ip_family="IPv4", namespace="ns", port="tcp", protocol="tcp", service="svc-15"} 7`
	if got := metricstest.Values(t, r, ""); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	ports.Applied(route.Change{Touched: []route.Touch{{Name: name, Old: svc}}})
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
