package kernelspace

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// placeOf returns the address, protocol and port of a load balancer in its text.
func placeOf(text string) string {
	text, _, _ = strings.Cut(text, " -> ")
	return text
}

// placesOf returns the operations and places of writes.
func placesOf(writes []string) (list []string) {
	for _, line := range writes {
		list = append(list, placeOf(line))
	}
	return list
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
		count[placeOf(l.String())]++
	}
	return count
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
		ClusterIPs: planetest.Addrs("172.30.0.1"), LoadBalancerIPs: planetest.Addrs("203.0.113.1"),
		ExternalIPs: planetest.Addrs("198.51.100.1"),
		Ports:       []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80, NodePort: 30080}},
	}
	change(svc)
	s.store.SetService(svc)
}

func onlyClusterIP(s *story) {
	s.store.SetService(&cluster.Service{
		Name: cluster.Name{Namespace: "ns", Name: "web"}, ClusterIPs: planetest.Addrs("172.30.0.1"),
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
	})
}

// A load balancer is changed in place, or deleted before another one is created. So an address that stays served
// always has one if HNS can change them in place.
func TestOrderOfWrites(t *testing.T) {
	recent := func(*hnstest.Fake) {}
	remake := func(f *hnstest.Fake) { f.Version.Modify = false }
	for name, tc := range map[string]orderCase{
		"another NodePort": {
			kind: recent, do: func(s *story) { s.service(func(svc *cluster.Service) { svc.Ports[0].NodePort = 30081 }) },
			want: []string{"delete invalid IP protocol 6 port 30080", "create invalid IP protocol 6 port 30081"},
		},
		"another external IP": {
			kind: recent, do: func(s *story) {
				s.service(func(svc *cluster.Service) { svc.ExternalIPs = planetest.Addrs("198.51.100.2") })
			},
			want: []string{"delete 198.51.100.1 protocol 6 port 80", "create 198.51.100.2 protocol 6 port 80"},
		},
		"the external IP becomes one of a load balancer": {
			kind: recent, do: func(s *story) {
				s.service(func(svc *cluster.Service) {
					svc.LoadBalancerIPs, svc.ExternalIPs = append(svc.LoadBalancerIPs, svc.ExternalIPs...), nil
				})
			},
			want: []string{
				"delete 198.51.100.1 protocol 6 port 80", "create 198.51.100.1 protocol 6 port 80",
				"create 198.51.100.1 protocol 6 port 10256",
			},
		},
		"another target": {
			kind: recent, before: onlyClusterIP, do: func(s *story) { s.backends(8081, "10.180.0.1") },
			want: []string{"modify 172.30.0.1 protocol 6 port 80"},
		},
		"another target, not in place": {
			kind: remake, before: onlyClusterIP, do: func(s *story) { s.backends(8081, "10.180.0.1") },
			want: []string{"delete 172.30.0.1 protocol 6 port 80", "create 172.30.0.1 protocol 6 port 80"},
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
	tc.do(s)
	if compared {
		s.restart()
		s.compared()
		s.settled()
		return
	}
	var got []string
	for _, line := range s.changed() {
		if !strings.Contains(line, " endpoint [") {
			got = append(got, placeOf(line))
		}
	}
	if !slices.Equal(got, tc.want) {
		t.Errorf("writes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
	}
	s.settled()
}

// The port of health checks becomes one of a Service: the load balancer for health checks goes first, and what
// replaces it stays, also if HNS refuses another Service meanwhile.
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
	removal := &step{
		Op: ledger.Remove, Key: key{class: healthCheck, addr: list[at].VIP, family: route.IPv4, protocol: 6, port: 10256},
	}
	if err := s.plane.writer.Write(t.Context(), []*step{removal}); err != nil {
		t.Fatal(err)
	}
	s.settled()
}
