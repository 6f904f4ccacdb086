package kernelspace

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

func options() route.Options {
	return route.Options{Families: route.Families(), PreserveDestination: true}
}

// written is a subject that holds every shape of a Service.
func written(t *testing.T) (*subject, route.Change) {
	t.Helper()
	s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
	p := New(s.fake, s.options())
	change := planetest.Compile(planetest.EveryShape(), options())
	write(t, p, change)
	s.fake.Writes = nil
	return s, change
}

func write(t testing.TB, p *Plane, change route.Change) {
	t.Helper()
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	plan := p.Plan(change)
	if err := plan.Apply(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, plan)
	}
}

// A restart adopts what it finds, and writes only the difference, in place.
func TestAdoption(t *testing.T) {
	s, change := written(t)
	p := New(s.fake, s.options())
	write(t, p, change)
	if len(s.fake.Writes) > 0 {
		t.Errorf("a restart writes:\n%s", strings.Join(s.fake.Writes, "\n"))
	}
	list, err := s.fake.LoadBalancers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	changed := list[0]
	changed.Endpoints = changed.Endpoints[:1]
	if err := s.fake.ModifyLoadBalancer(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	s.fake.Writes = nil
	write(t, New(s.fake, s.options()), change)
	if len(s.fake.Writes) != 1 || !strings.HasPrefix(s.fake.Writes[0], "modify ") {
		t.Errorf("one load balancer differs, and is not changed in place:\n%s", strings.Join(s.fake.Writes, "\n"))
	}
}

// HNS spells the ID of an endpoint differently in a load balancer and in the endpoint. A further comparison still
// writes nothing and reports nothing, and a load balancer of another network stays.
func TestSpellingOfIDs(t *testing.T) {
	s, change := written(t)
	if err := s.addForeign(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.fake.Writes = nil
	var reported []route.Problem
	opt := s.options()
	opt.Report = func(list []route.Problem) { reported = append(reported, ofNetwork(list)...) }
	p := New(s.fake, opt)
	for range 3 {
		write(t, p, change)
	}
	if len(s.fake.Writes) > 0 || len(reported) > 0 {
		t.Errorf("comparisons write\n%s\nand report %+v", strings.Join(s.fake.Writes, "\n"), reported)
	}
	if _, err := New(s.fake, opt).Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := s.fake.LoadBalancers(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != s.foreign[0] {
		t.Errorf("%+v, %v, want the load balancer of another network", list, err)
	}
}

// Remove leaves the endpoints of containers and nothing else.
func TestRemove(t *testing.T) {
	s, _ := written(t)
	removed, err := New(s.fake, s.options()).Remove(t.Context())
	if err != nil || len(removed) != 2 {
		t.Fatal(removed, err)
	}
	got, err := s.state(nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := s.scratch().state(nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	s.fake.DeleteNetwork(networkName)
	if removed, err := New(s.fake, s.options()).Remove(t.Context()); err != nil || len(removed) > 0 {
		t.Error("without the network:", removed, err)
	}
}

// The network may not exist yet.
func TestNetworkMissing(t *testing.T) {
	s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
	s.fake.DeleteNetwork(networkName)
	if err := New(s.fake, s.options()).Refresh(t.Context()); !errors.Is(err, hns.ErrNotFound) {
		t.Error(err)
	}
}

// twoTargets is a Service whose backends have different ports.
func twoTargets() *cluster.Store {
	s := cluster.NewStore()
	s.SetNode(planetest.NewNode())
	name := cluster.Name{Namespace: "ns", Name: "web"}
	s.SetService(&cluster.Service{
		Name: name, ClusterIPs: planetest.Addrs("172.30.0.1"),
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
	})
	for i, port := range []uint16{8080, 8081, 8081} {
		s.SetSlice(&cluster.Slice{
			Name: cluster.Name{Namespace: "ns", Name: fmt.Sprint("web-", i)}, Service: name,
			Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: port}},
			Endpoints: []cluster.Endpoint{planetest.Endpoint(fmt.Sprintf("10.180.1.%d", i+1), "b")},
		})
	}
	return s
}

// A load balancer leads to one port of backends: the largest group is served, and a problem says so, once.
func TestTargetPorts(t *testing.T) {
	s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
	var reported []route.Problem
	p := New(s.fake, Options{
		Network: networkName, Report: func(list []route.Problem) { reported = append(reported, list...) },
	})
	for range 2 {
		write(t, p, planetest.Compile(twoTargets(), options()))
	}
	list, err := s.fake.LoadBalancers(t.Context())
	if err != nil || len(list) != 1 || list[0].Target != 8081 || len(list[0].Endpoints) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	if len(reported) != 1 || reported[0].Object != "Service ns/web" || reported[0].Value != "80/TCP" {
		t.Errorf("%+v", reported)
	}
}

// A Service whose address and port another program's load balancer has costs only itself.
func TestRefused(t *testing.T) {
	s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
	other, err := s.fake.Network(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.fake.CreateEndpoint(t.Context(), hns.Endpoint{Network: other.ID, Addrs: planetest.Addrs("192.0.2.1")})
	if err != nil {
		t.Fatal(err)
	}
	foreign := hns.LoadBalancer{
		VIP: planetest.Addrs("172.30.0.2")[0], Protocol: 6, Port: 80, Target: 8080, Endpoints: []string{e},
		Flags: hns.Flags{},
	}
	if _, err := s.fake.CreateLoadBalancer(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	p := New(s.fake, s.options())
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = p.Plan(planetest.Compile(planetest.EveryShape(), options())).Apply(t.Context())
	refused, is := errors.AsType[plane.Refused](err)
	if !is || len(refused) != 1 || refused.Names()[0].Name != "svc-2" ||
		!errors.Is(refused[refused.Names()[0]], hns.ErrPortExists) {
		t.Fatal(err)
	}
	list, err := s.fake.LoadBalancers(t.Context())
	if err != nil || len(list) < 50 {
		t.Errorf("%d load balancers, %v", len(list), err)
	}
}
