package kernelspace

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// between is an HNS in which something happens after its load balancers were listed, and before its endpoints are.
type between struct {
	*hnstest.Fake
	happens func()
}

func (b *between) LoadBalancers(ctx context.Context) ([]hns.LoadBalancer, error) {
	list, err := b.Fake.LoadBalancers(ctx)
	if b.happens != nil {
		b.happens()
		b.happens = nil
	}
	return list, err
}

// A container that has just become a backend ends while HNS is read, which takes minutes if HNS is slow: HNS removes
// it from the load balancers, which is no reason to replace them.
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
	if len(s.reported) > 0 {
		t.Errorf("%q", s.reported)
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

// HNS does not delete a remote endpoint when its node changes: all other objects are written, a problem is reported,
// and the backend stays served as it was until the endpoint can be deleted.
func TestAnEndpointThatCannotMove(t *testing.T) {
	s := overlayStory(t)
	s.compared()
	s.fake.SetRemote(networkName, subnets("192.168.0.4"))
	s.refuse("delete endpoint [10.180.1.1]")
	s.rival("10.180.1.9")
	for range 2 {
		s.refusedNames()
	}
	if places := s.places(); places["172.30.0.66 protocol 6 port 80"] != 1 {
		t.Errorf("another Service is not served: %v", places)
	}
	s.only("cannot delete")
	s.checkWeb(2)
	s.fake.Refuse = nil
	s.compared()
	if e := s.endpoint(t, "10.180.1.1"); e.Provider.String() != "192.168.0.4" {
		t.Errorf("%+v", e)
	}
	s.checkWeb(2)
	s.quiet()
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

// The endpoint of this node was made again at another address, and HNS does not change a load balancer for health
// checks: only its Service is refused.
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

// remembering is an HNS that lists one more endpoint, and the remote subnets in another order each time.
type remembering struct {
	*hnstest.Fake
	more  []hns.Endpoint
	turns int
}

func (r *remembering) Endpoints(ctx context.Context) ([]hns.Endpoint, error) {
	list, err := r.Fake.Endpoints(ctx)
	return append(list, r.more...), err
}

func (r *remembering) DeleteEndpoint(ctx context.Context, id string) error {
	for i, e := range r.more {
		if e.ID == id {
			r.more = append(r.more[:i:i], r.more[i+1:]...)
			return nil
		}
	}
	return r.Fake.DeleteEndpoint(ctx, id)
}

// Network returns the network as package hns does.
func (r *remembering) Network(ctx context.Context, name string) (hns.Network, error) {
	n, err := r.Fake.Network(ctx, name)
	n.Remote = slices.Clone(n.Remote)
	if r.turns++; r.turns%2 == 0 {
		slices.Reverse(n.Remote)
	}
	return n.Canonical(), err
}

// Two processes have created a remote endpoint at the same address: the second one is deleted.
func TestTwoRemoteEndpointsAtAnAddress(t *testing.T) {
	s := overlayStory(t)
	s.compared()
	twin := s.endpoint(t, "10.180.1.1").Canonical()
	twin.ID = "ffffffff-0000-0000-0000-000000000001"
	r := &remembering{Fake: s.fake, more: []hns.Endpoint{twin}}
	s.plane = New(r, s.options())
	s.compared()
	if len(r.more) > 0 {
		t.Error("the second endpoint is left")
	}
	s.quiet()
	s.checkWeb(2)
}

// HNS may list remote subnets in any order.
func TestTheOrderOfRemoteSubnets(t *testing.T) {
	s := overlayStory(t)
	s.fake.SetRemote(networkName, append(subnets("192.168.0.3"), hns.RemoteSubnet{
		Prefix: planetest.Prefixes("10.180.2.0/24")[0], Provider: planetest.Addrs("192.168.0.4")[0],
	}))
	s.plane = New(&remembering{Fake: s.fake}, s.options())
	s.compared()
	first, second := s.plane.readNetwork(t.Context()), s.plane.readNetwork(t.Context())
	if first != second {
		t.Error("the network seems to have changed")
	}
	s.rival("198.18.0.7") // in no subnet
	s.changed()
	s.rival("198.18.0.8")
	s.changed()
}

// A comparison may be interrupted, so that changes are written first: no further call of HNS follows.
func TestAnInterruptedRead(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	s.compared()
	ctx, cancel := context.WithCancel(t.Context())
	c := &counting{Fake: s.fake}
	s.plane = New(c, s.options())
	s.plane.hns = &interrupting{HNS: c, interrupt: cancel}
	if err := s.plane.Refresh(ctx); !errors.Is(err, context.Canceled) || c.lists > 0 {
		t.Errorf("error %v, endpoints are listed %d times", err, c.lists)
	}
}

// interrupting is an HNS that does not end a call when its context ends, as the real one.
type interrupting struct {
	HNS
	interrupt func()
}

func (i *interrupting) LoadBalancers(context.Context) ([]hns.LoadBalancer, error) {
	i.interrupt()
	return i.HNS.LoadBalancers(context.Background())
}

// The service is stopped during a long write: what remains is not written, although the calls of HNS do not end with
// the context.
func TestAStopDuringAWrite(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	s.services(200)
	change, _ := s.compiler.Compile(s.store.Take())
	if err := s.plane.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.fake.Refuse = func(string) error { cancel(); return nil }
	before := len(s.fake.Written())
	err := s.plane.Plan(route.Change{Table: change.Table}).Apply(ctx)
	if n := len(s.fake.Written()) - before; !errors.Is(err, context.Canceled) || n > 1 {
		t.Errorf("%d objects are written, error %v", n, err)
	}
}

// The interface of this node is down: a clean-up of an overlay network deletes the load balancers all the same, and
// says what is missing.
func TestRemoveWithoutAnAddressOfTheNode(t *testing.T) {
	s := overlayStory(t)
	s.compared()
	opt := s.options()
	opt.Node = func() (netip.Addr, string, error) { return netip.Addr{}, "", errOdd }
	removed, err := New(s.fake, opt).Remove(t.Context())
	if list, listErr := s.fake.LoadBalancers(t.Context()); !errors.Is(err, errOdd) || listErr != nil || len(list) > 0 {
		t.Errorf("removed %q, %v; %d load balancers are left, %v", removed, err, len(list), listErr)
	}
}
