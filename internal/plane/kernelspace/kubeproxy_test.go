package kernelspace

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// asKubeProxy makes what kube-proxy makes: unnamed endpoints with its MAC addresses, and a load balancer for each
// family.
func (s *subject) asKubeProxy(t *testing.T) {
	t.Helper()
	n, err := s.fake.Network(t.Context(), networkName)
	if err != nil {
		t.Fatal(err)
	}
	list := []hns.Endpoint{
		{MAC: "02-11-0a-b4-01-07", Addrs: planetest.Addrs("10.180.1.7"), Remote: true},
		{MAC: "02-11-07-00-01-00", Addrs: planetest.Addrs("fd00:10:180::1:7"), Remote: true},
	}
	if s.network == hns.Overlay {
		list = []hns.Endpoint{
			{MAC: "00-15-5d-00-00-02", Addrs: planetest.Addrs("10.180.99.1")},
			{
				MAC: "02-11-0a-b4-01-07", Addrs: planetest.Addrs("10.180.1.7"), Remote: true,
				Provider: netip.MustParseAddr("192.168.0.3"),
			},
			{
				MAC: "00-15-5d-00-00-02", Addrs: planetest.Addrs("172.30.0.1"), Remote: true,
				Provider: netip.MustParseAddr("192.168.0.2"),
			},
		}
	}
	for i, e := range list {
		e.Network = n.ID
		id, err := s.fake.CreateEndpoint(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		if !e.Remote || e.Addrs[0] == netip.MustParseAddr("172.30.0.1") {
			continue
		}
		l := hns.LoadBalancer{
			VIP: planetest.Addrs("172.30.0.1")[0], Protocol: 6, Port: uint16(80 + i), Target: 8080, Endpoints: []string{id},
		}
		if e.Addrs[0].Is6() {
			l.VIP, l.Flags.IPv6 = netip.MustParseAddr("fd00:172:30::1"), true
		}
		if _, err := s.fake.CreateLoadBalancer(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
}

// Remove deletes what kube-proxy made, and nothing else.
func TestRemoveAfterKubeProxy(t *testing.T) {
	for network, want := range map[hns.NetworkType][]string{
		hns.L2Bridge: {"2 load balancers", "2 endpoints"},
		hns.L2Tunnel: {"2 load balancers", "2 endpoints"},
		hns.Overlay:  {"1 load balancer", "3 endpoints"},
	} {
		subject := newSubject(network, func(*hnstest.Fake) {})
		before, err := subject.state(nil)
		if err != nil {
			t.Fatal(err)
		}
		subject.asKubeProxy(t)
		s, _ := setup(config.HNS{Network: networkName, SourceVIP: netip.MustParseAddr("10.180.99.1")})
		removed, err := Kind(subject.fake, thisHost{}).Remove(t.Context(), s)
		if err != nil || !slices.Equal(removed, want) {
			t.Errorf("%s: removed %q, %v, want %q", network, removed, err, want)
		}
		after, err := subject.state(nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s: %s", network, diff)
		}
	}
}

// The first comparison after kube-proxy keeps the endpoints that Services need, the source VIP among them, and
// deletes the others. A container with the address of the source VIP and a MAC address of its own is no source VIP.
func TestEndpointsOfKubeProxyAreAdopted(t *testing.T) {
	subject := newSubject(hns.Overlay, func(*hnstest.Fake) {})
	subject.asKubeProxy(t)
	subject.fake.Writes = nil
	write(t, New(subject.fake, subject.options()), onNode(at("10.180.1.7", "b")))
	for _, line := range subject.fake.Writes {
		if strings.Contains(line, "endpoint [") {
			t.Errorf("%s, though kube-proxy made all endpoints", line)
		}
	}
	s := &state{
		network: hns.Network{Type: hns.Overlay}, hostMAC: "00:15:5d:00:00:02", sourceVIP: netip.MustParseAddr("10.180.99.1"),
	}
	container := hns.Endpoint{MAC: "00-15-5D-00-00-09", Addrs: planetest.Addrs("10.180.99.1")}
	if class, is := s.class(container); is {
		t.Errorf("a container is of class %d", class)
	}
}
