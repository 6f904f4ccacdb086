package iptables

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Plan is a change to the tables. After each restore a Service is either there
// whole, or as it was.
type Plan struct {
	ledger.Plans
	plane    *Plane
	families []*familyPlan
	table    *route.Table
	refused  plane.Refused
}

// familyPlan is the plan for one family, with a copy of what the family believes.
type familyPlan struct {
	family
	*ledger.Plan[key, string]
	opt    Options
	room   int  // of one restore
	full   bool // it compares everything
	change route.Change
	host   *route.Host
	left   map[cluster.Name]*route.Service // what comes in of Services that are left out in part
}

// Plan works out what to write; after a Refresh by comparing everything.
func (p *Plane) Plan(change route.Change) plane.Plan {
	plan := &Plan{plane: p, table: change.Table}
	for _, f := range p.families {
		d := &familyPlan{family: *f, opt: p.opt, room: p.kernel.Room(), full: p.seen != nil, change: change, host: &change.Table.Host}
		if d.full {
			d.everything(p.seen[f.ip])
		} else {
			d.touched()
		}
		d.rewrite()
		d.Learn(func() { f.belief = d.belief })
		plan.families = append(plan.families, d)
		plan.Plans = append(plan.Plans, d)
	}
	return plan
}

// Apply writes the plan. It implements plane.Plan.
func (p *Plan) Apply(ctx context.Context) error {
	err := p.Plans.Apply(ctx)
	refused, is := errors.AsType[plane.Refused](err)
	if err == nil || is {
		p.refused, p.plane.seen = refused, nil
	}
	return err
}

// Left implements plane.Partial.
func (p *Plan) Left() []*route.Service {
	var list []*route.Service
	names := map[cluster.Name]bool{}
	for _, d := range p.families {
		for name := range d.left {
			if !names[name] && p.refused[name] == nil {
				list = append(list, p.there(name))
			}
			names[name] = true
		}
	}
	return list
}

// there returns a Service with the ports of each family that the plan brings in.
func (p *Plan) there(name cluster.Name) *route.Service {
	svc := *p.table.Services[name]
	svc.Ports = nil
	for _, d := range p.families {
		all := p.table.Services[name]
		if left := d.left[name]; left != nil {
			all = left
		}
		for _, port := range all.Ports {
			if port.Family == d.ip {
				svc.Ports = append(svc.Ports, port)
			}
		}
	}
	return &svc
}

// Apply writes the plan of one family, and reports to the Observer.
func (d *familyPlan) Apply(ctx context.Context) error {
	err := d.Plan.Apply(ctx)
	o := d.opt.Observer
	if o == nil {
		return err
	}
	switch {
	case err != nil && d.full:
		o.RestoreFailed(d.ip)
	case err != nil:
		o.PartialRestoreFailed(d.ip)
	}
	if _, refused := errors.AsType[plane.Refused](err); err != nil && !refused {
		return err
	}
	var written [mangle + 1]int
	d.Each(func(s step) {
		if s.Op == ledger.Add || s.Op == ledger.Change {
			written[s.Key.table] += s.Key.count(s.New)
		}
	})
	for _, t := range []table{filter, nat} {
		o.Rules(d.ip, t.String(), d.rules[t], written[t])
	}
	return err
}

// touched plans a change whose before is known.
func (d *familyPlan) touched() {
	d.large = d.endpoints > many
	d.Plan = d.ledger.Change()
	before := d.host
	if d.change.OldHost != nil {
		before = d.change.OldHost
		d.chainsOf(before)
	}
	done := map[cluster.Name]bool{}
	for _, t := range d.change.Touched {
		d.service(t.Name, d.render(t.Old, before), d.render(t.New, d.host))
		d.endpoints += d.size(t.New) - d.size(t.Old)
		done[t.Name] = true
	}
	if d.change.OldHost != nil {
		for _, name := range inNameOrder(d.change.Table) {
			if svc := d.change.Table.Services[name]; !done[name] {
				d.service(name, d.render(svc, before), d.render(svc, d.host))
			}
		}
	}
	d.End()
}

