package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

var golden = planetest.Golden()

// testCluster is a small IPv4 cluster with a plane.
type testCluster struct {
	testing.TB
	store    *cluster.Store
	compiler *route.Compiler
	kernel   Kernel
	plane    *Plane
}

func newTestCluster(t testing.TB, kernel Kernel, opt route.Options) *testCluster {
	t.Helper()
	s := cluster.NewStore()
	s.SetNode(planetest.NewNode("10.180.0.0/24"))
	s.SetLocalAddresses(planetest.Addrs("127.0.0.1", "192.168.0.2"))
	opt.NodeName, opt.Families = "a", route.Families()[:1]
	st := &testCluster{t, s, route.NewCompiler(opt), kernel, New(kernel, Options{Families: opt.Families, Mark: testMark})}
	st.refresh()
	return st
}

func (s *testCluster) refresh() {
	s.Helper()
	if err := s.plane.Refresh(context.Background()); err != nil {
		s.Fatal(err)
	}
}

// trySync plans and applies the changes, and returns the text of the plan.
func (s *testCluster) trySync() (plan string, err error) {
	change, _ := s.compiler.Compile(s.store.Take())
	p := s.plane.Plan(change)
	return p.String(), p.Apply(context.Background())
}

// sync plans and applies the changes, which must succeed, and returns the text of the plan.
func (s *testCluster) sync() string {
	s.Helper()
	plan, err := s.trySync()
	if err != nil {
		s.Fatalf("%v\n%.3000s", err, plan)
	}
	return plan
}

// checkSettled verifies that a new plane finds nothing to write.
func (s *testCluster) checkSettled() {
	s.Helper()
	planetest.Settled(s, New(s.kernel, s.plane.opt), s.compiler.Table())
}

func (s *testCluster) endpoints(name string, list ...string) {
	svc := cluster.Name{Namespace: "shop", Name: name}
	sl := &cluster.Slice{
		Name: svc, Service: svc, Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}},
	}
	for _, addr := range list {
		node := "b"
		if netip.MustParsePrefix("10.180.0.0/24").Contains(netip.MustParseAddr(addr)) {
			node = "a"
		}
		sl.Endpoints = append(sl.Endpoints, planetest.Endpoint(addr, node))
	}
	s.store.SetSlice(sl)
}

func (s *testCluster) service(name, clusterIP string, tune ...func(*cluster.Service)) {
	svc := &cluster.Service{
		Name: cluster.Name{Namespace: "shop", Name: name}, ClusterIPs: planetest.Addrs(clusterIP),
		Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	}
	for _, f := range tune {
		f(svc)
	}
	s.store.SetService(svc)
}

func (s *testCluster) remove(name string) {
	s.store.DeleteService(cluster.Name{Namespace: "shop", Name: name})
}

// addServices adds n Services with three endpoints each.
func (s *testCluster) addServices(n int) {
	for i := range n {
		s.setService(i, 3)
	}
}

// setService adds or changes the i-th Service.
func (s *testCluster) setService(i, endpoints int) {
	name := fmt.Sprintf("svc-%d", i)
	s.service(name, netip.AddrFrom4([4]byte{172, 30, byte(i >> 8), byte(i)}).String())
	var list []string
	for e := range endpoints {
		list = append(list, netip.AddrFrom4([4]byte{10, byte(181 + e), byte(i >> 8), byte(i)}).String())
	}
	s.endpoints(name, list...)
}

// nat returns the IPv4 table nat.
func (s *testCluster) nat() iptables.Chains {
	s.Helper()
	chains, err := s.kernel.Read(context.Background(), iptables.Table{Family: iptables.IPv4, Name: "nat"})
	if err != nil {
		s.Fatal(err)
	}
	return chains
}

func nodeCIDR() route.Options {
	return route.Options{Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR}}
}
