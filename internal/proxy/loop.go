// Package proxy is the one loop: it waits for a change, compiles it, plans it, applies
// the plan and notifies the followers. It alone makes the plane write, and retries.
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

// Follower is notified of changes that were written (plane.Follower).
type Follower = plane.Follower

// RepairFollower is a Follower that is also notified, after Applied, of each repair of
// rules that had been missing or wrong in the kernel. It does not keep the table.
type RepairFollower interface{ Repaired(*route.Table) }

// Options for New. Store, Compiler, Plane and Log are required.
type Options struct {
	Store     *cluster.Store
	Compiler  *route.Compiler
	Plane     plane.Plane
	Followers []Follower
	Log       *slog.Logger

	// MinPeriod is the least time between two writes. Changes that arrive during a write are always written together.
	MinPeriod time.Duration

	// Load bounds what one write contains. The zero value sets no bounds.
	Load plane.Load

	// Due returns when the plane has something to write although nothing changed; zero, or a nil Due: never.
	Due func() time.Time

	// Ready has an item when Due may return an earlier time. Nil: it does only after a write.
	Ready <-chan struct{}

	// Report is called with each new problem of an object. It may be nil.
	Report func([]route.Problem)

	// Observe is called after each attempt to write. It may be nil.
	Observe func(Sync)

	// Contested is called when a Contest begins, and with the zero Contest when it ends. It may be nil.
	Contested func(Contest)

	// CPU returns the CPU time used so far by this process and the programs that it ran. Nil: all time counts as CPU time.
	CPU func() time.Duration
}

// Loop writes what the store contains to the plane.
type Loop struct {
	opt Options

	// compare is why the next write compares everything; Change: it does not.
	compare      Cause
	compareSince time.Time // when that was requested
	urgent       bool      // Compare was called since the last write

	// pending has the changes that were compiled and may not be in the kernel yet. queue
	// is the part of them that is not written yet, except for refused Services.
	pending Pending
	queue   *plane.Queue
	oldHost *route.Host // the Host that the followers know, if the table has another one
	rehost  *route.Host // the Host in the kernel, if the table has another one

	marked time.Time // the last call of Store.MarkWritten
	listed bool      // the compiler has all objects
	known  bool      // the last write succeeded, so the plane need not read the kernel

	// firstRead is a read that runs while the feeds of the store deliver, so that a start does not wait first for them
	// and then for the kernel. Nil: it was used or dropped.
	firstRead *reading

	edits     *edits
	edited    chan struct{} // has an item after an edit by another program
	repairs   *time.Timer   // fires when edits may make a comparison due, or change the Contest
	contested bool          // the beginning of the present Contest was reported

	writes  uint64
	started bool  // a write of everything has succeeded
	failure error // of the last write
	refused refusals

	requests chan func() // functions to run between two writes
}

// The waits between attempts after an error.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// minDue is the least wait for a write that is due, so that the plane cannot keep the loop busy.
const minDue = 10 * time.Millisecond

// markWithin bounds how long written changes wait for others of the same time before they are marked.
const markWithin = 5 * time.Second

// New returns a Loop.
func New(opt Options) *Loop {
	if opt.CPU == nil {
		began := time.Now()
		opt.CPU = func() time.Duration { return time.Since(began) }
	}
	if opt.Due == nil {
		opt.Due = func() time.Time { return time.Time{} }
	}
	return &Loop{
		opt: opt, compare: Start, compareSince: time.Now(), pending: NewPending(), queue: plane.NewQueue(opt.Load),
		requests: make(chan func()),
		edits:    newEdits(time.Now()), edited: make(chan struct{}, 1), repairs: time.NewTimer(minPeriod),
	}
}

