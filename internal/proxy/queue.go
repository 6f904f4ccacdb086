package proxy

import (
	"maps"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// enqueue adds a change to the queue, except for refused Services.
func (l *Loop) enqueue(change route.Change) {
	for _, t := range l.withoutRefused(change).Touched {
		l.queue.Add(t)
	}
	if l.rehost == nil {
		l.rehost = change.OldHost
	}
}

// dequeue returns the next change to write. A change of the host concerns all Services, so
// the whole queue is written with it.
func (l *Loop) dequeue(table *route.Table) route.Change {
	next := route.Change{Table: table, OldHost: l.rehost}
	if l.rehost != nil {
		next.Touched = l.queue.All()
	} else {
		next.Touched = l.queue.Next()
	}
	next.Underway = l.queue.Underway()
	return next
}

// enqueueLeft adds the parts of Services that a comparison left out.
func (l *Loop) enqueueLeft(plan plane.Plan, cause Cause) {
	partial, ok := plan.(plane.Partial)
	if !ok {
		return
	}
	services := l.opt.Compiler.Table().Services
	for _, svc := range partial.Left() {
		if cause == Start {
			l.starting[svc.Name] = true
		}
		l.queue.Add(route.Touch{Name: svc.Name, Old: svc, New: services[svc.Name]})
	}
}

// startTime bounds how long Services that change all the time delay the end of the start.
const startTime = time.Minute

// waiting returns how many Services of the start are not completely written yet.
func (l *Loop) waiting() int {
	maps.DeleteFunc(l.starting, func(name cluster.Name, _ bool) bool {
		return !l.queue.Has(name) || time.Since(l.compareSince) > startTime
	})
	return len(l.starting)
}
