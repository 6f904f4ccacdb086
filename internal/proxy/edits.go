package proxy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluice-proxy/sluice/internal/plane"
)

// A repair comes at once, until repairs have used repairBurst of CPU time in advance. Then it
// comes as early as a fifth of one CPU allows, however often another program changes rules.
const (
	repairShare = 5
	repairBurst = time.Second
)

// The pause after a comparison, as multiples of its CPU time.
const (
	verifyPause = 100  // before a comparison after a possible edit: a hundredth of a CPU
	periodPause = 1000 // before a comparison without a cause: a thousandth

	minPeriod = 10 * time.Minute // between comparisons without a cause, whatever they cost
	maxPeriod = time.Hour
)

// A contest begins when contestRepairs of the seconds within contestWindow had a repair, so that
// the edits of one reload of a firewall are no contest, or when rules have been missing for
// contestLasting, as the repair of one edit may take long. It ends after contestCalm without a
// repair, so that a load balancer sees one change of health each way.
const (
	contestRepairs = 5
	contestLasting = 10 * time.Second
	contestWindow  = 30 * time.Second
	contestCalm    = time.Minute
)

// edits are the changes that other programs make to our rules. They decide when the next
// comparison is due, and whether there is a Contest. The caller of a method holds mu.
type edits struct {
	mu sync.Mutex

	latest         plane.Edit
	program        string    // the latest one that the kernel has named
	edited, unsure bool      // an edit, or a possible one, since the last comparison began
	since          time.Time // the first such edit of rules that are surely ours
	repairing      bool      // an edit came before the last comparison began, and is not repaired yet
	missing        time.Time // the first such edit of rules that are surely ours

	budget *rate.Limiter // CPU time of comparisons, in microseconds
	cost   time.Duration // CPU time of the last comparison
	ended  time.Time     // end of the last comparison

	repairs []time.Time // within contestWindow, at least a second apart
	count   int         // of repairs since there were none for contestCalm
	last    time.Time   // repair, or the latest time when rules had been missing for contestLasting
	began   time.Time   // beginning of the contest; zero: there is none
}

func newEdits(now time.Time) *edits {
	perSecond := rate.Limit(time.Second.Microseconds() / repairShare)
	return &edits{ended: now, budget: rate.NewLimiter(perSecond, int(repairBurst.Microseconds()))}
}

// add adds an edit.
func (e *edits) add(edit plane.Edit, now time.Time) {
	if edit.Possible {
		e.unsure = true
		return
	}
	e.edited, e.latest = true, edit
	if edit.Unclear {
		return
	}
	if e.since.IsZero() {
		e.since = now
	}
	e.program = cmp.Or(edit.By, e.program)
}

// next returns the next comparison that is due, and when it is.
func (e *edits) next(now time.Time) (why Cause, at time.Time) {
	affordable := now.Add(e.budget.ReserveN(now, 0).DelayFrom(now))
	switch {
	case e.edited:
		return ForeignEdit, affordable
	case e.unsure && now.Sub(e.last) < contestCalm:
		return Period, affordable
	case e.unsure:
		return Period, e.ended.Add(verifyPause * e.cost)
	}
	return Period, e.ended.Add(min(max(periodPause*e.cost, minPeriod), maxPeriod))
}

// begin records that a comparison begins.
func (e *edits) begin() {
	e.repairing = e.repairing || e.edited
	if e.missing.IsZero() {
		e.missing = e.since
	}
	e.edited, e.unsure, e.since = false, false, time.Time{}
}

// end records that a comparison has ended, and what CPU time it took. It returns the edit that it repaired, and how
// many repairs there have been since there were none for contestCalm. 0: it repaired nothing.
func (e *edits) end(s Sync, cost time.Duration, now time.Time) (edit plane.Edit, repairs int) {
	if s.Cause != Start || s.Err != nil { // what a start writes does not delay repairs
		e.spend(cost, now)
	}
	e.ended = now
	if s.Err != nil {
		return plane.Edit{}, 0
	}
	edit = plane.Edit{What: "rules, without a notification"}
	known := e.repairing || e.edited
	if known {
		edit = e.latest
	}
	e.judge(now)
	e.repairing, e.missing = false, time.Time{}
	if !s.Repair() || s.Cause == Failure && !known { // a write that failed in part left what was wrong
		return plane.Edit{}, 0
	}
	e.count++
	e.last = now
	if n := len(e.repairs); n == 0 || now.Sub(e.repairs[n-1]) >= time.Second {
		e.repairs = append(e.repairs, now)
	}
	e.judge(now)
	return edit, e.count
}

