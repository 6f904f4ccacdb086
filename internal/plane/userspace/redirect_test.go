package userspace

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// changes records what a follower is notified of.
type changes struct{ last route.Change }

// Applied implements plane.Follower.
func (c *changes) Applied(change route.Change) { c.last = change }

// follow writes a change of a Service, and returns what followers of the rules are notified of.
func (r *rig) follow(svc *route.Service) route.Change {
	r.t.Helper()
	touch := route.Touch{Name: svc.Name, Old: r.table.Services[svc.Name], New: svc}
	r.ok(r.set(svc))
	if svc.Ports == nil {
		touch.New = nil
	}
	var got changes
	follower{r.Plane, &got}.Applied(route.Change{Table: r.table, Touched: []route.Touch{touch}})
	return got.last
}

// Followers see sockets in place of backends: of UDP also as what serves, so that conntrack keeps the
// flows to an open socket, and loses those to a closed one.
func TestFollowersSeeSockets(t *testing.T) {
	r := newRuleRig(t, Options{})
	r.ok(r.load())
	udp := over(to(tcp(53, backend), route.Cluster), cluster.UDP)
	udp.Serving = at(backend, "127.0.0.1:10")
	udp.Frontends[0].Node.Masquerade = true
	first := r.follow(service("a", udp))
	socket := r.listed("a")
	want := route.Port{
		Protocol: cluster.UDP, Family: route.IPv4, Cluster: socket, Serving: socket,
		Frontends: []route.Frontend{{Port: 53, Addr: udp.Frontends[0].Addr}},
	}
	equalPorts(t, []route.Port{want}, first.Touched[0].New.Ports)
	if first.Touched[0].Old != nil || first.Table.Services[svcName("a")].Ports[0].Cluster[0] != socket[0] {
		t.Errorf("the change is %+v", first)
	}

	moved := r.follow(service("a", over(to(udp, route.Local), cluster.UDP)))
	local := r.listed("a")
	if len(local) != 1 || local[0] == socket[0] {
		t.Fatalf("the socket was %v and is %v", socket, local)
	}
	equalPorts(t, []route.Port{want}, moved.Touched[0].Old.Ports)
	if got := moved.Touched[0].New.Ports[0]; got.Cluster != nil || got.Local[0] != local[0] {
		t.Errorf("the port is %+v", got)
	}

	deleted := r.follow(service("a"))
	if got := deleted.Touched[0]; got.New != nil || got.Old.Ports[0].Local[0] != local[0] ||
		len(deleted.Table.Services) != 0 {
		t.Errorf("the change is %+v", deleted)
	}
}

func equalPorts(t *testing.T, want, got []route.Port) {
	t.Helper()
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if diff := cmp.Diff(want, got, same, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// The Host, and Services of which a change waits, are passed on.
func TestHostAndWaitingServices(t *testing.T) {
	r := newRuleRig(t, Options{})
	old := service("a", to(tcp(80, backend), route.Cluster))
	r.ok(r.load(old))
	table := &route.Table{Host: route.Host{MasqueradeAll: true}, Services: map[cluster.Name]*route.Service{
		svcName("a"): service("a", to(tcp(81, backend), route.Cluster)),
	}}
	c := route.Change{Table: table, OldHost: &route.Host{}, Underway: map[cluster.Name]*route.Service{svcName("a"): old}}
	got := r.redirect.change(c)
	if !got.Table.Host.MasqueradeAll || got.OldHost != c.OldHost {
		t.Errorf("the host is %+v", got.Table.Host)
	}
	if at := got.InKernel(svcName("a")).Ports[0].Cluster; len(at) != 1 || at[0] != r.listed("a")[0] {
		t.Errorf("the Service that the kernel has leads to %v", at)
	}
	if old.Ports[0].Cluster[0] != at(backend)[0] {
		t.Error("a Service was changed in place")
	}
}
