package proxy

import (
	"maps"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// refusals are the Services whose rules the kernel rejects, while all others are written.
type refusals struct {
	services plane.Refused
	wait     time.Duration    // before the next attempt
	rest     time.Duration    // between two attempts at least, as the last one took long
	ended    time.Time        // the last one
	due      time.Time        // of the next attempt
	again    <-chan time.Time // fires at due; nil: no attempt is due
}

// retryChanged is the usual time until a refused Service that has changed is tried again. It
// is not tried at once, as the change may be one of very many. If an attempt takes long, retryFactor holds here too.
const retryChanged = time.Second

// retryFactor is the least ratio of the retry delay to the duration of an attempt, during which all other changes wait.
const retryFactor = 9

func (r *refusals) after(wait time.Duration) {
	r.due, r.again = time.Now().Add(wait), time.After(wait)
}

// enqueue adds a change to the queue, except for refused Services: the kernel may hold anything of them, so only a
// comparison writes them.
func (l *Loop) enqueue(change route.Change) {
	changed := false // a refused Service
	for _, t := range change.Touched {
		if _, refused := l.refused.services[t.Name]; refused {
			changed = true
			continue
		}
		l.queue.Add(t)
	}
	soon := max(retryChanged, l.refused.rest-time.Since(l.refused.ended))
	if changed && time.Until(l.refused.due) > soon {
		l.refused.after(soon)
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

// refuse records refused Services. Earlier ones stay refused unless the write compared everything.
func (l *Loop) refuse(now plane.Refused, s Sync) {
	before := l.refused.services
	if !s.Full() {
		all := plane.Refused{}
		maps.Copy(all, before)
		maps.Copy(all, now)
		now = all
	}
	l.refused.services = now
	if len(now) == 0 {
		l.refused = refusals{}
		if len(before) > 0 {
			l.opt.Log.Info("The kernel accepts the rules of all Services again")
		}
		return
	}
	l.report(newRefusals(before, now))
	if s.Full() {
		l.refused.rest, l.refused.ended = retryFactor*time.Since(s.Began), time.Now()
	}
	if l.refused.again == nil {
		l.refused.wait = max(min(max(firstRetry, 2*l.refused.wait), lastRetry), retryFactor*time.Since(s.Began))
		l.refused.after(l.refused.wait)
	}
}

// vital returns a refused Service that is vital; the zero Name if there is none.
func (r *refusals) vital(t *route.Table) cluster.Name {
	for _, name := range r.services.Names() {
		if t.Services[name].Vital() {
			return name
		}
	}
	return cluster.Name{}
}

// newRefusals returns the problems of Services that were not refused before, or for another reason.
func newRefusals(before, now plane.Refused) []route.Problem {
	var list []route.Problem
	for _, name := range now.Names() {
		if old := before[name]; old == nil || old.Error() != now[name].Error() {
			list = append(list, route.Problem{
				Object: "Service " + name.String(),
				Reason: plane.Problem(now[name]) + "; Sluice retries periodically: " + now[name].Error(),
			})
		}
	}
	return list
}
