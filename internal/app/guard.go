package app

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// guard has the loop put right what other programs change. The pause after a
// comparison is a multiple of the CPU time it took, so that rules are missing
// for as short a time as a fixed share of one CPU allows, however often another
// program removes them.
type guard struct {
	loop comparer
	log  *slog.Logger
	cpu  func() time.Duration // CPU time used so far by this process and the programs it ran

	edits    chan plane.Edit
	possible chan struct{}
	syncs    chan proxy.Sync // comparisons that ended; the latest

	edited, unsure bool          // an edit, or a possible one, is not compared yet
	cost           time.Duration // CPU time of the last comparison that guard asked for
	ended          time.Time     // of that comparison
	lastEdit       time.Time     // zero: none for calmAfter
	count          int           // edits since the last calm
}

// comparer compares everything with the kernel.
type comparer interface {
	Compare(ctx context.Context, why proxy.Cause) error
}

// The pause after a comparison, as multiples of its cost.
const (
	repairPause  = 4    // before a repair: a fifth of a CPU at most
	contestPause = 20   // before a comparison after a possible edit, while another program makes edits
	verifyPause  = 100  // before a comparison after a possible edit: a hundredth of a CPU
	periodPause  = 1000 // before a comparison without a cause: a thousandth
)

const (
	minPeriod = 10 * time.Minute // between comparisons without a cause, whatever they cost
	maxPeriod = time.Hour

	calmAfter  = time.Minute // without an edit, other programs count as done
	maxLogged  = 10          // edits that are logged one by one until then
	keepsGoing = "Another program keeps changing our rules; they are put right as often as a fifth of a CPU allows"
)

func newGuard(log *slog.Logger, cpu func() time.Duration) *guard {
	return &guard{
		log: log, cpu: cpu,
		edits: make(chan plane.Edit, 1), possible: make(chan struct{}, 1), syncs: make(chan proxy.Sync, 1),
	}
}

// edit takes note of an edit and returns at once. One that waits stands for all
// that follow.
func (g *guard) edit(e plane.Edit) {
	if e.Possible {
		select {
		case g.possible <- struct{}{}:
		default:
		}
		return
	}
	select {
	case g.edits <- e:
	default:
	}
}

// observe takes note of a write and returns at once.
func (g *guard) observe(s proxy.Sync) {
	if !s.Full() {
		return
	}
	select {
	case <-g.syncs: // older
	default:
	}
	g.syncs <- s // one goroutine writes, so there is room
}

// run asks for comparisons until the context ends.
func (g *guard) run(ctx context.Context) error {
	g.ended = time.Now()
	for {
		why, at := g.next()
		over := g.lastEdit.Add(calmAfter)
		calm := !g.lastEdit.IsZero() && over.Before(at)
		if calm {
			at = over
		}
		timer := time.NewTimer(time.Until(at))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case e := <-g.edits:
			g.edited = true
			g.note(e)
		case <-g.possible:
			g.unsure = true
		case <-timer.C:
			if calm {
				g.forget()
			} else if !g.compare(ctx, why) {
				return nil
			}
		}
		timer.Stop()
	}
}

// next returns the next comparison that is due, and when it is.
func (g *guard) next() (why proxy.Cause, at time.Time) {
	switch {
	case g.edited:
		return proxy.ForeignEdit, g.ended.Add(repairPause * g.cost)
	case g.unsure && !g.lastEdit.IsZero(): // the next edit that is seen comes first
		return proxy.Period, g.ended.Add(contestPause * g.cost)
	case g.unsure:
		return proxy.Period, g.ended.Add(verifyPause * g.cost)
	}
	return proxy.Period, g.ended.Add(min(max(periodPause*g.cost, minPeriod), maxPeriod))
}

// compare asks for a comparison and waits for its end; false: the context ended.
func (g *guard) compare(ctx context.Context, why proxy.Cause) bool {
	asked, before := time.Now(), g.cpu()
	g.edited, g.unsure = false, false
	if err := g.loop.Compare(ctx, why); err != nil {
		return false // the context ended
	}
	var edits <-chan plane.Edit
	if why == proxy.Period { // it yields to changes for long: an edit does not wait for it
		edits = g.edits
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case e := <-edits:
			edits, g.edited = nil, true
			g.note(e)
			if err := g.loop.Compare(ctx, proxy.ForeignEdit); err != nil {
				return false // the context ended
			}
		case s := <-g.syncs:
			if s.Began.Before(asked) {
				continue
			}
			g.cost, g.ended = min(s.Compile+s.Apply, g.cpu()-before), time.Now()
			if why == proxy.Period && s.Repair() {
				g.note(plane.Edit{What: fmt.Sprintf("rules, without a notification; %d steps put them right", s.Steps)})
			}
			return true
		}
	}
}

// note logs an edit; when they do not end, that it goes on.
func (g *guard) note(e plane.Edit) {
	g.lastEdit = time.Now()
	g.count++
	switch {
	case g.count < maxLogged:
		g.log.Warn("Another program changed our rules, putting them right", "what", e.What, "by", e.By)
	case g.count == maxLogged:
		g.log.Error(keepsGoing, "what", e.What, "by", e.By)
	}
}

// forget begins anew when edits have ended, and logs that if it was logged that
// they do not.
func (g *guard) forget() {
	if g.count >= maxLogged {
		g.log.Info("No program changes our rules any more", "edits", g.count)
	}
	g.count, g.lastEdit = 0, time.Time{}
}
