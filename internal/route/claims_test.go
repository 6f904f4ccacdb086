package route

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// claimant makes a Service created at a second.
func claimant(name string, second int64, changes ...func(*cluster.Service)) *cluster.Service {
	s := web(changes...)
	s.Name.Name, s.Created = name, time.Unix(second, 0)
	return s
}

func clusterIP(s string) func(*cluster.Service) {
	return func(svc *cluster.Service) { svc.ClusterIPs = ips(s) }
}

func externalIP(s string) func(*cluster.Service) {
	return func(svc *cluster.Service) { svc.ExternalIPs = ips(s) }
}

func nodePort(port uint16) func(*cluster.Service) {
	return func(svc *cluster.Service) { svc.Type, svc.Ports[0].NodePort = cluster.NodePort, port }
}

// change makes a change of Services; one with only a name is deleted.
func change(list ...*cluster.Service) cluster.Delta {
	var c cluster.Delta
	for _, svc := range list {
		st := stateOf(svc)
		if svc.ClusterIPs == nil {
			st.Service = nil
		}
		c.Services = append(c.Services, st)
	}
	return c
}

func gone(name string) *cluster.Service {
	return &cluster.Service{Name: cluster.Name{Namespace: "default", Name: name}}
}

// holders prints which Services of a table have the frontends of a kind.
func holders(c *Compiler, kind FrontendKind) string {
	var list []string
	for name, svc := range c.Table().Services {
		for _, p := range svc.Ports {
			if slices.ContainsFunc(p.Frontends, func(f Frontend) bool { return f.Kind == kind }) {
				list = append(list, name.Name+"/"+p.Family.String())
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func TestClaims(t *testing.T) {
	x, np := externalIP("192.0.2.1"), nodePort(3001)
	tests := []struct {
		name string
		kind FrontendKind
		list []*cluster.Service
		want string // the Services that have a frontend of the kind
	}{
		{
			"S-249 the older has the external IP", ExternalIP,
			[]*cluster.Service{claimant("a", 2, clusterIP("172.30.0.1"), x), claimant("b", 1, clusterIP("172.30.0.2"), x)},
			"b/IPv4",
		},
		{
			"of the same age the first by name", ExternalIP,
			[]*cluster.Service{claimant("b", 1, clusterIP("172.30.0.1"), x), claimant("a", 1, clusterIP("172.30.0.2"), x)},
			"a/IPv4",
		},
		{
			"another port is no conflict", ExternalIP,
			[]*cluster.Service{
				claimant("a", 1, clusterIP("172.30.0.1"), x),
				claimant("b", 1, clusterIP("172.30.0.2"), x, func(s *cluster.Service) { s.Ports[0].Port = 81 }),
			},
			"a/IPv4 b/IPv4",
		},
		{
			"S-72 another protocol is no conflict", NodePort,
			[]*cluster.Service{
				claimant("a", 1, clusterIP("172.30.0.1"), np),
				claimant("b", 1, clusterIP("172.30.0.2"), np, func(s *cluster.Service) { s.Ports[0].Protocol = cluster.UDP }),
			},
			"a/IPv4 b/IPv4",
		},
		{
			"a NodePort belongs to one Service", NodePort,
			[]*cluster.Service{claimant("a", 2, clusterIP("172.30.0.1"), np), claimant("b", 1, clusterIP("172.30.0.2"), np)},
			"b/IPv4",
		},
		{
			"in each family", NodePort,
			[]*cluster.Service{
				claimant("a", 1, clusterIP("172.30.0.1"), np), claimant("b", 2, clusterIP("172.30.0.2 fd00::2"), np),
			},
			"a/IPv4 b/IPv6",
		},
		{
			"an external IP against a ClusterIP", ExternalIP,
			[]*cluster.Service{
				claimant("a", 1, clusterIP("172.30.0.1")), claimant("b", 2, clusterIP("172.30.0.2"), externalIP("172.30.0.1")),
			},
			"",
		},
		{
			"an older one's external IP takes no ClusterIP", ExternalIP,
			[]*cluster.Service{
				claimant("a", 2, clusterIP("172.30.0.1")), claimant("b", 1, clusterIP("172.30.0.2"), externalIP("172.30.0.1")),
			},
			"",
		},
		{
			"a ClusterIP in two Services", ClusterIP,
			[]*cluster.Service{claimant("a", 2, clusterIP("172.30.0.1")), claimant("b", 1, clusterIP("172.30.0.1"))},
			"b/IPv4",
		},
		{
			"the ignored ask for nothing", ExternalIP,
			[]*cluster.Service{
				claimant("a", 1, clusterIP("172.30.0.1"), x, func(s *cluster.Service) { s.Ignored = "headless" }),
				claimant("b", 2, clusterIP("172.30.0.2"), x),
			},
			"b/IPv4",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, list := range [][]*cluster.Service{tt.list, {tt.list[1], tt.list[0]}} {
				c := NewCompiler(Options{})
				for _, svc := range list { // one by one
					c.Compile(change(svc))
				}
				sameText(t, holders(c, tt.kind), tt.want)
				c = NewCompiler(Options{})
				c.Compile(change(list...)) // all at once
				sameText(t, holders(c, tt.kind), tt.want)
			}
		})
	}
}

// The story of one external IP: its owner, the Services that are compiled, and the problems that are reported.
func TestClaimMoves(t *testing.T) {
	x := externalIP("192.0.2.1")
	a := claimant("a", 1, clusterIP("172.30.0.1"), x)
	b := claimant("b", 2, clusterIP("172.30.0.2"), x)
	older := claimant("c", 0, clusterIP("172.30.0.3"), x)
	lost := func(who, to string) string {
		return "Service default/" + who +
			": spec.externalIPs: 192.0.2.1:80/tcp: left out, as it belongs to Service default/" + to
	}
	c := NewCompiler(Options{})
	steps := []struct {
		what     string
		change   cluster.Delta
		touched  string
		problems string
		holder   string
	}{
		{"the first has it", change(a), "a", "", "a/IPv4"},
		{"the younger is told", change(b), "b", lost("b", "a"), "a/IPv4"},
		{"once", change(claimant("b", 2, clusterIP("172.30.0.2"), x)), "", "", "a/IPv4"},
		{"an older takes it, only the former owner lost something", change(older), "a c", lost("a", "c"), "c/IPv4"},
		{"the next gets it back in the same step", change(gone("c")), "a c", "", "a/IPv4"},
		{"the owner asks no more", change(claimant("a", 1, clusterIP("172.30.0.1"))), "a b", "", "b/IPv4"},
		{"the owner asks again", change(a), "a b", lost("b", "a"), "a/IPv4"},
		{
			"the owner is created again, younger", change(claimant("a", 9, clusterIP("172.30.0.1"), x)),
			"a b", lost("a", "b"), "b/IPv4",
		},
		{"both go", change(gone("a"), gone("b")), "a b", "", ""},
	}
	for _, s := range steps {
		got, problems := c.Compile(s.change)
		var touched []string
		for _, tt := range got.Touched {
			touched = append(touched, tt.Name.Name)
		}
		if strings.Join(touched, " ") != s.touched {
			t.Errorf("%s: touched %v, want %s", s.what, touched, s.touched)
		}
		t.Log(s.what)
		sameText(t, joinProblems(problems), s.problems)
		sameText(t, holders(c, ExternalIP), s.holder)
	}
	if len(c.claims.owner)+len(c.claims.rivals)+c.records.Len() > 0 {
		t.Errorf("left behind: %d owners, %d contested, %d records",
			len(c.claims.owner), len(c.claims.rivals), c.records.Len())
	}
}

func joinProblems(list []Problem) string {
	var lines []string
	for _, p := range list {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// A Service can also be in its own way.
func TestTwins(t *testing.T) {
	svc := web(func(s *cluster.Service) {
		s.Type = cluster.NodePort
		s.Ports = []cluster.ServicePort{
			{Name: "a", Protocol: cluster.TCP, Port: 80, NodePort: 3001},
			{Name: "b", Protocol: cluster.TCP, Port: 80, NodePort: 3002},
			{Name: "c", Protocol: cluster.TCP, Port: 81, NodePort: 3001},
			{Name: "d", Protocol: cluster.UDP, Port: 80, NodePort: 3001},
			{Name: "e", Protocol: cluster.TCP, Port: 81, NodePort: 3002},
		}
	})
	c := NewCompiler(Options{})
	_, problems := c.Compile(change(svc))
	sameText(t, joinProblems(problems), `
		Service default/web: spec.clusterIPs: 172.30.0.41:80/tcp: left out, as it belongs to spec.ports[0]
		Service default/web: spec.ports[2].nodePort: 3001/tcp: left out, as it belongs to spec.ports[0]
		Service default/web: spec.clusterIPs: 172.30.0.41:81/tcp: left out, as it belongs to spec.ports[2]
		Service default/web: spec.ports[4].nodePort: 3002/tcp: left out, as it belongs to spec.ports[1]`)
	sameText(t, joinProblems(c.Snapshot().Problems(svc.Name)), joinProblems(problems))
	again, news := c.Compile(change(svc))
	if !again.Empty() || len(news) > 0 || len(c.Snapshot().Problems(svc.Name)) != 4 {
		t.Errorf("a reported problem is reported again: %v; and %d problems are known",
			news, len(c.Snapshot().Problems(svc.Name)))
	}
	const reject = ": pods reject, node reject, others reject\n"
	sameText(t, c.Table().Services[svc.Name].text(), `
		"a" tcp IPv4
		clusterIP 172.30.0.41:80`+reject+`nodePort invalid AddrPort`+reject+`
		"b" tcp IPv4
		nodePort invalid AddrPort`+reject+`
		"c" tcp IPv4
		clusterIP 172.30.0.41:81`+reject+`
		"d" udp IPv4
		clusterIP 172.30.0.41:80`+reject+`nodePort invalid AddrPort`+reject)
}

// Whatever happened before, the owners are those who would have it if all came
// at once, and exactly the claims of several Services have rivals.
func TestClaimsRandom(t *testing.T) {
	for _, services := range []int{6, 50} {
		rnd := rand.New(rand.NewPCG(1, 2))
		have := map[string]*cluster.Service{}
		c := newClaims([]Family{IPv4})
		for range 2000 {
			name := fmt.Sprint("s", rnd.IntN(services))
			var next *cluster.Service
			if rnd.IntN(3) > 0 {
				next = claimant(name, rnd.Int64N(3), clusterIP("172.30.0."+string(rune('1'+rnd.IntN(4)))),
					nodePort(uint16(1+rnd.IntN(3))))
			}
			c.replace(have[name], next)
			delete(have, name)
			if next != nil {
				have[name] = next
			}
			sameClaims(t, c, have)
		}
	}
}

// sameClaims compares claims with the claims that follow from the Services.
func sameClaims(t *testing.T, got *claims, have map[string]*cluster.Service) {
	t.Helper()
	asking := map[claim][]*cluster.Service{}
	for _, svc := range have {
		got.each(svc, func(k claim) {
			asking[k] = append(asking[k], svc)
		})
	}
	contested := 0
	for k, list := range asking {
		slices.SortFunc(list, k.precedence)
		if got.owner[k] != list[0] {
			t.Fatalf("%v belongs to %v, want %v", k, got.owner[k].Name, list[0].Name)
		}
		if len(list) == 1 {
			continue
		}
		contested++
		sameRivals(t, got.rivals[k], list)
	}
	if len(got.owner) != len(asking) || len(got.rivals) != contested {
		t.Fatalf("%d owners, %d contested; want %d, %d", len(got.owner), len(got.rivals), len(asking), contested)
	}
}

func sameRivals(t *testing.T, got *rivals, want []*cluster.Service) {
	t.Helper()
	if list := got.sorted.Items(); !slices.Equal(list, want) || got.holder.Load() != want[0] {
		t.Fatalf("%d ask, %v first; want %d, %v", len(list), got.owner().Name, len(want), want[0].Name)
	}
}
