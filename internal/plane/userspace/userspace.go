// Package userspace is the plane that balances in this process: each Service port has a listening
// socket and a balancer of package relay. On Linux with privileges, rules of another plane send
// the packets of Services to these sockets; without, clients connect to them directly. On Windows they
// listen at the addresses of Services. README.md draws the way of a connection.
package userspace

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Listen opens a listening socket, and forwards its connections: ListenBy a relay.Engine.
type Listen func(relay.Spec) (Listener, error)

// Listener is an open socket: a relay.Listener.
type Listener interface {
	Set(b *relay.Balancer, admit func(client netip.Addr) relay.Admission)
	Close()

	Addr() netip.AddrPort
	File() (*os.File, error) // a duplicate, for the next run of the program
}

// ListenBy returns a function that opens Listeners of an Engine.
func ListenBy(e *relay.Engine) Listen {
	return func(s relay.Spec) (Listener, error) { return e.Listen(s) }
}

// Options for New.
type Options struct {
	// Addrs are the addresses on which the sockets listen, one for each family to serve. Without them sockets listen
	// only at NodePorts on ::1 (route.NodePorts), and Rules lead to backends.
	Addrs []netip.Addr

	// Absent is called for a socket that cannot be opened, without which the Service is served; a later write tries again.
	// Nil: the Service is refused.
	Absent func(service cluster.Name, reason error)

	// Ports is the range of their ports; the zero value is every port from 1024 on.
	Ports PortRange

	// Opened is called with each socket that was opened; it may be nil.
	Opened func(plane.Socket)

	// Rules, if not nil, is the plane that sends the packets of Services to the sockets. Without
	// it, clients connect to the sockets themselves.
	Rules plane.Plane

	// Own, if not nil, gives this host the addresses of Services. Then the sockets listen at these,
	// at the ports of Services, and Addrs only says which families are served. It excludes Rules.
	Own Addresses
}

// Plane balances in this process. It implements plane.Plane.
type Plane struct {
	plane.Above // the rules
	opt         Options
	ledger      *ledger.Ledger[key, value]
	ports       *ports
	sockets     *sockets
	redirect    *redirect
	compare     bool // the next Plan compares everything

	local atomic.Pointer[[]netip.Addr]   // the addresses of this host; nil: not known
	pods  atomic.Pointer[route.Detector] // of the last change that was applied; nil: none was

	nodePorts route.NodePorts       // as the last Plan has them
	lacking   plane.Refused         // Services of which a socket could not be opened by the last comparison
	held      map[cluster.Name]bool // Services whose old rules may lead to sockets that are not wanted any more

	writing sync.Mutex // held by Apply
	ended   bool       // the sockets belong to the next run of the program
}

// New makes a Plane. It does nothing yet.
func New(listen Listen, opt Options) *Plane {
	return on(newSockets(listen), newPorts(opt.Addrs, opt.Ports), opt)
}

// on makes a Plane for sockets that may be open already.
func on(s *sockets, at *ports, opt Options) *Plane {
	p := &Plane{
		Above: plane.Above{Beneath: opt.Rules}, opt: opt, ledger: ledger.New[key, value](key.handling, key.compare),
		ports: at, sockets: s, compare: true,
	}
	if p.opt.Opened == nil {
		p.opt.Opened = func(plane.Socket) {}
	}
	p.redirect = newRedirect(p.addrOf)
	return p
}

// Reader returns another plane for the same sockets, with other access to the rules, that only compares.
func (p *Plane) Reader(rules plane.Plane) *Plane {
	opt := p.opt
	opt.Rules = rules
	return on(p.sockets, p.ports, opt)
}

// Refresh implements plane.Plane. The sockets are known; only the rules are read.
func (p *Plane) Refresh(ctx context.Context) error {
	p.compare = true
	if p.Beneath == nil {
		return nil
	}
	return p.Beneath.Refresh(ctx)
}

