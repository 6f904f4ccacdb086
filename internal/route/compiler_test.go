package route

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/test/seeds"
)

func touchedNames(c Change) string {
	var list []string
	for _, t := range c.Touched {
		list = append(list, t.Name.Name)
	}
	return strings.Join(list, " ")
}

func TestTouched(t *testing.T) {
	c := NewCompiler(Options{NodeName: "A"})
	a, b := claimant("a", 1, clusterIP("172.30.0.1")), claimant("b", 1, clusterIP("172.30.0.2"))
	ready := sliceOf(a, "x", endpoints(t, "1.1.1.1 @A\n1.1.1.2 @B"))

	first, _ := c.Compile(cluster.Delta{Services: []cluster.State{stateOf(b), stateOf(a)}})
	if got := touchedNames(first); got != "a b" {
		t.Fatalf("touched %s", got)
	}
	oldA := c.Table().Services[a.Name]
	steps := []struct {
		name    string
		state   cluster.State
		touched string
	}{
		{"S-217 endpoints appear", stateOf(a, ready), "a"},
		{"the very same again", stateOf(a, ready), ""},
		{"S-234 equal in effect: another slice", stateOf(a, sliceOf(a, "y", endpoints(t, "1.1.1.2 @B\n1.1.1.1 @A"))), ""},
		{"an unready one more", stateOf(a, ready, sliceOf(a, "y", endpoints(t, "1.1.1.3 @A -"))), ""},
		{"S-231 a transient duplicate", stateOf(a, ready, sliceOf(a, "y", endpoints(t, "1.1.1.2 @B"))), ""},
		{"S-225 scaled to zero", stateOf(a), "a"},
		{"S-219 deleted", cluster.State{Name: a.Name, Slices: []*cluster.Slice{ready}}, "a"},
		{"deleted again", cluster.State{Name: a.Name}, ""},
		{"S-218 S-220 back, endpoints there already", stateOf(a, ready), "a"},
	}
	for _, s := range steps {
		got, _ := c.Compile(cluster.Delta{Services: []cluster.State{s.state}})
		if touchedNames(got) != s.touched {
			t.Errorf("%s: touched %q, want %q", s.name, touchedNames(got), s.touched)
		}
		for _, touch := range got.Touched {
			if touch.Old != oldA || touch.New != c.Table().Services[a.Name] {
				t.Errorf("%s: not the routes before and after", s.name)
			}
		}
		if got.OldHost != nil {
			t.Errorf("%s: the host changed", s.name)
		}
		oldA = c.Table().Services[a.Name]
	}
}

// Facts that mean nothing to Services leave them alone; those that do concern
// every one, whether the change names them or not.
func TestFacts(t *testing.T) {
	svc, other := web(external), claimant("other", 1, clusterIP("172.30.0.42"))
	sl := sliceOf(svc, "x", endpoints(t, "1.1.1.1 @A z=a\n1.1.1.2 @B z=b"))
	opt := Options{
		NodeName: "A", Detector: DetectorOptions{Kind: DetectNodeCIDR}, NodePorts: NodePortOptions{Primary: true},
	}
	node := func(change func(*cluster.Node)) cluster.Facts {
		n := nodeA()
		change(n)
		return cluster.Facts{Node: n}
	}
	tests := []struct {
		name    string
		facts   cluster.Facts
		touched string
		host    bool
	}{
		{"nothing", node(func(*cluster.Node) {}), "", false},
		{"S-178 another zone", node(func(n *cluster.Node) { n.Zone = "b" }), "web", false},
		{"a zone nobody hints at", node(func(n *cluster.Node) { n.Zone = "c" }), "web", false},
		{"another primary address", node(func(n *cluster.Node) { n.Addresses = ips("192.168.0.9 2001:db8::1") }), "", true},
		{"another pod CIDR", node(func(n *cluster.Node) { n.PodCIDRs = cidrs("10.180.9.0/24") }), "", true},
		{"no pod CIDR", node(func(n *cluster.Node) { n.PodCIDRs = nil }), "web", true},
		{"addresses come", cluster.Facts{Node: nodeA(), Local: ips("192.168.0.2 10.9.9.9")}, "", false},
		{"service CIDRs come", cluster.Facts{Node: nodeA(), ServiceCIDRs: cidrs("172.30.0.0/16")}, "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := NewCompiler(opt)
			before := cluster.Facts{Node: nodeA()}
			first, _ := c.Compile(cluster.Delta{Services: []cluster.State{stateOf(svc, sl), stateOf(other)}, Facts: &before})
			if first.OldHost == nil {
				t.Error("the first host is no change")
			}
			host := c.Table().Host
			got, problems := c.Compile(cluster.Delta{Facts: &tt.facts})
			if touchedNames(got) != tt.touched || len(problems) > 0 {
				t.Errorf("touched %q, problems %v", touchedNames(got), problems)
			}
			if (got.OldHost != nil) != tt.host {
				t.Errorf("old host %+v", got.OldHost)
			}
			if got.OldHost != nil && !reflect.DeepEqual(*got.OldHost, host) {
				t.Errorf("old host %+v, it was %+v", got.OldHost, host)
			}
		})
	}
}

