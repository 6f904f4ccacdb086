package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// repairs makes the loop repair what other programs change. A repair comes at once, until
// repairs have used their CPU time in advance; then it comes as early as a fixed share of one
// CPU allows, however often another program changes rules. The pause before a comparison
// that repairs no known edit is a multiple of the CPU time of the one before.
type repairs struct {
	loop comparer
	log  *slog.Logger
	cpu  func() time.Duration // CPU time used so far by this process and the programs it ran

	edits    chan plane.Edit
	possible chan struct{}
	syncs    chan proxy.Sync // comparisons that ended; the latest

	edited, unsure bool          // an edit, or a possible one, since the last comparison
	logged         bool          // such an edit was logged
	unclear        string        // the latest one that is unclear
	cost           time.Duration // CPU time of the last comparison that repairs requested
	ended          time.Time     // end of that comparison
	free           time.Time     // when comparisons have used no more than the share of repairs
	lastEdit       time.Time     // zero: none for calmAfter
	count          int           // edits since there were none for calmAfter
}

// comparer compares everything with the kernel.
type comparer interface {
	Compare(ctx context.Context, why proxy.Cause) error
}

// The CPU time of repairs: a fifth of a CPU, and a second in advance.
const (
	repairShare = 5
	repairBurst = time.Second
)

// The pause after a comparison, as multiples of its cost.
const (
	contestPause = 20   // before a comparison after a possible edit, while another program makes edits
	verifyPause  = 100  // before a comparison after a possible edit: a hundredth of a CPU
	periodPause  = 1000 // before a comparison without a cause: a thousandth
)

const (
	minPeriod = 10 * time.Minute // between comparisons without a cause, whatever they cost
	maxPeriod = time.Hour

	calmAfter = time.Minute // without an edit, other programs have stopped making edits
	maxLogged = 10          // edits that are logged one by one until then

	keepsEditing = "Another program keeps changing our rules; they are repaired as often as a fifth of a CPU allows"
)

func newRepairs(log *slog.Logger, cpu func() time.Duration) *repairs {
	return &repairs{
		log: log, cpu: cpu,
		edits: make(chan plane.Edit, 1), possible: make(chan struct{}, 1), syncs: make(chan proxy.Sync, 1),
	}
}

// add adds an edit and returns at once. An edit that is not handled yet stands for all
// later ones.
func (r *repairs) add(e plane.Edit) {
	if e.Possible {
		select {
		case r.possible <- struct{}{}:
		default:
		}
		return
	}
	select {
	case r.edits <- e:
	default:
	}
}

// observe adds the result of a write and returns at once.
func (r *repairs) observe(s proxy.Sync) {
	if !s.Full() {
		return
	}
	select {
	case <-r.syncs: // older
	default:
	}
	r.syncs <- s // one goroutine writes, so there is room
}

// run requests comparisons until the context ends.
func (r *repairs) run(ctx context.Context) error {
	r.ended = time.Now()
	for {
		why, at := r.next()
		over := r.lastEdit.Add(calmAfter)
		calm := !r.lastEdit.IsZero() && over.Before(at)
		if calm {
			at = over
		}
		timer := time.NewTimer(time.Until(at))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case e := <-r.edits:
			r.receive(e)
		case <-r.possible:
			r.unsure = true
		case <-timer.C:
			if calm {
				r.reset()
			} else if !r.compare(ctx, why) {
				return nil
			}
		}
		timer.Stop()
	}
}

// next returns the next comparison that is due, and when it is.
func (r *repairs) next() (why proxy.Cause, at time.Time) {
	switch {
	case r.edited:
		return proxy.ForeignEdit, r.free.Add(-repairShare * repairBurst)
	case r.unsure && !r.lastEdit.IsZero(): // an edit that is reported comes first
		return proxy.Period, r.ended.Add(contestPause * r.cost)
	case r.unsure:
		return proxy.Period, r.ended.Add(verifyPause * r.cost)
	}
	return proxy.Period, r.ended.Add(min(max(periodPause*r.cost, minPeriod), maxPeriod))
}

// compare requests a comparison and waits for its end; false: the context ended.
func (r *repairs) compare(ctx context.Context, why proxy.Cause) bool {
	requested, before, logged := time.Now(), r.cpu(), r.logged
	r.edited, r.unsure, r.logged = false, false, false
	if err := r.loop.Compare(ctx, why); err != nil {
		return false // the context ended
	}
	var edits <-chan plane.Edit
	if why == proxy.Period { // a periodic comparison waits for changes; a repair does not wait for it
		edits = r.edits
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case e := <-edits:
			edits = nil
			r.receive(e)
			if err := r.loop.Compare(ctx, proxy.ForeignEdit); err != nil {
				return false // the context ended
			}
		case s := <-r.syncs:
			if s.Began.Before(requested) {
				continue
			}
			r.cost, r.ended = min(s.Took(), r.cpu()-before), time.Now()
			if r.free.Before(requested) {
				r.free = requested
			}
			r.free = r.free.Add(repairShare * r.cost)
			if s.Repair() && !logged && !r.logged {
				r.logRepair(s)
			}
			if !r.edited {
				r.unclear = ""
			}
			return true
		}
	}
}

// receive has an edit repaired. An unclear one is logged if there is something to repair.
func (r *repairs) receive(e plane.Edit) {
	r.edited = true
	if e.Unclear {
		r.unclear = e.What
		return
	}
	r.logged = true
	r.logEdit(e)
}

// logRepair logs an edit that was not logged before a comparison repaired it: as it is reported, if that
// is at the same moment.
func (r *repairs) logRepair(s proxy.Sync) {
	select {
	case e := <-r.edits:
		r.receive(e)
	default:
	}
	if !r.logged {
		r.logEdit(plane.Edit{What: fmt.Sprintf("%s; %d steps repaired them", cmp.Or(r.unclear, "rules, without a notification"), s.Steps)})
	}
}

// logEdit logs an edit. After maxLogged edits it logs once that they continue.
func (r *repairs) logEdit(e plane.Edit) {
	r.lastEdit = time.Now()
	r.count++
	switch {
	case r.count < maxLogged:
		r.log.Warn("Another program changed our rules, repairing them", "what", e.What, "by", e.By)
	case r.count == maxLogged:
		r.log.Error(keepsEditing, "what", e.What, "by", e.By)
	}
}

// reset resets the count after calmAfter without an edit. It logs the end of edits if it
// logged that they continue.
func (r *repairs) reset() {
	if r.count >= maxLogged {
		r.log.Info("No program changes our rules any more", "edits", r.count)
	}
	r.count, r.lastEdit = 0, time.Time{}
}
