package kernelspace

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// overlayStory is a story in an overlay network.
func overlayStory(t *testing.T) *story {
	t.Helper()
	o := options()
	o.NodeName = "a"
	s := &story{
		TB: t, subject: newSubject(hns.Overlay, func(*hnstest.Fake) {}), store: preserving(false, false),
		compiler: route.NewCompiler(o),
	}
	s.restart()
	return s
}

// rival adds a Service of another tenant with one backend, without a node.
func (s *story) rival(backend string) cluster.Name {
	name := cluster.Name{Namespace: "tenant", Name: "rival"}
	s.store.SetService(&cluster.Service{
		Name: name, ClusterIPs: planetest.Addrs("172.30.0.66"),
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
	})
	s.store.SetSlice(&cluster.Slice{
		Name: cluster.Name{Namespace: "tenant", Name: "rival-1"}, Service: name,
		Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 9090}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint(backend, "")},
	})
	return name
}

// A tenant writes a backend with the address of another Service, or of the source VIP, and deletes it: the endpoint
// of the address stays as it was.
func TestABackendWithTheAddressOfAnotherEndpoint(t *testing.T) {
	for _, addr := range []string{"172.30.0.1", "10.180.99.1"} {
		s := overlayStory(t)
		s.compared()
		before := s.endpoint(t, addr)
		name := s.rival(addr)
		s.changed()
		s.store.DeleteService(name)
		if writes := s.changed(); slices.Contains(writes, "delete endpoint ["+addr+"]") {
			t.Errorf("%s: the endpoint is deleted", addr)
		}
		if got := s.endpoint(t, addr); got.ID != before.ID {
			t.Errorf("%s: endpoint %+v, want %+v", addr, got, before)
		}
		s.quiet()
		s.settled()
	}
}

// A backend has an address before it becomes a clusterIP or the source VIP: the endpoint of the address gets the
// properties of the latter.
func TestABackendBeforeTheEndpointOfItsAddress(t *testing.T) {
	for _, compared := range []bool{false, true} {
		s := overlayStory(t)
		s.store = cluster.NewStore()
		s.store.SetNode(planetest.NewNode())
		name := s.rival("172.30.0.1")
		s.compared()
		onlyClusterIP(s)
		s.backends(8080, "10.180.1.1")
		if !compared {
			change, _ := s.compiler.Compile(s.store.Take())
			if err := s.plane.Plan(change).Apply(t.Context()); err == nil {
				t.Error("HNS accepts two endpoints")
			}
		}
		s.compared()
		if e := s.endpoint(t, "172.30.0.1"); !sameMAC(e.MAC, "00:15:5d:00:00:02") {
			t.Errorf("compared %t: endpoint %+v is that of a backend", compared, e)
		}
		s.quiet()
		s.store.DeleteService(name)
		s.changed()
		s.settled()
	}
}

// endpoint returns the endpoint with an address.
func (s *subject) endpoint(t *testing.T, addr string) hns.Endpoint {
	t.Helper()
	list, err := s.fake.Endpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(e hns.Endpoint) bool { return slices.Contains(e.Addrs, planetest.Addrs(addr)[0]) })
	if i < 0 {
		t.Errorf("no endpoint has the address %s", addr)
		return hns.Endpoint{}
	}
	return list[i]
}

// A tenant writes an external IP that is an address of this node, with the NodePort of another Service. The owner of
// the NodePort keeps it, also when the tenant's Service changes and goes.
func TestAnExternalIPAtTheNodePortOfAnother(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	s.store.SetLocalAddresses(planetest.Addrs("192.168.0.2"))
	o := options()
	o.NodeName, o.NodePorts = "a", route.NodePortOptions{CIDRs: planetest.Prefixes("192.168.0.0/24")}
	s.compiler = route.NewCompiler(o)
	s.compared()
	at := "192.168.0.2 protocol 6 port 30080"
	if s.places()[at] != 1 {
		t.Fatalf("%v", s.places())
	}
	name := s.rival("10.180.1.66")
	s.store.SetService(&cluster.Service{
		Name: name, ClusterIPs: planetest.Addrs("172.30.0.66"), ExternalIPs: planetest.Addrs("192.168.0.2"),
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 30080}},
	})
	change, _ := s.compiler.Compile(s.store.Take())
	if err := s.plane.Plan(change).Apply(t.Context()); !errors.Is(err, hns.ErrPortExists) {
		t.Error(err)
	}
	before := len(s.fake.Written())
	if names := s.refusedNames(); !slices.Equal(names, []string{"rival"}) {
		t.Errorf("refused: %q", names)
	}
	for _, line := range s.fake.Written()[before:] {
		if strings.Contains(line, at) {
			t.Errorf("the tenant writes %s", line)
		}
	}
	s.store.DeleteService(name)
	s.changed()
	if s.places()[at] != 1 {
		t.Error("the NodePort is gone")
	}
	s.settled()
}

// Health checks and an external IP of another Service need the same load balancer: HNS accepts one, the Service of
// the other one is refused, and one of the two that goes takes nothing of the other one.
func TestAnExternalIPAtTheHealthChecksOfAnother(t *testing.T) {
	for _, namespace := range []string{"a", "tenant"} { // before and after the other Service
		s := newStory(t, func(*hnstest.Fake) {})
		s.compared()
		name := cluster.Name{Namespace: namespace, Name: "rival"}
		s.store.SetService(&cluster.Service{
			Name: name, ClusterIPs: planetest.Addrs("172.30.0.66"), ExternalIPs: planetest.Addrs("203.0.113.1"),
			Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 10256}},
		})
		s.store.SetSlice(&cluster.Slice{
			Name: cluster.Name{Namespace: namespace, Name: "rival-1"}, Service: name,
			Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 9090}},
			Endpoints: []cluster.Endpoint{planetest.Endpoint("10.180.1.66", "b")},
		})
		for range 3 {
			if names := s.refusedNames(); len(names) != 1 {
				t.Errorf("refused: %q", names)
			}
		}
		s.store.DeleteService(name)
		s.changed()
		s.compared()
		s.settled()
	}
}
