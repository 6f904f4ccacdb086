package userspace_test

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// A Service has two ports, of which each has two backends on this node and one on another. With least connections, the
// shares of a port follow from its own open connections, over all backends or over those on this node.
func TestSharesFollowOpenConnections(t *testing.T) {
	ns := kerneltest.Namespace(t)
	r := begin(t, ns, plane.Inherited{})
	here := []netip.AddrPort{echoServer(t, ns), echoServer(t, ns)}
	slices.SortFunc(here, netip.AddrPort.Compare)
	away := netip.MustParseAddrPort("192.0.2.1:80")
	svc := &route.Service{Name: cluster.Name{Namespace: "shop", Name: "web"}, Ports: []route.Port{
		bothPools("http", 80, here, away), bothPools("admin", 81, here, away),
	}}
	table := &route.Table{Services: map[cluster.Name]*route.Service{svc.Name: svc}}
	check := func(when string, port int, pool route.Pool, want map[netip.AddrPort]float64) {
		t.Helper()
		got := r.Shares(plane.Connection{
			Service: svc, Port: port, Way: route.Action{Pool: pool}, Client: netip.MustParseAddr("127.0.0.1"),
		}).Of
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("%s, port %d, pool %d (-want +got):\n%s", when, port, pool, diff)
		}
	}
	check("before there are sockets", 0, route.Cluster, map[netip.AddrPort]float64{})
	if err := r.Plane.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Plane.Plan(route.Change{Table: table}).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	const third = 1.0 / 3
	all := map[netip.AddrPort]float64{here[0]: third, here[1]: third, away: third}
	both := map[netip.AddrPort]float64{here[0]: 0.5, here[1]: 0.5}
	for port := range svc.Ports {
		check("without connections", port, route.Cluster, all)
		check("without connections", port, route.Local, both)
	}

	connect(t, ns) // the socket leads to the backends on this node
	has := map[bool]netip.AddrPort{}
	balance, err := r.Balance(t.Context(), svc, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range here {
		has[balance[at].Active == 1] = at
	}
	busy, idle := has[true], has[false]
	check("with a connection", 0, route.Local, map[netip.AddrPort]float64{busy: 0, idle: 1})
	check("with a connection", 0, route.Cluster, map[netip.AddrPort]float64{busy: 0, idle: 0.5, away: 0.5})

	connect(t, ns)
	check("with two connections", 0, route.Local, both)
	check("with two connections", 0, route.Cluster, map[netip.AddrPort]float64{busy: 0, idle: 0, away: 1})
	check("at the other port", 1, route.Local, both)
	check("at the other port", 1, route.Cluster, all)
}

// bothPools returns a port with least connections, at which programs on this host reach the backends here, and others
// reach all.
func bothPools(name string, number uint16, here []netip.AddrPort, away netip.AddrPort) route.Port {
	local, everywhere := route.Action{Pool: route.Local}, route.Action{Pool: route.Cluster}
	return route.Port{
		Name: name, Protocol: cluster.TCP, Family: route.IPv4, Scheduler: "lc", Cluster: append(slices.Clone(here), away),
		Local: here,
		Frontends: []route.Frontend{
			{Addr: netip.MustParseAddr("172.30.0.41"), Port: number, Pods: local, Node: local, Others: local},
			{Addr: netip.MustParseAddr("198.51.100.1"), Port: number, Pods: everywhere, Node: everywhere, Others: everywhere},
		},
	}
}

// connect opens a connection to port 80 of the Service, which stays open.
func connect(t *testing.T, ns int) net.Conn {
	t.Helper()
	var c net.Conn
	kerneltest.Do(t, ns, func() (err error) {
		c, err = net.DialTimeout("tcp", "127.0.0.1:8080", time.Second)
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	checkEcho(t, c, "a new connection")
	return c
}
