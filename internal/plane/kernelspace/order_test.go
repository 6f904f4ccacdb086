package kernelspace

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/kernel/hns/hnstest"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
)

// place returns the address, protocol and port of a load balancer in its text.
func place(text string) string {
	text, _, _ = strings.Cut(text, " -> ")
	return text
}

// places counts the load balancers at each place.
func (s *story) places() map[string]int {
	s.Helper()
	list, err := s.fake.LoadBalancers(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	count := map[string]int{}
	for _, l := range list {
		count[place(l.String())]++
	}
	return count
}

// gaps returns the writes after which a place has no load balancer that had one before them, and has one after all of them.
func gaps(before, after map[string]int, writes []string) (list []string) {
	for _, line := range writes {
		op, rest, _ := strings.Cut(line, " ")
		at := place(rest)
		switch {
		case strings.HasPrefix(rest, "endpoint "), op == "modify":
			continue
		case op == "create":
			before[at]++
		case op == "delete":
			before[at]--
		}
		if before[at] == 0 && after[at] > 0 {
			list = append(list, line)
		}
	}
	return list
}

// orderCase is a change of the Service of a story.
type orderCase struct {
	kind   func(*hnstest.Fake)
	before func(*story) // nil: the Service as it is
	do     func(*story)
	want   []string // the writes of load balancers, by operation and place
}

func (s *story) service(change func(*cluster.Service)) {
	svc := &cluster.Service{
		Name: cluster.Name{Namespace: "ns", Name: "web"}, Type: cluster.LoadBalancer, Affinity: 1,
		ClusterIPs: planetest.Addrs("172.30.0.1"), LoadBalancerIPs: planetest.Addrs("203.0.113.1"), ExternalIPs: planetest.Addrs("198.51.100.1"),
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80, NodePort: 30080}},
	}
	change(svc)
	s.store.SetService(svc)
}

// groups gives the Service backends at port 8080, and others at port 8081.
func (s *story) groups(first, second []string) {
	s.backends(8080, first...)
	slice := &cluster.Slice{
		Name: cluster.Name{Namespace: "ns", Name: "web-2"}, Service: cluster.Name{Namespace: "ns", Name: "web"},
		Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8081}},
	}
	for _, a := range second {
		slice.Endpoints = append(slice.Endpoints, planetest.Endpoint(a, "b"))
	}
	s.store.SetSlice(slice)
}

func onlyClusterIP(s *story) {
	s.store.SetService(&cluster.Service{
		Name: cluster.Name{Namespace: "ns", Name: "web"}, ClusterIPs: planetest.Addrs("172.30.0.1"),
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
	})
}

