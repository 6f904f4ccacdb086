package nftables

import (
	"context"
	"iter"

	"github.com/sluice-proxy/sluice/internal/cluster"
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

	counts  *counts // nil: nothing counts
	changed []changedRow
}

// Apply implements plane.Plan. It first reads the counts of rows that it changes.
func (p *Plan) Apply(ctx context.Context) error {
	if len(p.changed) > 0 {
		p.counts.readRows(ctx, p.changed)
	}
	return p.Plan.Apply(ctx)
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
	plan := &Plan{Plan: p.ledger.Change(p.writer(render)), counts: p.opt.counts}
	if c.OldHost != nil {
		plan.Host(p.render.host(), render.host())
		plan.Depend(render.replaces(p.render))
	}
	draft := &draft{history: p.history, learned: map[route.PortID]record{}, live: p.opt.Live()}
	c.Touched = draft.live.touch(&c)
	olds, nows := make([][]front, len(c.Touched)), make([][]front, len(c.Touched))
	for i, t := range c.Touched {
		olds[i], nows[i] = draft.change(t)
	}
	was, is := byKey(olds), byKey(nows)
	for i, t := range c.Touched {
		plan.Service(t.Name, p.render.service(nil, t.Name, olds[i], is), render.service(nil, t.Name, nows[i], was))
	}
	if plan.counts != nil {
		plan.changed = changedRows(c.Touched, olds, is)
	}
	plan.End()
	plan.count()
	plan.Learn(func() { p.learn(draft, render) })
	return plan
}

// changedRows returns the rows of frontends of Services that they do not have afterwards.
func changedRows(of []route.Touch, olds [][]front, is map[key]*front) (rows []changedRow) {
	for i, t := range of {
		for j := range olds[i] {
			f := &olds[i][j]
			for k, backend := range f.differing(is[f.key]) {
				rows = append(rows, changedRow{k, f.port.ID(t.Name), backend})
			}
		}
	}
	return rows
}

func (p *Plane) learn(d *draft, r *renderer) {
	p.learning.Lock()
	defer p.learning.Unlock()
	p.history, p.render = d.learn(), r
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

// comparison plans the steps from the kernel's content to the wanted one, at start and for repair.
type comparison struct {
	*draft
	plane   *Plane
	render  *renderer
	table   *route.Table
	host    []entry
	listing *listing

	fronts  []front // memory for those of one Service
	entries []entry // and for their entries
}

// servicesPerPart is how many Services a part of a first load has: some 20,000 elements, written in about 30 ms.
const servicesPerPart = 4096

// compare returns a plan in parts, or in one unless it is a first load.
func (p *Plane) compare(t *route.Table) plane.Plan {
	d := &draft{history: history{given: p.history.given}, learned: map[route.PortID]record{}}
	c := &comparison{draft: d, plane: p, table: t, render: newRenderer(p.layout, t.Host, p.opt)}
	c.host = c.render.host()
	c.listing = newListing(c.render, p.seen)
	p.seen = nil
	names := t.Order()
	if len(c.listing.tables) == 0 {
		return ledger.NewPortions(c.parts(names, p.perPart))
	}
	return ledger.NewPortions(c.parts(names, len(names)))
}

// parts returns plans for so many Services each.
func (c *comparison) parts(names []cluster.Name, size int) iter.Seq[plane.Plan] {
	return func(yield func(plane.Plan) bool) {
		plan, left := &Plan{Plan: c.plane.ledger.Compare(c.plane.writer(c.render), c.listing)}, names
		plan.Host(nil, c.host)
		for ; len(left) > size; left = left[size:] {
			c.add(plan, left[:size])
			next := &Plan{Plan: plan.Next(c.plane.writer(c.render))}
			plan.count()
			if !yield(plan) {
				return
			}
			plan = next
		}
		c.add(plan, left)
		plan.End()
		plan.count()
		plan.Learn(func() {
			c.plane.learn(c.draft, c.render)
			if counts := c.plane.opt.counts; counts != nil {
				counts.forgetRows()
			}
		})
		yield(plan)
	}
}

func (c *comparison) add(plan *Plan, names []cluster.Name) {
	plan.Expect(len(names))
	for _, name := range names {
		c.fronts = arrange(c.fronts[:0], c.table.Services[name], func(p *route.Port, fronts []front) record {
			found := c.listing.record(fronts)
			if found.id != 0 {
				c.given++
			}
			return c.next(p.ID(name), p, found)
		})
		c.entries = c.render.service(c.entries[:0], name, c.fronts, nil)
		plan.Service(name, nil, c.entries)
	}
}
