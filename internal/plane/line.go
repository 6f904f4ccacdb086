package plane

import (
	"slices"

	"github.com/sluice-proxy/sluice/internal/route"
)

// line is a queue of tasks. Tasks without waiting units are skipped.
type line struct{ tasks []*task }

// next returns the cheapest unit that waits.
func (t *task) next() *unit {
	for t.waiting[0].done {
		t.waiting = t.waiting[1:]
	}
	return t.waiting[0]
}

// first returns the first task of which a unit waits; nil if there is none.
func (l *line) first() *task {
	for len(l.tasks) > 0 && l.tasks[0].left == 0 {
		l.tasks = l.tasks[1:]
	}
	if len(l.tasks) == 0 {
		return nil
	}
	return l.tasks[0]
}

// rotate puts the first task last.
func (l *line) rotate() {
	l.tasks = append(l.tasks[1:], l.tasks[0])
}

func (l *line) remove(t *task) {
	l.tasks = slices.DeleteFunc(l.tasks, func(other *task) bool { return other == t })
}

// split divides the difference between two states of a Service by the names of
// ports. Ports that stay the same are left out.
func split(old, now *route.Service) []*unit {
	byName := map[string]*unit{}
	var list []*unit
	of := func(name string) *unit {
		u := byName[name]
		if u == nil {
			u = &unit{}
			byName[name] = u
			list = append(list, u)
		}
		return u
	}
	for _, p := range portsOf(now) {
		u := of(p.Name)
		u.now = append(u.now, p)
	}
	for _, p := range portsOf(old) {
		u := of(p.Name)
		u.old = append(u.old, p)
	}
	if old == nil || now == nil {
		return list
	}
	list = slices.DeleteFunc(list, func(u *unit) bool {
		return slices.EqualFunc(u.old, u.now, func(p, q *route.Port) bool { return p.Equal(*q) })
	})
	if len(list) == 0 {
		return []*unit{{}} // nothing to write, but followers hear of the change
	}
	return list
}

func portsOf(svc *route.Service) []*route.Port {
	if svc == nil {
		return nil
	}
	list := make([]*route.Port, len(svc.Ports))
	for i := range svc.Ports {
		list[i] = &svc.Ports[i]
	}
	return list
}