// Restricted Services follow the node's addresses (S-85, S-86).
func TestFactsGuard(t *testing.T) {
	svc := web(external, func(s *cluster.Service) { s.Restricted, s.SourceRanges = true, cidrs("192.168.0.0/24") })
	c := NewCompiler(Options{NodeName: "A"})
	c.Compile(cluster.Delta{Services: []cluster.State{stateOf(svc)}, Facts: &cluster.Facts{Node: nodeA()}})
	n := nodeA()
	n.Addresses = ips("192.168.9.9")
	got, _ := c.Compile(cluster.Delta{Facts: &cluster.Facts{Node: n}})
	allow := func(s *Service) string {
		for _, f := range s.Ports[0].Frontends {
			if f.Kind == LoadBalancer {
				return join(f.Allow)
			}
		}
		return ""
	}
	sameText(t, allow(got.Touched[0].Old), "192.168.0.0/24 1.2.3.4/32")
	sameText(t, allow(got.Touched[0].New), "192.168.0.0/24")
}

// Problems are reported once, and again if they return.
func TestProblemsOnce(t *testing.T) {
	closed := func(second int64) *cluster.Service {
		return claimant("web", second, external, func(s *cluster.Service) { s.Restricted = true })
	}
	c := NewCompiler(Options{NodeName: "A", Families: []Family{IPv4}, NodePorts: NodePortOptions{Primary: true}})
	const (
		range4 = "Service default/web: spec.loadBalancerSourceRanges: has no usable IPv4 range: " +
			"the IPv4 load balancer addresses are closed to everybody"
		none4 = "Node A: status.addresses: NodePorts are not served: node A has no address; " +
			"add a Node with an address, or set nodePortAddresses (--nodeport-addresses)"
	)
	steps := []struct {
		name   string
		change cluster.Delta
		want   string
	}{
		{"first", change(closed(1)), none4 + "\n" + range4},
		{"again", change(closed(2)), ""},
		{"cured", change(web(external)), ""},
		{"ill again", change(closed(3)), range4},
		{"gone", change(gone("web")), ""},
		{"back", change(closed(4)), range4},
		{"a node", cluster.Delta{Facts: &cluster.Facts{Node: nodeA()}}, ""},
		{"no node", cluster.Delta{Facts: &cluster.Facts{}}, none4},
		{"still none", cluster.Delta{Facts: &cluster.Facts{}}, ""},
	}
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			_, problems := c.Compile(s.change)
			sameText(t, joinProblems(problems), s.want)
		})
	}
}

// A compiler without a node name uses the name of the Node.
func TestNodeName(t *testing.T) {
	svc := web(itpLocal)
	c := NewCompiler(Options{})
	c.Compile(cluster.Delta{
		Services: []cluster.State{stateOf(svc, sliceOf(svc, "x", endpoints(t, "1.1.1.1 @A\n1.1.1.2 @B")))},
		Facts:    &cluster.Facts{Node: nodeA()},
	})
	sameText(t, join(c.Table().Services[svc.Name].Ports[0].Local), "1.1.1.1:8080")
}