// What replaces a load balancer is written first, unless both need the same address, protocol, port and port of the backends.
// An address that stays served has a load balancer at every moment.
func TestOrderOfWrites(t *testing.T) {
	recent := func(*hnstest.Fake) {}
	remake := func(f *hnstest.Fake) { f.Version.Modify = false }
	one, two, three := []string{"10.180.1.1"}, []string{"10.180.1.2", "10.180.1.3"}, []string{"10.180.1.1", "10.180.1.4", "10.180.1.5"}
	for name, tc := range map[string]orderCase{
		"another NodePort": {
			kind: recent, do: func(s *story) { s.service(func(svc *cluster.Service) { svc.Ports[0].NodePort = 30081 }) },
			want: []string{"create invalid IP protocol 6 port 30081", "delete invalid IP protocol 6 port 30080"},
		},
		"another external IP": {
			kind: recent, do: func(s *story) {
				s.service(func(svc *cluster.Service) { svc.ExternalIPs = planetest.Addrs("198.51.100.2") })
			},
			want: []string{"create 198.51.100.2 protocol 6 port 80", "delete 198.51.100.1 protocol 6 port 80"},
		},
		"another target": {
			kind: recent, before: onlyClusterIP, do: func(s *story) { s.backends(8081, "10.180.0.1") },
			want: []string{"modify 172.30.0.1 protocol 6 port 80"},
		},
		"another target, not in place": {
			kind: remake, before: onlyClusterIP, do: func(s *story) { s.backends(8081, "10.180.0.1") },
			want: []string{"create 172.30.0.1 protocol 6 port 80", "delete 172.30.0.1 protocol 6 port 80"},
		},
		"a further group": {
			kind: recent, before: onlyClusterIP, do: func(s *story) { s.groups(two, one) },
			want: []string{"modify 172.30.0.1 protocol 6 port 80", "create 172.30.0.1 protocol 6 port 80"},
		},
		"the smaller group stays": {
			kind: recent, before: func(s *story) { onlyClusterIP(s); s.groups(two, one) }, do: func(s *story) { s.groups(nil, one) },
			want: []string{"delete 172.30.0.1 protocol 6 port 80", "modify 172.30.0.1 protocol 6 port 80"},
		},
		"the smaller group stays, not in place": {
			kind: remake, before: func(s *story) { onlyClusterIP(s); s.groups(two, one) }, do: func(s *story) { s.groups(nil, one) },
			want: []string{
				"delete 172.30.0.1 protocol 6 port 80", "create 172.30.0.1 protocol 6 port 80", "delete 172.30.0.1 protocol 6 port 80",
			},
		},
		"the other group is larger": {
			kind: recent, before: func(s *story) { onlyClusterIP(s); s.groups(two, one) }, do: func(s *story) { s.groups(two, three) },
			want: []string{
				"delete 172.30.0.1 protocol 6 port 80", "modify 172.30.0.1 protocol 6 port 80", "create 172.30.0.1 protocol 6 port 80",
			},
		},
	} {
		for _, compared := range []bool{false, true} {
			t.Run(name, func(t *testing.T) { tc.run(t, compared) })
		}
	}
}

func (tc *orderCase) run(t *testing.T, compared bool) {
	s := newStory(t, tc.kind)
	if tc.before != nil {
		tc.before(s)
	}
	s.compared()
	before := s.places()
	tc.do(s)
	var all []string
	if compared {
		s.restart()
		all = s.compared()
	} else {
		all = s.changed()
	}
	if list := gaps(before, s.places(), all); len(list) > 0 {
		t.Errorf("compared: %t: addresses without a load balancer after %q of\n%s", compared, list, strings.Join(all, "\n"))
	}
	var got []string
	for _, line := range all {
		if !strings.Contains(line, " endpoint [") {
			got = append(got, place(line))
		}
	}
	if !compared && !slices.Equal(got, tc.want) {
		t.Errorf("writes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
	}
	s.settled()
}

// A load balancer of HNS takes one port of backends: replacing it leaves no second one.
func TestAnotherTargetIfHNSTakesOne(t *testing.T) {
	s := newStory(t, func(f *hnstest.Fake) { f.OneTarget, f.Version.Modify = true, false })
	onlyClusterIP(s)
	s.compared()
	s.backends(8081, "10.180.0.1")
	if writes := s.changed(); len(writes) < 2 || !strings.HasPrefix(writes[0], "delete 172.30.0.1 ") || !strings.HasPrefix(writes[1], "create 172.30.0.1 ") {
		t.Errorf("%q", writes)
	}
	s.settled()
}

// The port of health checks becomes one of a Service: the load balancer for health checks goes first, and what replaces it
// stays, also if HNS refuses another Service meanwhile.
func TestAFrontendInPlaceOfHealthChecks(t *testing.T) {
	s := newStory(t, func(*hnstest.Fake) {})
	s.compared()
	s.service(func(svc *cluster.Service) { svc.Ports[0].Port = 10256 })
	s.changed()
	list, err := s.fake.LoadBalancers(t.Context())
	at := slices.IndexFunc(list, func(l hns.LoadBalancer) bool {
		return l.VIP == planetest.Addrs("203.0.113.1")[0] && l.Port == 10256 && l.Target == 8080
	})
	if err != nil || at < 0 {
		t.Errorf("%v, %v", list, err)
	}
	s.settled()
	removal := &step{Op: ledger.Remove, Key: key{class: healthCheck, addr: list[at].VIP, family: route.IPv4, protocol: 6, port: 10256}}
	if err := s.plane.writer.Write(t.Context(), []*step{removal}); err != nil {
		t.Fatal(err)
	}
	s.settled()
}
