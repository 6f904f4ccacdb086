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

// Sync is what one attempt to write came to.
type Sync struct {
	Full     bool // everything was compared with the kernel
	Services int  // touched
	Steps    int
	Compile  time.Duration
	Apply    time.Duration // planning included
	Err      error
}

// Loop keeps the plane doing what the store says.
type Loop struct {
	opt   Options
	fresh bool // the plane's belief holds

	// pending is what was compiled and is not known to be in the kernel yet.
	pending map[cluster.Name]route.Touch
	oldHost *route.Host
}

// The waits between attempts after an error.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// New makes a Loop. It does nothing yet.
func New(opt Options) *Loop {
	return &Loop{opt: opt, pending: map[cluster.Name]route.Touch{}}
}

// Run runs until the context ends. It writes nothing before every feed of the
// store has delivered everything once: half a picture is never applied.
func (l *Loop) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-l.opt.Store.Ready():
	}
	failure := ""
	wait := firstRetry
	for {
		err := l.sync(ctx)
		if ctx.Err() != nil {
			return nil
		}
		failure = l.tell(failure, err)
		pause := l.opt.MinPeriod
		if err != nil {
			pause, wait = wait, min(2*wait, lastRetry)
		} else {
			wait = firstRetry
		}
		if !sleep(ctx, pause) || err == nil && !l.changed(ctx) {
			return nil
		}
	}
}

// changed waits for something new; false: the context ended.
func (l *Loop) changed(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-l.opt.Store.Changed():
		return true
	}
}

// tell logs a failure once, and the recovery from it.
func (l *Loop) tell(before string, err error) string {
	switch {
	case err == nil && before != "":
		l.opt.Log.Info("Writing to the kernel works again")
		return ""
	case err == nil:
		return ""
	case err.Error() != before:
		l.opt.Log.Error("Cannot write to the kernel, retrying", "error", err)
	}
	return err.Error()
}

// sync brings the kernel up to what the store says now.
func (l *Loop) sync(ctx context.Context) error {
	began := time.Now()
	change, problems := l.opt.Compiler.Compile(l.opt.Store.Take())
	if len(problems) > 0 && l.opt.Report != nil {
		l.opt.Report(problems)
	}
	l.remember(change)
	s := Sync{Full: !l.fresh, Services: len(change.Touched), Compile: time.Since(began)}
	if l.fresh && change.Empty() {
		return nil
	}
	began = time.Now()
	s.Steps, s.Err = l.write(ctx, change)
	s.Apply = time.Since(began)
	if l.opt.Observe != nil {
		l.opt.Observe(s)
	}
	return s.Err
}

// write plans and applies a change. After an error the kernel is looked at
// anew and everything compared.
func (l *Loop) write(ctx context.Context, change route.Change) (int, error) {
	if !l.fresh {
		if err := l.opt.Plane.Refresh(ctx); err != nil {
			return 0, err
		}
	}
	plan := l.opt.Plane.Plan(change)
	steps := plan.Steps()
	if err := plan.Apply(ctx); err != nil {
		l.fresh = false
		return steps, errors.Join(err, ctx.Err())
	}
	l.fresh = true
	l.applied(change.Table)
	return steps, nil
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

// applied tells the followers all that is pending.
func (l *Loop) applied(table *route.Table) {
	change := route.Change{Table: table, OldHost: l.oldHost, Touched: make([]route.Touch, 0, len(l.pending))}
	for _, t := range l.pending {
		change.Touched = append(change.Touched, t)
	}
	l.pending, l.oldHost = map[cluster.Name]route.Touch{}, nil
	for _, f := range l.opt.Followers {
		f.Applied(change)
	}
}

// sleep waits; false: the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
