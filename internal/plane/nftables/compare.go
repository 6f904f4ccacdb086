package nftables

import (
	"iter"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

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
	d := &draft{history{given: p.history.given}, map[route.PortID]record{}}
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
		plan.Learn(func() { c.plane.history, c.plane.render = c.learn(), c.render })
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
