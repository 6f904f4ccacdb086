package plane

import (
	"cmp"
	"iter"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Queue holds changes of Services that are not written yet. It hands them out in
// batches that a plane writes quickly: small Services first, and beside them pieces
// of the large ones in turn, so that no Service waits for a large one. Of the small
// ones those that stay come before new and deleted ones, however many there are of
// these. Services of a
// kind are handed out in the order in which they came; one that changes while it
// waits keeps its place. A Queue is used by one goroutine.
//
// The pieces of a Service are its ports. Ports are handed out together where a
// frontend moves from one to the other, within a Service or between two.
type Queue struct {
	load  Load
	tasks map[cluster.Name]*task
	lines [lines]line
	holds map[route.Key]*unit // whose frontend it is in the kernel
	wants map[route.Key]*unit // whose frontend it becomes
}

// task is a Service on its way into the kernel.
type task struct {
	name     cluster.Name
	line     *line
	old, now *route.Service // in the kernel before the first unit; wanted
	waiting  []*unit        // the cheapest first; some are done
	left     int            // units that wait
	written  []*unit        // handed out
}

// unit is what of a Service is written at once: all of it, or its ports of one
// name.
type unit struct {
	task     *task
	whole    bool // it is the Service
	old, now []*route.Port
	cost     int
	done     bool // it was handed out, or is out of date
}

// The lines in which tasks wait.
const (
	changed = iota // small Services that the kernel holds and keeps
	others         // small Services that come or go
	large
	lines
)

// NewQueue returns an empty Queue.
func NewQueue(load Load) *Queue {
	if load.Cost == nil {
		load.Cost = func(*route.Port) int { return 1 }
	}
	q := &Queue{load: load}
	q.Clear()
	return q
}

// Clear forgets everything.
func (q *Queue) Clear() {
	q.tasks, q.holds, q.wants = map[cluster.Name]*task{}, map[route.Key]*unit{}, map[route.Key]*unit{}
	q.lines = [lines]line{}
}

// Empty reports whether nothing waits.
func (q *Queue) Empty() bool { return len(q.tasks) == 0 }

// Has reports whether a part of the Service waits.
func (q *Queue) Has(name cluster.Name) bool { return q.tasks[name] != nil }

// Hurried reports whether a Service waits that is not written in pieces.
func (q *Queue) Hurried() bool {
	return q.lines[changed].first() != nil || q.lines[others].first() != nil
}

// Add takes a change in. What waited of the same Service is replaced.
func (q *Queue) Add(t route.Touch) {
	tk := q.tasks[t.Name]
	if tk == nil {
		tk = &task{name: t.Name, old: t.Old}
	} else {
		tk.old = tk.inKernel()
		for _, u := range tk.waiting {
			q.finish(u)
		}
	}
	tk.now, tk.waiting, tk.written = t.New, nil, nil
	to, parts := &q.lines[changed], []*unit{{whole: true, old: portsOf(tk.old), now: portsOf(tk.now)}}
	switch {
	case q.divided(tk):
		to, parts = &q.lines[large], split(tk.old, tk.now)
	case tk.old == nil || tk.now == nil:
		to = &q.lines[others]
	}
	for _, u := range parts {
		q.push(tk, u)
	}
	slices.SortStableFunc(tk.waiting, func(a, b *unit) int { return cmp.Compare(a.cost, b.cost) })
	if tk.line != to {
		if tk.line != nil {
			tk.line.remove(tk)
		}
		tk.line = to
		to.tasks = append(to.tasks, tk)
	}
	q.tasks[t.Name] = tk
}

// divided reports whether a task is written in pieces. What ports say of the health
// check node port belongs to all of them, so a change of it is not divided.
func (q *Queue) divided(t *task) bool {
	if q.load.Piece == 0 || q.cost(t.old)+q.cost(t.now) <= q.load.Piece {
		return false
	}
	return t.old == nil || t.now == nil || healthPort(t.old) == healthPort(t.now)
}

func healthPort(svc *route.Service) uint16 {
	if svc.Health == nil {
		return 0
	}
	return svc.Health.Port
}

func (q *Queue) push(t *task, u *unit) {
	u.task = t
	for _, p := range slices.Concat(u.old, u.now) {
		u.cost += q.load.Cost(p)
	}
	t.waiting = append(t.waiting, u)
	t.left++
	for k := range keys(u.old) {
		q.holds[k] = u
	}
	for k := range keys(u.now) {
		q.wants[k] = u
	}
}

// keys yields the frontends of ports.
func keys(ports []*route.Port) iter.Seq[route.Key] {
	return func(yield func(route.Key) bool) {
		for _, p := range ports {
			for i := range p.Fronts {
				if !yield(p.Key(&p.Fronts[i])) {
					return
				}
			}
		}
	}
}

// finish takes a unit out, unless that is done.
func (q *Queue) finish(u *unit) {
	if u.done {
		return
	}
	u.done = true
	u.task.left--
	for k := range keys(u.old) {
		if q.holds[k] == u {
			delete(q.holds, k)
		}
	}
	for k := range keys(u.now) {
		if q.wants[k] == u {
			delete(q.wants, k)
		}
	}
}

func (q *Queue) cost(svc *route.Service) int {
	n := 0
	for _, p := range portsOf(svc) {
		n += q.load.Cost(p)
	}
	return n
}

// All returns everything that waits, each Service as a whole.
func (q *Queue) All() []route.Touch {
	touches := make([]route.Touch, 0, len(q.tasks))
	for _, t := range q.tasks {
		touches = append(touches, route.Touch{Name: t.name, Old: t.inKernel(), New: t.now})
	}
	q.Clear()
	return inOrder(touches)
}

// Next returns what is written next, by Service. At least one piece of a large
// Service is among it if one waits.
func (q *Queue) Next() []route.Touch {
	room := q.load.Piece
	if room == 0 {
		return q.All()
	}
	most := room
	if q.lines[others].first() != nil {
		most -= room / 4 // they do not wait without end
	}
	picked, spent := q.pick(nil, &q.lines[changed], most)
	picked, _ = q.pick(picked, &q.lines[others], room-spent)
	picked, _ = q.pick(picked, &q.lines[large], room)
	return q.touches(picked)
}

// pick takes units out of a line as far as there is room, but at least one, and
// returns what they cost.
func (q *Queue) pick(picked []*unit, from *line, room int) (all []*unit, spent int) {
	for spent == 0 || spent < room {
		t := from.first()
		if t == nil || spent > 0 && spent+t.next().cost > room {
			break
		}
		for _, u := range q.together(t.next()) {
			picked = append(picked, u)
			spent += max(1, u.cost)
		}
		from.rotate()
	}
	return picked, spent
}

// together takes out a unit, and those with which it exchanges frontends: such a
// frontend is always served by the one or the other.
func (q *Queue) together(first *unit) []*unit {
	var list, todo []*unit
	take := func(u *unit) {
		if u != nil {
			q.finish(u)
			todo = append(todo, u)
		}
	}
	take(first)
	for len(todo) > 0 {
		u := todo[0]
		todo, list = todo[1:], append(list, u)
		for k := range keys(u.now) {
			take(q.holds[k])
		}
		for k := range keys(u.old) {
			take(q.wants[k])
		}
	}
	return list
}

// touches makes one change for each Service, and forgets those that are complete.
func (q *Queue) touches(picked []*unit) []route.Touch {
	var order []*task
	parts := map[*task][]*unit{}
	for _, u := range picked {
		if parts[u.task] == nil {
			order = append(order, u.task)
		}
		parts[u.task] = append(parts[u.task], u)
	}
	touches := make([]route.Touch, 0, len(order))
	for _, t := range order {
		touches = append(touches, t.touch(parts[t]))
		t.written = append(t.written, parts[t]...)
		if t.left == 0 {
			delete(q.tasks, t.name)
		}
	}
	return inOrder(touches)
}

func inOrder(touches []route.Touch) []route.Touch {
	slices.SortFunc(touches, func(a, b route.Touch) int { return a.Name.Compare(b.Name) })
	return touches
}

// Underway returns the Services that wait, in whole or in part, as the kernel holds
// them; nil stands for one that it does not hold.
func (q *Queue) Underway() map[cluster.Name]*route.Service {
	all := make(map[cluster.Name]*route.Service, len(q.tasks))
	for name, t := range q.tasks {
		all[name] = t.inKernel()
	}
	return all
}

// touch is the change that some units of a task make.
func (t *task) touch(some []*unit) route.Touch {
	if some[0].whole {
		return route.Touch{Name: t.name, Old: t.old, New: t.now}
	}
	part := func(of *route.Service, ports func(*unit) []*route.Port) *route.Service {
		if of == nil {
			return nil
		}
		svc := *of
		svc.Ports = nil
		for _, u := range some {
			for _, p := range ports(u) {
				svc.Ports = append(svc.Ports, *p)
			}
		}
		return &svc
	}
	return route.Touch{
		Name: t.name,
		Old:  part(t.old, func(u *unit) []*route.Port { return u.old }),
		New:  part(t.now, func(u *unit) []*route.Port { return u.now }),
	}
}

// inKernel returns the Service as the units that were handed out left it.
func (t *task) inKernel() *route.Service {
	if len(t.written) == 0 {
		return t.old
	}
	like := t.now
	if like == nil {
		like = t.old
	}
	svc := *like
	svc.Ports = nil
	gone := map[*route.Port]bool{}
	for _, u := range t.written {
		for _, p := range u.old {
			gone[p] = true
		}
		for _, p := range u.now {
			svc.Ports = append(svc.Ports, *p)
		}
	}
	for _, p := range portsOf(t.old) {
		if !gone[p] {
			svc.Ports = append(svc.Ports, *p)
		}
	}
	return &svc
}