// Run runs until the context ends. It writes nothing before the store is complete, that
// is, before every feed has delivered everything once. Meanwhile it reads the kernel.
func (l *Loop) Run(ctx context.Context) error {
	l.firstRead = l.startReading(ctx)
	defer l.dropFirstRead()
	defer l.repairs.Stop()
	if !l.ready(ctx) {
		return nil
	}
	for wait := firstRetry; ; {
		if !l.idle(ctx) {
			return nil
		}
		err := l.sync(ctx)
		if ctx.Err() != nil {
			return nil
		}
		l.logResult(err)
		l.urgent = false
		pause := l.opt.MinPeriod
		if err != nil {
			pause, wait = wait, min(2*wait, lastRetry)
		} else {
			wait = firstRetry
			if !l.queue.Empty() {
				pause = 0 // for the rest of a change that one write does not hold
			}
		}
		if !l.sleep(ctx, pause) {
			return nil
		}
	}
}

// idle waits until there is something to write; false: the context ended.
func (l *Loop) idle(ctx context.Context) bool {
	for ctx.Err() == nil {
		if l.compare != Change || !l.queue.Empty() {
			return l.sleep(ctx, 0)
		}
		var due <-chan time.Time
		if at := l.opt.Due(); !at.IsZero() {
			due = time.After(max(time.Until(at), minDue))
		}
		if l.wait(ctx, due, l.opt.Store.Changed()) {
			return true
		}
	}
	return false
}

// wait returns true at the timer or the change, and false after it served one request or if the context ends.
func (l *Loop) wait(ctx context.Context, timer <-chan time.Time, changed <-chan struct{}) bool {
	select {
	case <-ctx.Done():
	case <-timer:
		return true
	case <-changed:
		return true
	case <-l.refused.again:
		l.refused.again = nil
		l.compareFor(Failure)
	case <-l.opt.Ready:
	case <-l.edited:
		l.scheduleRepair()
	case <-l.repairs.C:
		l.scheduleRepair()
	case do := <-l.requests:
		do()
	}
	return false
}

// sleep waits and serves requests; false: the context ended. After a failure a requested comparison ends the wait.
func (l *Loop) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		select {
		case <-l.refused.again:
			l.refused.again = nil
			l.compareFor(Failure)
		case do := <-l.requests:
			do()
		default:
		}
		return ctx.Err() == nil
	}
	timer := time.After(d)
	for ctx.Err() == nil {
		if l.wait(ctx, timer, nil) || l.urgent && l.failure != nil {
			return ctx.Err() == nil
		}
	}
	return false
}

// overdue reports whether the plane has something to write now.
func (l *Loop) overdue() bool {
	at := l.opt.Due()
	return !at.IsZero() && !time.Now().Before(at)
}

// compareFor makes the next write compare everything. The first cause counts, but a fault before an audit.
func (l *Loop) compareFor(why Cause) {
	if l.compare == Change || l.compare.audit() && !why.audit() {
		l.compare, l.compareSince = why, time.Now()
	}
}

// Compare makes the loop compare everything with the kernel as soon as possible, without
// waiting for the next attempt after a failure. It does not wait for the comparison.
func (l *Loop) Compare(ctx context.Context, why Cause) error {
	return l.request(ctx, func() {
		l.dropFirstRead()
		l.compareFor(why)
		l.urgent = true
	})
}

// request runs a function between two writes.
func (l *Loop) request(ctx context.Context, do func()) error {
	done := make(chan struct{})
	select {
	case <-ctx.Done():
		return ctx.Err()
	case l.requests <- func() { defer close(done); do() }:
	}
	<-done
	return nil
}

// logResult logs a failure once, and the recovery from it.
func (l *Loop) logResult(err error) {
	before := l.failure
	l.failure = err
	switch {
	case err == nil && before != nil:
		l.opt.Log.Info("Writing to the kernel works again")
	case err != nil && (before == nil || err.Error() != before.Error()):
		l.opt.Log.Error("Cannot write to the kernel, retrying", "error", err)
	}
}

