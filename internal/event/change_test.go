package event

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

func TestOfChange(t *testing.T) {
	web := func(change ...func(*route.Service)) *route.Service {
		svc := &route.Service{Name: cluster.Name{Namespace: "default", Name: "web"}, Ports: []route.Port{{
			Protocol:  cluster.TCP,
			Frontends: []route.Frontend{{Addr: netip.MustParseAddr("10.96.0.80"), Port: 80}},
			Cluster:   addrs("10.244.1.5:8080", "10.244.1.6:8080"), Local: addrs("10.244.1.5:8080"),
		}}}
		for _, fn := range change {
			fn(svc)
		}
		return svc
	}
	backends := func(list ...string) func(*route.Service) {
		return func(s *route.Service) { s.Ports[0].Cluster = addrs(list...) }
	}
	ignored := func(s *route.Service) { *s = route.Service{Name: s.Name, Ignored: "headless"} }
	nodePort := func(s *route.Service) {
		s.Ports[0].Frontends = append(s.Ports[0].Frontends, route.Frontend{Kind: route.NodePort, Port: 30080})
	}
	for _, tt := range []struct {
		what, reason, note string
		old, now           *route.Service
	}{
		{what: "new", now: web(), reason: "ServiceAdded", note: "has 2 endpoints"},
		{what: "deleted", old: web(), reason: "ServiceDeleted", note: "had 2 endpoints"},
		{what: "new, headless", now: web(ignored), reason: "NotProgrammed", note: "headless"},
		{what: "headless before", old: web(ignored), now: web(), reason: "ServiceAdded", note: "has 2 endpoints"},
		{
			what: "one more", old: web(), now: web(backends("10.244.1.5:8080", "10.244.1.6:8080", "10.244.2.1:8080")),
			reason: "EndpointsChanged", note: "endpoints 2 to 3: added 10.244.2.1:8080",
		},
		{
			what: "another one", old: web(), now: web(backends("10.244.1.5:8080", "10.244.1.7:8080")),
			reason: "EndpointsChanged", note: "endpoints 2 to 2: added 10.244.1.7:8080, removed 10.244.1.6:8080",
		},
		{
			what: "many more", old: web(backends("10.244.1.5:8080")), now: web(backends(many(10)...)),
			reason: "EndpointsChanged",
			note:   "endpoints 1 to 11: added 10.9.0.0:80 10.9.0.1:80 10.9.0.2:80 10.9.0.3:80 and 6 more",
		},
		{
			what: "a NodePort", old: web(), now: web(nodePort),
			reason: "ServiceChanged", note: "frontends 1 to 2: added nodePort 30080/tcp",
		},
		{
			what: "both", old: web(nodePort), now: web(backends("10.244.1.5:8080")), reason: "ServiceChanged",
			note: "endpoints 2 to 1: removed 10.244.1.6:8080; frontends 2 to 1: removed nodePort 30080/tcp",
		},
		{
			what: "affinity", old: web(), now: web(func(s *route.Service) { s.Ports[0].Affinity = 1 }),
			reason: "ServiceChanged", note: "a policy, affinity, weight or port name changed",
		},
	} {
		got := OfChange(route.Touch{Name: web().Name, Old: tt.old, New: tt.now})
		want := Event{
			Object: Object{"Service", "default", "web"}, Type: Normal, Reason: tt.reason, Action: actionProgram, Note: tt.note,
		}
		if got != want {
			t.Errorf("%s: got\n%+v, want\n%+v", tt.what, got, want)
		}
	}
}

func addrs(list ...string) (all []netip.AddrPort) {
	for _, a := range list {
		all = append(all, netip.MustParseAddrPort(a))
	}
	return all
}

func many(n int) []string {
	list := []string{"10.244.1.5:8080"}
	for i := range n {
		list = append(list, fmt.Sprintf("10.9.0.%d:80", i))
	}
	return list
}
