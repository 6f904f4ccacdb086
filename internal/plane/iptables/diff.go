package iptables

import (
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// diff thinks of what to write in one family.
type diff struct {
	*Plane
	*family
	table *route.Table
	host  *route.Host
	plan  *familyPlan
	kept  int

	partly   bool                              // parts of large Services may be left out
	inKernel func(cluster.Name) *route.Service // as it is once the plan is applied
	underway []cluster.Name                    // Services that may not be in the table any more
}

// bulk is how many rules of a shared chain are deleted one by one. For each of
// them the programs walk the whole chain, so that more are dearer than writing it
// anew.
const bulk = 32

// touched plans a change whose before is known.
func (d *diff) touched(change route.Change) {
	d.weigh()
	d.inKernel, d.underway = change.InKernel, slices.Collect(maps.Keys(change.Underway))
	before := d.host
	if change.OldHost != nil {
		before = change.OldHost
		d.rehost(before)
	}
	for _, t := range change.Touched {
		d.service(t.Name, d.render(t.Old, before), d.render(t.New, d.host))
		d.endpoints += d.size(t.New) - d.size(t.Old)
	}
	if change.OldHost != nil {
		d.untouched(change, before)
	}
	d.rewrite()
}

// rehost plans a change of what holds for the whole node.
func (d *diff) rehost(before *route.Host) {
	e := &d.plan.first
	d.chains(e, d.fixed(before, d.opt), d.fixed(d.host, d.opt))
	last := &d.plan.last // what goes is in use until the Services have changed
	last.gone, e.gone = e.gone, nil
	old, now := d.tail(before), d.tail(d.host)
	if !slices.Equal(old, now) {
		for _, rule := range old {
			e.ordered = append(e.ordered, command{"-D", line{nat, services, rule}})
		}
		for _, rule := range now {
			e.ordered = append(e.ordered, command{"-A", line{nat, services, rule}})
		}
		d.totals[tableKey{d.ip, nat}] += len(now) - len(old)
	}
	d.guard()
}

// guard adds the rules that only have to be there, and are not: in front of
// others.
func (d *diff) guard() {
	for _, l := range missing(d.guards(d.host), d.guarded[d.ip]) {
		d.plan.first.ordered = append(d.plan.first.ordered, command{"-I", l})
		d.guarded[d.ip] = append(d.guarded[d.ip], l)
	}
}

// untouched plans for the Services whose rules differ because the host does.
func (d *diff) untouched(change route.Change, before *route.Host) {
	done := map[cluster.Name]bool{}
	for _, t := range change.Touched {
		done[t.Name] = true
	}
	for _, name := range inNameOrder(d.table) {
		if svc := d.table.Services[name]; !done[name] {
			d.service(name, d.render(svc, before), d.render(svc, d.host))
		}
	}
}

// service plans the difference between two states of a Service.
func (d *diff) service(name cluster.Name, old, now rules) {
	e := edit{service: name}
	d.chains(&e, old.chains, now.chains)
	e.del, e.add = missing(old.lines, now.lines), missing(now.lines, old.lines)
	for _, l := range e.del {
		d.totals[tableKey{d.ip, l.table}]--
	}
	for _, l := range e.add {
		d.totals[tableKey{d.ip, l.table}]++
	}
	d.plan.enter(e, d.Plane.kernel.Room())
}

// enter adds what is to be written of a Service. Chains of endpoints come in
// restores of their own before, if that is much: nothing leads there yet.
func (p *familyPlan) enter(e edit, room int) {
	if e.lines() > room {
		endpoints := slices.Collect(func(yield func(chain) bool) {
			for _, c := range e.chains {
				if c.endpoint() && !yield(c) {
					return
				}
			}
		})
		e.chains = slices.DeleteFunc(slices.Clone(e.chains), chain.endpoint)
		for some := range slices.Chunk(endpoints, max(1, room/linesPerEndpoint)) {
			p.services = append(p.services, edit{service: e.service, chains: some})
		}
	}
	if e.lines() > 0 {
		p.services = append(p.services, e)
	}
}

// linesPerEndpoint is what the chain of an endpoint takes.
const linesPerEndpoint = 3

func (c chain) endpoint() bool { return strings.HasPrefix(c.name, "KUBE-SEP-") }

// chains plans the difference between two lists of chains.
func (d *diff) chains(e *edit, old, now []chain) {
	had := make(map[ref][]string, len(old))
	for _, c := range old {
		had[ref{c.table, c.name}] = c.rules
		d.totals[tableKey{d.ip, c.table}] -= len(c.rules)
	}
	for _, c := range now {
		at := ref{c.table, c.name}
		rules, ok := had[at]
		if !ok || !slices.Equal(rules, c.rules) {
			e.chains = append(e.chains, c)
		}
		delete(had, at)
		d.totals[tableKey{d.ip, c.table}] += len(c.rules)
	}
	for _, c := range old {
		if _, left := had[ref{c.table, c.name}]; left {
			e.gone = append(e.gone, ref{c.table, c.name})
		}
	}
}

// missing returns the lines of a list that another one does not have.
func missing(list, other []line) []line {
	there := make(map[line]bool, len(other))
	for _, l := range other {
		there[l] = true
	}
	var out []line
	for _, l := range list {
		if !there[l] {
			out = append(out, l)
		}
	}
	return out
}

// rewrite plans the shared chains anew that lose many rules.
func (d *diff) rewrite() {
	lost := map[ref]int{}
	d.plan.each(func(e *edit) {
		for _, l := range e.del {
			lost[ref{l.table, l.chain}]++
		}
	})
	for _, c := range d.shared(d.host) {
		if lost[ref{c.table, c.name}] > bulk {
			d.plan.rewrites.chains = append(d.plan.rewrites.chains, d.whole(c))
		}
	}
}

// inKernelOrder returns the Services in the kernel, in the order of their rules.
func (d *diff) inKernelOrder() []cluster.Name {
	names := inNameOrder(d.table)
	for _, name := range d.underway {
		if d.table.Services[name] == nil {
			names = append(names, name)
		}
	}
	return names
}

// whole returns a shared chain with the rules of all Services.
func (d *diff) whole(c chain) chain {
	tail := c.rules
	c.rules = nil
	for _, name := range d.inKernelOrder() {
		for _, l := range d.render(d.inKernel(name), d.host).lines {
			if l.table == c.table && l.chain == c.name {
				c.rules, c.of = append(c.rules, l.rule), append(c.of, name)
			}
		}
	}
	c.rules = append(c.rules, tail...)
	return c
}
