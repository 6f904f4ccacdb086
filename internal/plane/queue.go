package plane

import (
	"cmp"
	"iter"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Load bounds what one write contains, so that no Service delays others. The zero value sets no bounds.
type Load struct {
	// Cost estimates the size of a port in the kernel in a unit of the plane, such as map
	// elements or rules. Nil: every port costs 1.
	Cost func(*route.Port) int

	// Piece is the largest cost of one write; a single port may cost more. 0: writes are not divided.
	Piece int
}

// Queue holds changes of Services that are not written yet, and returns them in batches that a plane writes quickly. A
// batch has small Services first, and beside them pieces of large ones in rotation, so that no Service waits for a
// large one. Of the small ones, those that the kernel already has come before new and deleted ones, which get a quarter
// of the batch at least. Services of a class are returned in the order of arrival; one that changes while it waits
// keeps its position. Only one goroutine may use a Queue.
//
// The pieces of a Service are its ports. If a frontend moves from one port to another,
// within a Service or between two, both are in one batch.
type Queue struct {
	load    Load
	tasks   map[cluster.Name]*task
	classes [classes]fifo
	before  map[route.Key]*unit // the unit that has a frontend in the kernel
	after   map[route.Key]*unit // the unit that gets a frontend
}

// task is the change of one Service.
type task struct {
	name     cluster.Name
	class    *fifo
	old, now *route.Service // in the kernel before the first unit is written, and after the last
	waiting  []*unit        // the cheapest first; some are done
	left     int            // units that are not done
	written  []*unit
}

// unit is the part of a task that is written at once: the Service, or all of its ports with one name.
type unit struct {
	task     *task
	whole    bool // it is the Service
	old, now []*route.Port
	cost     int
	done     bool // it was returned, or a later change has replaced it
}

// The classes of tasks.
const (
	changed = iota // small Services that the kernel has and keeps
	others         // small Services that are new or deleted
	large
	classes
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

// Clear removes everything.
func (q *Queue) Clear() {
	q.tasks, q.before, q.after = map[cluster.Name]*task{}, map[route.Key]*unit{}, map[route.Key]*unit{}
	q.classes = [classes]fifo{}
}

// Empty reports whether the Queue has no change.
func (q *Queue) Empty() bool { return len(q.tasks) == 0 }

// Has reports whether the Queue has a change of the Service, or a part of one.
func (q *Queue) Has(name cluster.Name) bool { return q.tasks[name] != nil }

// HasSmall reports whether the Queue has a Service that is not written in pieces.
func (q *Queue) HasSmall() bool {
	return q.classes[changed].first() != nil || q.classes[others].first() != nil
}

// Add adds a change. It replaces what is left of an earlier change of the Service.
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
	class, parts := &q.classes[changed], []*unit{{whole: true, old: portsOf(tk.old), now: portsOf(tk.now)}}
	switch {
	case q.divided(tk):
		class, parts = &q.classes[large], split(tk.old, tk.now)
	case tk.old == nil || tk.now == nil:
		class = &q.classes[others]
	}
	for _, u := range parts {
		q.push(tk, u)
	}
	slices.SortStableFunc(tk.waiting, func(a, b *unit) int { return cmp.Compare(a.cost, b.cost) })
	if tk.class != class {
		if tk.class != nil {
			tk.class.remove(tk)
		}
		tk.class = class
		class.tasks = append(class.tasks, tk)
	}
	q.tasks[t.Name] = tk
}

// divided reports whether a task is written in pieces. A change of the health check node
// port concerns all ports and is not divided.
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
		q.before[k] = u
	}
	for k := range keys(u.now) {
		q.after[k] = u
	}
}

// keys yields the keys of the frontends of ports.
func keys(ports []*route.Port) iter.Seq[route.Key] {
	return func(yield func(route.Key) bool) {
		for _, p := range ports {
			for i := range p.Frontends {
				if !yield(p.Key(&p.Frontends[i])) {
					return
				}
			}
		}
	}
}

// finish removes a unit, if it is not done.
func (q *Queue) finish(u *unit) {
	if u.done {
		return
	}
	u.done = true
	u.task.left--
	for k := range keys(u.old) {
		if q.before[k] == u {
			delete(q.before, k)
		}
	}
	for k := range keys(u.now) {
		if q.after[k] == u {
			delete(q.after, k)
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

// All removes and returns all changes, each Service as a whole.
func (q *Queue) All() []route.Touch {
	touches := make([]route.Touch, 0, len(q.tasks))
	for _, t := range q.tasks {
		touches = append(touches, route.Touch{Name: t.name, Old: t.inKernel(), New: t.now})
	}
	q.Clear()
	return inOrder(touches)
}

// Next removes and returns the next batch, sorted by Service. It has at least one piece
// of a large Service if the Queue has one.
func (q *Queue) Next() []route.Touch {
	room := q.load.Piece
	if room == 0 {
		return q.All()
	}
	most := room
	if q.classes[others].first() != nil {
		most -= room / 4
	}
	picked, spent := q.pick(nil, &q.classes[changed], most)
	picked, _ = q.pick(picked, &q.classes[others], room-spent)
	picked, _ = q.pick(picked, &q.classes[large], room)
	return q.touches(picked)
}

// pick removes units of a class as far as there is room, but at least one. It appends them
// to picked and returns their cost.
func (q *Queue) pick(picked []*unit, from *fifo, room int) (all []*unit, spent int) {
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

// together removes and returns a unit and those with which it exchanges frontends, so that
// each of these frontends is served at every moment.
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
			take(q.before[k])
		}
		for k := range keys(u.old) {
			take(q.after[k])
		}
	}
	return list
}

// touches returns one change for each Service, and removes the tasks that are complete.
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

// inOrder sorts changes by Service.
func inOrder(touches []route.Touch) []route.Touch {
	slices.SortFunc(touches, func(a, b route.Touch) int { return a.Name.Compare(b.Name) })
	return touches
}

// Underway returns the Services of which a change is not written yet, in whole or in part,
// as the kernel holds them; nil stands for a Service that it does not hold.
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
	var old, now []*route.Port
	for _, u := range some {
		old, now = append(old, u.old...), append(now, u.now...)
	}
	return route.Touch{Name: t.name, Old: withPorts(t.old, old), New: withPorts(t.now, now)}
}

// withPorts returns a Service with these ports only; nil for nil.
func withPorts(svc *route.Service, ports []*route.Port) *route.Service {
	if svc == nil {
		return nil
	}
	part := *svc
	part.Ports = make([]route.Port, len(ports))
	for i, p := range ports {
		part.Ports[i] = *p
	}
	return &part
}

// inKernel returns the Service as it is after the units that were returned.
func (t *task) inKernel() *route.Service {
	if len(t.written) == 0 {
		return t.old
	}
	var ports []*route.Port
	replaced := map[*route.Port]bool{}
	for _, u := range t.written {
		for _, p := range u.old {
			replaced[p] = true
		}
		ports = append(ports, u.now...)
	}
	for _, p := range portsOf(t.old) {
		if !replaced[p] {
			ports = append(ports, p)
		}
	}
	return withPorts(cmp.Or(t.now, t.old), ports)
}
