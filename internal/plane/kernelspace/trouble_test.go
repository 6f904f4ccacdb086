package kernelspace

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
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

var errOdd = errors.New("0x803b0099")

// refuse makes HNS refuse writes that begin with a text.
func (s *subject) refuse(prefix string) {
	s.fake.Refuse = func(line string) error {
		if strings.HasPrefix(line, prefix) {
			return errOdd
		}
		return nil
	}
}

// ofNetwork returns the problems of the network, without those of Services.
func ofNetwork(list []route.Problem) []route.Problem {
	return slices.DeleteFunc(slices.Clone(list), func(p route.Problem) bool {
		return p.Object != "HNS network "+networkName
	})
}

// An error of HNS for one Service, whatever it is, costs only that Service.
func TestOddErrors(t *testing.T) {
	for prefix, want := range map[string][]string{
		"create 172.30.0.2 ":            {"svc-2"},
		"create 203.0.113.3 protocol 6": {"svc-3"},
		"create endpoint [10.180.1.2]":  {"svc-2"},
	} {
		s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
		s.refuse(prefix)
		p := New(s.fake, s.options())
		if err := p.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := p.Plan(planetest.Compile(planetest.EveryShape(), options())).Apply(t.Context())
		refused, _ := errors.AsType[plane.Refused](err)
		var names []string
		for _, n := range refused.Names() {
			names = append(names, n.Name)
		}
		if !slices.Equal(names, want) || !errors.Is(refused[refused.Names()[0]], errOdd) {
			t.Errorf("%s: %v", prefix, err)
		}
		s.fake.Refuse = nil
		apply(t, p, planetest.Compile(planetest.EveryShape(), options()))
		full(t, s)
	}
}

