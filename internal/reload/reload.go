// Package reload puts a changed configuration file in force: it has the process
// execute its program anew, which reads the file as any start does. A file that
// is wrong, or that this host cannot do, is reported and changes nothing.
package reload

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// Options for New. All but Before and Refused are needed.
type Options struct {
	File   string         // "": there is none, and nothing to watch
	Config *config.Config // in force
	// Load reads flags and file again, and returns warnings for people.
	Load func() (*config.Config, []string, error)
	// Possible returns why this host cannot do what a configuration says.
	Possible func(context.Context, *config.Config) error
	// Delay returns how long a changed file waits before it takes effect.
	Delay func() time.Duration
	// Replace ends this run of the program and begins the next. It returns at once;
	// after an error this run goes on.
	Replace func(context.Context) error
	Log     *slog.Logger
	Before  Count // of the runs of this process before
	// Refused is called with every new reason to refuse a file. It may be nil.
	Refused func(error)
}

// Count is how many files were accepted and refused, without the one at the start
// of the process.
type Count struct{ Accepted, Refused int }

// State says which configuration is in force, and what becomes of another one.
type State struct {
	File      string
	LoadedAt  time.Time // when this run read what is in force
	Refused   error     // why the file as it is now is not in force; nil: it is, or will be
	RefusedAt time.Time // when it was read
	Due       time.Time // when a changed file takes effect; zero: none waits
	Count     Count
}

// retryPeriod is how often a refused file is tried again: the host may be able to
// do now what it says.
const retryPeriod = time.Minute

// Reloader follows the configuration file.
type Reloader struct {
	opt Options

	checking sync.Mutex // held while the file is checked or takes effect
	checked  time.Time

	mu    sync.Mutex // guards state
	state State
}

// New returns a Reloader. Nothing is read before Run or Check.
func New(o Options) *Reloader {
	return &Reloader{opt: o, state: State{File: o.File, LoadedAt: time.Now(), Count: o.Before}}
}

// Run follows the file until the context ends.
func (r *Reloader) Run(ctx context.Context) error {
	if r.opt.File == "" {
		<-ctx.Done()
		return nil
	}
	file := watch{path: r.opt.File}
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			changed := file.changed(now)
			r.step(ctx, func(s State) bool {
				return changed || s.Refused != nil && now.Sub(r.checked) >= retryPeriod
			})
		}
	}
}

// Check reads the file now. A change takes effect at once. It may be called at
// any time.
func (r *Reloader) Check(ctx context.Context) {
	if r.opt.File == "" {
		return
	}
	r.step(ctx, func(State) bool { return true })
	r.step(ctx, func(s State) bool {
		if !s.Due.IsZero() {
			s.Due = time.Now()
			r.set(s)
		}
		return false
	})
}

// State returns the state. It may be called at any time.
func (r *Reloader) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

func (r *Reloader) set(s State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = s
}

// step reads the file if it is to be read, and replaces this run of the program
// if that is due.
func (r *Reloader) step(ctx context.Context, isDue func(State) bool) {
	r.checking.Lock()
	defer r.checking.Unlock()
	if isDue(r.State()) {
		r.check(ctx)
	}
	if s := r.State(); ctx.Err() == nil && !s.Due.IsZero() && !time.Now().Before(s.Due) {
		r.replace(ctx, s)
	}
}

// check reads the file and decides what becomes of it.
func (r *Reloader) check(ctx context.Context) {
	r.checked = time.Now()
	next, warnings, err := r.opt.Load()
	var changed []string
	if err == nil {
		changed, err = config.Differences(r.opt.Config, next)
	}
	if err == nil && len(changed) > 0 {
		err = r.opt.Possible(ctx, next)
	}
	if ctx.Err() != nil { // the process ends
		return
	}
	s := r.State()
	switch {
	case err != nil:
		r.refuse(s, err)
	case len(changed) > 0:
		r.accept(s, changed, warnings)
	default:
		r.keep(s)
	}
}

// refuse keeps what is in force. An error is reported when it is new.
func (r *Reloader) refuse(s State, err error) {
	s.Due = time.Time{}
	if s.Refused != nil && s.Refused.Error() == err.Error() {
		return
	}
	r.opt.Log.Error("The configuration file is refused, the old configuration stays in force",
		"file", s.File, "error", err)
	s.Refused, s.RefusedAt = err, time.Now()
	s.Count.Refused++
	r.set(s)
	if r.opt.Refused != nil {
		r.opt.Refused(err)
	}
}

// accept has a changed file take effect after a while.
func (r *Reloader) accept(s State, changed, warnings []string) {
	delay := r.opt.Delay()
	due := time.Now().Add(delay)
	if !s.Due.IsZero() && s.Due.Before(due) {
		due = s.Due // it changed once more
	}
	for _, w := range warnings {
		r.opt.Log.Warn(w)
	}
	r.opt.Log.Info("The configuration file has changed", "file", s.File,
		"in force in", time.Until(due).Round(time.Millisecond), "changed", strings.Join(changed, "; "))
	s.Due, s.Refused = due, nil
	r.set(s)
}

// keep notes that the file says what is in force.
func (r *Reloader) keep(s State) {
	if s.Due.IsZero() && s.Refused == nil {
		return
	}
	if s.Refused != nil {
		s.Count.Accepted++
	}
	r.opt.Log.Info("The configuration file is the same as the configuration in force again", "file", s.File)
	s.Due, s.Refused = time.Time{}, nil
	r.set(s)
}

// replace begins the next run of the program.
func (r *Reloader) replace(ctx context.Context, s State) {
	s.Due = time.Time{}
	if err := r.opt.Replace(ctx); err != nil && ctx.Err() == nil {
		r.refuse(s, err)
		return
	}
	r.set(s)
}