// Plan is a change of the sockets, and of the rules.
type Plan struct {
	ledger.Plans // sockets and rules
	sockets      *ledger.Plan[key, value]
	plane        *Plane
	change       route.Change
	full         bool // it compares everything
}

// Plan computes what to open, change and close; after a Refresh it compares everything.
func (p *Plane) Plan(change route.Change) plane.Plan {
	w := writer{
		sockets: p.sockets, plane: p, service: change.InKernel, failed: map[key]error{}, lacks: map[netip.Addr]error{},
	}
	p.nodePorts = change.Table.Host.NodePorts
	// Where NodePorts were served before a change of the host, only the sockets themselves tell.
	moved := p.opt.Own != nil && change.OldHost != nil
	plan := &Plan{plane: p, change: change, full: p.compare || moved}
	if plan.full {
		p.lacking = nil // it tries them again
		plan.sockets = p.ledger.Compare(w, p.sockets.listing())
		for _, name := range change.Table.Order() {
			plan.sockets.Service(name, nil, p.render(change.InKernel(name)))
		}
	} else {
		plan.sockets = p.ledger.Change(w)
		for _, t := range change.Touched {
			plan.sockets.Service(t.Name, p.render(t.Old), p.render(t.New))
		}
	}
	plan.sockets.End()
	plan.Plans = ledger.Plans{plan.sockets}
	if p.opt.Rules != nil {
		plan.Plans = append(plan.Plans, p.Beneath.Plan(plan.forRules()))
	}
	return plan
}

// forRules returns the change that the rules get.
func (p *Plan) forRules() route.Change {
	switch to := p.plane.redirect; {
	case len(p.plane.opt.Addrs) == 0:
		return p.change
	case p.full:
		return to.whole(p.change)
	default:
		return to.change(p.change)
	}
}

// Apply opens and changes sockets, then writes the rules, and then closes the sockets to which no rule leads any more.
func (p *Plan) Apply(ctx context.Context) error {
	on := p.plane
	on.writing.Lock()
	defer on.writing.Unlock()
	if on.ended {
		return errEnded
	}
	on.compare = true // unless it succeeds
	detector := p.change.Table.Host.Detector
	on.pods.Store(&detector)
	lacking, refused := plane.Refused{}, plane.Refused{}
	err := lacking.Merge(p.sockets.Apply(ctx))
	if err == nil && len(lacking) > 0 {
		on.lacking = lacking
		err = p.withoutLacking(ctx)
	}
	if err == nil {
		err = refused.Merge(p.Plans[1:].Apply(ctx))
	}
	if err != nil {
		return err
	}
	on.compare = false
	on.sockets.guarded.Store(true)
	if p.full {
		on.disown()
		on.held = map[cluster.Name]bool{}
		for name := range refused {
			on.held[name] = true
		}
	}
	on.sockets.retryAbsent()
	closed := on.sockets.close(on.held)
	on.ports.release(closed, on.sockets.isOpen)
	if p.full {
		on.ports.retain(on.sockets.isOpen)
	}
	if err := on.retainAddresses(); err != nil {
		return err
	}
	maps.Copy(refused, lacking)
	return refused.Err()
}

// withoutLacking computes the rules again, as they must not lead to sockets that could not be opened.
func (p *Plan) withoutLacking(ctx context.Context) error {
	if len(p.Plans) == 1 || len(p.plane.opt.Addrs) == 0 {
		return nil
	}
	if err := p.plane.Beneath.Refresh(ctx); err != nil {
		return err
	}
	p.Plans[1] = p.plane.Beneath.Plan(p.forRules())
	return nil
}

// addrOf returns the address of a socket that a rule leads to. It returns false if there is none.
func (p *Plane) addrOf(k key) (netip.AddrPort, bool) {
	if p.lacking[k.port.Service] != nil && !p.sockets.serves(k) {
		return netip.AddrPort{}, false
	}
	return p.ports.known(k)
}
