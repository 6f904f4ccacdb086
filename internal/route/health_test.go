package route

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// balanced is a load balancer's Service that asks at port 30500.
func balanced(changes ...func(*cluster.Service)) *cluster.Service {
	return web(append([]func(*cluster.Service){func(s *cluster.Service) {
		s.Type, s.ExternalLocal, s.HealthCheckNodePort = cluster.LoadBalancer, true, 30500
		s.LoadBalancerIPs = ips("203.0.113.8")
	}}, changes...)...)
}

func (h *Health) text() string {
	if h == nil {
		return "none"
	}
	words := []string{fmt.Sprint(h.Port)}
	for _, l := range h.Local {
		words = append(words, fmt.Sprintf("%s=%d", l.Family, l.Endpoints))
	}
	return strings.Join(words, " ")
}

func TestHealthCountsWhatIsReadyHere(t *testing.T) {
	dual := func(s *cluster.Service) { s.ClusterIPs = ips("172.30.0.41 fd00::41") }
	twoPorts := func(s *cluster.Service) {
		s.Ports = []cluster.ServicePort{
			{Name: "a", Protocol: cluster.TCP, Port: 80}, {Name: "b", Protocol: cluster.UDP, Port: 81},
		}
	}
	named := func(name string, p cluster.Protocol, list []cluster.Endpoint) *cluster.Slice {
		s := sliceOf(web(), name, list)
		s.Ports = []cluster.SlicePort{{Name: name, Protocol: p, Port: 8080}}
		return s
	}
	for _, tt := range []struct {
		name   string
		svc    *cluster.Service
		slices []*cluster.Slice
		want   string
	}{
		{"no endpoints", balanced(), nil, "30500 IPv4=0"},
		{
			"two here, one elsewhere, one nobody knows where", balanced(),
			[]*cluster.Slice{sliceOf(web(), "x", endpoints(t, "1.1.1.1 @A\n1.1.1.2 @A\n1.1.1.3 @B\n1.1.1.4"))},
			"30500 IPv4=2",
		},
		{
			"S-150 serving while it terminates does not count", balanced(),
			[]*cluster.Slice{sliceOf(web(), "x", endpoints(t, "1.1.1.1 @A st\n1.1.1.2 @A t\n1.1.1.3 @A -"))},
			"30500 IPv4=0",
		},
		{
			"S-263 an address counts once over all ports and slices", balanced(twoPorts),
			[]*cluster.Slice{
				named("a", cluster.TCP, endpoints(t, "1.1.1.1 @A\n1.1.1.2 @A")),
				named("b", cluster.UDP, endpoints(t, "1.1.1.1 @A\n1.1.1.2 @A")),
			},
			"30500 IPv4=2",
		},
		{
			"ports may have different endpoints", balanced(twoPorts),
			[]*cluster.Slice{
				named("a", cluster.TCP, endpoints(t, "1.1.1.1 @A")),
				named("b", cluster.UDP, endpoints(t, "1.1.1.2 @A")),
				named("other", cluster.TCP, endpoints(t, "1.1.1.3 @A")),
			},
			"30500 IPv4=2",
		},
		{
			"each family for itself", balanced(dual),
			[]*cluster.Slice{
				sliceOf(web(), "x", endpoints(t, "1.1.1.1 @A")),
				sliceOf(web(), "y", endpoints(t, "fd01::1 @A\nfd01::2 @A")),
			},
			"30500 IPv4=1 IPv6=2",
		},
		{
			"hints narrow nothing here", balanced(),
			[]*cluster.Slice{sliceOf(web(), "x", endpoints(t, "1.1.1.1 @A z=b\n1.1.1.2 @B z=a"))},
			"30500 IPv4=1",
		},
		{"another type", balanced(func(s *cluster.Service) { s.Type = cluster.NodePort }), nil, "none"},
		{"another policy", balanced(func(s *cluster.Service) { s.ExternalLocal = false }), nil, "none"},
		{"no port", balanced(func(s *cluster.Service) { s.HealthCheckNodePort = 0 }), nil, "none"},
		{"ignored", balanced(func(s *cluster.Service) { s.Ignored = "headless" }), nil, "none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := compileOne(t, Options{}, tt.svc, tt.slices...).Health
			if got := h.text(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestHealthCountsFamiliesSeparately(t *testing.T) {
	h := &Health{Port: 1, Local: []LocalCount{{IPv6, 3}}}
	if n, ok := h.Count(IPv6); n != 3 || !ok {
		t.Errorf("IPv6: got %d, %v", n, ok)
	}
	if _, ok := h.Count(IPv4); ok {
		t.Error("there is a count for IPv4")
	}
	h = nil
	if _, ok := h.Count(IPv4); ok {
		t.Error("there is a count of nothing")
	}
}

// A change of the count alone is a change, even if the serving backends stay the same.
func TestAChangeOfHealthTouchesTheService(t *testing.T) {
	svc := balanced()
	c := NewCompiler(Options{NodeName: "A"})
	compile := func(svc *cluster.Service, conditions string) string {
		sl := sliceOf(svc, "x", endpoints(t, "1.1.1.1 @A "+conditions))
		change, _ := c.Compile(cluster.Delta{Services: []cluster.State{stateOf(svc, sl)}})
		return touchedNames(change)
	}
	compile(svc, "rs")
	before := c.Table().Services[svc.Name]
	if got := compile(svc, "st"); got != "web" {
		t.Errorf("its last pod terminates: touched %q, want web", got)
	}
	after := c.Table().Services[svc.Name]
	if len(after.Ports) != 1 || !before.Ports[0].Equal(after.Ports[0]) {
		t.Errorf("traffic changed from\n%s\nto\n%s", before.text(), after.text())
	}
	if got := compile(svc, "st"); got != "" {
		t.Errorf("nothing changes: touched %q", got)
	}
	moved := balanced(func(s *cluster.Service) { s.HealthCheckNodePort = 30501 })
	if got := compile(moved, "st"); got != "web" {
		t.Errorf("another port: touched %q, want web", got)
	}
}

// A health check port belongs to one Service in each family, and it is no other Service's NodePort.
func TestHealthPortsAreClaims(t *testing.T) {
	asks := func(name string, second int64, changes ...func(*cluster.Service)) *cluster.Service {
		s := balanced(changes...)
		s.Name.Name, s.Created, s.LoadBalancerIPs = name, time.Unix(second, 0), nil
		return s
	}
	other := claimant("np", 3, clusterIP("172.30.0.3"), nodePort(30500))
	c := NewCompiler(Options{})
	health := func() string {
		var words []string
		for _, name := range []string{"a", "b"} {
			words = append(words, c.Table().Services[cluster.Name{Namespace: "default", Name: name}].Health.text())
		}
		return strings.Join(words, ", ")
	}
	lost := func(field, to string) string {
		return field + ": 30500/tcp: left out, as it belongs to Service default/" + to
	}
	_, problems := c.Compile(change(asks("a", 1, clusterIP("172.30.0.1")),
		asks("b", 2, clusterIP("172.30.0.2 fd00::2")), other))
	sameText(t, joinProblems(problems), "Service default/b: "+lost("spec.healthCheckNodePort", "a")+
		"\nService default/np: "+lost("spec.ports[0].nodePort", "a"))
	sameText(t, health(), "30500 IPv4=0, 30500 IPv6=0")
	c.Compile(change(asks("a", 1, clusterIP("172.30.0.1"), func(s *cluster.Service) { s.HealthCheckNodePort = 0 })))
	sameText(t, health(), "none, 30500 IPv4=0 IPv6=0")
	own := asks("b", 2, clusterIP("172.30.0.2"), func(s *cluster.Service) { s.Ports[0].NodePort = 30500 })
	_, problems = c.Compile(change(own))
	sameText(t, joinProblems(problems),
		"Service default/b: spec.healthCheckNodePort: 30500/tcp: left out, as it belongs to spec.ports[0]")
	sameText(t, health(), "none, none")
}