// full verifies that HNS holds every shape of a Service as if it had been written at once.
func full(t *testing.T, s *subject) {
	t.Helper()
	got, err := s.state(nil)
	if err != nil {
		t.Fatal(err)
	}
	fresh := s.scratch()
	write(t, New(fresh.fake, s.options()), planetest.Compile(planetest.EveryShape(), options()))
	want, err := fresh.state(nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// If HNS is gone, that is an error of the write, not of a Service.
func TestHNSIsGone(t *testing.T) {
	s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
	s.fake.Refuse = func(string) error { s.fake.Broken = errOdd; return errOdd }
	p := New(s.fake, s.options())
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := p.Plan(planetest.Compile(planetest.EveryShape(), options())).Apply(t.Context())
	if _, refused := errors.AsType[plane.Refused](err); err == nil || refused {
		t.Error(err)
	}
}

// An object that cannot be deleted is reported once, keeps nothing else from being written, and is
// deleted by a later comparison.
func TestCannotDelete(t *testing.T) {
	s, change := written(t)
	var reported []route.Problem
	opt := s.options()
	opt.Report = func(list []route.Problem) { reported = append(reported, ofNetwork(list)...) }
	p := New(s.fake, opt)
	apply(t, p, change)
	store := planetest.EveryShape()
	gone := cluster.Name{Namespace: "ns", Name: "svc-2"}
	compiler := route.NewCompiler(func() route.Options { o := options(); o.NodeName = "a"; return o }())
	first, _ := compiler.Compile(store.Take())
	apply(t, p, first)
	s.refuse("delete 172.30.0.2 protocol 6")
	store.DeleteService(gone)
	second, _ := compiler.Compile(store.Take())
	if err := p.Plan(second).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	apply(t, p, route.Change{Table: second.Table})
	if len(reported) != 1 || !strings.Contains(reported[0].Reason, "cannot delete") ||
		!strings.Contains(reported[0].Reason, errOdd.Error()) {
		t.Errorf("%+v", reported)
	}
	s.fake.Refuse = nil
	apply(t, p, route.Change{Table: second.Table})
	if got, err := s.state(nil); err != nil || strings.Contains(got, "172.30.0.2 ") {
		t.Error("it is still there", err)
	}
}

// A remote subnet that moves to another node takes its endpoints along, and no other load balancer
// is written. While an endpoint is created again, the others of its load balancers stay.
func TestTheSubnetMoves(t *testing.T) {
	for _, modify := range []bool{true, false} {
		s := newSubject(hns.Overlay, func(f *hnstest.Fake) { f.Version.Modify = modify })
		p := New(s.fake, s.options())
		change := planetest.Compile(planetest.EveryShape(), options())
		write(t, p, change)
		s.fake.SetRemote(networkName, subnets("192.168.0.4"))
		s.fake.Writes = nil
		apply(t, p, change)
		if len(s.fake.Writes) == 0 {
			t.Error("nothing was written")
		}
		n, err := s.fake.Network(t.Context(), networkName)
		if err != nil {
			t.Fatal(err)
		}
		list, err := endpointsOf(t.Context(), s.fake, n.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.Remote && n.Remote[0].Prefix.Contains(e.Addrs[0]) && e.Provider != netip.MustParseAddr("192.168.0.4") {
				t.Errorf("%+v", e)
			}
		}
		s.fake.SetRemote(networkName, subnets("192.168.0.3"))
		apply(t, p, change)
		full(t, s)
	}
}

// An overlay network has no dual stack; that, and a missing endpoint of this node, is reported once.
func TestNotes(t *testing.T) {
	s := newSubject(hns.Overlay, func(*hnstest.Fake) {})
	opt := s.options()
	var reasons []string
	opt.Report = func(list []route.Problem) {
		for _, p := range ofNetwork(list) {
			reasons = append(reasons, p.Reason)
		}
	}
	opt.IPv6, opt.RootEndpoint = true, "other"
	p := New(s.fake, opt)
	for range 2 {
		apply(t, p, planetest.Compile(planetest.EveryShape(), options()))
	}
	if len(reasons) != 2 || !strings.Contains(reasons[0], "no dual stack") ||
		!strings.Contains(reasons[1], `no endpoint "other"`) {
		t.Errorf("%q", reasons)
	}
}

// preserving is a Service with a load balancer address that wants to see it as the destination.
func preserving(annotated, local bool) *cluster.Store {
	return preservingAt(annotated, local, "172.30.0.1", "203.0.113.1", "198.51.100.1", "10.180.0.1", "10.180.1.1")
}

// preservingAt is the same with a cluster IP, an address of a load balancer, an external IP, and an endpoint on each
// of two nodes.
func preservingAt(annotated, local bool, at ...string) *cluster.Store {
	s := cluster.NewStore()
	s.SetNode(planetest.NewNode())
	name := cluster.Name{Namespace: "ns", Name: "web"}
	svc := &cluster.Service{
		Name: name, Type: cluster.LoadBalancer, PreserveDestination: annotated, ExternalLocal: local, Affinity: 1,
		ClusterIPs: planetest.Addrs(at[0]), LoadBalancerIPs: planetest.Addrs(at[1]), ExternalIPs: planetest.Addrs(at[2]),
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80, NodePort: 30080}},
	}
	if local {
		svc.HealthCheckNodePort = 31000
	}
	s.SetService(svc)
	s.SetSlice(&cluster.Slice{
		Name: cluster.Name{Namespace: "ns", Name: "web-1"}, Service: name,
		Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint(at[3], "a"), planetest.Endpoint(at[4], "b")},
	})
	return s
}

