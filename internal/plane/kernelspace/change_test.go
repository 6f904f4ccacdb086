package kernelspace

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// at returns a Service whose only backend is at an address of a node.
func at(addr, node string) *cluster.Store {
	s := preserving(false, false)
	s.SetSlice(&cluster.Slice{
		Name: cluster.Name{Namespace: "ns", Name: "web-1"}, Service: cluster.Name{Namespace: "ns", Name: "web"},
		Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint(addr, node)},
	})
	return s
}

// onNode returns the change that makes a Service from nothing, on node a.
func onNode(s *cluster.Store) route.Change {
	o := options()
	o.NodeName = "a"
	return planetest.Compile(s, o)
}

// addPod creates the endpoint of a container, and returns its ID.
func (s *subject) addPod(t testing.TB, addr string) string {
	t.Helper()
	n, err := s.fake.Network(t.Context(), networkName)
	if err != nil {
		t.Fatal(err)
	}
	id, err := s.fake.CreateEndpoint(t.Context(), hns.Endpoint{
		Network: n.ID, MAC: "00-15-5D-00-00-09", Addrs: planetest.Addrs(addr),
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// checkBackends verifies that the load balancers with a port of backends refer to an endpoint, and nothing else.
func (s *subject) checkBackends(t *testing.T, balancers int, want string) {
	t.Helper()
	list, err := s.fake.LoadBalancers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, l := range list {
		if l.Target != 8080 {
			continue
		}
		n++
		if !slices.Equal(l.Endpoints, []string{want}) {
			t.Errorf("%s leads to %s, want %s", l, l.Endpoints, want)
		}
	}
	if n != balancers {
		t.Errorf("%d load balancers, want %d", n, balancers)
	}
}

// remotes returns the remote endpoints with an address.
func (s *subject) remotes(t *testing.T, addr string) (list []hns.Endpoint) {
	t.Helper()
	all, err := s.fake.Endpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Remote && slices.Contains(e.Addrs, netip.MustParseAddr(addr)) {
			list = append(list, e)
		}
	}
	return list
}

// A container of this node gets the address that a backend on another node had: with the next comparison load
// balancers refer to the container, and the remote endpoint is deleted.
func TestABackendComesToThisNode(t *testing.T) {
	const addr = "10.180.1.7"
	s := newSubject(hns.L2Bridge, func(f *hnstest.Fake) { f.SharedAddrs = true })
	p := New(s.fake, s.options())
	compiler := route.NewCompiler(func() route.Options { o := options(); o.NodeName = "a"; return o }())
	store := at(addr, "b")
	first, _ := compiler.Compile(store.Take())
	apply(t, p, first)
	if len(s.remotes(t, addr)) != 1 {
		t.Fatal("no remote endpoint")
	}
	pod := s.addPod(t, addr)
	store.SetSlice(&cluster.Slice{
		Name: cluster.Name{Namespace: "ns", Name: "web-1"}, Service: cluster.Name{Namespace: "ns", Name: "web"},
		Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint(addr, "a")},
	})
	second, _ := compiler.Compile(store.Take())
	if err := p.Plan(second).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	apply(t, p, route.Change{Table: second.Table})
	s.checkBackends(t, 4, pod)
	if left := s.remotes(t, addr); len(left) > 0 {
		t.Errorf("%+v is left", left)
	}
	s.fake.Writes = nil
	apply(t, p, route.Change{Table: second.Table})
	if len(s.fake.Writes) > 0 {
		t.Errorf("a further comparison writes %q", s.fake.Writes)
	}
}

// A network that is deleted and created again may leave load balancers that refer to nothing: they are adopted.
// Those of another network are not.
func TestLoadBalancersOfADeletedNetwork(t *testing.T) {
	s := newSubject(hns.L2Bridge, func(f *hnstest.Fake) { f.KeepDangling = true })
	if err := s.addForeign(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := New(s.fake, s.options())
	change := planetest.Compile(planetest.EveryShape(), options())
	apply(t, p, change)
	s.fake.DeleteNetwork(networkName)
	s.fake.AddNetwork(hns.Network{Name: networkName, Type: hns.L2Bridge, Remote: subnets("192.168.0.3")})
	s.addPods()
	apply(t, p, change)
	full(t, s)
}

// The endpoint of a container is created again, and load balancers are deleted by another program, without the plane
// knowing: the next write fails, and the comparison after it writes what is missing.
func TestObjectsThatAreGone(t *testing.T) {
	const addr = "10.180.0.57"
	s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
	compiler := route.NewCompiler(func() route.Options { o := options(); o.NodeName = "a"; return o }())
	store := at("10.180.0.9", "a")
	first, _ := compiler.Compile(store.Take())
	p := New(s.fake, s.options())
	apply(t, p, first)
	s.fake.KillEndpoint(s.idOf(t, addr))
	pod := s.addPod(t, addr)
	list, err := s.fake.LoadBalancers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		if l.Target == 8080 {
			err = s.fake.DeleteLoadBalancer(t.Context(), l.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	store.SetSlice(&cluster.Slice{
		Name: cluster.Name{Namespace: "ns", Name: "web-1"}, Service: cluster.Name{Namespace: "ns", Name: "web"},
		Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint(addr, "a")},
	})
	second, _ := compiler.Compile(store.Take())
	if err := p.Plan(second).Apply(t.Context()); !errors.Is(err, hns.ErrNotFound) {
		t.Fatal(err)
	}
	apply(t, p, route.Change{Table: second.Table})
	s.checkBackends(t, 4, pod)
}

// idOf returns the ID of the endpoint with an address.
func (s *subject) idOf(t *testing.T, addr string) string {
	t.Helper()
	list, err := s.fake.Endpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if slices.Contains(e.Addrs, netip.MustParseAddr(addr)) {
			return e.ID
		}
	}
	t.Fatal("no endpoint with the address " + addr)
	return ""
}

// If a remote endpoint cannot be created again for its new node, the write fails as a whole. The comparison that
// follows leads load balancers to it again. This includes load balancers that were deleted meanwhile, as it was their
// only backend.
func TestAMoveThatFailsHalfway(t *testing.T) {
	const addr = "10.180.1.7"
	s := newSubject(hns.Overlay, func(*hnstest.Fake) {})
	p := New(s.fake, s.options())
	change := onNode(at(addr, "b"))
	apply(t, p, change)
	s.fake.SetRemote(networkName, subnets("192.168.0.4"))
	s.refuse("create endpoint [" + addr + "]")
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	plan := p.Plan(change)
	if err := plan.Apply(t.Context()); err == nil {
		t.Fatal("no error")
	}
	s.fake.Refuse = nil
	apply(t, p, change)
	s.checkBackends(t, 4, s.idOf(t, addr))
}

// The MAC address of this node changes: the endpoints of clusterIPs in an overlay network are created again, and none
// of the old ones is left.
func TestTheHardwareAddressChanges(t *testing.T) {
	s := newSubject(hns.Overlay, func(*hnstest.Fake) {})
	opt := s.options()
	change := onNode(at("10.180.1.7", "b"))
	apply(t, New(s.fake, opt), change)
	opt.Node = func() (netip.Addr, string, error) {
		return netip.MustParseAddr("192.168.0.2"), "00:15:5d:00:00:03", nil
	}
	p := New(s.fake, opt)
	apply(t, p, change)
	if list := s.remotes(t, "172.30.0.1"); len(list) != 1 || !sameMAC(list[0].MAC, "00:15:5d:00:00:03") {
		t.Errorf("%+v", list)
	}
	opt.Node = func() (netip.Addr, string, error) {
		return netip.MustParseAddr("192.168.0.2"), "00:15:5d:00:00:04", nil
	}
	if _, err := New(s.fake, opt).Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if list := s.remotes(t, "172.30.0.1"); len(list) > 0 {
		t.Errorf("%+v is left", list)
	}
}

// A Service that has a port where another one has its health checks: HNS accepts one load balancer there, and one of
// the Services is refused.
func TestHealthChecksAtThePortOfAService(t *testing.T) {
	s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
	store := preserving(false, false)
	store.SetService(&cluster.Service{
		Name: cluster.Name{Namespace: "ns", Name: "other"}, Type: cluster.LoadBalancer,
		ClusterIPs: planetest.Addrs("172.30.0.2"), LoadBalancerIPs: planetest.Addrs("203.0.113.1"),
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 10256}},
	})
	store.SetSlice(&cluster.Slice{
		Name: cluster.Name{Namespace: "ns", Name: "other-1"}, Service: cluster.Name{Namespace: "ns", Name: "other"},
		Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8081}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint("10.180.0.9", "a")},
	})
	p, change := New(s.fake, s.options()), onNode(store)
	for range 2 {
		if err := p.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := p.Plan(change).Apply(t.Context())
		refused, is := errors.AsType[plane.Refused](err)
		if name := (cluster.Name{Namespace: "ns", Name: "web"}); !is || len(refused) != 1 ||
			!errors.Is(refused[name], hns.ErrPortExists) {
			t.Errorf("%v", err)
		}
	}
	if list, err := s.fake.LoadBalancers(t.Context()); err != nil || len(list) != 6 {
		t.Errorf("%d load balancers, %v, want all except one", len(list), err)
	}
}

