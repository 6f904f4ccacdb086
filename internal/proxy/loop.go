// Package proxy is the one loop: wait for a change, compile it, plan it, apply
// it, tell the followers. It alone asks the plane to write, waits, and tries again.
package proxy

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Follower is told of a change after the kernel agrees with it. It returns at
// once; what takes time it does elsewhere.
type Follower interface{ Applied(route.Change) }

// Mender is a Follower that is also told, after Applied, when the kernel was not
// as it had been left for a while, and is again. It does not keep the table.
type Mender interface{ Repaired(*route.Table) }

// Options for New. Store, Compiler, Plane and Log are needed.
type Options struct {
	Store     *cluster.Store
	Compiler  *route.Compiler
	Plane     plane.Plane
	Followers []Follower
	Log       *slog.Logger

	// MinPeriod is the least time between two writes; 0: write at once. Changes
	// that come while a write is under way are taken together in any case.
	MinPeriod time.Duration

	// Load bounds what one write contains. The zero value does not.
	Load plane.Load

	// Due returns when the plane has something to write although nothing changed; zero:
	// never. The loop calls it between writes. Nil: never.
	Due func() time.Time

	// Report is told of problems with objects, each once. It may be nil.
	Report func([]route.Problem)

	// Observe is told of every attempt to write. It may be nil.
	Observe func(Sync)
}

// Loop keeps the plane doing what the store says.
type Loop struct {
	opt   Options
	doubt Cause // why the plane's belief does not hold; Change: it does

	// pending is what was compiled and is not known to be in the kernel yet.
	pending Pending
	oldHost *route.Host
	queue   *plane.Queue // the part of pending that waits for its write
	rehost  *route.Host  // the host in the kernel, if that is not the one of the table

	starting map[cluster.Name]bool // Services that the first write left out in part, not written yet

	doubted time.Time // when doubt arose
	settled time.Time // when the store was last told that changes are in force

	believes bool // what the plane believes of the kernel comes from a write that went well

	writes  uint64
	started bool  // a write went well
	failure error // of the last write
	refused refusals

	asked chan func() // what others want done between two writes
	hurry bool        // Compare was called since the last write
}

// The waits between attempts after an error.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// dueFloor is the least time until a write that is due: a plane that is due for ever
// does not keep the loop busy.
const dueFloor = 10 * time.Millisecond

// settlesAfter is the longest that changes in force wait for others that came with
// them before they count as such.
const settlesAfter = 5 * time.Second

// New makes a Loop. It does nothing yet.
func New(opt Options) *Loop {
	return &Loop{
		opt: opt, doubt: Start, pending: NewPending(), starting: map[cluster.Name]bool{}, doubted: time.Now(), queue: plane.NewQueue(opt.Load),
		asked: make(chan func()),
	}
}

// Run runs until the context ends. It writes nothing before every feed of the
// store has delivered everything once: half a picture is never applied.
func (l *Loop) Run(ctx context.Context) error {
	for wait := firstRetry; ; {
		if !l.idle(ctx) {
			return nil
		}
		err := l.sync(ctx)
		if ctx.Err() != nil {
			return nil
		}
		l.tell(err)
		l.hurry = false
		pause := l.opt.MinPeriod
		if err != nil {
			pause, wait = wait, min(2*wait, lastRetry)
		} else {
			wait = firstRetry
			if !l.queue.Empty() {
				pause = 0 // the rest of what one write did not hold
			}
		}
		if !l.sleep(ctx, pause) {
			return nil
		}
	}
}

// idle waits until there is something to write; false: the context ended.
func (l *Loop) idle(ctx context.Context) bool {
	ready := l.opt.Store.Ready()
	for {
		changed := l.opt.Store.Changed()
		var due <-chan time.Time
		select {
		case <-ready: // stays so
			ready = nil
		default:
		}
		if ready != nil {
			changed = nil // half a picture
		} else if l.doubt != Change || !l.queue.Empty() {
			return l.sleep(ctx, 0)
		} else if at := l.due(); !at.IsZero() {
			due = time.After(max(time.Until(at), dueFloor))
		}
		select {
		case <-ctx.Done():
			return false
		case <-due:
			return true
		case <-ready:
		case <-changed:
			return true
		case <-l.refused.again:
			l.refused.again = nil
			l.doubtIt(Failure)
		case do := <-l.asked:
			do()
		}
	}
}

// due returns when the plane has something to write; zero: never.
func (l *Loop) due() time.Time {
	if l.opt.Due == nil {
		return time.Time{}
	}
	return l.opt.Due()
}

// overdue reports whether the plane has something to write now.
func (l *Loop) overdue() bool {
	at := l.due()
	return !at.IsZero() && !time.Now().Before(at)
}

// doubtIt makes the next write compare everything. Of several causes the first
// counts.
func (l *Loop) doubtIt(why Cause) {
	if l.doubt == Change || l.doubt.patient() && !why.patient() {
		l.doubt, l.doubted = why, time.Now()
	}
}

