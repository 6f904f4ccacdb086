package proxy

import (
	"maps"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// refusals are the Services that the kernel does not take, while all others are
// as they should be.
type refusals struct {
	services plane.Refused
	wait     time.Duration    // before the next attempt
	due      time.Time        // of it
	again    <-chan time.Time // it is time for it; nil: none is due
}

// hastened is how long it takes at most until a refused Service that has changed
// is tried again: it may be what was asked for, or one of very many changes.
const hastened = time.Second

// patience is how many times as long as an attempt takes the next is waited for:
// what comes in meanwhile waits for that attempt.
const patience = 9

func (r *refusals) after(wait time.Duration) {
	r.due, r.again = time.Now().Add(wait), time.After(wait)
}

// spare leaves out of a change the Services that are refused: what the kernel has
// of them nobody knows, and only a comparison finds out.
func (l *Loop) spare(change route.Change) route.Change {
	if len(l.refused.services) == 0 {
		return change
	}
	var rest []route.Touch
	for _, t := range change.Touched {
		if _, refused := l.refused.services[t.Name]; !refused {
			rest = append(rest, t)
		}
	}
	if len(rest) < len(change.Touched) && time.Until(l.refused.due) > hastened {
		l.refused.after(hastened)
	}
	change.Touched = rest
	return change
}

// refuse takes note of what a write came to. A write of changes says nothing of
// the Services refused before that it was not about.
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
			l.opt.Log.Info("The kernel takes the rules of all Services again")
		}
		return
	}
	l.report(complaints(before, now))
	if l.refused.again == nil {
		l.refused.wait = max(min(max(firstRetry, 2*l.refused.wait), lastRetry), patience*time.Since(s.Began))
		l.refused.after(l.refused.wait)
	}
}

// complaints are what is new to people.
func complaints(before, now plane.Refused) []route.Problem {
	var list []route.Problem
	for _, name := range now.Names() {
		if old := before[name]; old == nil || old.Error() != now[name].Error() {
			list = append(list, complaint(name, now[name]))
		}
	}
	return list
}

func complaint(name cluster.Name, err error) route.Problem {
	return route.Problem{
		Object: "Service " + name.String(),
		Reason: "the kernel does not take its rules; tried again now and then: " + err.Error(),
	}
}
