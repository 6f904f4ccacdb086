package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/plane"
)

const (
	contestPeriod = time.Second      // between checks of a contest while there are edits
	contestRepeat = 10 * time.Minute // between Events of one contest
)

// contestReporter logs the start and the end of a contest with another program
// that keeps changing our rules, and records Events for it on this Node.
type contestReporter struct {
	contest func() health.Contest
	events  event.Recorder
	log     *slog.Logger
	owned   string        // what other programs must not change
	edits   chan struct{} // has an item after an edit
}

func newContestReporter(contest func() health.Contest, events event.Recorder, o Options) *contestReporter {
	return &contestReporter{contest: contest, events: events, log: o.Log, owned: o.kind().Owned, edits: make(chan struct{}, 1)}
}

// edited requests a check after an edit or a repair, and returns at once.
func (r *contestReporter) edited() {
	select {
	case r.edits <- struct{}{}:
	default:
	}
}

// run reports until the context ends. Without edits it does nothing.
func (r *contestReporter) run(ctx context.Context) error {
	var reported time.Time // the last Event of the present contest; zero: there is none
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.edits:
		}
		for busy := true; busy; {
			if rest(ctx, contestPeriod) != nil {
				return nil // the context ended
			}
			reported = r.report(r.contest(), reported)
			busy = !reported.IsZero() || len(r.edits) > 0
		}
	}
}

// report reports the start, continuation or end of a contest. It takes and returns
// the time of the last Event of that contest; zero: there is none.
func (r *contestReporter) report(c health.Contest, reported time.Time) time.Time {
	switch {
	case !c.Active() && reported.IsZero():
		return time.Time{}
	case !c.Active():
		r.log.Info("The rules are no longer contested")
		r.events.Record(event.RulesUncontested())
		return time.Time{}
	case !reported.IsZero() && time.Since(reported) < contestRepeat:
		return reported
	case reported.IsZero():
		r.log.Error("The rules are contested: not healthy until the other program ends", "by", c.By, "what", c.What, "repairs", c.Repairs)
	}
	r.events.Record(event.RulesContested(c.String(), r.owned))
	return time.Now()
}

// edited passes an edit by another program to the parts that need it.
func (d *daemon) edited(e plane.Edit) {
	d.health.Edited(e.What, e.By, e.Since)
	d.contests.edited()
}