// Load balancers with properties that the plane does not write, such as a second port, and further ones at the
// address and port of others are replaced by what Services need, and deleted where none needs them.
func TestLoadBalancersWithOtherProperties(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	s.compared()
	s.quiet()
	id := s.idOf(t, "10.180.0.1")
	list, err := s.fake.LoadBalancers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other := list[0]
	other.Other = true
	vip := netip.MustParseAddr("fd00:172:30::9")
	for _, l := range []hns.LoadBalancer{
		{VIP: netip.MustParseAddr("172.30.0.9"), Protocol: 6, Port: 80, Target: 8080, Endpoints: []string{id}, Other: true},
		{VIP: vip, Protocol: 6, Port: 80, Target: 8080, Endpoints: []string{id}, Flags: hns.Flags{IPv6: true}},
		{VIP: vip, Protocol: 6, Port: 80, Target: 8080, Endpoints: []string{id}},
	} {
		if _, err := s.fake.CreateLoadBalancer(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.fake.ModifyLoadBalancer(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, line := range s.compared() {
		got = append(got, placeOf(line))
	}
	slices.Sort(got)
	want := []string{
		"create " + placeOf(other.String()), "delete " + placeOf(other.String()), "delete 172.30.0.9 protocol 6 port 80",
	}
	want = append(want, slices.Repeat([]string{"delete fd00:172:30::9 protocol 6 port 80"}, 2)...)
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	s.settled()
	s.quiet()
}
