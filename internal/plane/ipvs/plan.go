package ipvs

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Plan is a change of the kernel.
type Plan struct {
	*ledger.Plan[key, value]
	plane  *Plane
	change route.Change
	drains drains // that a comparison found; nil: it compared nothing
	settle bool   // Apply deletes the destinations that have drained
}

// Plan computes what to write; after a Refresh it compares everything.
func (p *Plane) Plan(change route.Change) plane.Plan {
	plan := &Plan{plane: p, change: change, settle: !p.Due().IsZero() && !p.opt.Now().Before(p.check)}
	if p.state != nil {
		plan.compare(newListing(*p.state, p.opt))
		return plan
	}
	plan.Plan = p.ledger.Change(p.writer)
	plan.touched()
	return plan
}

// render returns the entries of a Service.
func (p *Plane) render(svc *route.Service, host *route.Host) []entry {
	return render(svc, host, p.opt.Scheduler, p.marks)
}

// touched plans a change between two states that are both known.
func (p *Plan) touched() {
	host := &p.change.Table.Host
	before := host
	if p.change.OldHost != nil {
		before = p.change.OldHost
		p.Host(p.plane.fixed(before), p.plane.fixed(host))
	}
	p.change.Each(func(name cluster.Name, old, now *route.Service) {
		p.Service(name, p.plane.render(old, before), p.plane.render(now, host))
	})
	p.End()
}

// compare plans the steps from the kernel's content to the wanted one.
func (p *Plan) compare(found *listing) {
	host, names := &p.change.Table.Host, p.change.Table.Order()
	p.plane.marks = newMarks()
	for _, name := range names {
		p.plane.marks.adopt(p.change.InKernel(name), host, found.sets)
	}
	after := func(name cluster.Name) []entry { return p.plane.render(p.change.InKernel(name), host) }
	p.Plan = p.plane.ledger.Compare(p.plane.writer, found)
	p.Expect(len(names))
	p.Host(nil, p.plane.fixed(host))
	for _, name := range names {
		p.Service(name, nil, after(name))
	}
	p.End()
	p.drains = found.drains
	p.Users(func(k key) (users []cluster.Name) {
		for _, name := range names {
			if slices.ContainsFunc(after(name), func(e entry) bool { return e.Key == k }) {
				users = append(users, name)
			}
		}
		return users
	})
}

// fixed returns the entries that belong to no Service.
func (p *Plane) fixed(host *route.Host) []entry {
	list := []entry{{Key: key{class: device}}}
	for _, ip := range p.opt.Families {
		list = append(list, fixed(ip, host, p.opt)...)
	}
	return list
}

// Apply writes the plan, and then deletes the destinations that have drained.
func (p *Plan) Apply(ctx context.Context) error {
	p.plane.writes.Add(1)
	defer p.plane.writes.Add(1)
	idle := len(p.plane.writer.drains) == 0
	if p.drains != nil {
		clear(p.plane.writer.drains)
		maps.Copy(p.plane.writer.drains, p.drains)
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
