package userspace

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/assigntest"
	"github.com/sluice-proxy/sluice/internal/windows/assign"
)

// The host has the address of a Service as long as the Service exists, and a socket listens there, at
// the port of the Service.
func TestAddressesOfServices(t *testing.T) {
	fake := assigntest.New()
	own, err := assign.New(fake)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Options{Own: own})
	web := service("web", to(tcp(80, "10.0.0.1:8080"), route.Cluster))
	r.ok(r.load(web))
	if got := r.listed("web"); !slices.Equal(got, at("172.30.0.1:80")) {
		t.Errorf("listens at %v", got)
	}
	if got := fake.Addrs(); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("172.30.0.1")}) {
		t.Errorf("the host has %v", got)
	}
	r.ok(r.set(service("web")))
	if got := fake.Addrs(); len(got) > 0 {
		t.Errorf("after the Service is deleted the host has %v", got)
	}
}

// Until the first write is complete, a socket admits only clients that connected to a frontend of its port, so that
// rules which are there led them. Afterwards it admits all, as rules keep others away.
func TestAdmittedBeforeTheWriteIsComplete(t *testing.T) {
	p := newRuleRig(t, Options{})
	web := tcp(80, backend)
	web.Frontends = append(web.Frontends, route.Frontend{Kind: route.NodePort, Port: 30080})
	other := tcp(81, backend)
	other.Name = "other"
	svc := service("web", web, other)
	k := key{port: route.PortID{Service: svc.Name, Family: route.IPv4, Protocol: cluster.TCP}, part: clusterSocket}
	v := value{at: at("127.0.0.1:30080")[0]}
	admit := p.admit(k, v, svc)
	got := admit(netip.Addr{})
	if !got.Refused || got.Unless == nil {
		t.Fatalf("before the write %+v, want a refusal with exceptions", got)
	}
	for to, want := range map[string]bool{
		"172.30.0.1:80": true, "192.0.2.1:30080": true, "172.30.0.1:81": false, "172.30.0.2:80": false,
		v.at.String(): false, // the socket itself
	} {
		if got.Unless(netip.MustParseAddrPort(to)) != want {
			t.Errorf("a client that connected to %s is admitted: %t, want %t", to, !want, want)
		}
	}
	if got := p.admit(k, v, nil)(netip.Addr{}); !got.Refused || got.Unless != nil {
		t.Errorf("an inherited socket, of which nothing else is known: %+v, want a refusal", got)
	}
	p.sockets.guarded.Store(true)
	if got := admit(netip.Addr{}); got.Refused {
		t.Errorf("after the write %+v, want all admitted", got)
	}
}

// Each kind of client gets the pool and the verdict of its policy.
func TestThePolicyOfAnAddress(t *testing.T) {
	fake := assigntest.New()
	own, err := assign.New(fake)
	if err != nil {
		t.Fatal(err)
	}
	p := newRig(t, Options{Own: own})
	p.pods.Store(&route.Detector{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
	p.local.Store(&[]netip.Addr{netip.MustParseAddr("192.0.2.1")})
	p.sockets.guarded.Store(true)
	admit := p.admit(key{part: frontendSocket}, value{at: at("172.30.0.1:80")[0], policy: policyOf(&route.Frontend{
		Pods: route.Action{Verdict: route.Reject}, Node: route.Action{Pool: route.Local},
		Others:     route.Action{Pool: route.Cluster},
		Restricted: true, Allow: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("10.1.0.0/16")},
	})}, nil)
	for client, want := range map[string]struct {
		refused bool
		pool    route.Pool
	}{
		"192.0.2.1": {false, route.Local}, "192.0.2.9": {false, route.Cluster}, "198.51.100.1": {refused: true},
		"10.1.0.5": {refused: true},
	} {
		got := admit(netip.MustParseAddr(client))
		if got.Refused != want.refused || !got.Refused && route.Pool(got.Pool) != want.pool {
			t.Errorf("%s: %+v, want %+v", client, got, want)
		}
	}
}
