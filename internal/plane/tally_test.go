package plane_test

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// shop is a Service with backends, whose last byte is given.
type shop struct {
	store    *cluster.Store
	compiler *route.Compiler
}

func newShop() *shop {
	s := &shop{cluster.NewStore(), route.NewCompiler(route.Options{NodeName: "a", Families: route.Families()})}
	s.store.SetNode(&cluster.Node{Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2")}})
	return s
}

func (s *shop) web() cluster.Name { return cluster.Name{Namespace: "shop", Name: "web"} }

func (s *shop) serve(backends ...byte) *route.Snapshot {
	s.store.SetService(&cluster.Service{
		Name: s.web(), ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
	})
	ports := []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}}
	slice := &cluster.Slice{Name: s.web(), Service: s.web(), Ports: ports}
	for _, b := range backends {
		slice.Endpoints = append(slice.Endpoints, cluster.Endpoint{Addr: backend(b).Addr(), Ready: true, Serving: true})
	}
	s.store.SetSlice(slice)
	return s.snapshot()
}

func (s *shop) snapshot() *route.Snapshot {
	s.compiler.Compile(s.store.Take())
	return s.compiler.Snapshot()
}

func backend(n byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, n}), 8080)
}

// Sums never fall while the Service exists: objects begin again, are missing for a moment, and expire. A backend that
// is gone is listed until its objects expire, and its connections stay in the sum of the port.
func TestTally(t *testing.T) {
	s, tally, now := newShop(), plane.NewTally(), time.Unix(1_000_000, 0)
	id := route.PortID{Service: s.web(), Protocol: cluster.TCP, Family: route.IPv4}
	type objects map[byte]uint64
	for _, step := range []struct {
		name    string
		objects objects // by the backend that they count for
		routes  *route.Snapshot
		all     uint64
		want    objects
	}{
		{"first", objects{1: 3, 2: 5}, s.serve(1, 2), 8, objects{1: 3, 2: 5}},
		{"the same", objects{1: 3, 2: 5}, s.serve(1, 2), 8, objects{1: 3, 2: 5}},
		{"more", objects{1: 4, 2: 7}, s.serve(1, 2), 11, objects{1: 4, 2: 7}},
		{"one is missing", objects{1: 4}, s.serve(1, 2), 11, objects{1: 4, 2: 7}},
		{"and comes back", objects{1: 4, 2: 8}, s.serve(1, 2), 12, objects{1: 4, 2: 8}},
		{"one begins again", objects{1: 2, 2: 8}, s.serve(1, 2), 14, objects{1: 6, 2: 8}},
		{"a backend is gone", objects{1: 2, 2: 9}, s.serve(1), 15, objects{1: 6, 2: 9}},
		{"its object is missing", objects{1: 2}, s.serve(1), 15, objects{1: 6, 2: 9}},
		{"and has expired", objects{1: 2}, s.serve(1), 15, objects{1: 6}},
		{"nothing for long", objects{}, s.serve(1), 15, objects{1: 6}},
		{"nothing for longer", objects{}, s.serve(1), 15, objects{1: 6}},
		{"all have expired", objects{1: 2, 2: 1}, s.serve(1, 2), 18, objects{1: 8, 2: 1}},
	} {
		tally.Read(step.routes)
		for n, count := range step.objects {
			tally.Add(plane.Reading{Object: plane.Object{Name: string(rune(n))}, N: count, Until: now.Add(time.Minute)},
				func(netip.AddrPort) (plane.Endpoint, bool) {
					return plane.Endpoint{Port: id, Backend: backend(n)}, true
				})
		}
		tally.Forget(now)
		now = now.Add(40 * time.Second)
		backends := map[netip.AddrPort]plane.BackendTraffic{}
		for n, count := range step.want {
			backends[backend(n)] = plane.BackendTraffic{Connections: count}
		}
		want := plane.Counted{id: {Traffic: plane.Traffic{plane.Connections: step.all}, Backends: backends}}
		if got := tally.Counted(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", step.name, got, want)
		}
	}
	s.store.DeleteService(s.web())
	tally.Read(s.snapshot())
	tally.Forget(now)
	if got := tally.Counted(); len(got) > 0 {
		t.Errorf("without the Service: got %v, want nothing", got)
	}
}

// An object counts for the Service that has its endpoint now.
func TestTallyFollowsRoutes(t *testing.T) {
	s, tally, now := newShop(), plane.NewTally(), time.Unix(1_000_000, 0)
	id := route.PortID{Service: s.web(), Protocol: cluster.TCP, Family: route.IPv4}
	add := func(n uint64, routes *route.Snapshot) {
		tally.Read(routes)
		r := plane.Reading{Object: plane.Object{Name: "a"}, N: n, Until: now}
		tally.Add(r, func(netip.AddrPort) (plane.Endpoint, bool) {
			return plane.Endpoint{Port: id, Backend: backend(1)}, routes.Service(s.web()) != nil
		})
	}
	before := s.snapshot()
	add(3, before)
	add(5, before)
	if got := tally.Counted(); len(got) > 0 {
		t.Errorf("before the Service: got %v, want nothing", got)
	}
	serve := s.serve(1)
	add(9, serve)
	add(10, serve)
	s.store.DeleteService(s.web())
	add(11, s.snapshot())
	want := plane.Counted{id: {
		Traffic:  plane.Traffic{plane.Connections: 5},
		Backends: map[netip.AddrPort]plane.BackendTraffic{backend(1): {Connections: 5}},
	}}
	if got := tally.Counted(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// An object counts for one backend until it is moved, and then for the next.
func TestTallyFollowsMoves(t *testing.T) {
	s, tally, now := newShop(), plane.NewTally(), time.Unix(1_000_000, 0)
	id := route.PortID{Service: s.web(), Protocol: cluster.TCP, Family: route.IPv4}
	tally.Read(s.serve(1, 2))
	add := func(n uint64, to byte) {
		r := plane.Reading{Object: plane.Object{Name: "a"}, N: n, Until: now}
		tally.Add(r, func(last netip.AddrPort) (plane.Endpoint, bool) {
			if !last.IsValid() {
				last = backend(to)
			}
			return plane.Endpoint{Port: id, Backend: last}, true
		})
	}
	add(3, 1)
	tally.Read(s.serve(1, 2))
	add(5, 2)
	tally.Move(plane.Object{Name: "a"})
	add(9, 2)
	tally.MoveAll()
	add(10, 1)
	want := plane.Counted{id: {
		Traffic: plane.Traffic{plane.Connections: 10},
		Backends: map[netip.AddrPort]plane.BackendTraffic{
			backend(1): {Connections: 6}, backend(2): {Connections: 4},
		},
	}}
	if got := tally.Counted(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
