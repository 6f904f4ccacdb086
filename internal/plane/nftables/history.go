package nftables

import "github.com/sluice-proxy/sluice/internal/route"

// history has the slots of the backends of all Service ports, except those in the order of the route.
type history map[route.PortID]pools

// draft arranges the ports of a plan. It collects what the history learns once that is written.
type draft struct {
	history history
	learned history // of the ports that changed
}

// change arranges a Service before and after a change.
func (d *draft) change(t route.Touch) (old, now []front) {
	before := history{}
	old = arrange(nil, t.Old, func(p *route.Port, _ []front) pools {
		id := p.ID(t.Name)
		before[id] = d.history[id].complete(p)
		return before[id]
	})
	now = arrange(nil, t.New, func(p *route.Port, _ []front) pools {
		id := p.ID(t.Name)
		last := before[id]
		delete(before, id)
		return d.next(id, p, last)
	})
	for id := range before {
		d.note(id, pools{})
	}
	return old, now
}

// next returns the slots of a port that had others.
func (d *draft) next(id route.PortID, p *route.Port, last pools) pools {
	next := last.next(p)
	d.note(id, next)
	return next
}

// note records the slots of a port, unless that adds nothing to the history.
func (d *draft) note(id route.PortID, slots pools) {
	if _, known := d.history[id]; known || !slots.inOrder() {
		d.learned[id] = slots
	}
}

// learn returns the history after the plan.
func (d *draft) learn() history {
	if len(d.history) == 0 {
		return d.learned // a first load may have many
	}
	for id, slots := range d.learned {
		if d.history[id] = slots; slots.inOrder() {
			delete(d.history, id)
		}
	}
	return d.history
}
