package nftables

import (
	"iter"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// comparison plans the difference between what the kernel holds and what it should hold:
// adoption at start, and repair.
type comparison struct {
	plane   *Plane
	table   *route.Table
	names   []cluster.Name // in the order in which they are written
	listing *listing
	draft   *draft
	host    []entry
	renders []*renderer // of the parts, in their order

	frontends []frontend // memory for those of one Service, and for their entries
	entries   []entry
}

// servicesPerPart is how many Services a part of a first load has: some 20,000 elements, which take
// the kernel about 30 ms.
const servicesPerPart = 4096

func newComparison(p *Plane, t *route.Table) *comparison {
	c := &comparison{plane: p, table: t, names: t.Order()}
	render := c.renderer()
	c.host = render.host()
	if foreignHooks(render, p.seen) { // a chain of ours may have the name of one
		for _, name := range c.names {
			render.service(nil, t.Services[name], func(*route.Port) record { return record{} })
		}
	}
	c.listing = newListing(render, p.seen)
	newest := p.history.newest
	if found := c.listing.newestID(); newest == 0 && found > 0 {
		newest = found + idGap
	} else {
		newest = max(newest, found)
	}
	c.draft = newDraft(newHistory(newest))
	return c
}

// plan returns one plan, or, if the kernel holds nothing and there are many Services, a
// plan in parts.
func (c *comparison) plan() plane.Plan {
	if len(c.names) > c.plane.perPart && c.listing.empty() {
		return ledger.NewPortions(c.parts())
	}
	plan := c.begin()
	c.add(plan, c.names)
	c.end(plan)
	return plan
}

func (c *comparison) parts() iter.Seq[plane.Plan] {
	return func(yield func(plane.Plan) bool) {
		plan, names, n := c.begin(), c.names, c.plane.perPart
		for ; len(names) > n; names = names[n:] {
			c.add(plan, names[:n])
			next := c.next(plan)
			plan.count()
			if !yield(plan) {
				return
			}
			plan = next
		}
		c.add(plan, names)
		c.end(plan)
		yield(plan)
	}
}

// renderer returns a renderer for the next part: the one before it is used to write meanwhile.
func (c *comparison) renderer() *renderer {
	r := newRenderer(&c.plane.layout, c.plane.families, c.table.Host, c.plane.opt.Mark)
	c.renders = append(c.renders, r)
	return r
}

// begin begins the first plan, with what belongs to the host.
func (c *comparison) begin() *Plan {
	plan := &Plan{plane: c.plane, render: c.renders[0], draft: c.draft}
	plan.Plan = c.plane.ledger.Compare(plan.writer(), c.listing)
	plan.Host(nil, c.host)
	return plan
}

// next begins a plan for further Services.
func (c *comparison) next(before *Plan) *Plan {
	plan := &Plan{plane: c.plane, render: c.renderer(), draft: c.draft}
	plan.Plan = before.Next(plan.writer())
	return plan
}

// add adds Services.
func (c *comparison) add(plan *Plan, names []cluster.Name) {
	plan.Users(func(k key) []cluster.Name { return plan.render.users(c.table, c.names, k) })
	plan.Expect(len(names))
	for _, name := range names {
		c.frontends = plan.render.service(c.frontends, c.table.Services[name], func(port *route.Port) record {
			if c.listing.ordered(port) {
				return record{}
			}
			return plan.arrange(name, port, c.listing.frontend)
		})
		c.entries = entries(c.entries[:0], c.frontends, nil)
		plan.Service(name, nil, c.entries)
	}
}

// end ends the last plan.
func (c *comparison) end(plan *Plan) {
	plan.End()
	plan.count()
	plan.Learn(func() {
		c.draft.learn()
		for _, other := range c.renders[1:] {
			c.renders[0].merge(other)
		}
		c.plane.history, c.plane.render = c.draft.history, c.renders[0]
	})
}
