package ipvs

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// weighted returns the Service with weights of backends that are not 1.
func weighted(svc *route.Service, weights map[string]uint16) *route.Service {
	var list []string
	for _, b := range svc.Ports[0].Cluster {
		list = append(list, b.String())
	}
	out := withBackends(svc, list...)
	out.Ports[0].Weights = map[netip.AddrPort]uint16{}
	for at, w := range weights {
		out.Ports[0].Weights[netip.MustParseAddrPort(at)] = w
	}
	return out
}

// A changed weight is one step.
func TestAWeightIsChangedInOneStep(t *testing.T) {
	fake := newFake()
	change, plain := oneService("10.0.0.1:80", "10.0.0.2:80")
	p := newPlane(fake.kernel(), route.Families(), 1<<20)
	written(t, p, change)
	before := plain
	for _, c := range []struct {
		weights map[string]uint16
		want    string
	}{
		// With weights the default is wrr.
		{
			map[string]uint16{"10.0.0.1:80": 2},
			"# ipvsadm --restore\n-E -t 10.96.0.1:80 -s wrr\n# ipvsadm --restore\n-e -t 10.96.0.1:80 -r 10.0.0.1:80 -m -w 2\n",
		},
		{
			map[string]uint16{"10.0.0.1:80": 2, "10.0.0.2:80": 65535},
			"# ipvsadm --restore\n-e -t 10.96.0.1:80 -r 10.0.0.2:80 -m -w 65535\n",
		},
		{map[string]uint16{"10.0.0.2:80": 65535}, "# ipvsadm --restore\n-e -t 10.96.0.1:80 -r 10.0.0.1:80 -m -w 1\n"},
	} {
		after := weighted(plain, c.weights)
		if got := update(t, p, before, after); got != c.want {
			t.Errorf("%v: got\n%s\nwant\n%s", c.weights, got, c.want)
		}
		before = after
	}
}

// draining is a plane with one Service on a fake whose destinations all have connections.
type draining struct {
	t     *testing.T
	fake  *fakeKernel
	conns int
	now   time.Time
	plane *Plane
	svc   *route.Service
}

func newDraining(t *testing.T, svc *route.Service) *draining {
	t.Helper()
	d := &draining{t: t, fake: newFake(), conns: 1, now: time.Now(), svc: svc}
	d.fake.servers.Connections = func(ipvs.Server, netip.AddrPort) int { return d.conns }
	d.restart(svc)
	return d
}

func (d *draining) newPlane() *Plane {
	return New(d.fake.kernel(), Options{
		Families: route.Families(), Mark: 0x4000, Now: func() time.Time { return d.now },
	})
}

// restart compares everything, in a new plane.
func (d *draining) restart(svc *route.Service) {
	d.t.Helper()
	d.plane, d.svc = d.newPlane(), svc
	written(d.t, d.plane, route.Change{Table: &route.Table{Services: map[cluster.Name]*route.Service{svc.Name: svc}}})
}

func (d *draining) update(svc *route.Service) {
	d.t.Helper()
	update(d.t, d.plane, d.svc, svc)
	d.svc = svc
}

// later lets the plane look at its drains.
func (d *draining) later(after time.Duration) {
	d.t.Helper()
	d.now = d.now.Add(after)
	d.update(d.svc)
}

func (d *draining) want(text string) {
	d.t.Helper()
	if got := destinations(d.t, d.fake.kernel()); got != text {
		d.t.Errorf("destinations %s, want %s", got, text)
	}
}