// sync writes what the store contains now, or a part of it if that is much.
func (l *Loop) sync(ctx context.Context) error {
	s := Sync{Cause: l.compare, Began: time.Now()}
	change := l.compile(&s)
	s.Compile = time.Since(s.Began)
	before := l.opt.CPU()
	if s.Full() {
		l.edits.mu.Lock()
		l.edits.begin()
		l.edits.mu.Unlock()
		l.read(ctx, &s, &change)
	}
	if !s.Full() {
		l.enqueue(change)
		change = l.dequeue(change.Table)
	}
	if s.Err == nil && !s.Full() && change.Empty() && !l.overdue() {
		if s.Services == 0 {
			l.opt.Store.MarkWritten() // the change has no effect on routes
		}
		return nil
	}
	l.writes++
	if s.Err == nil {
		l.write(ctx, change, &s)
	} else {
		s.end()
	}
	if s.Full() {
		l.endComparison(s, min(s.Took(), l.opt.CPU()-before))
	}
	if l.opt.Observe != nil {
		l.opt.Observe(s)
	}
	return s.Err
}

// compile compiles what changed in the store.
func (l *Loop) compile(s *Sync) route.Change {
	change, problems := l.opt.Compiler.Compile(l.opt.Store.Take())
	l.listed = true
	l.report(problems)
	l.remember(change)
	s.Services += len(change.Touched)
	return change
}

// report reports problems with objects.
func (l *Loop) report(problems []route.Problem) {
	if len(problems) > 0 && l.opt.Report != nil {
		l.opt.Report(problems)
	}
}

// write plans and applies a change. After an error the next attempt compares everything.
func (l *Loop) write(ctx context.Context, change route.Change, s *Sync) {
	plan := l.opt.Plane.Plan(change)
	err := plan.Apply(ctx)
	s.end()
	s.Steps = plan.Steps()
	var refused plane.Refused
	if err != nil && !errors.As(err, &refused) {
		l.known = false
		if l.started {
			l.compare = Failure
		}
		s.Err = errors.Join(err, ctx.Err())
		return
	}
	l.refuse(refused, *s)
	s.Refused, s.Known, s.Vital = len(l.refused.services), len(change.Table.Services), l.refused.vital(change.Table)
	l.rehost = nil
	if s.Full() {
		l.compare, l.started, l.known = Change, true, true
		l.queue.Clear()
	}
	s.Adopted = plan.Kept()
	if !l.queue.HasSmall() || time.Since(l.marked) > markWithin {
		s.In, l.marked = l.opt.Store.MarkWritten(), time.Now()
	}
	l.applied(change.Table)
	if s.Repair() {
		l.repaired(change.Table)
	}
}

// remember adds a change to the pending ones. Followers get it as a whole, over all attempts to write it.
func (l *Loop) remember(change route.Change) {
	if l.oldHost == nil {
		l.oldHost = change.OldHost
	}
	for _, t := range change.Touched {
		if l.pending.Has(t.Name) {
			t.Old = l.pending.Of(t.Name).Old
		}
		l.pending.Set(t)
	}
}

// applied notifies the followers of pending changes, without refused and partly written Services.
func (l *Loop) applied(table *route.Table) {
	change := route.Change{Table: table, OldHost: l.oldHost, Touched: make([]route.Touch, 0, l.pending.Len())}
	rest := NewPending()
	for t := range l.pending.Scan {
		if _, refused := l.refused.services[t.Name]; refused || l.queue.Has(t.Name) {
			rest.Set(t)
			continue
		}
		change.Touched = append(change.Touched, t)
	}
	l.pending, l.oldHost = rest, nil
	if change.Empty() {
		return
	}
	for _, f := range l.opt.Followers {
		f.Applied(change)
	}
}

func (l *Loop) repaired(t *route.Table) {
	for _, f := range l.opt.Followers {
		if r, ok := f.(RepairFollower); ok {
			r.Repaired(t)
		}
	}
}
