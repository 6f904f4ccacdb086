package iptables

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Plan is a change to the tables. After each restore the rules of a Service are either complete, or as they were.
type Plan struct {
	ledger.Plans
	plane *Plane
	full  bool // it compares everything
}

// familyPlan is the plan for one family, with a copy of the family's written.
type familyPlan struct {
	family
	*ledger.Plan[key, string]
	opt    Options
	full   bool // it compares everything
	change route.Change
	host   *route.Host
}

// Plan computes what to write; after a Refresh it compares everything.
func (p *Plane) Plan(change route.Change) plane.Plan {
	plan := &Plan{plane: p, full: p.state != nil}
	for _, f := range p.families {
		d := &familyPlan{family: *f, opt: p.opt, full: plan.full, change: change, host: &change.Table.Host}
		if d.full {
			d.compare(f.newListing(p.state[f.ip]))
		} else {
			d.touched()
		}
		d.rewrite()
		d.Learn(func() { f.written = d.written })
		plan.Plans = append(plan.Plans, d)
	}
	p.state = nil
	return plan
}

// Apply writes the plan. It implements plane.Plan.
func (p *Plan) Apply(ctx context.Context) error {
	if objects := p.plane.opt.Accounting; objects != nil && p.full {
		if err := objects.Ensure(ctx, InvalidDropped, LoopbackNodePorts); err != nil {
			return fmt.Errorf("add objects of nfacct: %w", err)
		}
	}
	return p.Plans.Apply(ctx)
}

// Apply writes the plan of one family, and reports the outcome.
func (d *familyPlan) Apply(ctx context.Context) error {
	err := d.Plan.Apply(ctx)
	if d.opt.Wrote == nil {
		return err
	}
	w := Write{Family: d.ip, Full: d.full, Err: err, Rules: d.rules}
	d.Each(func(s *step) {
		if s.Op == ledger.Add || s.Op == ledger.Change {
			w.Written[s.Key.table] += count(s.Key, s.New)
		}
	})
	d.opt.Wrote(w)
	return err
}

// touched plans a change between two states that are both known.
func (d *familyPlan) touched() {
	d.large = d.endpoints > manyEndpoints
	d.Plan = d.ledger.Change(d.restorer)
	before := d.host
	if d.change.OldHost != nil {
		before = d.change.OldHost
		old := d.hostEntries(before, d.opt)
		d.guarded = d.guarded || d.loopback(d.host)
		d.hostChange(old)
	}
	d.change.Each(func(name cluster.Name, old, now *route.Service) {
		d.service(name, d.render(old, before), d.render(now, d.host))
		d.endpoints += d.endpointsOf(now) - d.endpointsOf(old)
	})
	d.End()
}

// compare plans the steps from the kernel's content to the wanted one:
// adoption at start, take-over from kube-proxy, and repair.
func (d *familyPlan) compare(found *listing) {
	d.written = written{guarded: d.loopback(d.host) || slices.Contains(found.rules(guard().inChain()), guard().rule)}
	names := d.change.Table.Order()
	// Services that do not fit into one restore come last, so that no other one waits for them.
	slices.SortStableFunc(names, func(a, b cluster.Name) int { return cmp.Compare(d.restores(a), d.restores(b)) })
	for _, name := range names {
		d.endpoints += d.endpointsOf(d.change.InKernel(name))
	}
	d.large = d.endpoints > manyEndpoints
	d.Plan = d.ledger.Compare(d.restorer, found)
	d.Expect(len(names))
	d.hostChange(nil)
	for _, name := range names {
		d.service(name, nil, d.render(d.change.InKernel(name), d.host))
	}
	d.End()
}

// restores estimates how many restores the rules of a Service fill.
func (d *familyPlan) restores(name cluster.Name) int {
	n := 0
	if svc := d.change.InKernel(name); svc != nil {
		for i := range svc.Ports {
			n += linesOf(&svc.Ports[i])
		}
	}
	return n / d.restorer.Room()
}

// hostChange plans a change of the entries that belong to no Service.
func (d *familyPlan) hostChange(old []entry) {
	now := d.hostEntries(d.host, d.opt)
	d.countRules(old, now)
	d.Host(old, now)
}

// service plans the difference between two states of a Service.
func (d *familyPlan) service(name cluster.Name, old, now []entry) {
	d.countRules(old, now)
	d.Service(name, old, now)
}

func (d *familyPlan) countRules(old, now []entry) {
	for _, e := range old {
		d.rules[e.Key.table] -= count(e.Key, e.Value)
	}
	for _, e := range now {
		d.rules[e.Key.table] += count(e.Key, e.Value)
	}
}

// maxDeletions is the number of rules of a shared chain up to which each is deleted by its own command. The programs
// search the chain for each of them, so beyond it writing the whole chain is faster.
const maxDeletions = 32

// rewrite makes the plan write a shared chain as a whole if it loses many rules.
func (d *familyPlan) rewrite() {
	lost := map[key]int{}
	d.Each(func(s *step) {
		if s.Op == ledger.Remove && s.Key.rule != "" && s.Key.shared() {
			lost[s.Key.inChain()]++
		}
	})
	maps.DeleteFunc(lost, func(_ key, n int) bool { return n <= maxDeletions })
	if len(lost) == 0 {
		return
	}
	d.Rewrite(ledger.Rewrite[key, string]{
		Replaces: func(k key) bool { return k.rule != "" && lost[k.inChain()] > 0 },
		Steps: func(refused plane.Refused) []step {
			var list []step
			for _, k := range slices.SortedFunc(maps.Keys(lost), key.compare) {
				list = append(list, step{Op: ledger.Add, Key: k, New: d.whole(k, refused)})
			}
			return list
		},
	})
}

// whole returns the rules of a shared chain, those of Services first. It leaves out rules
// of refused Services, as they may jump to chains that do not exist.
func (d *familyPlan) whole(chain key, refused plane.Refused) string {
	var b strings.Builder
	names := d.change.Table.Order()
	for name := range d.change.Underway { // some may be deleted from the table
		if d.change.Table.Services[name] == nil {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if refused[name] != nil {
			continue
		}
		for _, e := range d.render(d.change.InKernel(name), d.host) {
			if e.Key.rule != "" && e.Key.inChain() == chain {
				b.WriteString(e.Key.rule + "\n")
			}
		}
	}
	for _, e := range d.hostEntries(d.host, d.opt) {
		if e.Key == chain {
			b.WriteString(e.Value)
		}
	}
	return b.String()
}
