package plane

import (
	"slices"

	"github.com/sluice-proxy/sluice/internal/route"
)

// fifo is a queue of the tasks of one class.
type fifo struct{ tasks []*task }

// next returns the cheapest unit that is not done. There must be one.
func (t *task) next() *unit {
	for t.waiting[0].done {
		t.waiting = t.waiting[1:]
	}
	return t.waiting[0]
}

// first returns the first task that has a unit left, and removes those before it; nil if there is none.
func (f *fifo) first() *task {
	for len(f.tasks) > 0 && f.tasks[0].left == 0 {
		f.tasks = f.tasks[1:]
	}
	if len(f.tasks) == 0 {
		return nil
	}
	return f.tasks[0]
}

// rotate moves the first task to the end.
func (f *fifo) rotate() {
	f.tasks = append(f.tasks[1:], f.tasks[0])
}

func (f *fifo) remove(t *task) {
	f.tasks = slices.DeleteFunc(f.tasks, func(other *task) bool { return other == t })
}

// split returns the difference between two states of a Service, a unit for each name of
// its ports. Ports without a difference are left out.
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
		return []*unit{{}} // nothing to write, but followers must be notified
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
