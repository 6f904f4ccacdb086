package kernelspace

import (
	"context"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/kernel/hns/hnstest"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
)

// between is an HNS in which something happens after its endpoints were listed, and before its load balancers are.
type between struct {
	*hnstest.Fake
	happens func()
}

func (b *between) LoadBalancers(ctx context.Context) ([]hns.LoadBalancer, error) {
	if b.happens != nil {
		b.happens()
		b.happens = nil
	}
	return b.Fake.LoadBalancers(ctx)
}

// A container that has just become a backend ends while HNS is read, which takes minutes if HNS is slow: HNS removes it from the load
// balancers, which is no change in place without effect.
func TestAContainerEndsWhileHNSIsRead(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	b := &between{Fake: s.fake}
	opt := s.options()
	opt.Report = s.plane.opt.Report
	s.plane = New(b, opt)
	s.backends(8080, "10.180.0.1", "10.180.1.1")
	s.compared()
	s.backends(8080, "10.180.0.1", "10.180.0.3", "10.180.1.1")
	s.changed()
	b.happens = func() { s.fake.KillEndpoint(s.idOf(t, "10.180.0.3")) }
	s.compared()
	if len(s.reported) > 0 || s.plane.writer.remake {
		t.Errorf("load balancers are not changed in place any more: %q", s.reported)
	}
	s.backends(8080, "10.180.0.1", "10.180.1.2")
	for _, line := range s.changed() {
		if strings.HasPrefix(line, "delete ") && !strings.HasPrefix(line, "delete endpoint ") {
			t.Errorf("it is replaced: %s", line)
		}
	}
}

// Another program creates an endpoint in its network and a load balancer for it while HNS is read: both stay.
func TestALoadBalancerAppearsWhileHNSIsRead(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	b := &between{Fake: s.fake, happens: func() {
		if err := s.addForeign(t.Context()); err != nil {
			t.Fatal(err)
		}
	}}
	s.plane = New(b, s.options())
	s.compared()
	list, err := s.fake.LoadBalancers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		if hns.ID(l.ID) == s.foreign[0] {
			return
		}
	}
	t.Errorf("the load balancer of another program is deleted")
}

// HNS does not delete a remote endpoint, or does not change a load balancer, when a backend moves to another node: all other objects are
// written, the backend stays served as it was, and a problem is reported.
func TestAnEndpointThatCannotMove(t *testing.T) {
	for _, prefix := range []string{"delete endpoint [10.180.1.1]", "modify 172.30.0.1 "} {
		s := overlayStory(t)
		s.compared()
		s.fake.SetRemote(networkName, subnets("192.168.0.4"))
		s.refuse(prefix)
		s.rival("10.180.1.9")
		s.refusedNames()
		if places := s.places(); places["172.30.0.66 protocol 6 port 80"] != 1 {
			t.Errorf("%s: another Service is not served: %v", prefix, places)
		}
		s.refusedNames()
		if len(s.reported) != 1 || !strings.Contains(s.reported[0], "10.180.1.1") {
			t.Errorf("%s: reported %q", prefix, s.reported)
		}
		s.checkWeb(2)
		s.fake.Refuse = nil
		s.compared()
		if e := s.endpoint(t, "10.180.1.1"); e.Provider.String() != "192.168.0.4" {
			t.Errorf("%s: %+v", prefix, e)
		}
		s.checkWeb(2)
		s.quiet()
	}
}

// checkWeb verifies how many backends the load balancers with backends at port 8080 have.
func (s *story) checkWeb(want int) {
	s.Helper()
	list, err := s.fake.LoadBalancers(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	for _, l := range list {
		if l.Target == 8080 && len(l.Endpoints) != want {
			s.Errorf("%s has %d backends, want %d", l, len(l.Endpoints), want)
		}
	}
}

// The endpoint of this node was made again at another address, and HNS does not change a load balancer for health checks: only its
// Service is refused.
func TestHealthChecksThatCannotChange(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	s.compared()
	s.fake.KillEndpoint(s.idOf(t, "10.180.99.2"))
	n, err := s.fake.Network(t.Context(), networkName)
	if err != nil {
		t.Fatal(err)
	}
	root := hns.Endpoint{Network: n.ID, Name: rootName, MAC: "00-15-5D-00-00-02", Addrs: planetest.Addrs("10.180.99.3")}
	if _, err := s.fake.CreateEndpoint(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	s.refuse("modify 203.0.113.1 protocol 6 port 10256 ")
	s.rival("10.180.1.9")
	if names := s.refusedNames(); len(names) != 1 || names[0] != "web" {
		t.Errorf("refused: %q", names)
	}
	s.fake.Refuse = nil
	s.compared()
	s.quiet()
}
