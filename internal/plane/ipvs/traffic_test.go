package ipvs

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// Every virtual server of the plane counts for the port of a Service, including those for marks and node ports.
func TestVirtualServersHaveOwners(t *testing.T) {
	compiler := route.NewCompiler(route.Options{NodeName: "a", NodePorts: route.NodePortOptions{Primary: true}})
	change, _ := compiler.Compile(planetest.EveryShape().Take())
	fake := newFake()
	p := newPlane(fake.kernel(), route.Families(), 1<<20)
	written(t, p, change)
	c := newCounter(fake.servers, func() *marks { return p.marks })
	c.Applied(change)
	listed, err := fake.servers.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	marks := 0
	for _, s := range listed {
		if _, known := c.ports[s.Server]; !known {
			t.Errorf("%s has no owner", s.Server)
		}
		if s.Own() {
			marks++
		}
	}
	if marks == 0 {
		t.Error("no virtual server is for a mark")
	}
}

// The sums are those of all virtual servers of a port. UDP flows are live as long as IPVS remembers them,
// but TCP connections that have ended are not.
func TestTrafficOfVirtualServers(t *testing.T) {
	change, svc := oneService("10.0.0.1:80", "10.0.0.2:80")
	dns := svc.Ports[0]
	dns.Name, dns.Protocol = "dns", cluster.UDP
	svc.Ports = append(svc.Ports, dns)
	fake := newFake()
	fake.servers.Stats = func(s ipvs.Server) ipvs.Stats {
		return ipvs.Stats{Connections: uint64(s.Protocol), Received: 3, Sent: 4}
	}
	fake.servers.Connections = func(_ ipvs.Server, at netip.AddrPort) int { return int(at.Addr().As4()[3]) }
	p := newPlane(fake.kernel(), route.Families(), 1<<20)
	written(t, p, change)
	c := newCounter(fake.servers, func() *marks { return p.marks })
	c.Applied(change)
	got, err := c.Traffic(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []plane.Traffic{
		{plane.Connections: 6, plane.Live: 0, plane.Received: 3, plane.Sent: 4},
		{plane.Connections: 17, plane.Live: 3, plane.Received: 3, plane.Sent: 4},
	} {
		if id := svc.Ports[i].ID(svc.Name); !maps.Equal(got[id].Traffic, want) {
			t.Errorf("%s: got %v, want %v", id, got[id], want)
		}
	}
}
