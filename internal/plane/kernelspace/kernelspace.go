// Package kernelspace is the plane that balances with the Host Networking Service of Windows (HNS): each address and
// port of a Service is a load balancer, and its backends are endpoints. README.md says what belongs to the plane.
package kernelspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
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

	Report func([]route.Problem) // called with each new problem; may be nil

	failures failures // nil: failed writes are not counted
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

	problems *problems
}

// New makes a Plane. It does nothing yet.
func New(h HNS, opt Options) *Plane {
	opt.Poll = cmp.Or(opt.Poll, pollPeriod)
	problems := &problems{network: opt.Network, report: opt.Report, reported: map[route.Problem]bool{}}
	p := &Plane{
		hns: h, opt: opt, problems: problems, ledger: ledger.New[key, value](key.handling, key.compare),
		writer: &writer{hns: h, opt: opt, problems: problems, unremoved: map[key]error{}},
	}
	p.waits.Store(new(string))
	return p
}

// Refresh reads the network, its endpoints and the load balancers. The error wraps hns.ErrNoNetwork
// while the network does not exist. A preview reads nothing.
func (p *Plane) Refresh(ctx context.Context) error {
	if p.hns == nil {
		p.fresh = true
		return nil
	}
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
	if s.differs {
		p.problems.ofNetwork("load balancers are not as Sluice wrote them, as HNS or another program changed them: " +
			"Sluice deletes and creates these again")
	}
	if s.overlay() && p.opt.IPv6 {
		p.problems.ofNetwork("it is an overlay network, which has no dual stack: IPv6 addresses of Services are not served")
	}
	if name := p.opt.RootEndpoint; name != "" && len(s.roots) == 0 {
		p.problems.ofNetwork(fmt.Sprintf("it has no endpoint %q (--root-hnsendpoint-name): "+
			"health checks at addresses of load balancers are not forwarded", name))
	}
	p.seen.Store(&state{features: s.features, network: s.network})
	p.writer.state, p.fresh = s, true
	return nil
}

// errNode means that the address of this node or its MAC address could not be read.
var errNode = errors.New("read the address of this node")

func (p *Plane) read(ctx context.Context) (*state, error) {
	s := &state{sourceVIP: p.opt.SourceVIP}
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

// objects reads the load balancers, and then the endpoints: an endpoint that is deleted meanwhile is missing, and
// none is to which a load balancer refers.
func (p *Plane) objects(ctx context.Context, s *state) error {
	balancers, err := p.hns.LoadBalancers(ctx)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err() // the calls of the library do not end with the context
	}
	endpoints, err := p.hns.Endpoints(ctx)
	if err != nil {
		return err
	}
	s.setEndpoints(endpoints)
	s.findRoots(p.opt.RootEndpoint)
	var written map[key]hns.LoadBalancer
	if before := p.writer.state; before != nil {
		written = before.balancers
	}
	s.setBalancers(balancers, written)
	return nil
}

// Plan computes what to write; after a Refresh it compares everything.
func (p *Plane) Plan(change route.Change) plane.Plan {
	var plan *ledger.Plan[key, value]
	if p.fresh {
		p.fresh = false
		p.problems.ofServices(change.Table)
		plan = p.ledger.Compare(p.writer, newListing(p.writer.state, p.reserved(change.Table)))
		if p.writer.state.overlay() && p.opt.SourceVIP.IsValid() {
			plan.Host(nil, []entry{{Key: key{class: source, addr: p.opt.SourceVIP}}})
		}
	} else {
		for _, t := range change.Touched {
			p.problems.ofChange(t)
		}
		plan = p.ledger.Change(p.writer)
	}
	plan.Services(change, p.render)
	plan.End()
	return plan
}

// reserved returns the addresses whose endpoints an overlay network needs, with their classes.
func (p *Plane) reserved(t *route.Table) map[netip.Addr]class {
	if !p.writer.state.overlay() {
		return nil
	}
	all := map[netip.Addr]class{}
	for _, svc := range t.Services {
		for i := range svc.Ports {
			for _, f := range svc.Ports[i].Frontends {
				if f.Kind == route.ClusterIP {
					all[f.Addr] = vip
				}
			}
		}
	}
	if p.opt.SourceVIP.IsValid() {
		all[p.opt.SourceVIP] = source
	}
	return all
}

// networkPeriod is the time between two reads of the network, each of which is one call of HNS.
const networkPeriod = time.Second

// readPause is the minimum time between two comparisons as a multiple of the duration of a read, which keeps HNS
// busy for each load balancer.
const readPause = 100

// Watch implements plane.Plane. HNS has notifications, but they do not tell the changes of this plane from other
// changes. Watch reads the network more often than everything else: it reports an edit at once when the network is
// created or replaced, and when its remote subnets change.
func (p *Plane) Watch(ctx context.Context, subscribed func(), report func(plane.Edit)) error {
	last, reported := p.readNetwork(ctx), time.Now()
	return plane.Poll(ctx, min(networkPeriod, p.opt.Poll), subscribed, func(e plane.Edit) {
		now, period := p.readNetwork(ctx), max(p.opt.Poll, readPause*time.Duration(p.took.Load()))
		if now == last && time.Since(reported) < period {
			return
		}
		last, reported = now, time.Now()
		report(e)
	})
}

// readNetwork returns the state of the network as text that changes with it, or the error of the read.
func (p *Plane) readNetwork(ctx context.Context) string {
	n, err := p.hns.Network(ctx, p.opt.Network)
	if err == nil {
		return fmt.Sprint(n)
	}
	if errors.Is(err, hns.ErrNoNetwork) {
		p.setWaiting(err)
	}
	return err.Error()
}

// setWaiting records and returns why the plane waits after an error of HNS; empty if it does not wait.
func (p *Plane) setWaiting(err error) string {
	reason := ""
	if errors.Is(err, hns.ErrNoNetwork) {
		reason = fmt.Sprintf("HNS network %q does not exist: waiting for the CNI plugin to create it", p.opt.Network)
	}
	p.waits.Store(&reason)
	return reason
}

// Waiting returns why the plane waits; empty if it does not wait. It is safe for concurrent use.
func (p *Plane) Waiting() string { return *p.waits.Load() }
