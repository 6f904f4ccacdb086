package route

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// rivalServices returns Services that all ask for the same external IP and ports. The first by precedence comes first.
func rivalServices(n, ports int) []*cluster.Service {
	list := make([]*cluster.Service, n)
	for i := range list {
		list[i] = &cluster.Service{
			Name:        cluster.Name{Namespace: "tenant", Name: fmt.Sprintf("s%06d", i)},
			Created:     time.Unix(1000, 0),
			ClusterIPs:  []netip.Addr{netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)})},
			ExternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 1})},
		}
		for p := range ports {
			list[i].Ports = append(list[i].Ports,
				cluster.ServicePort{Name: fmt.Sprint("p", p), Protocol: cluster.TCP, Port: uint16(1 + p)})
		}
	}
	return list
}

// orders are ways in which Services come, and go.
func orders() map[string]func([]*cluster.Service) {
	return map[string]func([]*cluster.Service){
		"oldest first": func([]*cluster.Service) {},
		"newest first": slices.Reverse[[]*cluster.Service],
		"random": func(list []*cluster.Service) {
			rand.New(rand.NewPCG(1, 2)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		},
	}
}

func states(list []*cluster.Service) cluster.Delta {
	var c cluster.Delta
	for _, svc := range list {
		c.Services = append(c.Services, stateOf(svc))
	}
	return c
}

func withdrawn(svc *cluster.Service) cluster.Delta {
	return cluster.Delta{Services: []cluster.State{{Name: svc.Name}}}
}

// A claim concerns the Service that comes or goes and at most one more, however many ask for it and in whichever order.
func TestAClaimConcernsTwoServices(t *testing.T) {
	const n, ports = 300, 3
	for name, order := range orders() {
		t.Run(name, func(t *testing.T) {
			list := rivalServices(n, ports)
			order(list)
			c := NewCompiler(Options{})
			for _, svc := range list {
				mostTwo(t, c, change(svc), svc)
			}
			owner := rivalServices(1, 1)[0]
			if holders(c, ExternalIP) != owner.Name.Name+"/IPv4 "+owner.Name.Name+"/IPv4 "+owner.Name.Name+"/IPv4" {
				t.Errorf("the external IP is with %s, want %s", holders(c, ExternalIP), owner.Name)
			}
			if len(c.allProblems()) != (n-1)*ports {
				t.Errorf("%d problems, want one for each port of each Service but the owner", len(c.allProblems()))
			}
			for _, svc := range list {
				mostTwo(t, c, withdrawn(svc), svc)
			}
			if len(c.claims.owner)+len(c.claims.rivals)+c.records.Len() > 0 {
				t.Errorf("left behind: %d owners, %d with rivals, %d records",
					len(c.claims.owner), len(c.claims.rivals), c.records.Len())
			}
		})
	}
}

// allProblems returns the present problems of all objects, in no order.
func (c *Compiler) allProblems() []Problem {
	all := slices.Clone(c.hostProblems)
	for r := range c.records.Scan {
		all = append(all, r.reported.problems()...)
	}
	return all
}

// mostTwo compiles a change of one Service, and fails the test if it is reported
// to concern more than that one and another.
func mostTwo(t *testing.T, c *Compiler, change cluster.Delta, svc *cluster.Service) {
	t.Helper()
	before := c.compiled
	got, problems := c.Compile(change)
	if len(got.Touched) > 2 || c.compiled-before > 2 {
		t.Fatalf("%v: %d Services touched, %d compiled; want at most 2", svc.Name, len(got.Touched), c.compiled-before)
	}
	if len(problems) > 2*MaxAlike {
		t.Fatalf("%v: %d problems reported, want at most %d", svc.Name, len(problems), 2*MaxAlike)
	}
}

// In one change every Service is compiled once, and each Service that does not get the claim has one problem.
func TestManyServicesAskForOneClaim(t *testing.T) {
	const n = 3000
	for name, order := range orders() {
		t.Run(name, func(t *testing.T) {
			list := rivalServices(n, 1)
			order(list)
			c := NewCompiler(Options{})
			got, problems := c.Compile(states(list))
			if len(got.Touched) != n || len(problems) != n-1 || c.compiled != n {
				t.Errorf("%d touched, %d compiled, %d problems; want %d, %d, %d",
					len(got.Touched), c.compiled, len(problems), n, n, n-1)
			}
		})
	}
}

// A Service may lose very much: that is a few problems, and a count.
func TestManyLostClaimsAreFewProblems(t *testing.T) {
	list := rivalServices(2, 100)
	for i := range 100 {
		a := netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)})
		list[0].ExternalIPs = append(list[0].ExternalIPs[:i:i], a)
		list[1].ExternalIPs = append(list[1].ExternalIPs[:i:i], a)
	}
	c := NewCompiler(Options{})
	_, problems := c.Compile(states(list))
	const line = "Service tenant/s000001: spec.externalIPs: 192.0.2.%d:1/tcp: left out, " +
		"as it belongs to Service tenant/s000000"
	sameText(t, joinProblems(problems),
		fmt.Sprintf(line, 1)+"\n"+fmt.Sprintf(line, 2)+"\n"+fmt.Sprintf(line, 3)+" (and 9997 more like it)")
	if got := c.Table().Services[list[1].Name].Lost; got != 10_000 {
		t.Errorf("%d lost, want 10000", got)
	}
	if last := problems[len(problems)-1]; last.Count != 9998 {
		t.Errorf("the last problem counts %d, want 9998", last.Count)
	}
	sameText(t, joinProblems(c.Snapshot().Problems(list[1].Name)), joinProblems(problems))

	// Only an additional loss is reported.
	more := *list[1]
	more.ExternalIPs = append(slices.Clone(more.ExternalIPs), list[0].ClusterIPs[0])
	more.Ports = more.Ports[:1]
	_, problems = c.Compile(change(&more))
	sameText(t, joinProblems(problems),
		"Service tenant/s000001: spec.externalIPs: 172.16.0.0:1/tcp: left out, as it belongs to Service tenant/s000000")
	if got := c.Table().Services[more.Name].Lost; got != 101 {
		t.Errorf("%d lost, want 101", got)
	}
}