// The flags and backends of load balancers are kube-proxy's, except DSR of an annotated NodePort.
func TestFlags(t *testing.T) {
	for name, want := range map[string]string{
		"plain": `
172.30.0.1:80 [DSR Affinity]: 10.180.0.1 10.180.1.1
198.51.100.1:80 [External Affinity]: 10.180.0.1 10.180.1.1
203.0.113.1:10256 []: 10.180.99.2
203.0.113.1:80 [External Affinity]: 10.180.0.1 10.180.1.1
invalid IP:30080 [External LocalRouted Affinity]: 10.180.0.1 10.180.1.1`,
		"local": `
172.30.0.1:80 [DSR Affinity]: 10.180.0.1 10.180.1.1
198.51.100.1:80 [DSR External Affinity]: 10.180.0.1
203.0.113.1:31000 []: 10.180.99.2
203.0.113.1:80 [DSR External Affinity]: 10.180.0.1
invalid IP:30080 [DSR External LocalRouted Affinity]: 10.180.0.1`,
		"annotated": `
172.30.0.1:80 [DSR Affinity]: 10.180.0.1 10.180.1.1
198.51.100.1:80 [External Affinity]: 10.180.0.1 10.180.1.1
203.0.113.1:10256 []: 10.180.99.2
203.0.113.1:80 [DSR External UseMux PreserveDIP Affinity]: 10.180.0.1
invalid IP:30080 [DSR External LocalRouted Affinity]: 10.180.0.1`,
		"annotated local": `
172.30.0.1:80 [DSR Affinity]: 10.180.0.1 10.180.1.1
198.51.100.1:80 [DSR External Affinity]: 10.180.0.1
203.0.113.1:31000 [UseMux PreserveDIP]: 10.180.99.2
203.0.113.1:80 [DSR External UseMux PreserveDIP Affinity]: 10.180.0.1
invalid IP:30080 [DSR External LocalRouted Affinity]: 10.180.0.1`,
	} {
		s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
		p := New(s.fake, s.options())
		store := preserving(strings.Contains(name, "annotated"), strings.Contains(name, "local"))
		write(t, p, planetest.Compile(store, options()))
		if diff := cmp.Diff(strings.TrimSpace(want), p.balancers()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// flagNames lists the flags that are set.
func flagNames(f hns.Flags) string {
	var names []string
	v := reflect.ValueOf(f)
	for i := range v.NumField() {
		if v.Field(i).Bool() {
			names = append(names, v.Type().Field(i).Name)
		}
	}
	return fmt.Sprint(names)
}

// A backend whose node is not known, such as an API server, gets a remote endpoint, unless a container of
// this node has the address.
func TestBackendsWithoutANode(t *testing.T) {
	for addr, want := range map[string]int{"198.18.0.7": 1, "10.180.0.7": 0} {
		s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
		store := preserving(false, false)
		store.SetSlice(&cluster.Slice{
			Name: cluster.Name{Namespace: "ns", Name: "web-1"}, Service: cluster.Name{Namespace: "ns", Name: "web"},
			Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
			Endpoints: []cluster.Endpoint{planetest.Endpoint(addr, "")},
		})
		s.fake.Writes = nil
		write(t, New(s.fake, Options{Network: networkName}), planetest.Compile(store, options()))
		n := 0
		for _, line := range s.fake.Writes {
			if line == "create endpoint ["+addr+"]" {
				n++
			}
		}
		if list, err := s.fake.LoadBalancers(t.Context()); n != want || len(list) != 4 {
			t.Errorf("%s: %d endpoints created, %d load balancers, %v", addr, n, len(list), err)
		}
	}
}

// In an overlay network the source VIP and clusterIPs have endpoints, remote ones name their node, and
// backends outside of pods get the address of this node as the source.
func TestOverlay(t *testing.T) {
	s := newSubject(hns.Overlay, func(*hnstest.Fake) {})
	store := preserving(false, false)
	outside := cluster.Name{Namespace: "ns", Name: "api"}
	store.SetService(&cluster.Service{
		Name: outside, ClusterIPs: planetest.Addrs("172.30.0.2"),
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 443}},
	})
	store.SetSlice(&cluster.Slice{
		Name: cluster.Name{Namespace: "ns", Name: "api-1"}, Service: outside,
		Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 6443}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint("198.18.0.7", ""), planetest.Endpoint("192.168.0.3", "")},
	})
	write(t, New(s.fake, s.options()), planetest.Compile(store, options()))
	text, err := s.state(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"endpoint sluice-source-vip[10.180.99.1]00:15:5d:00:00:02invalid IPfalse",
		"endpoint [172.30.0.1]00:15:5d:00:00:02192.168.0.2true",
		"endpoint [10.180.1.1]02-11-0A-B4-01-01192.168.0.3true",
		"endpoint [198.18.0.7]02-11-C6-12-00-07192.168.0.2true",
		"endpoint [192.168.0.3]02-11-C0-A8-00-03192.168.0.3true",
		"172.30.0.1 protocol 6 port 80 -> 8080, source 10.180.99.1,",
		"172.30.0.2 protocol 6 port 443 -> 6443, source 192.168.0.2,",
	} {
		if !strings.Contains(strings.ReplaceAll(text, " ", ""), strings.ReplaceAll(want, " ", "")) {
			t.Errorf("%q is missing", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