// sleep waits, and does what others ask meanwhile; false: the context ended. A
// comparison that is asked for ends the wait after a failure.
func (l *Loop) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		select {
		case do := <-l.asked:
			do()
		case <-l.refused.again:
			l.refused.again = nil
			l.doubtIt(Failure)
		default:
		}
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case do := <-l.asked:
			do()
			if l.hurry && l.failure != nil {
				return ctx.Err() == nil
			}
		}
	}
}

// Compare makes the loop compare everything with the kernel, as soon as it may;
// it does not wait for the next attempt after a failure.
// Of several causes before it does, the first counts.
func (l *Loop) Compare(ctx context.Context, why Cause) error {
	return l.ask(ctx, func() {
		l.doubtIt(why)
		l.hurry = true
	})
}

// ask has a function run between two writes.
func (l *Loop) ask(ctx context.Context, do func()) error {
	done := make(chan struct{})
	select {
	case <-ctx.Done():
		return ctx.Err()
	case l.asked <- func() { defer close(done); do() }:
	}
	<-done
	return nil
}

// tell logs a failure once, and the recovery from it.
func (l *Loop) tell(err error) {
	before := l.failure
	l.failure = err
	switch {
	case err == nil && before != nil:
		l.opt.Log.Info("Writing to the kernel works again")
	case err != nil && (before == nil || err.Error() != before.Error()):
		l.opt.Log.Error("Cannot write to the kernel, retrying", "error", err)
	}
}

// sync brings the kernel up to what the store says now, or a part of the way if
// that is much.
func (l *Loop) sync(ctx context.Context) error {
	s := Sync{Cause: l.doubt, Began: time.Now()}
	change := l.compile(&s)
	s.Compile = time.Since(s.Began)
	began := time.Now()
	if s.Full() {
		l.read(ctx, &s, &change)
	}
	if !s.Full() {
		l.enqueue(change)
		change = l.dequeue(change.Table)
	}
	if s.Err == nil && !s.Full() && change.Empty() && !l.overdue() {
		if s.Services == 0 {
			l.opt.Store.Settle() // it came to nothing
		}
		return nil
	}
	l.writes++
	if s.Err == nil {
		// What is refused would be left out and refused by turns.
		change.Partly = s.Cause != Failure && len(l.refused.services) == 0
		l.write(ctx, change, &s)
	}
	s.Apply = time.Since(began)
	if l.opt.Observe != nil {
		l.opt.Observe(s)
	}
	return s.Err
}

// compile takes over what changed in the store.
func (l *Loop) compile(s *Sync) route.Change {
	change, problems := l.opt.Compiler.Compile(l.opt.Store.Take())
	l.report(problems)
	l.remember(change)
	s.Services += len(change.Touched)
	return change
}

// report passes problems on.
func (l *Loop) report(problems []route.Problem) {
	if len(problems) > 0 && l.opt.Report != nil {
		l.opt.Report(problems)
	}
}

// write plans and applies a change. After an error the next attempt reads the
// kernel and compares everything.
func (l *Loop) write(ctx context.Context, change route.Change, s *Sync) {
	plan := l.opt.Plane.Plan(change)
	s.Steps = plan.Steps()
	err := plan.Apply(ctx)
	var refused plane.Refused
	if err != nil && !errors.As(err, &refused) {
		l.believes = false
		if l.started {
			l.doubt = Failure
		}
		s.Err = errors.Join(err, ctx.Err())
		return
	}
	l.refuse(refused, *s)
	s.Refused = len(l.refused.services)
	l.rehost = nil
	if s.Full() {
		l.doubt, l.started, l.believes = Change, true, true
		l.queue.Clear()
		l.continued(plan, s.Cause)
	}
	s.Adopted, s.Waiting = plan.Kept(), l.waiting()
	if !l.queue.Hurried() || time.Since(l.settled) > settlesAfter {
		s.In, l.settled = l.opt.Store.Settle(), time.Now()
	}
	l.applied(change.Table)
	if s.Repair() {
		l.repaired(change.Table)
	}
}

// remember adds a change to what is pending: what a follower is told spans all
// attempts since the last success.
func (l *Loop) remember(change route.Change) {
	if l.oldHost == nil {
		l.oldHost = change.OldHost
	}
	for _, t := range change.Touched {
		if l.pending.Has(t.Name) {
			t.Old = l.pending.Of(t.Name).Old
		}
		l.pending.Put(t)
	}
}

// applied notifies the followers of all pending changes, except those of Services
// that were refused or are not completely written yet.
func (l *Loop) applied(table *route.Table) {
	change := route.Change{Table: table, OldHost: l.oldHost, Touched: make([]route.Touch, 0, l.pending.Len())}
	left := NewPending()
	for t := range l.pending.All() {
		if _, refused := l.refused.services[t.Name]; refused || l.queue.Has(t.Name) {
			left.Put(t)
			continue
		}
		change.Touched = append(change.Touched, t)
	}
	l.pending, l.oldHost = left, nil
	if change.Empty() {
		return
	}
	for _, f := range l.opt.Followers {
		f.Applied(change)
	}
}

func (l *Loop) repaired(t *route.Table) {
	for _, f := range l.opt.Followers {
		if m, ok := f.(Mender); ok {
			m.Repaired(t)
		}
	}
}
