package proxy

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
)

const (
	maxLogged = 10 // repairs that are logged until there are none for contestCalm

	contestPeriod = time.Second // between checks of whether a contest begins or ends
)

// Edited records a change by another program, and returns at once. The loop repairs it as soon as repairs may cost.
func (l *Loop) Edited(e plane.Edit) {
	l.edits.mu.Lock()
	defer l.edits.mu.Unlock()
	l.edits.add(e, time.Now())
	select {
	case l.edited <- struct{}{}:
	default:
	}
}

// Contest returns the present Contest. It never waits for a write.
func (l *Loop) Contest() Contest {
	l.edits.mu.Lock()
	defer l.edits.mu.Unlock()
	return l.edits.contest(time.Now())
}

// scheduleRepair requests the comparison that is due, and sets the timer for the next one.
func (l *Loop) scheduleRepair() {
	l.reportContest()
	l.edits.mu.Lock()
	defer l.edits.mu.Unlock()
	now := time.Now()
	why, at := l.edits.next(now)
	wait := at.Sub(now)
	if wait <= 0 { // this is called again when the comparison has ended
		l.compareFor(why)
		l.urgent, wait = l.urgent || why == ForeignEdit, contestPeriod
	}
	if l.edits.changing() {
		wait = min(wait, contestPeriod)
	}
	l.repairs.Reset(wait)
}

func (l *Loop) beginComparison() {
	l.edits.mu.Lock()
	defer l.edits.mu.Unlock()
	l.edits.begin()
}

// endComparison records the cost of a comparison, and logs what it repaired.
func (l *Loop) endComparison(s Sync, cost time.Duration) {
	l.edits.mu.Lock()
	edit, repairs := l.edits.end(s, cost, time.Now())
	l.edits.mu.Unlock()
	if 0 < repairs && repairs <= maxLogged {
		l.opt.Log.Warn("Another program changed our rules; they are repaired",
			"what", edit.What, "by", edit.By, "steps", s.Steps)
	}
	l.scheduleRepair()
}

// reportContest reports when a contest begins and ends.
func (l *Loop) reportContest() {
	c := l.Contest()
	if c.Active() == l.contested {
		return
	}
	l.contested = c.Active()
	if l.contested {
		l.opt.Log.Error("Another program keeps changing our rules: not healthy until it stops; "+
			"they are repaired as often as a fifth of a CPU allows", "by", c.By, "what", c.What, "repairs", c.Repairs)
	} else {
		l.opt.Log.Info("No program changes our rules any more")
	}
	if l.opt.Contested != nil {
		l.opt.Contested(c)
	}
}
