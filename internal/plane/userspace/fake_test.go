package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// fakeEngine opens sockets in memory. Set its fields before use.
type fakeEngine struct {
	faults *planetest.Faults   // may be nil
	others map[socketAddr]bool // addresses of other programs
	refuse func(relay.Spec) error
	closed func() // called after a socket was closed; may be nil

	open    map[socketAddr]*fakeListener
	listens int
}

func newFakeEngine() *fakeEngine {
	return &fakeEngine{
		others: map[socketAddr]bool{}, open: map[socketAddr]*fakeListener{}, refuse: func(relay.Spec) error { return nil },
	}
}

// fakeListener is an open socket.
type fakeListener struct {
	engine   *fakeEngine
	where    socketAddr
	balancer *relay.Balancer
	admit    func(netip.Addr) relay.Admission
}

// Listen is the Listen of a plane.
func (e *fakeEngine) Listen(s relay.Spec) (Listener, error) {
	e.listens++
	l := &fakeListener{e, socketAddr{cluster.Protocol(s.Protocol), s.Addr}, s.Balancer, s.Admit}
	switch {
	case !s.Addr.IsValid() || s.Addr.Port() == 0 || s.Balancer == nil || s.Admit == nil:
		return nil, fmt.Errorf("the fake does not open %+v", s)
	case e.others[l.where] || e.open[l.where] != nil:
		return nil, fmt.Errorf("listen %s: %w", s.Addr, syscall.EADDRINUSE)
	case e.refuse(s) != nil:
		return nil, e.refuse(s)
	}
	e.open[l.where] = l
	if e.faults == nil {
		return l, nil
	}
	if err := e.faults.Write(func() error { return nil }); err != nil {
		delete(e.open, l.where)
		return nil, err
	}
	return l, nil
}

// Set implements Listener.
func (l *fakeListener) Set(b *relay.Balancer, admit func(netip.Addr) relay.Admission) {
	l.balancer, l.admit = b, admit
}

// Addr implements Listener.
func (l *fakeListener) Addr() netip.AddrPort { return l.where.at }

// File implements Listener.
func (l *fakeListener) File() (*os.File, error) { return nil, errors.ErrUnsupported }

// Close implements Listener.
func (l *fakeListener) Close() {
	if l.engine.open[l.where] != l {
		panic("closed twice: " + l.where.at.String())
	}
	delete(l.engine.open, l.where)
	if l.engine.closed != nil {
		l.engine.closed()
	}
}

func (l *fakeListener) pool() route.Pool { return route.Pool(l.admit(netip.Addr{}).Pool) }

// ruleKey is a packet: the frontend it goes to and where it comes from (pods, node, others).
type ruleKey struct {
	to   route.Key
	from int
}

// rule leads packets to a socket.
type rule struct {
	port route.PortID
	pool route.Pool
	at   netip.AddrPort
}

// fakeRules is a kernel with rules.
type fakeRules struct {
	faults  *planetest.Faults
	rules   map[ruleKey]rule
	refused func(cluster.Name) error // the reason to refuse a Service; nil: it is accepted
}

func newFakeRules() *fakeRules {
	return &fakeRules{
		faults: &planetest.Faults{}, rules: map[ruleKey]rule{},
		refused: func(cluster.Name) error { return nil },
	}
}

// rulesOf returns the rules of a rewritten Service.
func rulesOf(svc *route.Service) map[ruleKey]rule {
	list := map[ruleKey]rule{}
	if svc == nil || svc.Ignored != "" {
		return list
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for j := range p.Frontends {
			f := &p.Frontends[j]
			for from, w := range []route.Action{f.Pods, f.Node, f.Others} {
				if w.Verdict != route.Balance {
					continue
				}
				var at netip.AddrPort
				if list := p.Backends(w.Pool); len(list) == 1 && !w.Masquerade {
					at = list[0]
				}
				list[ruleKey{p.Key(f), from}] = rule{p.ID(svc.Name), w.Pool, at}
			}
		}
	}
	return list
}

// rulePlane writes fakeRules.
type rulePlane struct {
	*fakeRules
	compare bool
}

func (p *rulePlane) Refresh(context.Context) error {
	p.compare = true
	return p.faults.Read()
}

func (p *rulePlane) Watch(ctx context.Context, subscribed func(), report func(plane.Edit)) error {
	subscribed()
	report(plane.Edit{What: "rule"})
	<-ctx.Done()
	return nil
}

func (p *rulePlane) Remove(context.Context) ([]string, error) {
	clear(p.rules)
	return []string{"rules"}, nil
}

func (p *rulePlane) Plan(c route.Change) plane.Plan {
	plan := &rulePlan{plane: p, set: map[ruleKey]rule{}, drop: map[ruleKey]bool{}, refused: plane.Refused{}}
	if p.compare {
		plan.comparison(c)
		return plan
	}
	for _, t := range c.Touched {
		for k, r := range rulesOf(t.Old) {
			if p.rules[k] != r {
				plan.wrong = fmt.Errorf("the rule for %v before the change is %v, but the kernel has %v", k, r, p.rules[k])
			}
			plan.drop[k] = true
		}
	}
	for _, t := range c.Touched {
		for k, r := range rulesOf(t.New) {
			delete(plan.drop, k)
			if p.rules[k] != r {
				plan.set[k] = r
			}
		}
	}
	return plan
}

// rulePlan is a change of the rules.
type rulePlan struct {
	plane   *rulePlane
	set     map[ruleKey]rule
	drop    map[ruleKey]bool
	kept    int
	refused plane.Refused
	wrong   error // the first error of a change
}

func (p *rulePlan) comparison(c route.Change) {
	for k := range p.plane.rules {
		p.drop[k] = true
	}
	for name := range c.Table.Services {
		if err := p.plane.refused(name); err != nil {
			p.refused[name] = err
			continue
		}
		for k, r := range rulesOf(c.InKernel(name)) {
			delete(p.drop, k)
			if p.plane.rules[k] != r {
				p.set[k] = r
			} else {
				p.kept++
			}
		}
	}
	maps.DeleteFunc(p.drop, func(k ruleKey, _ bool) bool { return p.refused[p.plane.rules[k].port.Service] != nil })
}

func (p *rulePlan) Steps() int { return len(p.set) + len(p.drop) }
func (p *rulePlan) Kept() int  { return p.kept }

func (p *rulePlan) String() string {
	var lines []string
	for k, r := range p.set {
		lines = append(lines, fmt.Sprintf("rule %v: %s %s at %s\n", k, r.port, r.pool.String(), r.at))
	}
	for k := range p.drop {
		lines = append(lines, fmt.Sprintf("no rule %v\n", k))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func (p *rulePlan) Apply(context.Context) error {
	if p.wrong != nil {
		return p.wrong
	}
	for k, r := range p.set {
		if !r.at.IsValid() || r.at.Port() == 0 {
			return fmt.Errorf("the rule for %v leads nowhere: %v", k, r)
		}
		if err := p.plane.faults.Write(func() error { p.plane.rules[k] = r; return nil }); err != nil {
			return err
		}
	}
	for k := range p.drop {
		if err := p.plane.faults.Write(func() error { delete(p.plane.rules, k); return nil }); err != nil {
			return err
		}
	}
	p.plane.compare = false
	return p.refused.Err()
}