// spend takes CPU time from the budget, which then is exceeded for some time if that is more than it has.
func (e *edits) spend(cost time.Duration, now time.Time) {
	e.cost = cost
	for left := cost; left > 0; left -= repairBurst {
		e.budget.ReserveN(now, int(min(left, repairBurst).Microseconds()))
	}
}

// missingSince returns since when rules have been missing; zero: none are.
func (e *edits) missingSince() time.Time { return cmp.Or(e.missing, e.since) }

// judge begins or ends the contest.
func (e *edits) judge(now time.Time) {
	e.repairs = slices.DeleteFunc(e.repairs, func(at time.Time) bool { return now.Sub(at) > contestWindow })
	missing := e.missingSince()
	lasting := !missing.IsZero() && now.Sub(missing) >= contestLasting
	if lasting {
		e.last = now
	}
	switch {
	case now.Sub(e.last) >= contestCalm:
		e.count, e.began = 0, time.Time{}
	case !e.began.IsZero():
	case len(e.repairs) >= contestRepairs:
		e.began = e.repairs[0]
	case lasting:
		e.began = missing
	}
}

// contest returns the Contest at this time.
func (e *edits) contest(now time.Time) Contest {
	e.judge(now)
	if e.began.IsZero() {
		return Contest{}
	}
	return Contest{Since: e.began, Repairs: e.count, What: cmp.Or(e.latest.What, "rules"), By: e.program}
}

// Contest means that another program keeps changing the rules, or prevents their repair. Zero: there is none.
type Contest struct {
	Since   time.Time `json:"since"`
	Repairs int       `json:"repairs"`      // since then
	What    string    `json:"what"`         // the latest edit: "rule of KUBE-SERVICES in nat"
	By      string    `json:"by,omitempty"` // the program, if the kernel names it: "nft (thread 812)"
}

// Active reports whether there is one.
func (c Contest) Active() bool { return !c.Since.IsZero() }

// Program returns the name of the program without its number, as a label that does not change with each run of it.
func (c Contest) Program() string {
	name, _, _ := strings.Cut(c.By, " (")
	return name
}

// String returns which program changes the rules and what Sluice did.
func (c Contest) String() string {
	by := "another program (the kernel does not say which)"
	if c.By != "" {
		by = c.By
	}
	repaired := fmt.Sprintf("rules were repaired %d times", c.Repairs)
	if c.Repairs == 0 {
		repaired = "rules are missing and not repaired yet"
	}
	return fmt.Sprintf("%s repeatedly changed the rules of Sluice (last: %s): %s", by, c.What, repaired)
}

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
	if !l.edits.began.IsZero() || !l.edits.missingSince().IsZero() { // time alone may begin or end a contest
		wait = min(wait, contestPeriod)
	}
	l.repairs.Reset(wait)
}

// endComparison records the cost of a comparison, and logs what it repaired.
func (l *Loop) endComparison(s Sync, cost time.Duration) {
	l.edits.mu.Lock()
	edit, repairs := l.edits.end(s, cost, time.Now())
	l.edits.mu.Unlock()
	if 0 < repairs && repairs <= maxLogged {
		l.opt.Log.Warn("Another program changed the rules of Sluice; they are repaired",
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
		l.opt.Log.Error("Another program keeps changing the rules of Sluice: this node is not healthy until it stops; "+
			"they are repaired as often as a fifth of a CPU allows", "by", c.By, "what", c.What, "repairs", c.Repairs)
	} else {
		l.opt.Log.Info("No other program changes the rules of Sluice any more")
	}
	if l.opt.Contested != nil {
		l.opt.Contested(c)
	}
}
