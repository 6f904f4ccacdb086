package proxy

import "github.com/sluice-proxy/sluice/internal/route"

// enqueue adds a change to the queue, except for refused Services.
func (l *Loop) enqueue(change route.Change) {
	for _, t := range l.withoutRefused(change).Touched {
		l.queue.Add(t)
	}
	if l.rehost == nil {
		l.rehost = change.OldHost
	}
}

// dequeue returns the next change to write: the whole queue with a change of the host, which concerns all Services.
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
