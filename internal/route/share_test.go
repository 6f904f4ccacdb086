package route

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// shared3 compiles a Service with three endpoints of which the last has a share.
func shared3(t *testing.T, change func(*cluster.Service), parts ...uint8) Port {
	t.Helper()
	svc := &cluster.Service{
		Name: cluster.Name{Namespace: "default", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}}, Ejection: DefaultEjection(),
	}
	change(svc)
	sl := &cluster.Slice{
		Name: cluster.Name{Namespace: "default", Name: "web-1"}, Service: svc.Name,
		Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
	}
	shares := cluster.Shares{}
	for i := range 3 {
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)})
		sl.Endpoints = append(sl.Endpoints, cluster.Endpoint{Addr: a, Ready: true, Serving: true})
		if i < len(parts) {
			key := cluster.ShareKey{Backend: netip.AddrPortFrom(a, 8080)}
			shares[key] = cluster.Share{Part: parts[i], Since: time.Unix(1, 0)}
		}
	}
	store := cluster.NewStore()
	store.SetShares(svc.Name, shares)
	store.SetService(svc)
	store.SetSlice(sl)
	c := NewCompiler(Options{})
	c.Compile(store.Take())
	made := c.Table().Services[svc.Name]
	if made == nil || len(made.Ports) != 1 {
		t.Fatalf("%+v", made)
	}
	for _, choice := range c.Snapshot().Explain(svc.Name, &made.Ports[0], Cluster) {
		if left := !slices.Contains(made.Ports[0].Cluster, choice.Backend); left != (choice.Reason == Ejected) {
			t.Errorf("%s: %s, although the pool is %v", choice.Backend, choice.Reason, made.Ports[0].Cluster)
		}
	}
	return made.Ports[0]
}

// Ejected backends leave the pool, so that no client stays with one by affinity; others get parts of their weights.
// The last backend of a pool stays, whatever the shares are, and nothing happens without the annotation.
func TestSharesOfBackends(t *testing.T) {
	at := func(i byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, i}), 8080) }
	type weights = map[netip.AddrPort]uint16
	none := func(*cluster.Service) {}
	weighted := func(s *cluster.Service) { s.Weights = map[string]uint16{"10.0.0.2": 4, "10.0.0.3": 0} }
	for _, c := range []struct {
		name    string
		change  func(*cluster.Service)
		parts   []uint8
		pool    []netip.AddrPort
		ejected []netip.AddrPort
		weights weights
	}{
		{"none", none, nil, []netip.AddrPort{at(1), at(2), at(3)}, nil, nil},
		{"one ejected", none, []uint8{0}, []netip.AddrPort{at(2), at(3)}, []netip.AddrPort{at(1)}, nil},
		{"on trial", none, []uint8{1}, []netip.AddrPort{at(1), at(2), at(3)}, nil, weights{at(2): 16, at(3): 16}},
		{
			"rising, one ejected", none,
			[]uint8{4, 0},
			[]netip.AddrPort{at(1), at(3)},
			[]netip.AddrPort{at(2)},
			weights{at(1): 4, at(2): 16, at(3): 16},
		},
		{
			"with weights", weighted,
			[]uint8{8},
			[]netip.AddrPort{at(1), at(2), at(3)},
			nil,
			weights{at(1): 8, at(2): 64, at(3): 0},
		},
		{"all ejected", none, []uint8{0, 0, 0}, []netip.AddrPort{at(1), at(2), at(3)}, nil, nil},
		{
			"with affinity", func(s *cluster.Service) { s.Affinity = time.Hour },
			[]uint8{1, 0},
			[]netip.AddrPort{at(1), at(3)},
			[]netip.AddrPort{at(2)},
			nil,
		},
		{
			"by a hash", func(s *cluster.Service) { s.Scheduler = "maglev" },
			[]uint8{1},
			[]netip.AddrPort{at(1), at(2), at(3)},
			nil,
			weights{at(2): 16, at(3): 16},
		},
		{
			"without the annotation", func(s *cluster.Service) { s.Ejection = cluster.Ejection{} },
			[]uint8{0, 1},
			[]netip.AddrPort{at(1), at(2), at(3)},
			nil, nil,
		},
	} {
		p := shared3(t, c.change, c.parts...)
		if !slices.Equal(p.Cluster, c.pool) || !slices.Equal(p.Ejected, c.ejected) || !maps.Equal(p.Weights, c.weights) {
			t.Errorf("%s: pool %v, ejected %v, weights %v\nwant %v, %v, %v",
				c.name, p.Cluster, p.Ejected, p.Weights, c.pool, c.ejected, c.weights)
		}
	}
}
