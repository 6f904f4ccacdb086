package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// tenant returns a Service with some ports and backends.
func tenant(name, scheduler string, ports int, backends []netip.AddrPort) *route.Service {
	svc := &route.Service{Name: cluster.Name{Namespace: "ns", Name: name}}
	for i := range ports {
		at := netip.AddrFrom4([4]byte{10, 96, 0, byte(len(name))})
		way := route.Action{Verdict: route.Balance}
		svc.Ports = append(svc.Ports, route.Port{
			Name: fmt.Sprint("p", i), Protocol: cluster.TCP, Family: route.IPv4, Scheduler: scheduler, Cluster: backends,
			Frontends: []route.Frontend{
				{Kind: route.ClusterIP, Addr: at, Port: uint16(1 + i), Pods: way, Node: way, Others: way},
			},
		})
	}
	return svc
}

// One Service does not take the memory of the node.
func TestSlotsOfOneService(t *testing.T) {
	p := New(newFake(), Options{Packets: noPackets{}})
	weighted := tenant("b", "", 1, pods(10000))
	weighted.Ports[0].Weights = map[netip.AddrPort]uint16{}
	for i, at := range weighted.Ports[0].Cluster {
		weighted.Ports[0].Weights[at] = uint16(254 + i%2)
	}
	for name, svc := range map[string]*route.Service{"ports": tenant("a", "maglev", 10, pods(200)), "weights": weighted} {
		if n := len(p.render(svc)); n > 300000 {
			t.Errorf("%s: %d entries, which take %d MB", name, n, n/10000)
		}
	}
	if n := len(p.render(tenant("a", "maglev", 3, pods(200)))); n < 3*65521 {
		t.Errorf("a Service of ordinary size has %d entries", n)
	}
}

// If the kernel has no room for the entries of one Service, those of others are written all the same.
func TestNoRoomForOneService(t *testing.T) {
	o := testOptions(t)
	o.FirstSize = 64
	o.Fault = func(op bpf.Operation) error {
		if op == bpf.Grow {
			return unix.ENOMEM
		}
		return nil
	}
	conn, err := bpf.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the maps go with the bpffs
	p := New(conn, Options{Packets: noPackets{}})
	was, is := tenant("small", "", 1, pods(2)[:1]), tenant("small", "", 1, pods(2)[1:])
	before, large := tenant("large", "", 1, pods(2)), tenant("large", "maglev", 1, pods(200))
	table := func(list ...*route.Service) *route.Table {
		all := &route.Table{Services: map[cluster.Name]*route.Service{}}
		for _, svc := range list {
			all.Services[svc.Name] = svc
		}
		return all
	}
	apply(t, p, route.Change{Table: table(was, before)})
	for range 3 { // the loop compares everything after a failure
		if err := p.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := p.Plan(route.Change{Table: table(is, large)}).Apply(t.Context())
		if refused, is := errors.AsType[plane.Refused](err); !is || len(refused) != 1 || refused[large.Name] == nil {
			t.Fatalf("the error is %v, want that Service large is refused", err)
		}
	}
	state, err := conn.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slot := bpf.Slot{
		Pool: poolID(is.Name, &is.Ports[0], route.Cluster), Backend: is.Ports[0].Cluster[0], Weight: 1,
	}.Entry()
	if state[slot.Key] != slot.Value {
		t.Error("sockets still connect to the former backend of the small Service")
	}
	for _, e := range p.render(large) {
		if _, there := state[e.Key]; there && e.Key.Table == bpf.Frontends {
			t.Errorf("sockets still connect to former backends of the large Service: %s", e.Key)
		}
	}
}
