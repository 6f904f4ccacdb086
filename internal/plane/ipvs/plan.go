package ipvs

import (
	"context"
	"errors"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/ipset"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Plan is a change of the kernel.
type Plan struct {
	*ledger.Plan[key, value]
	plane  *Plane
	change route.Change
	marks  *draft
	drains drains // that a comparison found; nil: it compared nothing
	settle bool   // it looks at what drains
}

// Plan computes what to write; after a Refresh it compares everything.
func (p *Plane) Plan(change route.Change) plane.Plan {
	plan := &Plan{plane: p, change: change, settle: !p.Due().IsZero() && !p.opt.Now().Before(p.check)}
	if p.state != nil {
		plan.compare(newListing(*p.state, p.opt))
		return plan
	}
	plan.marks = p.marks.draft()
	plan.Plan = p.ledger.Change(p.writer)
	plan.touched()
	plan.Learn(plan.marks.learn)
	return plan
}

func (p *Plan) before(svc *route.Service, host *route.Host) []entry {
	return render(svc, host, p.plane.opt.Scheduler, p.marks.before)
}

func (p *Plan) after(svc *route.Service) []entry {
	return render(svc, &p.change.Table.Host, p.plane.opt.Scheduler, p.marks.after)
}

// touched plans a change between two states that are both known.
func (p *Plan) touched() {
	host := &p.change.Table.Host
	before := host
	if p.change.OldHost != nil {
		before = p.change.OldHost
		p.Host(p.plane.fixed(before), p.plane.fixed(host))
	}
	done := map[cluster.Name]bool{}
	for _, t := range p.change.Touched {
		p.Service(t.Name, p.before(t.Old, before), p.after(t.New))
		done[t.Name] = true
	}
	if p.change.OldHost != nil {
		for _, name := range p.change.Table.Order() {
			if svc := p.change.Table.Services[name]; !done[name] {
				p.Service(name, p.before(svc, before), p.after(svc))
			}
		}
	}
	p.End()
}

// compare plans the difference between what the kernel holds and what it should hold.
func (p *Plan) compare(found *listing) {
	names := p.change.Table.Order()
	all := newMarks()
	cuts := map[route.Family]*ipset.Set{}
	for _, f := range p.plane.opt.Families {
		cuts[f] = found.sets[setName(f, circuits)]
	}
	for _, name := range names {
		if svc := p.change.InKernel(name); svc != nil {
			all.adopt(svc, &p.change.Table.Host, cuts)
		}
	}
	p.marks = all.draft()
	p.Plan = p.plane.ledger.Compare(p.plane.writer, found)
	p.Expect(len(names))
	p.Host(nil, p.plane.fixed(&p.change.Table.Host))
	for _, name := range names {
		p.Service(name, nil, p.after(p.change.InKernel(name)))
	}
	p.End()
	p.drains = found.drains
	p.Users(func(k key) (users []cluster.Name) {
		for _, name := range names {
			if slices.ContainsFunc(p.after(p.change.InKernel(name)), func(e entry) bool { return e.Key == k }) {
				users = append(users, name)
			}
		}
		return users
	})
	p.Learn(func() {
		p.plane.marks = all
		p.marks.learn()
	})
}

// fixed returns the entries that belong to no Service.
func (p *Plane) fixed(host *route.Host) []entry {
	list := []entry{{Key: key{class: device}}}
	for _, ip := range p.opt.Families {
		list = append(list, familyOf(ip).fixed(host, p.opt)...)
	}
	return list
}

// Apply writes the plan, and then deletes the destinations that have drained.
func (p *Plan) Apply(ctx context.Context) error {
	p.plane.writes.Add(1)
	defer p.plane.writes.Add(1)
	idle := len(p.plane.writer.drains) == 0
	if p.drains != nil {
		p.plane.writer.drains.adopt(p.drains, p.plane.opt.Now().Add(drainTime))
	}
	err := p.Plan.Apply(ctx)
	if _, refused := errors.AsType[plane.Refused](err); err != nil && !refused {
		return err
	}
	p.plane.state = nil
	if p.settle {
		if err := p.plane.writer.settle(ctx); err != nil {
			return err
		}
	}
	if p.settle || idle {
		p.plane.check = p.plane.opt.Now().Add(drainCheck)
	}
	return err
}
