package traffic

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Addresses of the Services and backends of tests.
const (
	webIP      = "10.96.0.80"
	web1, web2 = "10.244.1.1", "10.244.2.2"
	client     = "10.244.1.9"
)

// services returns the routes of Services in namespace default with an unnamed TCP port 80 and the node port 30080 plus
// their index. Each has these backends, at port 8080. The first has the clusterIPs 10.96.0.80 and fd00::50, the others
// the next ones.
func services(t testing.TB, names []string, backends ...string) *route.Snapshot {
	t.Helper()
	compiler := route.NewCompiler(route.Options{NodeName: "node-a"})
	var all []cluster.State
	var list []cluster.Endpoint
	for _, b := range backends {
		list = append(list, cluster.Endpoint{Addr: netip.MustParseAddr(b), Ready: true, Serving: true, Node: "node-b"})
	}
	for i, name := range names {
		svc := &cluster.Service{
			Name: cluster.Name{Namespace: "default", Name: name}, Created: time.Unix(1000, 0), Type: cluster.NodePort,
			ClusterIPs: []netip.Addr{
				netip.AddrFrom4([4]byte{10, 96, byte((80 + i) >> 8), byte(80 + i)}),
				netip.AddrFrom16([16]byte{0: 0xfd, 14: byte((80 + i) >> 8), 15: byte(80 + i)}),
			},
			Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80, NodePort: uint16(30080 + i)}},
		}
		all = append(all, cluster.State{Name: svc.Name, Service: svc, Slices: []*cluster.Slice{{
			Name: svc.Name, Service: svc.Name, Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}}, Endpoints: list,
		}}})
	}
	compiler.Compile(cluster.Delta{
		Services: all,
		Facts: &cluster.Facts{
			Node: &cluster.Node{Name: "node-a", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2")}},
		},
	})
	return compiler.Snapshot()
}

func at(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}

// to returns the entry of an established connection of a client through a frontend to a backend.
func to(from, frontend, backend string) conntrack.Entry {
	const established = 3
	return conntrack.Entry{
		Protocol: conntrack.TCP, OrigSrc: at(from, 40000), OrigDst: at(frontend, 80), ReplySrc: at(backend, 8080),
		ReplyDst: at(from, 40000), Status: conntrack.DstNAT | conntrack.Answered, State: established,
	}
}

// direct returns the entry of an established connection to a backend, without a frontend.
func direct(from, backend string) conntrack.Entry {
	e := to(from, backend, backend)
	e.OrigDst, e.Status = e.ReplySrc, conntrack.Answered
	return e
}

func named(name string) route.PortID {
	return route.PortID{Service: cluster.Name{Namespace: "default", Name: name}, Protocol: cluster.TCP}
}

func numbered(n int) string { return fmt.Sprintf("web-%05d", n) }