// A problem names the owner of the moment, and is not new if that changes.
func TestAProblemNamesThePresentOwner(t *testing.T) {
	list := rivalServices(3, 1)
	c := NewCompiler(Options{})
	c.Compile(states(list))
	belongs := func(to int) string {
		return "Service tenant/s000002: spec.externalIPs: 192.0.2.1:1/tcp: left out, as it belongs to Service " +
			list[to].Name.String()
	}
	sameText(t, joinProblems(c.Snapshot().Problems(list[2].Name)), belongs(0))
	_, problems := c.Compile(withdrawn(list[0]))
	sameText(t, joinProblems(problems), "")
	sameText(t, joinProblems(c.Snapshot().Problems(list[2].Name)), belongs(1))
	c.Compile(withdrawn(list[1]))
	sameText(t, joinProblems(c.Snapshot().Problems(list[2].Name)), "")
}

// manyPorts returns a Service of n ports and a slice that has them all.
func manyPorts(n int) (*cluster.Service, *cluster.Slice) {
	svc := web(func(s *cluster.Service) { s.Ports = nil })
	sl := sliceOf(svc, "x", []cluster.Endpoint{{Addr: ip("10.1.0.1"), Ready: true, Serving: true}})
	sl.Ports = nil
	for i := range n {
		name := fmt.Sprint("p", i)
		svc.Ports = append(svc.Ports, cluster.ServicePort{Name: name, Protocol: cluster.TCP, Port: uint16(1 + i)})
		sl.Ports = append(sl.Ports, cluster.SlicePort{Name: name, Protocol: cluster.TCP, Port: uint16(1 + i)})
	}
	return svc, sl
}

// manyAddresses returns a Service of n external IPs.
func manyAddresses(n, ports int) *cluster.Service {
	svc, _ := manyPorts(ports)
	for i := range n {
		svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	return svc
}

// manyEndpoints returns slices of a Service with n endpoints in all.
func manyEndpoints(svc *cluster.Service, n int) []*cluster.Slice {
	var list []*cluster.Slice
	for from := 0; from < n; from += 1000 {
		var eps []cluster.Endpoint
		for i := from; i < min(n, from+1000); i++ {
			eps = append(eps, cluster.Endpoint{
				Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Ready: true, Serving: true,
			})
		}
		list = append(list, sliceOf(svc, fmt.Sprint(from), eps))
	}
	return list
}

// Each port of a large Service has its own endpoints, and the endpoints of other ports are not visited.
func TestPortsFindTheirEndpoints(t *testing.T) {
	svc, sl := manyPorts(2000)
	got := compileOne(t, Options{}, svc, sl)
	if len(got.Ports) != 2000 {
		t.Fatalf("%d ports, want 2000", len(got.Ports))
	}
	for i, p := range got.Ports {
		if want := netip.AddrPortFrom(ip("10.1.0.1"), uint16(1+i)); !slices.Equal(p.Cluster, []netip.AddrPort{want}) {
			t.Fatalf("port %s leads to %v, want %v", p.Name, p.Cluster, want)
		}
	}
	from := suppliesOf(state{service: svc, slices: []*cluster.Slice{sl}})
	if list := from.candidates(nil, backendKey{portName{"p7", cluster.TCP}, IPv4}); len(list) != 1 || cap(list) > 8 {
		t.Errorf("a port looks at %d endpoints, want its own only", cap(list))
	}
}

// A Service whose ports and endpoints multiply is left out alone, and that is reported with the number and the limit.
func TestTooManyBackends(t *testing.T) {
	svc, sl := manyPorts(1001)
	list := manyEndpoints(svc, 1000)
	list[0].Ports = sl.Ports
	c := NewCompiler(Options{})
	_, problems := c.Compile(cluster.Delta{Services: []cluster.State{stateOf(svc, list[0])}})
	const why = "its ports and endpoints make more than 1000000 backends, more than this node has memory for; " +
		"the Service is not programmed: use fewer ports or endpoints"
	sameText(t, joinProblems(problems), "Service default/web: spec.ports: 1001000 backends: "+why)
	if got := c.Table().Services[svc.Name]; got.Ignored != why || len(got.Ports) > 0 {
		t.Errorf("%d ports, ignored: %q", len(got.Ports), got.Ignored)
	}
	list[0].Endpoints = list[0].Endpoints[:900]
	less := *list[0]
	c.Compile(cluster.Delta{Services: []cluster.State{stateOf(svc, &less)}})
	if got := c.Table().Services[svc.Name]; got.Ignored != "" || len(got.Ports) != 1001 || len(c.allProblems()) > 0 {
		t.Errorf("with fewer endpoints: %d ports, ignored: %q", len(got.Ports), got.Ignored)
	}
}

// claimWork is work on claims for a Compiler.
type claimWork struct {
	what  string
	start func() *Compiler
	run   func(*Compiler)
}

// claimWorks are the ways in which Services come and go.
func claimWorks(list []*cluster.Service) []claimWork {
	all := states(list)
	gone := make([]cluster.State, len(list))
	for i, svc := range list {
		gone[i].Name = svc.Name
	}
	empty := func() *Compiler { return NewCompiler(Options{}) }
	full := func() *Compiler { c := empty(); c.Compile(all); return c }
	return []claimWork{
		{"come at once", empty, func(c *Compiler) { c.Compile(all) }},
		{"come one by one", empty, func(c *Compiler) { each(c, all.Services) }},
		{"go one by one", full, func(c *Compiler) { each(c, gone) }},
		{"go at once", full, func(c *Compiler) { c.Compile(cluster.Delta{Services: gone}) }},
	}
}

// BenchmarkClaims is what n Services that ask for one external IP cost. Time and
// memory for each claim stay about the same: n log n in all.
func BenchmarkClaims(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		list := rivalServices(n, 1)
		for _, order := range []string{"oldest first", "newest first", "random"} {
			ordered := slices.Clone(list)
			orders()[order](ordered)
			for _, w := range claimWorks(ordered) {
				b.Run(fmt.Sprintf("%s/%s/%d", w.what, order, n), func(b *testing.B) { w.perClaim(b, n) })
			}
		}
	}
}