// everything plans the difference between what the kernel holds and what it
// should: adoption at start, take-over in place, and repair.
func (d *familyPlan) everything(seen state) {
	found := newListing(seen, d.behind)
	d.belief = belief{behind: found.behind}
	for _, svc := range d.change.Table.Services {
		d.endpoints += d.size(svc)
	}
	d.large = d.endpoints > many
	for _, k := range everyGuard() {
		if _, is := found.Take(entry{Key: k}); is == ledger.Equal {
			d.guarded = append(d.guarded, k)
		}
	}
	d.Plan = d.ledger.Compare(found)
	d.chainsOf(nil)
	d.services(found)
	d.End()
}

// chainsOf plans a change of what holds for the whole node. Before is nil in a
// comparison.
func (d *familyPlan) chainsOf(before *route.Host) {
	var old []entry
	if before != nil {
		old = d.chains(before, d.opt)
	}
	now := d.chains(d.host, d.opt)
	d.tally(old, now)
	for _, k := range d.guards(d.host) {
		if !slices.Contains(d.guarded, k) {
			now, d.guarded = append(now, entry{Key: k}), append(slices.Clip(d.guarded), k)
		}
	}
	d.Host(old, now)
}

// service plans the difference between two states of a Service.
func (d *familyPlan) service(name cluster.Name, old, now []entry) {
	d.tally(old, now)
	d.Service(name, old, now)
}

// tally counts our rules.
func (d *familyPlan) tally(old, now []entry) {
	for _, e := range old {
		d.rules[e.Key.table] -= e.Key.count(e.Value)
	}
	for _, e := range now {
		d.rules[e.Key.table] += e.Key.count(e.Value)
	}
}

// inNameOrder returns the Services, the API server's own first.
func inNameOrder(t *route.Table) []cluster.Name {
	names := slices.AppendSeq(make([]cluster.Name, 0, len(t.Services)), maps.Keys(t.Services))
	slices.SortFunc(names, func(a, b cluster.Name) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Compare(b)) })
	return names
}

func rank(n cluster.Name) int {
	if n == (cluster.Name{Namespace: "default", Name: "kubernetes"}) {
		return 0
	}
	return 1
}

// bulk is how many rules of a shared chain are deleted one by one. For each of
// them the programs walk the whole chain, so more of them cost more than writing the
// chain anew.
const bulk = 32

// rewrite writes the shared chains anew that lose many rules.
func (d *familyPlan) rewrite() {
	lost := map[key]int{}
	d.Each(func(s step) {
		if s.Op == ledger.Remove && s.Key.rule != "" && s.Key.shared() {
			lost[key{table: s.Key.table, chain: s.Key.chain}]++
		}
	})
	maps.DeleteFunc(lost, func(_ key, n int) bool { return n <= bulk })
	if len(lost) == 0 {
		return
	}
	d.Rewrite(ledger.Rewrite[key, string]{
		Replaces: func(k key) bool { return k.rule != "" && lost[key{table: k.table, chain: k.chain}] > 0 },
		Steps: func(refused plane.Refused) []step {
			var list []step
			for _, k := range slices.SortedFunc(maps.Keys(lost), key.compare) {
				list = append(list, step{Op: ledger.Add, Key: k, New: d.whole(k, refused)})
			}
			return list
		},
	})
}

// whole returns the rules of a shared chain, those of all Services first. Rules of
// refused Services are left out, as they may lead to chains that are not there.
func (d *familyPlan) whole(chain key, refused plane.Refused) string {
	var b strings.Builder
	names := inNameOrder(d.change.Table)
	for name := range d.change.Underway { // some may not be in the table any more
		if d.change.Table.Services[name] == nil {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if refused[name] != nil {
			continue
		}
		for _, e := range d.render(d.inKernel(name), d.host) {
			if e.Key.rule != "" && e.Key.table == chain.table && e.Key.chain == chain.chain {
				b.WriteString(join(slices.Collect(e.Key.rules(e.Value))...))
			}
		}
	}
	for _, e := range d.chains(d.host, d.opt) {
		if e.Key == chain {
			b.WriteString(e.Value)
		}
	}
	return b.String()
}

// inKernel returns a Service as the kernel holds it once the plan is applied.
func (d *familyPlan) inKernel(name cluster.Name) *route.Service {
	if svc, ok := d.left[name]; ok {
		return svc
	}
	return d.change.InKernel(name)
}
