// Package nodeport answers health checks of load balancers at the healthCheckNodePort
// of a Service: whether this node has endpoints of it.
//
// Each such Service has an open port in each of its families, on the addresses that serve NodePorts. The port
// identifies the Service; the path of a request does not matter.
package nodeport

import (
	"cmp"
	"context"
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

// Options for New. All functions are needed.
type Options struct {
	// Listen opens a TCP port of one family, "tcp4" or "tcp6".
	Listen func(ctx context.Context, network string, at netip.AddrPort) (net.Listener, error)

	// Live reports whether the proxy does its work: no write is overdue, and no other program keeps removing rules.
	Live func() bool

	// MaxConns is the most connections at a time, of all ports together; a further one closes the one that was silent the
	// longest (package fair). 0: any number.
	MaxConns int

	// MaxListeners is the most ports that are open at a time, where each address counts. Tenants decide how many Services
	// want one, and each takes a file descriptor. 0: any number.
	MaxListeners int

	// Failed is called for a port that cannot be opened, once until it can.
	Failed func(Failure)

	// Opened is called for a port that failed and is open now.
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
	return fmt.Sprintf("cannot open the health check port of Service %s at %s: %v", f.Service, f.At, f.Err)
}

// retryPeriod is the time between attempts to open a port. A change causes one, too.
const retryPeriod = 5 * time.Second

// Follower keeps the ports of all Services.
type Follower struct {
	opt      Options
	server   *http.Server
	conns    *fair.Limiter
	serving  sync.WaitGroup
	failures atomic.Pointer[[]Failure] // of all in failed
	loop     *work.Loop

	mu           sync.Mutex
	changed      map[cluster.Name]*route.Health // since Run read them; nil: deleted
	nodePorts    route.NodePorts                // the latest
	addrsChanged bool                           // nodePorts changed since Run read them
	broken       []*listener
	before       []Answer // nil: a change was applied

	// Of the goroutine of Run.
	ports  map[key]*port
	failed map[key]*port   // those that are not open on every address
	openAt route.NodePorts // as Run read them

	listeners int // that are open
}

// key names the ports of a Service in a family.
type key struct {
	name   cluster.Name
	family route.Family
}

// New returns a Follower. It does nothing yet.
func New(o Options) *Follower {
	f := &Follower{
		opt: o, changed: map[cluster.Name]*route.Health{},
		ports: map[key]*port{}, failed: map[key]*port{},
	}
	f.loop = work.New(f.follow, nil)
	f.server, f.conns = newServer(o.Live), fair.NewLimiter(fair.LimiterOptions{Max: o.MaxConns})
	if len(o.Before.Services) > 0 {
		f.before, f.nodePorts = o.Before.Services, o.Before.NodePorts
		for _, a := range f.before {
			f.changed[a.Service] = a.Health
		}
	}
	return f
}

// Failing returns the ports, one for each Service and family, that are not open on every address, in no order.
func (f *Follower) Failing() []Failure {
	if list := f.failures.Load(); list != nil {
		return *list
	}
	return nil
}

// publish updates the result of Failing.
func (f *Follower) publish() {
	list := make([]Failure, 0, len(f.failed))
	for _, p := range f.failed {
		list = append(list, p.failure)
	}
	f.failures.Store(&list)
}

// Applied implements proxy.Follower. It leaves the work to Run.
func (f *Follower) Applied(c route.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.before { // the first change touches every Service there is
		if c.Table.Services[a.Service] == nil {
			f.changed[a.Service] = nil
		}
	}
	f.before = nil
	for _, t := range c.Touched {
		before, now := healthOf(t.Old), healthOf(t.New)
		if before != nil || now != nil {
			f.changed[t.Name] = now
		}
	}
	if to := c.Table.Host.NodePorts; !to.Equal(f.nodePorts) {
		f.nodePorts, f.addrsChanged = to, true
	}
	if len(f.changed) > 0 || f.addrsChanged {
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

// follow handles changes and retries failed ports. It closes ports first, as one may pass to another Service.
func (f *Follower) follow(ctx context.Context) (time.Duration, error) {
	changed, addrsChanged, broken := f.take()
	attempt := map[key]*port{}
	for name, h := range changed {
		f.update(name, h, attempt)
	}
	if addrsChanged {
		for k, p := range f.ports {
			p.closeExcept(f.openAt.Listen(k.family))
			attempt[k] = p
		}
	}
	maps.Copy(attempt, f.failed)
	f.listeners = 0
	for _, p := range f.ports {
		f.listeners += len(p.open)
	}
	for _, p := range inOrder(attempt) {
		f.openAll(ctx, p)
	}
	for _, l := range broken { // reopened at the next attempt, so that it cannot fail in a loop
		if l.port.drop(l) {
			l.port.failure = Failure{l.port.name, netip.AddrPortFrom(l.at, l.port.number), net.ErrClosed}
			f.failed[l.port.key] = l.port
		}
	}
	f.publish()
	if len(f.failed) > 0 {
		return retryPeriod, nil
	}
	return 0, nil
}

// take returns the changes since the last take.
func (f *Follower) take() (changed map[cluster.Name]*route.Health, addrsChanged bool, broken []*listener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed, addrsChanged, broken = f.changed, f.addrsChanged, f.broken
	f.changed, f.addrsChanged, f.broken = map[cluster.Name]*route.Health{}, false, nil
	f.openAt = f.nodePorts
	return changed, addrsChanged, broken
}

// update stores the state of a Service, closes ports that it no longer has, and adds the others to those to open.
func (f *Follower) update(name cluster.Name, h *route.Health, attempt map[key]*port) {
	for _, family := range route.Families() {
		k := key{name, family}
		n, ok := h.Count(family)
		p := f.ports[k]
		switch {
		case !ok && p != nil:
			p.local.Store(0) // for open connections
			p.closeExcept(nil)
			delete(f.ports, k)
			delete(f.failed, k)
		case ok && p == nil:
			p = &port{key: k, number: h.Port}
			f.ports[k] = p
		case ok && p.number != h.Port:
			p.closeExcept(nil)
			p.number, p.reported = h.Port, ""
		}
		if ok {
			p.local.Store(int64(n))
			attempt[k] = p
		}
	}
}

// inOrder sorts ports, so that of two Services with one port always the same gets it.
func inOrder(ports map[key]*port) []*port {
	return slices.SortedFunc(maps.Values(ports), func(a, b *port) int {
		return cmp.Or(a.name.Compare(b.name), cmp.Compare(a.family, b.family))
	})
}

// end closes every port and finishes the requests of those that are connected.
func (f *Follower) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, p := range f.ports {
		p.closeExcept(nil)
	}
	f.serving.Wait()
	f.conns.Drain(ctx)
	_ = f.server.Close() // the grace period is over
}