// world is a random cluster: a Store, and the objects that were put into it.
type world struct {
	rnd      *rand.Rand
	store    *cluster.Store
	services map[cluster.Name]*cluster.Service
	slices   map[cluster.Name]*cluster.Slice
	node     *cluster.Node
	local    []netip.Addr
}

func newWorld(seed uint64) *world {
	return &world{
		rnd:      rand.New(rand.NewPCG(seed, 7)),
		store:    cluster.NewStore(),
		services: map[cluster.Name]*cluster.Service{},
		slices:   map[cluster.Name]*cluster.Slice{},
	}
}

func (w *world) chance(n int) bool { return w.rnd.IntN(n) == 0 }

// step changes one thing.
func (w *world) step() {
	name := cluster.Name{Namespace: "ns", Name: fmt.Sprintf("svc%d", w.rnd.IntN(6))}
	slice := cluster.Name{Namespace: "ns", Name: fmt.Sprintf("slice%d", w.rnd.IntN(10))}
	switch w.rnd.IntN(10) {
	case 0:
		w.store.DeleteService(name)
		delete(w.services, name)
	case 1, 2, 3:
		w.services[name] = w.service(name)
		w.store.SetService(w.services[name])
	case 4:
		w.store.DeleteSlice(slice)
		delete(w.slices, slice)
	case 5:
		w.node = w.anyNode()
		w.store.SetNode(w.node)
	case 6:
		w.local = ips(everyLocal)[:w.rnd.IntN(7)]
		w.store.SetLocalAddresses(w.local)
	default:
		w.slices[slice] = w.slice(slice, name)
		w.store.SetSlice(w.slices[slice])
	}
}

func (w *world) service(name cluster.Name) *cluster.Service {
	s := &cluster.Service{
		Name:          name,
		Created:       time.Unix(w.rnd.Int64N(3), 0),
		Type:          cluster.Type(w.rnd.IntN(3)),
		ClusterIPs:    []netip.Addr{w.addr("172.30.0.%d")},
		InternalLocal: w.chance(3),
		ExternalLocal: w.chance(2),
		Restricted:    w.chance(3),
	}
	if w.chance(2) {
		s.ClusterIPs = append(s.ClusterIPs, w.addr("fd00:172::%d"))
	}
	if w.chance(3) {
		s.ExternalIPs = []netip.Addr{w.addr("192.0.2.%d"), w.addr("2001:db8:9::%d")}
	}
	if s.Type == cluster.LoadBalancer {
		s.LoadBalancerIPs = []netip.Addr{w.addr("192.0.2.%d")}
	}
	if s.Restricted {
		s.SourceRanges = cidrs("192.168.0.0/24 0.0.0.0/0")[:w.rnd.IntN(3)]
	}
	if w.chance(10) {
		s.Ignored = "headless"
	}
	for i := range 1 + w.rnd.IntN(3) {
		s.Ports = append(s.Ports, cluster.ServicePort{
			Name:     fmt.Sprint(i),
			Protocol: []cluster.Protocol{cluster.TCP, cluster.UDP}[w.rnd.IntN(2)],
			Port:     uint16(80 + w.rnd.IntN(2)),
			NodePort: uint16(w.rnd.IntN(4)),
		})
	}
	return s
}

func (w *world) addr(format string) netip.Addr { return ip(fmt.Sprintf(format, 1+w.rnd.IntN(4))) }

