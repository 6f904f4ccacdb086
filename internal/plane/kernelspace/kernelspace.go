// Package kernelspace is the plane that balances with the Host Networking Service of Windows (HNS):
// each address and port of a Service is a load balancer, and its backends are endpoints. README.md
// says what belongs to the plane.
package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// HNS is access to the service: hns.Service.
type HNS interface {
	Node
	Endpoints
	Balancers
}

// Node reads the features and the networks of HNS.
type Node interface {
	Features(ctx context.Context) (hns.Features, error)
	Network(ctx context.Context, name string) (hns.Network, error) // hns.ErrNoNetwork
}

// Endpoints are the endpoints of all networks.
type Endpoints interface {
	Endpoints(ctx context.Context) ([]hns.Endpoint, error)
	CreateEndpoint(ctx context.Context, e hns.Endpoint) (id string, err error)
	DeleteEndpoint(ctx context.Context, id string) error // hns.ErrNotFound
}

// Balancers are the load balancers of this host.
type Balancers interface {
	LoadBalancers(ctx context.Context) ([]hns.LoadBalancer, error)
	CreateLoadBalancer(ctx context.Context, l hns.LoadBalancer) (id string, err error) // hns.ErrPortExists
	ModifyLoadBalancer(ctx context.Context, l hns.LoadBalancer) error
	DeleteLoadBalancer(ctx context.Context, id string) error // hns.ErrNotFound
}

// Options for New.
type Options struct {
	Network   string     // its name
	SourceVIP netip.Addr // of load balancers; overlay networks need it
	DSR       bool       // for clusterIPs
	Poll      time.Duration

	RootEndpoint string // the name of the endpoint that gets health checks at load balancer addresses; empty: none
	HealthPort   uint16 // of Services without a health check node port; 0: none
	IPv6         bool   // Services may have IPv6 addresses

	// Node returns the address of this node, which stands for backends in no remote subnet, and the MAC
	// address of its interface. Refresh calls it if the network is an overlay. Nil: they are not known.
	Node func() (netip.Addr, string, error)

	Failed func(Failure)         // called for each write of a load balancer that failed; may be nil
	Report func([]route.Problem) // called with each new problem of the network; may be nil

	// OneTarget means that HNS accepts only one load balancer for each address and port. If it is false, the
	// plane detects that when HNS refuses a second one.
	OneTarget bool
}

// pollPeriod is the usual time between two comparisons: HNS reports no edits.
const pollPeriod = 30 * time.Second

// sourceName is the name of the endpoint of the source VIP.
const sourceName = "sluice-source-vip"

// Plane balances with HNS. It implements plane.Plane.
type Plane struct {
	hns    HNS
	opt    Options
	ledger *ledger.Ledger[key, value]
	writer *writer
	fresh  bool                   // Refresh has read the state, and no plan has used it
	waits  atomic.Pointer[string] // why the plane waits
	seen   atomic.Pointer[state]  // features and network as last read, for explanations
	took   atomic.Int64           // the duration of the last Refresh in nanoseconds, for Watch
	noted  map[string]bool        // problems that were reported

	unserved  unserved
	formNoted bool                  // HNS returns settings in another form, which was reported
	forms     atomic.Pointer[forms] // of the last Refresh, for readers

	// single means that HNS accepts only one load balancer for each address and port: only backends with
	// the most common port are served.
	single bool
}

// New makes a Plane. It does nothing yet.
func New(h HNS, opt Options) *Plane {
	if opt.Poll == 0 {
		opt.Poll = pollPeriod
	}
	p := &Plane{
		hns: h, opt: opt, single: opt.OneTarget, ledger: ledger.New[key, value](layout()), noted: map[string]bool{}, unserved: unserved{},
		writer: &writer{hns: h, opt: opt, sent: map[string]sent{}, unremoved: map[key]error{}, lacking: lacking{}},
	}
	p.waits.Store(new(string))
	return p
}

// Refresh reads the network, its endpoints and the load balancers. The error wraps hns.ErrNoNetwork
// while the network does not exist.
func (p *Plane) Refresh(ctx context.Context) error {
	began := time.Now()
	s, err := p.read(ctx)
	p.took.Store(int64(time.Since(began)))
	if err == nil {
		err = p.opt.check(s.network, s.features)
	}
	waits := p.setWaiting(err)
	switch {
	case waits != "":
		return fmt.Errorf("%s: %w", waits, err)
	case err != nil:
		return fmt.Errorf("read HNS: %w", err)
	}
	p.learn(p.writer.confirm(s))
	known := p.writer.forms
	p.forms.Store(&known)
	if s.overlay() && p.opt.IPv6 {
		p.note("it is an overlay network, which has no dual stack: IPv6 addresses of Services are not served")
	}
	if name := p.opt.RootEndpoint; name != "" && len(s.roots) == 0 {
		p.note(fmt.Sprintf("it has no endpoint %q (--root-hnsendpoint-name): health checks at addresses of load balancers are not forwarded", name))
	}
	p.seen.Store(&state{features: s.features, network: s.network})
	p.writer.state, p.writer.lacking, p.fresh = s, lacking{}, true
	return nil
}

