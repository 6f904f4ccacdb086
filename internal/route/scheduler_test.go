package route

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// A Service passes its scheduler and slow start to all its ports, and a changed one is a change.
func TestSchedulerOfAService(t *testing.T) {
	store := cluster.NewStore()
	c := NewCompiler(Options{})
	name := cluster.Name{Namespace: "default", Name: "web"}
	slow := time.Duration(0)
	set := func(scheduler string) Change {
		store.SetService(&cluster.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Scheduler: scheduler, SlowStart: slow,
			Ports: []cluster.ServicePort{{Port: 80}, {Port: 81}},
		})
		change, _ := c.Compile(store.Take())
		return change
	}
	set("")
	change := set("wlc")
	if len(change.Touched) != 1 {
		t.Fatalf("the change touches %v", change.Touched)
	}
	for _, p := range change.Touched[0].New.Ports {
		if p.Scheduler != "wlc" {
			t.Errorf("port %d: scheduler %q", p.Frontends[0].Port, p.Scheduler)
		}
	}
	if change := set("wlc"); !change.Empty() {
		t.Errorf("the same scheduler changes %v", change.Touched)
	}
	slow = time.Minute
	if change := set("wlc"); len(change.Touched) != 1 || change.Touched[0].New.Ports[1].SlowStart != slow {
		t.Errorf("slow start changes %v", change.Touched)
	}
}

// An endpoint has the weight of its address, or else of its node. A changed weight is a change of its Service.
func TestWeightsOfEndpoints(t *testing.T) {
	store := cluster.NewStore()
	c := NewCompiler(Options{})
	name := cluster.Name{Namespace: "default", Name: "web"}
	endpoint := func(addr, node string) cluster.Endpoint {
		return cluster.Endpoint{Addr: netip.MustParseAddr(addr), Node: node, Ready: true, Serving: true}
	}
	store.SetSlice(&cluster.Slice{
		Name: name, Service: name, Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
		Endpoints: []cluster.Endpoint{
			endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "a"), endpoint("10.0.0.3", ""),
			endpoint("10.0.0.4", "b"), endpoint("fd00::1", "a"),
		},
	})
	set := func(weights map[string]uint16) Change {
		store.SetService(&cluster.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd96::1")},
			Weights: weights,
			Ports:   []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
		})
		change, _ := c.Compile(store.Take())
		return change
	}
	weights := func(change Change) string {
		var all []string
		for _, p := range change.Touched[0].New.Ports {
			for _, b := range p.Cluster {
				all = append(all, fmt.Sprint(b.Addr(), "=", p.Weight(b)))
			}
		}
		return strings.Join(all, " ")
	}
	if got, want := weights(set(nil)), "10.0.0.1=1 10.0.0.2=1 10.0.0.3=1 10.0.0.4=1 fd00::1=1"; got != want {
		t.Errorf("weights %s, want %s", got, want)
	}
	some := map[string]uint16{"a": 3, "10.0.0.2": 0, "fd00::1": 5, "other": 7}
	if got, want := weights(set(some)), "10.0.0.1=3 10.0.0.2=0 10.0.0.3=1 10.0.0.4=1 fd00::1=5"; got != want {
		t.Errorf("weights %s, want %s", got, want)
	}
	if change := set(map[string]uint16{"a": 3, "10.0.0.2": 0, "fd00::1": 5, "b": 1, "another": 2}); !change.Empty() {
		t.Errorf("weights of no endpoint, and 1 for one, change %v", change.Touched)
	}
	if change := set(nil); len(change.Touched) != 1 {
		t.Errorf("without weights: %v", change.Touched)
	}
}

// Endpoints to which the Service gives no weight have that of their slice. Once a slice of the Service has one, those
// of others have 100, as in Cilium.
func TestWeightsOfSlices(t *testing.T) {
	store := cluster.NewStore()
	c := NewCompiler(Options{Scheduler: "sh"})
	name := cluster.Name{Namespace: "default", Name: "web"}
	slice := func(n int, weight *uint16) {
		sl := &cluster.Slice{
			Name: cluster.Name{Namespace: "default", Name: fmt.Sprint("web-", n)}, Service: name, Weight: weight,
			Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
		}
		for i := range 2 {
			at := netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", n, i))
			e := cluster.Endpoint{Addr: at, Node: fmt.Sprint("n", i), Ready: true, Serving: true}
			sl.Endpoints = append(sl.Endpoints, e)
		}
		store.SetSlice(sl)
	}
	is := func(want string) {
		t.Helper()
		change, _ := c.Compile(store.Take())
		if len(change.Touched) != 1 {
			t.Fatalf("touched are %v, want weights %s", change.Touched, want)
		}
		p := change.Touched[0].New.Ports[0]
		var all []string
		for _, b := range p.Cluster {
			all = append(all, fmt.Sprint(p.Weight(b)))
		}
		if got := strings.Join(all, " "); got != want || p.Scheduler != "sh" {
			t.Errorf("weights %s, scheduler %s, want %s and sh", got, p.Scheduler, want)
		}
	}
	of := func(n uint16) *uint16 { return &n }
	svc := &cluster.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
	}
	store.SetService(svc)
	slice(1, nil)
	slice(2, nil)
	is("1 1 1 1")
	slice(1, of(70))
	is("70 70 100 100")
	slice(2, of(0))
	is("70 70 0 0")
	own := *svc
	own.Weights = map[string]uint16{"n0": 3, "10.0.2.1": 1}
	store.SetService(&own)
	is("3 70 3 1")
	slice(1, nil)
	slice(2, nil)
	is("3 1 3 1")
	slice(2, nil)
	if change, _ := c.Compile(store.Take()); !change.Empty() {
		t.Errorf("the same slice changes %v", change.Touched)
	}
}

// The addresses of this host are listed for planes that need them, and only for those.
func TestLocalAddressesAreListed(t *testing.T) {
	local := []netip.Addr{
		netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("127.0.0.1"),
	}
	for _, o := range []Options{{}, {ListLocal: true}, {ListLocal: true, Families: []Family{IPv4}}} {
		store := cluster.NewStore()
		store.SetLocalAddresses(local)
		c := NewCompiler(o)
		change, _ := c.Compile(store.Take())
		want := map[bool]int{false: 0, true: 3 - len(o.Families)}[o.ListLocal]
		if got := change.Table.Host.Local; len(got) != want {
			t.Errorf("%+v: %v", o, got)
		}
		store.SetLocalAddresses(local[1:])
		if change, _ := c.Compile(store.Take()); (change.OldHost != nil) != (o.ListLocal && len(o.Families) == 0) {
			t.Errorf("%+v: an address that goes changes the host: %v", o, change.OldHost != nil)
		}
	}
}
