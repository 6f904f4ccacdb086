package sizes

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
)

// node is a compiler whose changes are followed.
type node struct {
	t        *testing.T
	store    *cluster.Store
	compiler *route.Compiler
	sizes    *Follower
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{
		t: t, store: cluster.NewStore(), sizes: New(),
		compiler: route.NewCompiler(route.Options{NodeName: "here"}),
	}
	n.store.SetNode(&cluster.Node{Name: "here"})
	return n
}

// service puts a dual-stack Service of type NodePort with the ports 80 and 81.
func (n *node) service(id byte, tune func(*cluster.Service)) {
	svc := &cluster.Service{
		Name: name(id), Type: cluster.NodePort,
		ClusterIPs: []netip.Addr{v4(id), v6(id)},
		Ports: []cluster.ServicePort{
			{Name: "a", Protocol: cluster.TCP, Port: 80, NodePort: 30000 + uint16(id)},
			{Name: "b", Protocol: cluster.TCP, Port: 81, NodePort: 31000 + uint16(id)},
		},
	}
	if tune != nil {
		tune(svc)
	}
	n.store.SetService(svc)
}

func name(id byte) cluster.Name {
	return cluster.Name{Namespace: "default", Name: fmt.Sprintf("s%d", id)}
}

// endpoints puts the endpoints of a Service on a node, the same for both ports.
func (n *node) endpoints(id byte, on string, ends ...byte) {
	sl := &cluster.Slice{
		Name: name(id), Service: name(id),
		Ports: []cluster.SlicePort{
			{Name: "a", Protocol: cluster.TCP, Port: 8080}, {Name: "b", Protocol: cluster.TCP, Port: 8080},
		},
	}
	for _, e := range ends {
		sl.Endpoints = append(sl.Endpoints, cluster.Endpoint{Addr: v4(e), Node: on, Ready: true, Serving: true})
	}
	n.store.SetSlice(sl)
}

// v4 and v6 are addresses of their own for each id.
func v4(id byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, id}) }
func v6(id byte) netip.Addr { return netip.AddrFrom16([16]byte{0: 0xfd, 15: id}) }

// counts follows what changed and compares the numbers.
func (n *node) counts(want Sizes) {
	n.t.Helper()
	change, _ := n.compiler.Compile(n.store.Take())
	n.sizes.Applied(change)
	if got := n.sizes.Sizes(); got != want {
		n.t.Errorf("counted\n%+v\nwant\n%+v", got, want)
	}
}

// Services are counted as they come and go, and backends once for each Service.
func TestServicesAndEndpoints(t *testing.T) {
	n := newNode(t)
	n.counts(Sizes{})
	n.service(1, nil)
	n.counts(Sizes{Services: 1, Ports: 4, Frontends: 8, NoBackends: 1})
	n.endpoints(1, "here", 11, 12, 13)
	n.counts(Sizes{Services: 1, Ports: 4, Frontends: 8, Backends: 3})
	n.service(2, nil)
	n.endpoints(2, "there", 13, 14)
	n.service(3, func(s *cluster.Service) { s.Ignored = "externalName" })
	n.counts(Sizes{Services: 2, NotProgrammed: 1, Ports: 8, Frontends: 16, Backends: 5})
	n.endpoints(1, "here", 11)
	n.counts(Sizes{Services: 2, NotProgrammed: 1, Ports: 8, Frontends: 16, Backends: 3})
	n.counts(Sizes{Services: 2, NotProgrammed: 1, Ports: 8, Frontends: 16, Backends: 3})
	n.store.DeleteService(name(1))
	n.store.DeleteService(name(3))
	n.counts(Sizes{Services: 1, Ports: 4, Frontends: 8, Backends: 2})
	n.store.DeleteService(name(2))
	n.counts(Sizes{})
}

// A port counts for each policy that keeps it from the endpoints elsewhere; one without any endpoints does not.
func TestNoLocalEndpoints(t *testing.T) {
	n := newNode(t)
	n.service(1, func(s *cluster.Service) { s.InternalLocal = true })
	without := Sizes{Services: 1, Ports: 4, Frontends: 8, NoBackends: 1}
	n.counts(without)
	n.endpoints(1, "there", 11)
	internal := Sizes{Services: 1, Ports: 4, Frontends: 8, Backends: 1}
	internal.noLocal[Internal][route.IPv4] = 2
	n.counts(internal)
	n.service(1, func(s *cluster.Service) { s.InternalLocal, s.ExternalLocal = true, true })
	both := internal
	both.noLocal[External][route.IPv4] = 2
	n.counts(both)
	if s := n.sizes.Sizes(); s.NoLocal(External, route.IPv4) != 2 || s.NoLocal(Internal, route.IPv6) != 0 {
		t.Errorf("of a policy and a family: %+v", s)
	}
	n.endpoints(1, "here", 11)
	n.counts(Sizes{Services: 1, Ports: 4, Frontends: 8, Backends: 1})
}

// The checksum of tables follows the changes of ports that choose by the client, and is the same on another node.
func TestTables(t *testing.T) {
	n, other := newNode(t), newNode(t)
	n.sizes.Hashed, other.sizes.Hashed = true, true
	sum := func(n *node) (int, slots.Checksum) {
		change, _ := n.compiler.Compile(n.store.Take())
		n.sizes.Applied(change)
		s := n.sizes.Sizes()
		return s.Hashed, s.Tables
	}
	hashed := func(svc *cluster.Service) { svc.Scheduler = "maglev" }
	n.service(1, hashed)
	n.service(2, nil)
	n.endpoints(1, "here", 1, 2)
	ports, before := sum(n)
	if ports != 4 || before == 0 {
		t.Errorf("%d ports, checksum %s; want 4", ports, before)
	}
	n.endpoints(1, "here", 1, 2, 3)
	if _, got := sum(n); got == before {
		t.Errorf("with another endpoint the checksum is still %s", got)
	}
	n.service(3, hashed)
	n.endpoints(1, "here", 1, 2)
	n.endpoints(3, "here", 7)
	ports, now := sum(n)
	other.service(3, hashed)
	other.endpoints(3, "there", 7)
	sum(other)
	other.endpoints(1, "there", 2, 1)
	other.service(1, hashed)
	if p, got := sum(other); ports != 8 || p != 8 || got != now {
		t.Errorf("%d ports %s, on another node %d ports %s; want the same", ports, now, p, got)
	}
	n.service(3, nil)
	if _, got := sum(n); got != before {
		t.Errorf("without the table that was added the checksum is %s, want %s as before", got, before)
	}
}
