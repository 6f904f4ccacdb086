package kernelspace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// ofIPv6 makes the Service of preserving one of IPv6.
func ofIPv6(annotated, local bool) *cluster.Store {
	return preservingAt(annotated, local, "fd00:172:30::1", "2001:db8:203::1", "2001:db8:198::1", "fd00:10:180::1",
		"fd00:10:180:1::1")
}

// balancers lists what a plane has written: address, port, flags and backends.
func (p *Plane) balancers() string {
	addrs := map[string]string{}
	for a, e := range p.writer.state.endpoints {
		addrs[e.ID] = a.String()
	}
	var got []string
	for k, b := range p.writer.state.balancers {
		var to []string
		for _, id := range b.Endpoints {
			to = append(to, addrs[id])
		}
		got = append(got, fmt.Sprintf("%s:%d %s: %s", k.addr, k.port, flagNames(b.Flags), strings.Join(to, " ")))
	}
	slices.Sort(got)
	return strings.Join(got, "\n")
}

// The flags and backends of load balancers with IPv6 addresses are those of IPv4, with the flag IPv6.
func TestFlagsOfIPv6(t *testing.T) {
	for name, want := range map[string]string{
		"plain": `
2001:db8:198::1:80 [IPv6 External Affinity]: fd00:10:180:1::1 fd00:10:180::1
2001:db8:203::1:10256 [IPv6]: fd00:10:180:99::2
2001:db8:203::1:80 [IPv6 External Affinity]: fd00:10:180:1::1 fd00:10:180::1
fd00:172:30::1:80 [DSR IPv6 Affinity]: fd00:10:180:1::1 fd00:10:180::1
invalid IP:30080 [IPv6 External LocalRouted Affinity]: fd00:10:180:1::1 fd00:10:180::1`,
		"local": `
2001:db8:198::1:80 [DSR IPv6 External Affinity]: fd00:10:180::1
2001:db8:203::1:31000 [IPv6]: fd00:10:180:99::2
2001:db8:203::1:80 [DSR IPv6 External Affinity]: fd00:10:180::1
fd00:172:30::1:80 [DSR IPv6 Affinity]: fd00:10:180:1::1 fd00:10:180::1
invalid IP:30080 [DSR IPv6 External LocalRouted Affinity]: fd00:10:180::1`,
		"annotated": `
2001:db8:198::1:80 [IPv6 External Affinity]: fd00:10:180:1::1 fd00:10:180::1
2001:db8:203::1:10256 [IPv6]: fd00:10:180:99::2
2001:db8:203::1:80 [DSR IPv6 External UseMux PreserveDIP Affinity]: fd00:10:180::1
fd00:172:30::1:80 [DSR IPv6 Affinity]: fd00:10:180:1::1 fd00:10:180::1
invalid IP:30080 [DSR IPv6 External LocalRouted Affinity]: fd00:10:180::1`,
		"annotated local": `
2001:db8:198::1:80 [DSR IPv6 External Affinity]: fd00:10:180::1
2001:db8:203::1:31000 [IPv6 UseMux PreserveDIP]: fd00:10:180:99::2
2001:db8:203::1:80 [DSR IPv6 External UseMux PreserveDIP Affinity]: fd00:10:180::1
fd00:172:30::1:80 [DSR IPv6 Affinity]: fd00:10:180:1::1 fd00:10:180::1
invalid IP:30080 [DSR IPv6 External LocalRouted Affinity]: fd00:10:180::1`,
	} {
		s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
		n, err := s.fake.Network(t.Context(), networkName)
		if err != nil {
			t.Fatal(err)
		}
		root := hns.Endpoint{
			Network: n.ID, Name: rootName, MAC: "00-15-5D-00-00-02", Addrs: planetest.Addrs("fd00:10:180:99::2"),
		}
		if _, err := s.fake.CreateEndpoint(t.Context(), root); err != nil {
			t.Fatal(err)
		}
		p := New(s.fake, s.options())
		write(t, p,
			planetest.Compile(ofIPv6(strings.Contains(name, "annotated"), strings.Contains(name, "local")), options()))
		if diff := cmp.Diff(strings.TrimSpace(want), p.balancers()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// IPv6 is not served in an overlay network, and by an HNS without dual stack.
func TestNoIPv6(t *testing.T) {
	for network, kind := range map[hns.NetworkType]func(*hnstest.Fake){
		hns.Overlay:  func(*hnstest.Fake) {},
		hns.L2Tunnel: func(f *hnstest.Fake) { f.Version.DualStack = false },
	} {
		s := newSubject(network, kind)
		p := New(s.fake, s.options())
		write(t, p, planetest.Compile(ofIPv6(false, false), options()))
		if got := p.balancers(); got != "" {
			t.Errorf("%s: %s", network, got)
		}
	}
}

// NodePorts are served at the addresses of nodePortAddresses: all by a load balancer without an address, otherwise
// each has its own. None is at a loopback address. Subnets of one family do not concern the other.
func TestNodePortAddresses(t *testing.T) {
	cidr := func(list ...string) route.NodePortOptions {
		return route.NodePortOptions{CIDRs: planetest.Prefixes(list...)}
	}
	for name, tc := range map[string]struct {
		of   route.NodePortOptions
		want []string
	}{
		"all":              {route.NodePortOptions{}, []string{"IPv4 invalid IP", "IPv6 invalid IP"}},
		"primary":          {route.NodePortOptions{Primary: true}, []string{"IPv4 192.168.0.2", "IPv6 2001:db8::1"}},
		"a subnet of IPv4": {cidr("192.168.0.0/16"), []string{"IPv4 192.168.0.2", "IPv4 192.168.1.2", "IPv6 invalid IP"}},
		"two subnets":      {cidr("192.168.1.0/24", "2001:db8::/64"), []string{"IPv4 192.168.1.2", "IPv6 2001:db8::1"}},
		"loopback":         {cidr("127.0.0.0/8", "::1/128"), nil},
		"none":             {cidr("198.18.0.0/15", "fd00:9::/64"), nil},
	} {
		s := newSubject(hns.L2Bridge, func(*hnstest.Fake) {})
		store := cluster.NewStore()
		store.SetNode(planetest.NewNode())
		store.SetLocalAddresses(planetest.Addrs("127.0.0.1", "::1", "192.168.0.2", "192.168.1.2", "2001:db8::1"))
		svc := cluster.Name{Namespace: "ns", Name: "web"}
		store.SetService(&cluster.Service{
			Name: svc, Type: cluster.NodePort, ClusterIPs: planetest.Addrs("172.30.0.1", "fd00:172:30::1"),
			Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80, NodePort: 30080}},
		})
		for i, addr := range []string{"10.180.0.1", "fd00:10:180::1"} {
			store.SetSlice(&cluster.Slice{
				Name: cluster.Name{Namespace: "ns", Name: fmt.Sprint("web-", i)}, Service: svc,
				Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
				Endpoints: []cluster.Endpoint{planetest.Endpoint(addr, "a")},
			})
		}
		opt := options()
		opt.NodePorts = tc.of
		write(t, New(s.fake, s.options()), planetest.Compile(store, opt))
		if got := nodePorts(t, s.fake); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// nodePorts lists the addresses of load balancers with port 30080, each after its family.
func nodePorts(t *testing.T, f *hnstest.Fake) (got []string) {
	t.Helper()
	list, err := f.LoadBalancers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		if l.Port != 30080 {
			continue
		}
		family := route.IPv4
		if l.Flags.IPv6 {
			family = route.IPv6
		}
		want := hns.Flags{IPv6: l.Flags.IPv6, External: true, LocalRouted: true}
		if l.Flags != want || l.Target != 8080 || len(l.Endpoints) != 1 {
			t.Errorf("%s to %q, want the flags %+v", l, l.Endpoints, want)
		}
		got = append(got, fmt.Sprint(family, " ", l.VIP))
	}
	slices.Sort(got)
	return got
}

// If the address of the node changes, its NodePorts move to the new one.
func TestThePrimaryAddressChanges(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	opt := options()
	opt.NodeName, opt.NodePorts.Primary = "a", true
	s.compiler = route.NewCompiler(opt)
	s.compared()
	node := planetest.NewNode()
	node.Addresses = []netip.Addr{netip.MustParseAddr("192.168.0.9")}
	s.store.SetNode(node)
	writes := s.changed()
	want := []string{"delete 192.168.0.2 protocol 6 port 30080", "create 192.168.0.9 protocol 6 port 30080"}
	if len(writes) != 2 || placeOf(writes[0]) != want[0] || placeOf(writes[1]) != want[1] {
		t.Errorf("%q, want %q", writes, want)
	}
}