func (w *world) slice(name, service cluster.Name) *cluster.Slice {
	s := &cluster.Slice{Name: name, Service: service}
	for i := range w.rnd.IntN(4) {
		s.Ports = append(s.Ports, cluster.SlicePort{
			Name: fmt.Sprint(i), Protocol: cluster.TCP, Port: uint16(8080 + w.rnd.IntN(2)),
		})
		s.Ports = append(s.Ports, cluster.SlicePort{Name: fmt.Sprint(i), Protocol: cluster.UDP, Port: 53})
	}
	for range w.rnd.IntN(5) {
		e := cluster.Endpoint{
			Addr:        w.addr([]string{"10.0.0.%d", "fd00::%d"}[w.rnd.IntN(2)]),
			Node:        []string{"A", "B", ""}[w.rnd.IntN(3)],
			Ready:       w.chance(2),
			Serving:     w.chance(2),
			Terminating: w.chance(3),
		}
		if w.chance(2) {
			e.Hints = &cluster.Hints{Zones: []string{"a", "b"}[:w.rnd.IntN(3)], Nodes: []string{"A", "B"}[:w.rnd.IntN(3)]}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func (w *world) anyNode() *cluster.Node {
	if w.chance(6) {
		return nil
	}
	n := nodeA()
	n.Zone = []string{"a", "b", ""}[w.rnd.IntN(3)]
	n.Addresses = n.Addresses[w.rnd.IntN(3):]
	n.PodCIDRs = n.PodCIDRs[w.rnd.IntN(3):]
	return n
}

// fresh is the change that says everything at once, in any order.
func (w *world) fresh() cluster.Delta {
	s := cluster.NewStore()
	for _, sl := range w.slices { // in the order of the map
		s.SetSlice(sl)
	}
	for _, svc := range w.services {
		s.SetService(svc)
	}
	s.SetNode(w.node)
	s.SetLocalAddresses(w.local)
	return s.Take()
}

// A table made change by change is the table made at once, and the changes say exactly the differences.
func TestIncrementalIsFull(t *testing.T) {
	opt := Options{
		NodeName:  "A",
		Detector:  DetectorOptions{Kind: DetectNodeCIDR},
		NodePorts: NodePortOptions{Primary: true, CIDRs: cidrs("10.0.0.0/8")},
	}
	for seed := range seeds.Of(t, 40) {
		w := newWorld(seed)
		c := NewCompiler(opt)
		follower := map[cluster.Name]*Service{}
		for range 150 {
			for range 1 + w.rnd.IntN(4) {
				w.step()
			}
			got, _ := c.Compile(w.store.Take())
			follow(t, follower, got)
			full := NewCompiler(opt)
			full.Compile(w.fresh())
			sameTable(t, c.Table(), full.Table())
			samePointers(t, follower, c.Table())
			if t.Failed() {
				return
			}
		}
	}
}

// follow applies a change to a copy.
func follow(t *testing.T, copied map[cluster.Name]*Service, change Change) {
	t.Helper()
	if !slices.IsSortedFunc(change.Touched, func(a, b Touch) int { return a.Name.Compare(b.Name) }) {
		t.Error("touched is not sorted")
	}
	for _, touch := range change.Touched {
		if copied[touch.Name] != touch.Old {
			t.Errorf("%s: Old is not what was there", touch.Name)
		}
		if touch.Old != nil && touch.New != nil && touch.Old.equal(touch.New) {
			t.Errorf("%s: touched, yet the same", touch.Name)
		}
		if touch.New == nil {
			delete(copied, touch.Name)
			continue
		}
		copied[touch.Name] = touch.New
	}
}

func samePointers(t *testing.T, copied map[cluster.Name]*Service, table *Table) {
	t.Helper()
	if len(copied) != len(table.Services) {
		t.Errorf("%d followed, %d in the table", len(copied), len(table.Services))
	}
	for name, svc := range table.Services {
		if copied[name] != svc {
			t.Errorf("%s changed without being touched", name)
		}
	}
}

func sameTable(t *testing.T, got, want *Table) {
	t.Helper()
	if !reflect.DeepEqual(got.Host, want.Host) {
		t.Errorf("host %+v, want %+v", got.Host, want.Host)
	}
	if len(got.Services) != len(want.Services) {
		t.Errorf("%d services, want %d", len(got.Services), len(want.Services))
	}
	for name, svc := range want.Services {
		if other := got.Services[name]; other == nil || !other.equal(svc) || other.text() != svc.text() {
			t.Errorf("%s: got\n%swant\n%s", name, other.text(), svc.text())
		}
	}
}
