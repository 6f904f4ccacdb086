package nftables

import "github.com/sluice-proxy/sluice/internal/route"

// history has the records of all Service ports, except empty ones, and the newest id.
type history struct {
	ports  map[route.PortID]record
	newest uint32
}

// draft arranges the ports of a plan. It collects what the history learns once that is written.
type draft struct {
	history
	learned map[route.PortID]record // of the ports that changed
}

func newDraft(h history) *draft {
	return &draft{history: h, learned: map[route.PortID]record{}}
}

// change arranges a Service before and after a change.
func (d *draft) change(t route.Touch) (old, now []front) {
	before := map[route.PortID]record{}
	old = arrange(nil, t.Old, func(p *route.Port, _ []front) record {
		id := p.ID(t.Name)
		before[id] = d.ports[id].complete(p)
		return before[id]
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

// next returns the record of a port that had another one.
func (d *draft) next(id route.PortID, p *route.Port, last record) record {
	next := last.next(p)
	next.id = d.identify(p, last.id)
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
	}
	for id, r := range d.learned {
		if d.ports[id] = r; r.empty() {
			delete(d.ports, id)
		}
	}
	return d.history
}

// Ids of ports are odd and exceed all numbers, so that an id is not a number in either byte
// order. The highest ones are never used, so that counting does not overflow.
const (
	firstID = 1<<20 | 1
	lastID  = 1 << 31
	idGap   = 1 << 13 // skipped at start: the map may still have clients of deleted ports
)

func isID(id uint32) bool { return id >= firstID && id < lastID && id%2 == 1 }

// identify returns the id of a port that remembers its clients: the one that it had, or one that no port
// has had for a long time. They last for 34 years at one new port per second; two ports with the same one
// would share the numbers of their clients. A port without backends has none, so that clients draw again
// once it has some.
func (d *draft) identify(p *route.Port, had uint32) uint32 {
	switch {
	case p.Affinity == 0 || len(p.Cluster)+len(p.Local) == 0:
		return 0
	case had != 0:
		return had
	}
	if d.newest = max(d.newest+2, firstID); d.newest >= lastID {
		d.newest = firstID
	}
	return d.newest
}
