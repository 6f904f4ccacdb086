package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// counting is an HNS that counts how often its endpoints are listed: each list is a call for every endpoint.
type counting struct {
	*hnstest.Fake
	lists int
}

func (c *counting) Endpoints(ctx context.Context) ([]hns.Endpoint, error) {
	c.lists++
	return c.Fake.Endpoints(ctx)
}

// many returns addresses in a network of another node.
func many(format string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf(format, i/250, i%250+1))
	}
	return list
}

// A refused Service whose load balancers keep old endpoints does not have the endpoints listed once for each of them.
func TestListsOfARefusedService(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	onlyClusterIP(s)
	c := &counting{Fake: s.fake}
	s.plane = New(c, s.options())
	s.backends(8080, many("10.181.%d.%d", 200)...)
	s.compared()
	s.refuse("modify 172.30.0.1 ")
	s.backends(8080, many("10.182.%d.%d", 200)...)
	for range 2 {
		c.lists = 0
		s.refusedNames()
		if c.lists > 10 {
			t.Errorf("a comparison lists all endpoints %d times", c.lists)
		}
	}
	s.fake.Refuse = nil
	s.compared()
	s.settled()
}

// HNS does not accept the remote endpoints of one Service, and there are other Services: the work for each refused
// endpoint does not grow with all Services.
func TestManyRefusedEndpoints(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	const services = 500
	s.services(services)
	s.compared()
	s.refuse("create endpoint [240.")
	s.backends(8080, many("240.1.%d.%d", 100)...)
	began := mallocs()
	if names := s.refusedNames(); !slices.Equal(names, []string{"web"}) {
		t.Fatalf("refused: %q", names)
	}
	if n := mallocs() - began; n > 100*services {
		t.Errorf("%d allocations", n)
	}
}

// mallocs returns how many objects this process has allocated.
func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// BenchmarkRender prints how long a Service is rendered whose backends are on unknown nodes, and one while HNS has
// many endpoints of others.
func BenchmarkRender(b *testing.B) {
	for _, n := range []int{1000, 20000} {
		b.Run(fmt.Sprint(n, " backends"), func(b *testing.B) {
			s := newStory(b, func(*hnstest.Fake) {})
			onlyClusterIP(s)
			slice := &cluster.Slice{
				Name: cluster.Name{Namespace: "ns", Name: "web-1"}, Service: cluster.Name{Namespace: "ns", Name: "web"},
				Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
			}
			for _, a := range many("10.181.%d.%d", n) {
				slice.Endpoints = append(slice.Endpoints, planetest.Endpoint(a, ""))
			}
			s.store.SetSlice(slice)
			s.benchmarkRender(b)
		})
	}
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint(n, " other endpoints"), func(b *testing.B) {
			s := newStory(b, func(*hnstest.Fake) {})
			for _, a := range many("10.181.%d.%d", n) {
				s.addPod(b, a)
			}
			s.benchmarkRender(b)
		})
	}
}

func (s *story) benchmarkRender(b *testing.B) {
	b.Helper()
	change, _ := s.compiler.Compile(s.store.Take())
	if err := s.plane.Refresh(b.Context()); err != nil {
		b.Fatal(err)
	}
	svc := change.Table.Services[cluster.Name{Namespace: "ns", Name: "web"}]
	for b.Loop() {
		s.plane.render(svc, &change.Table.Host)
	}
}

// The removal of endpoints costs no more if there are many load balancers of other Services.
func TestRemovalAmongManyLoadBalancers(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	const services = 2000
	s.services(services)
	s.backends(8080, many("10.181.%d.%d", 50)...)
	s.compared()
	s.backends(8080, "10.180.1.1")
	began := mallocs()
	if writes := s.changed(); len(writes) < 50 {
		t.Fatalf("%q", writes)
	}
	if n := mallocs() - began; n > 10*services {
		t.Errorf("%d allocations", n)
	}
	s.settled()
}

// services adds Services with a backend on this node.
func (s *story) services(n int) {
	for i := range n {
		name := cluster.Name{Namespace: "ns", Name: fmt.Sprint("svc-", i)}
		s.store.SetService(&cluster.Service{
			Name: name, ClusterIPs: planetest.Addrs(fmt.Sprintf("172.31.%d.%d", i/250, i%250+1)),
			Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
		})
		s.store.SetSlice(&cluster.Slice{
			Name: cluster.Name{Namespace: "ns", Name: name.Name + "-1"}, Service: name,
			Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
			Endpoints: []cluster.Endpoint{planetest.Endpoint("10.180.0.1", "a")},
		})
	}
}

// Another program has deleted the load balancers of a Service with many ports: the next change, which fails, does not
// have all endpoints listed for each of them.
func TestListsForLoadBalancersThatAreGone(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	c := &counting{Fake: s.fake}
	s.plane = New(c, s.options())
	s.service(func(svc *cluster.Service) {
		for i := range uint16(100) {
			svc.Ports = append(svc.Ports, cluster.ServicePort{Name: fmt.Sprint(i), Protocol: cluster.TCP, Port: 1000 + i})
		}
	})
	backends := func(addr string) {
		slice := &cluster.Slice{
			Name: cluster.Name{Namespace: "ns", Name: "web-1"}, Service: cluster.Name{Namespace: "ns", Name: "web"},
			Endpoints: []cluster.Endpoint{planetest.Endpoint(addr, "b")},
			Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
		}
		for i := range uint16(100) {
			slice.Ports = append(slice.Ports, cluster.SlicePort{Name: fmt.Sprint(i), Protocol: cluster.TCP, Port: 2000 + i})
		}
		s.store.SetSlice(slice)
	}
	backends("10.180.1.1")
	s.compared()
	list, err := s.fake.LoadBalancers(t.Context())
	if err != nil || len(list) < 300 {
		t.Fatal(len(list), err)
	}
	for _, l := range list {
		if err := s.fake.DeleteLoadBalancer(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
	}
	backends("10.180.1.2")
	c.lists = 0
	change, _ := s.compiler.Compile(s.store.Take())
	if err := s.plane.Plan(change).Apply(t.Context()); !errors.Is(err, hns.ErrNotFound) {
		t.Error(err)
	}
	if c.lists > 5 {
		t.Errorf("a change lists all endpoints %d times", c.lists)
	}
	s.compared()
	s.settled()
}
