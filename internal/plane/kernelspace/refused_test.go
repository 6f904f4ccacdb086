package kernelspace

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// A refused Service costs only itself: the endpoints of a deleted Service go with the same comparison. Those that the
// refused one had before stay as long as its load balancers refer to them: the next comparison deletes these.
func TestARefusalKeepsNoOtherEndpoints(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	other := cluster.Name{Namespace: "ns", Name: "other"}
	s.store.SetService(&cluster.Service{
		Name: other, ClusterIPs: planetest.Addrs("172.30.0.9"),
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
	})
	s.store.SetSlice(&cluster.Slice{
		Name: cluster.Name{Namespace: "ns", Name: "other-1"}, Service: other,
		Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint("10.180.1.9", "b")},
	})
	s.compared()

	s.fake.Refuse = func(line string) error {
		if strings.HasPrefix(line, "modify 172.30.0.1 ") || strings.HasPrefix(line, "create 172.30.0.1 ") {
			return errOdd
		}
		return nil
	}
	s.backends(8080, "10.180.1.2")
	s.store.DeleteService(other)
	for left := 1; left >= 0; left-- { // the refusal lasts
		if names := s.refusedNames(); !slices.Equal(names, []string{"web"}) {
			t.Fatalf("refused: %q", names)
		}
		for addr, want := range map[string]int{"10.180.1.1": left, "10.180.1.2": 1, "10.180.1.9": 0} {
			if got := s.remotes(t, addr); len(got) != want {
				t.Errorf("%d endpoints at %s, want %d", len(got), addr, want)
			}
		}
	}
	if i := slices.IndexFunc(s.reported, func(line string) bool {
		return strings.Contains(line, "cannot delete")
	}); i >= 0 {
		t.Errorf("it tries to delete an endpoint in use: %s", s.reported[i])
	}

	s.fake.Refuse = nil
	s.compared()
	s.settled()
	if got := s.remotes(t, "10.180.1.1"); len(got) > 0 {
		t.Errorf("the endpoint that no load balancer needs any more is left: %+v", got)
	}
}

// refusedNames compares everything with HNS, and returns the Services that it refuses.
func (s *story) refusedNames() (names []string) {
	s.Helper()
	change, _ := s.compiler.Compile(s.store.Take())
	if err := s.plane.Refresh(s.Context()); err != nil {
		s.Fatal(err)
	}
	err := s.plane.Plan(route.Change{Table: change.Table}).Apply(s.Context())
	refused, is := errors.AsType[plane.Refused](err)
	if err != nil && !is {
		s.Fatal(err)
	}
	for _, n := range refused.Names() {
		names = append(names, n.Name)
	}
	return names
}

// HNS may refuse a load balancer for health checks, as a program listens at the port (kubernetes/community#8883). The
// addresses of the Service are served all the same, and follow its backends.
func TestRefusedHealthChecks(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	s.refuse("create 203.0.113.1 protocol 6 port 10256 ")
	for _, backends := range [][]string{{"10.180.0.1", "10.180.1.1"}, {"10.180.1.2"}} {
		s.backends(8080, backends...)
		if names := s.refusedNames(); !slices.Equal(names, []string{"web"}) {
			t.Errorf("refused: %q", names)
		}
		list, err := s.fake.LoadBalancers(t.Context())
		if err != nil || len(list) != 4 {
			t.Errorf("load balancers %v, %v, want 4", list, err)
		}
		for _, l := range list {
			if len(l.Endpoints) != len(backends) {
				t.Errorf("%s leads to %q, want %q", l, l.Endpoints, backends)
			}
		}
	}
}
