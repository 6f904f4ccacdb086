// Package nodeport answers health checks of load balancers at the healthCheckNodePort
// of a Service: whether this node has endpoints of it.
//
// Each such Service has an open port in each of its families, on the addresses that
// serve NodePorts. The port identifies the Service; the path of a request does not
// matter.
package nodeport

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/fair"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/work"
)

// Options for New. Listen and Live are needed.
type Options struct {
	// Listen opens a TCP port of one family, "tcp4" or "tcp6".
	Listen func(ctx context.Context, network string, at netip.AddrPort) (net.Listener, error)

	// Live reports whether the proxy does its work: no write is overdue, and no
	// other program keeps removing rules.
	Live func() bool

	// MaxConns is the most connections at a time, of all ports together; a further
	// one closes the one that was silent the longest (package fair). 0: any
	// number.
	MaxConns int

	// MaxListeners is the most ports that are open at a time, where each address
	// counts. Tenants decide how many Services want one, and each takes a file
	// descriptor. 0: any number.
	MaxListeners int

	// Failed is called for a port that cannot be opened, once until it can. It may be
	// nil.
	Failed func(Failure)

	// Opened is called for a port that failed and is open now. It may be nil.
	Opened func(service cluster.Name, port uint16)

	// Before is answered until the first change is applied.
	Before Before
}

// Before is what the previous run of this program answered before it re-executed itself.
type Before struct {
	Services  []Answer
	NodePorts route.NodePorts
}

// Answer is the health of one Service.
type Answer struct {
	Service cluster.Name
	Health  *route.Health
}

// BeforeOf returns the answers for these routes.
func BeforeOf(routes *route.Snapshot) Before {
	b := Before{NodePorts: routes.Host.NodePorts}
	for svc := range routes.Services() {
		if svc.Health != nil {
			b.Services = append(b.Services, Answer{svc.Name, svc.Health})
		}
	}
	return b
}

// Failure is a port that cannot be opened.
type Failure struct {
	Service cluster.Name
	At      netip.AddrPort
	Err     error
}

// Error describes the failure for people.
func (f Failure) Error() string {
	return fmt.Sprintf("cannot answer load balancers that ask for Service %s at %s: %v", f.Service, f.At, f.Err)
}

// retryPeriod is the time between attempts to open a port. A change causes one, too.
const retryPeriod = 5 * time.Second

// Follower keeps the ports of all Services.
type Follower struct {
	opt      Options
	server   *http.Server
	conns    *fair.Limiter
	serving  sync.WaitGroup
	failures atomic.Pointer[[]Failure]
	loop     *work.Loop

	mu        sync.Mutex
	health    map[cluster.Name]*route.Health // of the Services that have one
	nodePorts route.NodePorts
	before    bool // no change was applied yet: these are of Options.Before

	// Of the goroutine of Run.
	ports map[key]*port
	open  map[place]*listener
}

// New returns a Follower. It does nothing yet.
func New(o Options) *Follower {
	f := &Follower{
		opt: o, server: newServer(o.Live), conns: fair.NewLimiter(fair.LimiterOptions{Max: o.MaxConns}),
		health: map[cluster.Name]*route.Health{}, nodePorts: o.Before.NodePorts, before: true,
		ports: map[key]*port{}, open: map[place]*listener{},
	}
	f.loop = work.New(f.follow, nil)
	for _, a := range o.Before.Services {
		f.health[a.Service] = a.Health
	}
	return f
}

// Failing returns the ports, one for each Service and family, that are not open on every address, in
// no order.
func (f *Follower) Failing() []Failure {
	if list := f.failures.Load(); list != nil {
		return *list
	}
	return nil
}

// Applied implements proxy.Follower. It leaves the work to Run.
func (f *Follower) Applied(c route.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := !c.Table.Host.NodePorts.Equal(f.nodePorts)
	f.nodePorts = c.Table.Host.NodePorts
	if f.before { // the first change touches every Service there is
		f.before, changed = false, true
		clear(f.health)
	}
	for _, t := range c.Touched {
		now := healthOf(t.New)
		changed = changed || now != nil || f.health[t.Name] != nil
		if now == nil {
			delete(f.health, t.Name)
		} else {
			f.health[t.Name] = now
		}
	}
	if changed {
		f.loop.Wake()
	}
}

