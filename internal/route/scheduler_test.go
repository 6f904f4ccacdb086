package route

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// A Service passes its scheduler to all its ports, and a changed one is a change.
func TestSchedulerOfAService(t *testing.T) {
	store := cluster.NewStore()
	c := NewCompiler(Options{})
	name := cluster.Name{Namespace: "default", Name: "web"}
	set := func(scheduler string) Change {
		store.SetService(&cluster.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Scheduler: scheduler,
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
}

// The addresses of this host are listed for planes that need them, and only for those.
func TestLocalAddressesAreListed(t *testing.T) {
	local := []netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("127.0.0.1")}
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