// note reports a problem of the network, once.
func (p *Plane) note(reason string) {
	if !p.noted[reason] {
		p.noted[reason] = true
		p.opt.report(reason)
	}
}

func (o *Options) report(reason string) {
	if o.Report != nil {
		o.Report([]route.Problem{{Object: "HNS network " + o.Network, Reason: reason}})
	}
}

// errNode means that the address of this node or its MAC address could not be read.
var errNode = errors.New("read the address of this node")

func (p *Plane) read(ctx context.Context) (*state, error) {
	s := &state{balancers: map[key]balancer{}, sourceVIP: p.opt.SourceVIP}
	var err error
	if s.features, err = p.hns.Features(ctx); err != nil {
		return nil, err
	}
	if s.network, err = p.hns.Network(ctx, p.opt.Network); err != nil {
		return nil, err
	}
	if s.overlay() && p.opt.Node != nil {
		if s.nodeIP, s.hostMAC, err = p.opt.Node(); err != nil {
			return nil, fmt.Errorf("%w: %w", errNode, err)
		}
	}
	return s, p.objects(ctx, s)
}

// objects reads the endpoints and the load balancers. Reading may take minutes, so it reads the endpoints again if some may have been created
// or deleted meanwhile.
func (p *Plane) objects(ctx context.Context, s *state) error {
	list, err := p.hns.Endpoints(ctx)
	if err != nil {
		return err
	}
	s.setEndpoints(list)
	if ctx.Err() != nil {
		return ctx.Err() // the calls of the library do not end with the context
	}
	balancers, err := p.hns.LoadBalancers(ctx)
	if err != nil {
		return err
	}
	if p.writer.doubts(s, balancers) {
		if list, err = p.hns.Endpoints(ctx); err != nil {
			return err
		}
		before := s.elsewhere
		s.setEndpoints(list)
		maps.Copy(s.elsewhere, before)
	}
	s.findRoots(p.opt.RootEndpoint)
	s.setBalancers(balancers)
	return nil
}

// Plan computes what to write; after a Refresh it compares everything.
func (p *Plane) Plan(change route.Change) plane.Plan {
	host := &change.Table.Host
	plan := &Plan{plane: p, change: change}
	p.reportUnserved(change)
	if !p.fresh {
		plan.Plan = p.ledger.Change(p.writer)
		p.touched(plan.Plan, change)
		return plan
	}
	found := newListing(p.writer.state)
	plan.Plan = p.ledger.Compare(p.writer, found)
	plan.Host(nil, p.fixed())
	for _, name := range change.Table.Order() {
		plan.Service(name, nil, p.render(change.InKernel(name), host))
	}
	plan.End()
	for _, k := range found.twice {
		other := "health checks (--forward-healthcheck-vip)"
		if k.class == nodePort {
			other = "a NodePort (--nodeport-addresses)"
		}
		p.note(fmt.Sprintf("a Service and %s need %s: only one of them is served; use another port", other, netip.AddrPortFrom(k.addr, k.port)))
	}
	plan.Users(p.users(change))
	return plan
}

// users returns a function that returns the Services that need a shared entry. Its first call renders all Services.
func (p *Plane) users(change route.Change) func(key) []cluster.Name {
	index := sync.OnceValue(func() map[key][]cluster.Name {
		users := map[key][]cluster.Name{}
		for _, name := range change.Table.Order() {
			for _, e := range p.render(change.InKernel(name), &change.Table.Host) {
				if list := users[e.Key]; e.Key.kind().Shared && (len(list) == 0 || list[len(list)-1] != name) {
					users[e.Key] = append(list, name)
				}
			}
		}
		return users
	})
	return func(k key) []cluster.Name { return index()[k] }
}

// touched plans a change between two states that are both known.
func (p *Plane) touched(plan *ledger.Plan[key, value], change route.Change) {
	host := &change.Table.Host
	before := host
	if change.OldHost != nil {
		before = change.OldHost
	}
	done := map[cluster.Name]bool{}
	for _, t := range change.Touched {
		plan.Service(t.Name, p.render(t.Old, before), p.render(t.New, host))
		done[t.Name] = true
	}
	if change.OldHost != nil {
		for _, name := range change.Table.Order() {
			if svc := change.Table.Services[name]; !done[name] {
				plan.Service(name, p.render(svc, before), p.render(svc, host))
			}
		}
	}
	plan.End()
}

// fixed returns the entries that belong to no Service.
func (p *Plane) fixed() []entry {
	if !p.writer.state.overlay() || !p.opt.SourceVIP.IsValid() {
		return nil
	}
	return []entry{{Key: key{class: source, addr: p.opt.SourceVIP}}}
}

// Plan is a change of HNS.
type Plan struct {
	*ledger.Plan[key, value]
	plane  *Plane
	change route.Change
}

// Apply writes the plan. If HNS refuses a second load balancer for an address and port, it
// compares everything again, with one for each.
func (p *Plan) Apply(ctx context.Context) error {
	p.plane.fresh = false
	err := p.Plan.Apply(ctx)
	if !errors.Is(err, errOneTarget) || p.plane.single {
		return err
	}
	p.plane.single = true
	if err := p.plane.Refresh(ctx); err != nil {
		return err
	}
	return p.plane.Plan(p.change).Apply(ctx)
}
