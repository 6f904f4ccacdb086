package nftables

import "github.com/sluice-proxy/sluice/internal/route"

// history has the records of all Service ports, except empty ones, and how many ids were given or adopted.
type history struct {
	ports map[route.PortID]record
	given uint32
}

// draft arranges the ports of a plan. It collects what the history learns once that is written.
type draft struct {
	history
	learned map[route.PortID]record // of the ports that changed
	live    *Live                   // nil: connections were not counted
}

// change arranges a Service before and after a change.
func (d *draft) change(t route.Touch) (old, now []front) {
	before := map[route.PortID]record{}
	old = arrange(nil, t.Old, func(p *route.Port, _ []front) record {
		id := p.ID(t.Name)
		last := d.ports[id]
		last.pools = last.complete(p)
		before[id] = last
		return last
	})
	now = arrange(nil, t.New, func(p *route.Port, _ []front) record {
		id := p.ID(t.Name)
		last := before[id]
		delete(before, id)
		return d.next(id, p, last)
	})
	for id := range before {
		d.note(id, record{})
	}
	return old, now
}

// next returns the record of a port that had another one. It keeps its id as long as it has backends.
func (d *draft) next(id route.PortID, p *route.Port, last record) record {
	if p.Affinity > 0 && last.id == 0 { // no client has a number yet
		last.pools = pools{}
	}
	next := record{last.next(p, d.live), last.id}
	switch {
	case p.Affinity == 0 || len(p.Cluster)+len(p.Local) == 0:
		next.id = 0
	case last.id == 0:
		d.given++
		next.id = idOf(id, d.given)
	}
	d.note(id, next)
	return next
}

// note records a port, unless that adds nothing to the history.
func (d *draft) note(id route.PortID, r record) {
	if _, known := d.ports[id]; known || !r.empty() {
		d.learned[id] = r
	}
}

// learn returns the history after the plan.
func (d *draft) learn() history {
	if len(d.ports) == 0 {
		d.ports = d.learned // a first load may have many
		return d.history
	}
	for id, r := range d.learned {
		if d.ports[id] = r; r.empty() {
			delete(d.ports, id)
		}
	}
	return d.history
}
