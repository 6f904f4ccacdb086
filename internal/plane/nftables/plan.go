package nftables

import (
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Plan is a change to the tables. After each write a Service is either there whole, or
// as it was; after each transaction of a write every packet to a frontend that was there
// before and is there afterwards is served.
type Plan struct {
	*ledger.Plan[key, string]
	plane  *Plane
	render *renderer
	draft  *draft
	steps  int
}

// Steps returns the number of entries to write.
func (p *Plan) Steps() int { return p.steps }

// count counts the steps, of which Apply frees the memory.
func (p *Plan) count() { p.Each(func(step) { p.steps++ }) }

// Plan works out what to write; after a Refresh by comparing everything.
func (p *Plane) Plan(change route.Change) plane.Plan {
	if p.seen != nil {
		c := newComparison(p, change.Table)
		p.seen = nil
		return c.plan()
	}
	plan := &Plan{plane: p, render: p.render}
	plan.touched(change)
	plan.End()
	plan.count()
	plan.Learn(func() {
		plan.draft.learn()
		p.history, p.render = plan.draft.history, plan.render
	})
	return plan
}

// writer returns a writer of what the plan renders.
func (p *Plan) writer() *writer {
	return &writer{kernel: p.plane.kernel, families: len(p.plane.families), render: p.render, tx: &nft.Tx{}}
}

// touched plans a change of some Services, and perhaps of the host.
func (p *Plan) touched(c route.Change) {
	p.draft = newDraft(p.plane.history)
	before := p.render
	if c.OldHost != nil {
		p.render = newRenderer(&p.plane.layout, p.plane.families, c.Table.Host, p.plane.opt.Mark)
	}
	p.Plan = p.plane.ledger.Change(p.writer())
	if c.OldHost != nil {
		p.Host(before.host(), p.render.host())
		p.Depend(func(k key) (old, now string, depends bool) {
			if to, is := before.of[k]; is && k.of == actionChain {
				return before.sameChain(k, to).Value, p.render.sameChain(k, to).Value, true
			}
			return "", "", false
		})
	}
	olds, nows := make([][]frontend, len(c.Touched)), make([][]frontend, len(c.Touched))
	was, is := map[frontendKey]*frontend{}, map[frontendKey]*frontend{}
	for i, t := range c.Touched {
		olds[i] = before.service(nil, t.Old, func(port *route.Port) record { return p.draft.ports[keyOf(t.Name, port)] })
		byKey(was, olds[i])
	}
	for i, t := range c.Touched {
		nows[i] = p.render.service(nil, t.New, func(port *route.Port) record {
			return p.arrange(t.Name, port, func(k frontendKey) found {
				if f := was[k]; f != nil {
					return found{f.rows, f.id}
				}
				return found{}
			})
		})
		byKey(is, nows[i])
		p.forget(t)
	}
	for i, t := range c.Touched {
		p.Service(t.Name, entries(nil, olds[i], is), entries(nil, nows[i], was))
	}
}

func byKey(all map[frontendKey]*frontend, list []frontend) {
	for i := range list {
		all[list[i].key] = &list[i]
	}
}

// arrange finds the slots and the id of a port, from what its frontends had.
func (p *Plan) arrange(name cluster.Name, port *route.Port, had func(frontendKey) found) record {
	olds := make([]found, len(port.Frontends))
	for j := range port.Frontends {
		olds[j] = had(p.render.layout.key(port, &port.Frontends[j]))
	}
	return p.draft.arrange(p.render.layout, keyOf(name, port), port, olds)
}

// forget drops the records of ports that are gone.
func (p *Plan) forget(t route.Touch) {
	if t.Old == nil || len(p.draft.ports) == 0 {
		return
	}
	for i := range t.Old.Ports {
		k := keyOf(t.Name, &t.Old.Ports[i])
		kept := t.New != nil && slices.ContainsFunc(t.New.Ports, func(q route.Port) bool { return keyOf(t.Name, &q) == k })
		if !kept {
			p.draft.note(k, record{})
		}
	}
}

// users returns the Services that need an entry that several may share.
func (r *renderer) users(t *route.Table, names []cluster.Name, k key) []cluster.Name {
	var list []cluster.Name
	for _, name := range names {
		frontends := r.service(nil, t.Services[name], func(*route.Port) record { return record{} })
		if slices.ContainsFunc(frontends, func(f frontend) bool {
			return slices.ContainsFunc(f.entries, func(e entry) bool { return e.Key == k })
		}) {
			list = append(list, name)
		}
	}
	return list
}
