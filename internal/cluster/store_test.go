package cluster

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func name(s string) Name { return Name{"default", s} }

func ips(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, s := range list {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

// slice returns an EndpointSlice with one endpoint.
func slice(own, service, addr string) *Slice {
	return &Slice{
		Name: name(own), Service: name(service), Endpoints: []Endpoint{{Addr: netip.MustParseAddr(addr), Ready: true}},
	}
}

// text prints a Change: each service with its ClusterIPs and its endpoints.
func text(c Delta) string {
	var parts []string
	for _, st := range c.Services {
		s := st.Name.Name + "="
		if st.Service != nil {
			s += fmt.Sprint(st.Service.ClusterIPs)
		} else {
			s += "none"
		}
		for _, sl := range st.Slices {
			s += "," + sl.Endpoints[0].Addr.String()
		}
		parts = append(parts, s)
	}
	if f := c.Facts; f != nil {
		node := "none"
		if f.Node != nil {
			node = f.Node.Name
		}
		parts = append(parts, fmt.Sprintf("node=%s cidrs=%v local=%v", node, f.ServiceCIDRs, f.Local))
	}
	return strings.Join(parts, " ")
}

func TestTakeReturnsChanges(t *testing.T) {
	web := &Service{Name: name("web"), ClusterIPs: ips("10.0.0.1")}
	dns := &Service{Name: name("dns"), ClusterIPs: ips("10.0.0.2")}
	steps := []struct {
		what string
		do   func(*Store)
		want string
	}{
		{"no change", func(*Store) {}, ""},
		{"two services, sorted", func(s *Store) { s.SetService(web); s.SetService(dns) }, "dns=[10.0.0.2] web=[10.0.0.1]"},
		{"the same Service again", func(s *Store) { same := *web; s.SetService(&same) }, ""},
		{"a slice", func(s *Store) { s.SetSlice(slice("web-1", "web", "10.1.0.1")) }, "web=[10.0.0.1],10.1.0.1"},
		{"an equal slice", func(s *Store) { s.SetSlice(slice("web-1", "web", "10.1.0.1")) }, ""},
		{
			"another slice", func(s *Store) { s.SetSlice(slice("web-2", "web", "10.1.0.2")) },
			"web=[10.0.0.1],10.1.0.1,10.1.0.2",
		},
		{
			"the first one changes", func(s *Store) { s.SetSlice(slice("web-1", "web", "10.1.0.9")) },
			"web=[10.0.0.1],10.1.0.2,10.1.0.9",
		},
		{
			"it changes to another service", func(s *Store) { s.SetSlice(slice("web-1", "dns", "10.1.0.9")) },
			"dns=[10.0.0.2],10.1.0.9 web=[10.0.0.1],10.1.0.2",
		},
		{"a slice is deleted", func(s *Store) { s.DeleteSlice(name("web-2")) }, "web=[10.0.0.1]"},
		{"a missing slice is deleted", func(s *Store) { s.DeleteSlice(name("web-2")); s.DeleteService(name("nobody")) }, ""},
		{"the service is deleted, its slice stays", func(s *Store) { s.DeleteService(name("dns")) }, "dns=none,10.1.0.9"},
		{"the service is added again", func(s *Store) { s.SetService(dns) }, "dns=[10.0.0.2],10.1.0.9"},
		{"a slice before its service", func(s *Store) { s.SetSlice(slice("new-1", "new", "10.1.0.3")) }, "new=none,10.1.0.3"},
		{"ServiceCIDRs, in any order and twice", func(s *Store) {
			s.SetServiceCIDRs([]netip.Prefix{
				netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("10.2.0.0/16"),
			})
		}, "node=none cidrs=[10.0.0.0/16 10.2.0.0/16] local=[]"},
		{
			"local addresses", func(s *Store) { s.SetLocalAddresses(ips("192.168.0.2", "127.0.0.1")) },
			"node=none cidrs=[10.0.0.0/16 10.2.0.0/16] local=[127.0.0.1 192.168.0.2]",
		},
		{
			"the same in another order", func(s *Store) { s.SetLocalAddresses(ips("127.0.0.1", "192.168.0.2", "192.168.0.2")) },
			"",
		},
		{
			"the Node: every service", func(s *Store) { s.SetNode(&Node{Name: "a"}) },
			"dns=[10.0.0.2],10.1.0.9 new=none,10.1.0.3 web=[10.0.0.1] node=a cidrs=[10.0.0.0/16 10.2.0.0/16] local=[127.0.0.1 " +
				"192.168.0.2]",
		},
		{"an equal Node", func(s *Store) { s.SetNode(&Node{Name: "a"}) }, ""},
		{"a stand-in while there is a Node", func(s *Store) { s.SetStandIn(&Node{Name: "b"}) }, ""},
	}
	s := NewStore()
	for _, st := range steps {
		st.do(s)
		if got := text(s.Take()); got != st.want {
			t.Fatalf("%s: got %q, want %q", st.what, got, st.want)
		}
	}
	s.SetNode(nil)
	if c := s.Take(); c.Facts == nil || c.Facts.Node.Name != "b" || len(c.Services) != 3 {
		t.Errorf("without Node: got %q, want the stand-in and every service", text(c))
	}
}

func TestTakenSlicesDoNotChange(t *testing.T) {
	s := NewStore()
	s.SetService(&Service{Name: name("web"), ClusterIPs: ips("10.0.0.1")})
	s.SetSlice(slice("web-1", "web", "10.1.0.1"))
	before := s.Take()
	s.SetSlice(slice("web-2", "web", "10.1.0.2"))
	s.SetSlice(slice("web-1", "web", "10.1.0.3"))
	s.DeleteSlice(name("web-2"))
	s.Take()
	if got := text(before); got != "web=[10.0.0.1],10.1.0.1" {
		t.Errorf("an earlier Change became %q", got)
	}
}

func TestEqualComparesEveryField(t *testing.T) {
	service := func(change func(*Service)) *Service {
		v := &Service{
			Name: name("web"), Created: time.Unix(1, 0), SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		}
		if change != nil {
			change(v)
		}
		return v
	}
	for i, change := range []func(*Service){
		func(s *Service) { s.Created = time.Unix(2, 0) }, func(s *Service) { s.Ignored = "headless" },
		func(s *Service) { s.Type = NodePort }, func(s *Service) { s.ClusterIPs = ips("10.0.0.1") },
		func(s *Service) { s.ExternalIPs = ips("10.0.0.1") }, func(s *Service) { s.LoadBalancerIPs = ips("10.0.0.1") },
		func(s *Service) { s.Ports = []ServicePort{{Port: 1}} }, func(s *Service) { s.InternalLocal = true },
		func(s *Service) { s.ExternalLocal = true }, func(s *Service) { s.Restricted = true },
		func(s *Service) { s.SourceRanges = nil }, func(s *Service) { s.Affinity = 1 },
		func(s *Service) { s.HealthCheckNodePort = 1 },
	} {
		if service(change).equal(service(nil)) {
			t.Errorf("change %d of a Service is not detected", i)
		}
	}
	endpoint := Endpoint{Addr: netip.MustParseAddr("10.1.0.1"), Hints: &Hints{Zones: []string{"a"}}}
	for i, change := range []func(*Endpoint){
		func(e *Endpoint) { e.Addr = netip.MustParseAddr("10.1.0.2") }, func(e *Endpoint) { e.Node = "a" },
		func(e *Endpoint) { e.Ready = true }, func(e *Endpoint) { e.Serving = true },
		func(e *Endpoint) { e.Terminating = true }, func(e *Endpoint) { e.Hints = nil },
		func(e *Endpoint) { e.Hints = &Hints{Zones: []string{"b"}} },
		func(e *Endpoint) { e.Hints = &Hints{Zones: []string{"a"}, Nodes: []string{"n"}} },
	} {
		other := endpoint
		change(&other)
		if other.equal(endpoint) {
			t.Errorf("change %d of an Endpoint is not detected", i)
		}
	}
}

func TestReadyAfterAllFeeds(t *testing.T) {
	s := NewStore()
	first, second := s.Feed(), s.Feed()
	first()
	first() // the second call has no effect
	select {
	case <-s.Ready():
		t.Fatal("ready before the second feed is done")
	default:
	}
	second()
	<-s.Ready()
}

func TestManyChangesSendOneValue(t *testing.T) {
	s := NewStore()
	for i := range 10 {
		s.SetService(&Service{Name: name(fmt.Sprint(i))})
	}
	<-s.Changed()
	select {
	case <-s.Changed():
		t.Error("Changed received two values")
	default:
	}
	if got := len(s.Take().Services); got != 10 {
		t.Errorf("took %d services, want 10", got)
	}
	if got := text(s.Take()); got != "" {
		t.Errorf("the second Take has %s", got)
	}
}

func TestNames(t *testing.T) {
	s := NewStore()
	s.SetService(&Service{Name: name("web")})
	s.SetSlice(slice("alone", "nobody", "10.1.0.1"))
	if got := fmt.Sprint(s.ServiceNames(), s.SliceNames()); got != "[default/web] [default/alone]" {
		t.Errorf("got %s", got)
	}
}

// Slices of one Service that come and go are listed once each, in a list whose length does
// not grow with the number of former slices. A Change keeps its slices.
func TestSlicesThatComeAndGo(t *testing.T) {
	s := NewStore()
	svc := Name{"default", "web"}
	s.SetService(&Service{Name: svc})
	rnd := rand.New(rand.NewPCG(1, 2))
	have, made := map[Name]*Slice{}, map[string]*Slice{}
	var before, kept []*Slice
	for range 5000 {
		id := fmt.Sprint(rnd.IntN(40))
		name := Name{"default", id}
		switch rnd.IntN(5) {
		case 0, 1:
			s.DeleteSlice(name)
			delete(have, name)
		case 2:
			taken := s.Take()
			if !slices.Equal(before, kept) {
				t.Fatal("a list that was taken has changed")
			}
			if len(taken.Services) > 0 {
				before = taken.Services[0].Slices
				kept = slices.Clone(before)
				sameSlices(t, before, have)
			}
		default: // one of two versions
			key := id + fmt.Sprint(rnd.IntN(2))
			if made[key] == nil {
				made[key] = &Slice{Name: name, Service: svc, Ports: []SlicePort{{Name: key}}}
			}
			s.SetSlice(made[key])
			have[name] = made[key]
		}
		if n := len(s.services[svc].slices); n > 2*40+1 {
			t.Fatalf("%d slices are kept of %d", n, len(have))
		}
	}
}

func sameSlices(t *testing.T, got []*Slice, want map[Name]*Slice) {
	t.Helper()
	seen := map[Name]bool{}
	for _, sl := range got {
		if seen[sl.Name] || want[sl.Name] == nil || !sl.equal(want[sl.Name]) {
			t.Fatalf("slice %v, want %v; listed before: %v", sl, want[sl.Name], seen[sl.Name])
		}
		seen[sl.Name] = true
	}
	if len(got) != len(want) {
		t.Fatalf("%d slices, want %d", len(got), len(want))
	}
}

// BenchmarkSlicesOfOneService adds n slices one by one and deletes them one by one. Time
// and memory for each must not depend on n.
func BenchmarkSlicesOfOneService(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			list := make([]*Slice, n)
			for i := range list {
				list[i] = &Slice{Name: Name{"default", fmt.Sprint("web-", i)}, Service: Name{"default", "web"}}
			}
			b.ReportAllocs()
			for b.Loop() {
				s := NewStore()
				for _, sl := range list {
					s.SetSlice(sl)
				}
				for _, sl := range list {
					s.DeleteSlice(sl.Name)
				}
			}
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(n), "ns/slice")
		})
	}
}
