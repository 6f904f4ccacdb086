package nftables

import (
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Plan is a change to the tables. After each write a Service is either there whole, or as it was; after
// each transaction packets to a frontend that was there before and is there afterwards are served.
type Plan struct {
	*ledger.Plan[key, value]
	steps int
}

// Steps returns the number of entries to write.
func (p *Plan) Steps() int { return p.steps }

// count counts the steps, of which Apply frees the memory.
func (p *Plan) count() { p.Each(func(*step) { p.steps++ }) }

// Plan works out what to write; after a Refresh by comparing everything.
func (p *Plane) Plan(change route.Change) plane.Plan {
	if p.seen != nil {
		return p.compare(change.Table)
	}
	return p.change(change)
}

// change plans a change of some Services, and perhaps of the host.
func (p *Plane) change(c route.Change) plane.Plan {
	render := p.render
	if c.OldHost != nil {
		render = newRenderer(p.layout, c.Table.Host, p.opt)
	}
	plan := &Plan{Plan: p.ledger.Change(p.writer(render))}
	if c.OldHost != nil {
		plan.Host(p.render.host(), render.host())
		plan.Depend(render.replaces(p.render))
	}
	draft := &draft{history: p.history, learned: map[route.PortID]record{}}
	olds, nows := make([][]front, len(c.Touched)), make([][]front, len(c.Touched))
	for i, t := range c.Touched {
		olds[i], nows[i] = draft.change(t)
	}
	was, is := byKey(olds), byKey(nows)
	for i, t := range c.Touched {
		plan.Service(t.Name, p.render.service(nil, t.Name, olds[i], is), render.service(nil, t.Name, nows[i], was))
	}
	plan.End()
	plan.count()
	plan.Learn(func() { p.history, p.render = draft.learn(), render })
	return plan
}

func (p *Plane) writer(r *renderer) *writer {
	return &writer{kernel: p.kernel, render: r, tx: &nft.Tx{}}
}

func byKey(services [][]front) map[key]*front {
	all := map[key]*front{}
	for _, fronts := range services {
		for i := range fronts {
			all[fronts[i].key] = &fronts[i]
		}
	}
	return all
}