// BenchmarkOwnerGoes is the deletion and the return of the Service that has the claim of n.
func BenchmarkOwnerGoes(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			list := rivalServices(n, 1)
			c := NewCompiler(Options{})
			c.Compile(states(list))
			b.ReportAllocs()
			for b.Loop() {
				c.Compile(withdrawn(list[0]))
				c.Compile(change(list[0]))
			}
		})
	}
}

func each(c *Compiler, list []cluster.State) {
	for i := range list {
		c.Compile(cluster.Delta{Services: list[i : i+1]})
	}
}

// perClaim reports the cost of a run for each of n claims: its time, its allocations, and the memory in use afterwards.
func (w claimWork) perClaim(b *testing.B, n int) {
	b.Helper()
	var took time.Duration
	var allocated uint64
	var kept int64
	for b.Loop() {
		b.StopTimer()
		c := w.start()
		inUse := heapInUse()
		before, began := allocations(), time.Now()
		b.StartTimer()
		w.run(c)
		b.StopTimer()
		took += time.Since(began)
		allocated += allocations() - before
		kept = int64(heapInUse() - inUse)
		runtime.KeepAlive(c)
		b.StartTimer()
	}
	claims := float64(n) * float64(b.N)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took)/claims, "ns/claim")
	b.ReportMetric(float64(allocated)/claims, "B/claim")
	b.ReportMetric(float64(kept)/float64(n), "keptB/claim")
}

func allocations() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// BenchmarkLargeService is one Service that grows in one direction. Time for
// each frontend and endpoint stays about the same.
func BenchmarkLargeService(b *testing.B) {
	for _, size := range []int{1, 4, 16} {
		ports := min(65_535, size*4096)
		one, sl := manyPorts(ports)
		largeService(b, fmt.Sprintf("ports/%d", ports), ports, stateOf(one, sl))
		addrs := size * 1000 / 16
		many := manyAddresses(addrs, 100)
		largeService(b, fmt.Sprintf("external IPs x 100 ports/%d", addrs), 100*addrs, stateOf(many))
		wide := web()
		endpoints := size * 100_000 / 16
		largeService(b, fmt.Sprintf("endpoints/%d", endpoints), endpoints, stateOf(wide, manyEndpoints(wide, endpoints)...))
	}
}

func largeService(b *testing.B, name string, n int, st cluster.State) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c := NewCompiler(benchOptions())
			c.Compile(cluster.Delta{Services: []cluster.State{st}})
		}
		b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(n), "ns/each")
	})
	b.Run("again/"+name, func(b *testing.B) { // as when an endpoint changes
		c := NewCompiler(benchOptions())
		c.Compile(cluster.Delta{Services: []cluster.State{st}})
		b.ReportAllocs()
		for b.Loop() {
			c.take(c.compile([]cluster.Name{st.Name})[0])
		}
		b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(n), "ns/each")
	})
}