func healthOf(s *route.Service) *route.Health {
	if s == nil {
		return nil
	}
	return s.Health
}

// Run keeps the ports open until the context ends.
func (f *Follower) Run(ctx context.Context) error {
	defer f.end()
	return f.loop.Run(ctx)
}

// follow closes and opens ports until those of the Services are open, and returns when to retry those that cannot be
// opened. It closes ports before it opens others, since a port may pass from one Service to another.
func (f *Follower) follow(ctx context.Context) (time.Duration, error) {
	wanted := f.wanted()
	failed := map[*port]Failure{}
	for at, l := range f.open {
		if wanted[at] != nil && !l.ended.Load() {
			continue
		}
		_ = l.Close() // closed also on an error
		delete(f.open, at)
		if p := wanted[at]; p != nil { // opened again at the next attempt, so that it cannot fail in a loop
			failed[p] = Failure{at.name, at.at, net.ErrClosed}
			delete(wanted, at)
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(wanted), place.compare) { // two with one port: always the same gets it
		if f.open[at] != nil {
			continue
		}
		p := wanted[at]
		err := f.listen(ctx, at, p)
		if _, known := failed[p]; err != nil && !known {
			failed[p] = Failure{at.name, at.at, err}
		}
	}
	if ctx.Err() == nil {
		f.report(failed)
	}
	if len(failed) > 0 {
		return retryPeriod, nil
	}
	return 0, nil
}

// wanted returns the ports to be open, on each of their addresses. It updates the number of endpoints of each port.
func (f *Follower) wanted() map[place]*port {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := map[place]*port{}
	ports := map[key]*port{}
	for name, h := range f.health {
		for _, local := range h.Local {
			k := key{name, local.Family}
			p := f.ports[k]
			if p == nil {
				p = &port{name: name}
			}
			p.number = h.Port
			p.local.Store(int64(local.Endpoints))
			ports[k] = p
			for _, a := range addresses(f.nodePorts, local.Family) {
				wanted[place{k, netip.AddrPortFrom(a, h.Port)}] = p
			}
		}
	}
	for k, p := range f.ports {
		if ports[k] == nil {
			p.local.Store(0) // for open connections
		}
	}
	f.ports = ports
	return wanted
}

// addresses returns the addresses on which ports of a family are opened.
func addresses(n route.NodePorts, family route.Family) []netip.Addr {
	switch {
	case n.All(family) && family == route.IPv4:
		return []netip.Addr{netip.IPv4Unspecified()}
	case n.All(family):
		return []netip.Addr{netip.IPv6Unspecified()}
	}
	var list []netip.Addr
	for _, a := range n.Addrs {
		if route.FamilyOf(a) == family {
			list = append(list, a)
		}
	}
	return list
}

// report calls Options.Failed for new failures, and Options.Opened for ports that failed before.
func (f *Follower) report(failed map[*port]Failure) {
	list := slices.Collect(maps.Values(failed))
	f.failures.Store(&list)
	for _, p := range f.ports {
		failure, fails := failed[p]
		text := ""
		if fails {
			text = failure.Error()
		}
		switch {
		case text == p.reported, errors.Is(failure.Err, net.ErrClosed):
			continue
		case fails && f.opt.Failed != nil:
			f.opt.Failed(failure)
		case !fails && f.opt.Opened != nil:
			f.opt.Opened(p.name, p.number)
		}
		p.reported = text
	}
}

// end closes every port and finishes the requests of those that are connected.
func (f *Follower) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, l := range f.open {
		_ = l.Close() // closed also on an error
	}
	f.serving.Wait()
	f.conns.Drain(ctx)
	_ = f.server.Close() // the grace period is over
}
