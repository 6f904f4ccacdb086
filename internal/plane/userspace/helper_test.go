package userspace

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

var golden = planetest.Golden()

// rig is a plane with an engine, and perhaps rules, in memory.
type rig struct {
	*Plane
	t      *testing.T
	engine *fakeEngine
	rules  *fakeRules
	table  *route.Table
}

// newRig returns a rig without rules.
func newRig(t *testing.T, opt Options) *rig {
	t.Helper()
	r := &rig{t: t, engine: newFakeEngine(), table: &route.Table{Services: map[cluster.Name]*route.Service{}}}
	if opt.Addrs == nil {
		opt.Addrs = loopbackAddrs(route.Families())
	}
	r.Plane = New(r.engine.Listen, opt)
	return r
}

// newRuleRig returns a rig with rules.
func newRuleRig(t *testing.T, opt Options) *rig {
	t.Helper()
	rules := newFakeRules()
	opt.Rules = &rulePlane{fakeRules: rules}
	r := newRig(t, opt)
	r.rules = rules
	return r
}

// load compares everything with some Services, and returns the error of the write.
func (r *rig) load(list ...*route.Service) error {
	r.t.Helper()
	clear(r.table.Services)
	for _, svc := range list {
		r.table.Services[svc.Name] = svc
	}
	if err := r.Refresh(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return r.Plan(route.Change{Table: r.table}).Apply(r.t.Context())
}

// set writes a change of one Service; one without ports is deleted.
func (r *rig) set(svc *route.Service) error {
	touch := route.Touch{Name: svc.Name, Old: r.table.Services[svc.Name], New: svc}
	if r.table.Services[svc.Name] = svc; svc.Ports == nil {
		touch.New = nil
		delete(r.table.Services, svc.Name)
	}
	return r.Plan(route.Change{Table: r.table, Touched: []route.Touch{touch}}).Apply(r.t.Context())
}

// ok fails the test on an error.
func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// listed returns where the sockets of a Service listen.
func (r *rig) listed(name string) []netip.AddrPort {
	var list []netip.AddrPort
	for _, s := range r.Sockets() {
		if s.Service.Name == name {
			list = append(list, s.At)
		}
	}
	return list
}

func svcName(name string) cluster.Name { return cluster.Name{Namespace: "ns", Name: name} }

// service returns a Service with ports.
func service(name string, ports ...route.Port) *route.Service {
	for i := range ports {
		if i > 0 && ports[i].Name == "" && ports[i].ID(svcName(name)) == ports[0].ID(svcName(name)) {
			ports[i].Name = fmt.Sprint("p", i+1)
		}
	}
	return &route.Service{Name: svcName(name), Ports: ports}
}

// tcp returns a port that balances to the pool Cluster.
func tcp(number uint16, backends ...string) route.Port {
	p := route.Port{
		Protocol: cluster.TCP, Family: route.IPv4,
		Frontends: []route.Frontend{{Port: number, Addr: netip.MustParseAddr("172.30.0.1")}},
	}
	for _, b := range backends {
		p.Cluster = append(p.Cluster, netip.MustParseAddrPort(b))
	}
	return p
}

// over returns a port with another protocol.
func over(p route.Port, protocol cluster.Protocol) route.Port {
	p.Protocol = protocol
	return p
}

// to returns a port whose frontends balance to a pool.
func to(p route.Port, pool route.Pool) route.Port {
	w := route.Action{Pool: pool}
	p.Local = p.Cluster
	p.Frontends = []route.Frontend{{Port: p.Frontends[0].Port, Addr: p.Frontends[0].Addr, Pods: w, Node: w, Others: w}}
	return p
}

// at parses addresses of sockets.
func at(list ...string) []netip.AddrPort {
	var all []netip.AddrPort
	for _, s := range list {
		all = append(all, netip.MustParseAddrPort(s))
	}
	return all
}