// An endpoint of weight 0 is not a drain: it stays without connections as long as the Service
// has it, also if it drained before, and is deleted when the Service has it no more.
func TestAnEndpointOfWeight0Stays(t *testing.T) {
	_, svc := oneService("10.0.0.1:80", "10.0.0.2:80")
	zero := weighted(svc, map[string]uint16{"10.0.0.1:80": 0})
	without := withBackends(svc, "10.0.0.2:80")
	stays := func(d *draining) {
		t.Helper()
		if due := d.plane.Due(); !due.IsZero() {
			t.Errorf("due at %v although nothing drains", due)
		}
		d.conns = 0
		d.later(drainCheck)
		d.want("10.0.0.1:80 0, 10.0.0.2:80 1")
	}

	d := newDraining(t, zero)
	stays(d)
	d.conns = 1
	d.update(without)
	d.want("10.0.0.1:80 0, 10.0.0.2:80 1")
	d.later(drainCheck)
	d.want("10.0.0.1:80 0, 10.0.0.2:80 1")
	d.update(zero) // it returns
	stays(d)

	d.conns = 1
	d.update(without)
	d.restart(zero) // it returns, which a comparison finds
	stays(d)

	d.conns = 1
	d.update(without)
	if err := d.plane.Refresh(t.Context()); err != nil { // the same without a restart
		t.Fatal(err)
	}
	d.update(zero)
	stays(d)

	d.update(without)
	d.want("10.0.0.2:80 1")
}

// A drain is no difference: another plane for the same kernel, as of the command diff or after
// a restart, has nothing to write. The plane itself continues it after a comparison.
func TestADrainIsNoDifference(t *testing.T) {
	_, svc := oneService("10.0.0.1:80", "10.0.0.2:80")
	d := newDraining(t, svc)
	one := withBackends(svc, "10.0.0.2:80")
	d.update(one)
	table := route.Change{Table: &route.Table{Services: map[cluster.Name]*route.Service{one.Name: one}}}

	for range 2 {
		reader := d.newPlane()
		if err := reader.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if plan := reader.Plan(table); plan.Steps() != 0 {
			t.Errorf("a comparison has steps:\n%s", plan)
		}
		written(t, d.plane, table)
		d.want("10.0.0.1:80 0, 10.0.0.2:80 1")
	}
	d.conns = 0
	d.later(drainCheck)
	d.want("10.0.0.2:80 1")

	d.conns = 1
	d.update(svc)
	d.update(one)
	d.restart(one)
	if d.plane.Due().IsZero() {
		t.Error("nothing is due after a restart")
	}
	d.conns = 0
	d.later(drainCheck)
	d.want("10.0.0.2:80 1")
}

// The kernel's view of a port has the connections of all its virtual servers, also of the one
// for pods, and of destinations that drain.
func TestBalance(t *testing.T) {
	_, svc := oneService("10.0.0.1:80", "10.0.0.2:80")
	port := &svc.Ports[0]
	port.Scheduler, port.Local = "wrr", port.Cluster[:1]
	port.Weights = map[netip.AddrPort]uint16{port.Cluster[1]: 7}
	port.Frontends = append(port.Frontends, route.Frontend{
		Kind: route.LoadBalancer, Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Others: route.Action{Pool: route.Local},
	})
	fake := newFake()
	fake.servers.Connections = func(s ipvs.Server, _ netip.AddrPort) int {
		if s.Mark != 0 {
			return 100
		}
		return 1
	}
	p := newPlane(fake.kernel(), route.Families(), 1<<20)
	host := route.Host{}
	change := route.Change{Table: &route.Table{Host: host, Services: map[cluster.Name]*route.Service{svc.Name: svc}}}
	written(t, p, change)
	got, err := p.Balance(t.Context(), svc, 0, &host)
	want := plane.Balance{
		port.Cluster[0]: {Weight: 1, Inactive: 102}, // its address, the load balancer's, and the mark
		port.Cluster[1]: {Weight: 7, Inactive: 101},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	gone := withBackends(svc, "10.0.0.2:80")
	gone.Ports[0].Local = nil
	gone.Ports[0].Frontends = svc.Ports[0].Frontends[:1]
	update(t, p, svc, gone)
	if got, err := p.Balance(t.Context(), gone, 0, &host); err != nil ||
		got[port.Cluster[0]] != (plane.Balanced{Inactive: 1}) {
		t.Errorf("while a destination drains: %+v, %v", got, err)
	}
}
