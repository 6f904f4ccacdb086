package ipvs

import (
	"context"
	"errors"
	"maps"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Plan is a change of the kernel.
type Plan struct {
	*ledger.Plan[key, value]
	plane         *Plane
	drains        drains // that a comparison found; nil: it compared nothing
	deleteDrained bool   // Apply deletes the destinations that have drained
}

// Plan computes what to write; after a Refresh it compares everything.
func (p *Plane) Plan(change route.Change) plane.Plan {
	plan := &Plan{plane: p, deleteDrained: !p.Due().IsZero() && !p.opt.Now().Before(p.check)}
	host := &change.Table.Host
	if p.state != nil {
		found := newListing(*p.state, p.opt)
		p.marks = newMarks()
		for _, name := range change.Table.Order() {
			p.marks.adopt(change.InKernel(name), host, found.sets)
		}
		plan.Plan, plan.drains = p.ledger.Compare(p.writer, found), found.drains
		plan.Host(nil, p.fixed(host))
	} else {
		plan.Plan = p.ledger.Change(p.writer)
		if change.OldHost != nil {
			plan.Host(p.fixed(change.OldHost), p.fixed(host))
		}
	}
	plan.Services(change, p.render)
	plan.End()
	return plan
}

// render returns the entries of a Service.
func (p *Plane) render(svc *route.Service, host *route.Host) []entry {
	return render(svc, host, p.marks)
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
	if p.deleteDrained {
		if err := p.plane.writer.deleteDrained(ctx); err != nil {
			return err
		}
	}
	if p.deleteDrained || idle {
		p.plane.check = p.plane.opt.Now().Add(drainCheck)
	}
	return err
}
