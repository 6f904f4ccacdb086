// Package iptables is the plane that balances with rules of iptables, in chains
// with kube-proxy's names: what people look for with iptables-save is where it
// always was, and a node that kube-proxy served is taken over in place.
//
// A change writes the chains that changed, and single rules of those that all
// Services share. README.md draws the path of a packet.
package iptables

import (
	"context"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Kernel is what the plane needs of iptables: iptables.Tools, or iptables.Fake.
type Kernel interface {
	Reader
	Writer
}

// Reader looks at tables.
type Reader interface {
	Read(ctx context.Context, t iptables.Table) (iptables.Chains, error)
	Watch(ctx context.Context, ours func(chain string) bool, subscribed func(), tell func(iptables.Edit)) error
}

// Writer changes tables. One restore has Room for so many lines.
type Writer interface {
	Restore(ctx context.Context, f iptables.Family, input []byte) error
	Room() int
}

// Observer is told of what is counted.
type Observer interface {
	// Rules is told, after a write, how many rules of a table are ours, and how
	// many were written.
	Rules(f route.Family, table string, total, written int)
	// RestoreFailed and PartialRestoreFailed are told of restores that did not
	// succeed, the latter of those that were about changes alone.
	RestoreFailed(f route.Family)
	PartialRestoreFailed(f route.Family)
}

// Accounting makes the objects of nfacct that rules count packets with, where
// they are not there: nfacct.Objects.
type Accounting interface {
	Ensure(ctx context.Context, names ...string) error
}

// The objects of nfacct, named as kube-proxy's.
const (
	// InvalidDropped counts packets that conntrack found invalid.
	InvalidDropped = "ct_state_invalid_dropped_pkts"
	// LoopbackNodePorts counts connections to NodePorts at 127.0.0.0/8.
	LoopbackNodePorts = "localhost_nps_accepted_pkts"
)

// Options for New.
type Options struct {
	Families []route.Family // those the host can do
	Mark     uint32         // bit of the packet mark for "masquerade this"

	// KeepInvalid lets forwarded packets through that conntrack finds invalid: it
	// has been told to be liberal, and finds few so.
	KeepInvalid bool

	// Accounting has the rule that drops invalid packets count them, and gives
	// NodePorts a rule of their own for 127.0.0.0/8, which counts. Refresh makes
	// sure of the objects, without which the kernel refuses such rules. Nil: no
	// rule counts in this way, as the kernel or the programs may not know how.
	Accounting Accounting

	Observer Observer // may be nil
}

// Plane balances with iptables. It implements plane.Plane.
type Plane struct {
	kernel   Kernel
	opt      Options
	families []*family

	seen map[route.Family]state // what Refresh read; nil once a plan is written
}

// New makes a Plane. It does nothing yet.
func New(kernel Kernel, opt Options) *Plane {
	p := &Plane{kernel: kernel, opt: opt, families: rows(opt)}
	for _, f := range p.families {
		f.ledger = ledger.New(layout(), restorer{kernel, f.kernel, f.program})
	}
	return p
}

// Refresh reads the tables of the families that are served. What rules count with
// is made here, as it can get lost with them.
func (p *Plane) Refresh(ctx context.Context) error {
	if p.opt.Accounting != nil {
		if err := p.opt.Accounting.Ensure(ctx, InvalidDropped, LoopbackNodePorts); err != nil {
			return fmt.Errorf("make what rules count with: %w", err)
		}
	}
	return p.see(ctx)
}

// see reads the tables.
func (p *Plane) see(ctx context.Context) error {
	seen := map[route.Family]state{}
	for _, f := range p.families {
		s, err := p.read(ctx, f)
		if err != nil {
			return fmt.Errorf("read kernel state: %w", err)
		}
		seen[f.ip] = s
	}
	p.seen = seen
	return nil
}

func (p *Plane) read(ctx context.Context, f *family) (state, error) {
	s := state{}
	for _, t := range everyTable() {
		chains, err := p.kernel.Read(ctx, iptables.Table{Family: f.kernel, Name: t.String()})
		if err != nil {
			return nil, err
		}
		s[t] = chains
	}
	return s, nil
}

// Watch tells what others change in our chains, and in what leads there.
func (p *Plane) Watch(ctx context.Context, subscribed func(), tell func(plane.Edit)) error {
	ours := func(chain string) bool { return chain == localnet || kubechain.Proxy(chain) }
	return p.kernel.Watch(ctx, ours, subscribed, func(e iptables.Edit) {
		tell(plane.Edit{What: e.What, By: e.By, Possible: e.Possible, Since: e.Since})
	})
}

// Remove takes all chains with kube-proxy's names out, except those that others
// need.
func (p *Plane) Remove(ctx context.Context) ([]string, error) {
	if err := p.see(ctx); err != nil {
		return nil, err
	}
	var plans ledger.Plans
	var removed []string
	for _, f := range p.families {
		plan := f.ledger.Compare(removal{p.seen[f.ip]})
		plan.End()
		plans = append(plans, plan)
		removed = append(removed, f.removes(plan)...)
	}
	p.seen = nil
	return removed, plans.Apply(ctx)
}

// removes says what a plan removes from each table.
func (f *family) removes(plan *ledger.Plan[key, string]) []string {
	var chains, rules [mangle + 1]int
	plan.Each(func(s step) {
		switch {
		case s.Op == ledger.Remove && s.Key.rule == "":
			chains[s.Key.table]++
		case s.Op == ledger.Remove:
			rules[s.Key.table]++
		}
	})
	var list []string
	for _, t := range everyTable() {
		if chains[t]+rules[t] > 0 {
			list = append(list, fmt.Sprintf("%s and %s in %s %s", text.Count(chains[t], "chain"), text.Count(rules[t], "rule"), f.program, t))
		}
	}
	return list
}
