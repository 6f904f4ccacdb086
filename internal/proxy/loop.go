// Package proxy is the one loop: wait for a change, compile it, plan it, apply
// it, tell the followers. It alone asks the plane to write, waits, and tries again.
package proxy

import (
	"context"
	"errors"
	"log/slog"
	"slices"
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
	pending map[cluster.Name]route.Touch
	oldHost *route.Host

	told map[route.Problem]bool // by the compilers before this one, which has not compiled yet

	writes  uint64
	started bool  // a write went well
	failure error // of the last write
	refused refusals

	asked chan func() // what others want done between two writes
}

// The waits between attempts after an error.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// New makes a Loop. It does nothing yet.
func New(opt Options) *Loop {
	return &Loop{
		opt: opt, doubt: Start, pending: map[cluster.Name]route.Touch{},
		told: map[route.Problem]bool{}, asked: make(chan func()),
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
		pause := l.opt.MinPeriod
		if err != nil {
			pause, wait = wait, min(2*wait, lastRetry)
		} else {
			wait = firstRetry
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
		select {
		case <-ready: // stays so
			ready = nil
		default:
		}
		if ready != nil {
			changed = nil // half a picture
		} else if l.doubt != Change {
			return ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
			return false
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

// doubtIt makes the next write compare everything. Of several causes the first
// counts.
func (l *Loop) doubtIt(why Cause) {
	if l.doubt == Change {
		l.doubt = why
	}
}

// sleep waits, and does what others ask meanwhile; false: the context ended.
func (l *Loop) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
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
		}
	}
}

// Do runs a function between two writes. It holds up the loop, so it is quick.
// It is an error if the context ends first.
func (l *Loop) Do(ctx context.Context, look func(View)) error {
	return l.ask(ctx, func() {
		look(View{
			Compiler: l.opt.Compiler, Table: l.opt.Compiler.Table(), Writes: l.writes,
			Pending: l.pending, Refused: l.refused.services, Started: l.started, Err: l.failure,
		})
	})
}

// Compare makes the loop compare everything with the kernel, as soon as it may.
// Of several causes before it does, the first counts.
func (l *Loop) Compare(ctx context.Context, why Cause) error {
	return l.ask(ctx, func() { l.doubtIt(why) })
}

// Replace makes the loop go on with another compiler, plane and period: all is
// compiled anew and compared with the kernel, and only what differs is written.
// Those of opt that are nil stay as they are.
func (l *Loop) Replace(ctx context.Context, c *route.Compiler, p plane.Plane, minPeriod time.Duration) error {
	return l.ask(ctx, func() {
		l.opt.MinPeriod = minPeriod
		if p != nil {
			l.opt.Plane = p
		}
		if c != nil {
			l.recompile(c)
		}
		l.doubtIt(Configuration)
	})
}

// recompile takes another compiler. Followers are told of what becomes
// different as if it were a change of the Services themselves.
func (l *Loop) recompile(c *route.Compiler) {
	old := l.opt.Compiler.Table()
	for _, p := range l.opt.Compiler.AllProblems() {
		l.told[p] = true
	}
	l.opt.Compiler = c
	l.opt.Store.Again()
	if l.oldHost == nil {
		l.oldHost = &old.Host
	}
	for name, svc := range old.Services {
		if _, known := l.pending[name]; !known {
			l.pending[name] = route.Touch{Name: name, Old: svc}
		}
	}
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

// sync brings the kernel up to what the store says now.
func (l *Loop) sync(ctx context.Context) error {
	s := Sync{Cause: l.doubt, Began: time.Now()}
	change, problems := l.opt.Compiler.Compile(l.opt.Store.Take())
	l.report(problems)
	l.remember(change)
	s.Services = len(change.Touched)
	if !s.Full() {
		change = l.spare(change)
	}
	s.Compile = time.Since(s.Began)
	if !s.Full() && change.Empty() {
		if s.Services == 0 {
			l.opt.Store.Settle() // it came to nothing
		}
		return nil
	}
	began := time.Now()
	l.write(ctx, change, &s)
	s.Apply = time.Since(began)
	if l.opt.Observe != nil {
		l.opt.Observe(s)
	}
	return s.Err
}

// report tells of problems, but for those that are still the same under another
// compiler.
func (l *Loop) report(problems []route.Problem) {
	news := slices.DeleteFunc(problems, func(p route.Problem) bool { return l.told[p] })
	clear(l.told)
	if len(news) > 0 && l.opt.Report != nil {
		l.opt.Report(news)
	}
}

// write plans and applies a change. After an error the kernel is looked at
// anew and everything compared.
func (l *Loop) write(ctx context.Context, change route.Change, s *Sync) {
	l.writes++
	if s.Full() {
		if s.Err = l.opt.Plane.Refresh(ctx); s.Err != nil {
			return
		}
	}
	plan := l.opt.Plane.Plan(change)
	s.Steps = plan.Steps()
	err := plan.Apply(ctx)
	var refused plane.Refused
	if err != nil && !errors.As(err, &refused) {
		if l.started {
			l.doubt = Failure
		}
		s.Err = errors.Join(err, ctx.Err())
		return
	}
	l.refuse(refused, *s)
	s.Refused = len(l.refused.services)
	l.doubt, l.started = Change, true
	s.Adopted = plan.Kept()
	s.In = l.opt.Store.Settle()
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
		if first, ok := l.pending[t.Name]; ok {
			t.Old = first.Old
		}
		l.pending[t.Name] = t
	}
}

// applied tells the followers all that is pending, but for what was refused.
func (l *Loop) applied(table *route.Table) {
	change := route.Change{Table: table, OldHost: l.oldHost, Touched: make([]route.Touch, 0, len(l.pending))}
	left := map[cluster.Name]route.Touch{}
	for name, t := range l.pending {
		if _, refused := l.refused.services[name]; refused {
			left[name] = t
			continue
		}
		change.Touched = append(change.Touched, t)
	}
	l.pending, l.oldHost = left, nil
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
