package nftables

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// table is a conntrack table. It counts listings.
type table struct {
	entries  []conntrack.Entry
	listings int
}

func (t *table) Each(_ context.Context, f conntrack.Filter, fn func(conntrack.Entry) error) error {
	t.listings++
	for _, e := range t.entries {
		if f.Match(e) {
			if err := fn(e); err != nil {
				return err
			}
		}
	}
	return nil
}

func podAt(n byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, n}), 8080)
}

// connection is one to a Service that a pod answers, in a state of TCP.
func connection(pod byte, state conntrack.State) conntrack.Entry {
	return conntrack.Entry{
		Protocol: conntrack.TCP, OrigDst: netip.MustParseAddrPort("10.96.0.1:80"), ReplySrc: podAt(pod),
		Status: conntrack.DstNAT, State: state,
	}
}

// busy is a Service with two pods.
func busy(scheduler string) *cluster.Service {
	return &cluster.Service{
		Name: cluster.Name{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}}, Scheduler: scheduler,
	}
}

// Connections are counted once a second, however often Services change, while there is a Service that asks for it.
// Connections that are closing, and connections of other nodes, do not count.
func TestConnectionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &table{entries: []conntrack.Entry{connection(1, 3), connection(1, 1), connection(1, 7), connection(3, 3)}}
		direct := connection(1, 3)
		direct.Status = 0
		kernel.entries = append(kernel.entries, direct)
		c := newCounter(kernel, func(err error) { t.Error(err) })
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = c.Run(ctx) }()
		f := newFixture()
		synctest.Wait()
		if live := c.take(); live != nil || kernel.listings > 0 {
			t.Errorf("without a Service %d listings, %v", kernel.listings, live)
		}
		for range 10 {
			c.Applied(f.change(t, "lc"))
			time.Sleep(time.Second / 4)
		}
		<-c.ready
		if c.Due().IsZero() || kernel.listings != 3 {
			t.Errorf("%d listings in two and a half seconds, want 3", kernel.listings)
		}
		live := c.take()
		counted := live.Connections[plane.Target{Protocol: cluster.TCP, Backend: podAt(1)}]
		if counted != 2 || len(live.Connections) != 1 || !c.Due().IsZero() {
			t.Errorf("counted %v, want 2 of the first pod", live.Connections)
		}
		c.Applied(f.change(t, "rr"))
		time.Sleep(2 * time.Second)
		listings := kernel.listings
		time.Sleep(time.Minute)
		if kernel.listings != listings || listings > 4 {
			t.Errorf("%d listings, and %d more after the Service has another scheduler", listings, kernel.listings-listings)
		}
		stop()
		<-ended
	})
}

// fixture compiles the changes of one Service.
type fixture struct {
	store    *cluster.Store
	compiler *route.Compiler
}

func newFixture() *fixture {
	f := &fixture{cluster.NewStore(), route.NewCompiler(route.Options{Families: route.Families()})}
	svc := busy("lc")
	slice := &cluster.Slice{
		Name: svc.Name, Service: svc.Name, Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
	}
	for n := range byte(2) {
		slice.Endpoints = append(slice.Endpoints, cluster.Endpoint{Addr: podAt(1 + n).Addr(), Ready: true, Serving: true})
	}
	f.store.SetSlice(slice)
	f.store.SetService(svc)
	return f
}

// change returns a change that touches the Service.
func (f *fixture) change(t *testing.T, scheduler string) route.Change {
	t.Helper()
	f.store.SetService(busy(scheduler))
	c, problems := f.compiler.Compile(f.store.Take())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if len(c.Touched) == 0 { // it is as before
		svc := c.Table.Services[busy("").Name]
		c.Touched = []route.Touch{{Name: svc.Name, Old: svc, New: svc}}
	}
	return c
}

// A plan without a change moves slots after a count, and only then. A new plane, and a comparison, keep the slots.
func TestSlotsAreLeveled(t *testing.T) {
	kernel := nft.NewFake()
	var live *Live
	p := New(kernel, Options{Families: route.Families(), Mark: testMark, Live: func() *Live { return live }})
	f := newFixture()
	change := f.change(t, "lc")
	apply := func(p *Plane, c route.Change) int {
		t.Helper()
		plan := p.Plan(c)
		if err := plan.Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		return plan.Steps()
	}
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	apply(p, change)
	svc := change.Table.Services[busy("").Name]
	share := func() float64 { return p.Shares(plane.Connection{Service: svc}).Of[podAt(2)] }
	nothing := route.Change{Table: change.Table}
	if n := apply(p, nothing); n > 0 || share() != 0.5 {
		t.Errorf("%d steps without a count, share %.2f", n, share())
	}
	live = &Live{
		Services: change.Table.Services, Connections: map[plane.Target]int{{Protocol: cluster.TCP, Backend: podAt(1)}: 100},
	}
	if n := apply(p, nothing); n == 0 || share() < 0.6 {
		t.Errorf("after a count %d steps, the idle pod has a share of %.2f", n, share())
	}
	later := share()
	other := *svc
	live.Services = map[cluster.Name]*route.Service{svc.Name: &other} // not in the kernel
	if n := apply(p, nothing); n > 0 {
		t.Errorf("%d steps for a Service that the kernel holds in another state", n)
	}
	live = nil
	checkSettled(t, kernel, change.Table)
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := apply(p, change); n > 0 || share() != later {
		t.Errorf("a comparison takes %d steps, the share was %.2f and is %.2f", n, later, share())
	}
}
