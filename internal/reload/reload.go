// Package reload applies a changed configuration file: it makes the process re-execute
// its program, which reads the file as at any start. A file that is invalid, or asks
// for something that this host cannot do, is reported and changes nothing.
package reload

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// Options for New. All but Before are needed.
type Options struct {
	File   string         // "": there is none, and nothing to watch
	Config *config.Config // in force
	// Load reads flags and file again, and returns warnings.
	Load func() (*config.Config, []string, error)
	// Possible returns an error if this host cannot apply a configuration.
	Possible func(context.Context, *config.Config) error
	// Delay returns how long a changed file waits before it takes effect.
	Delay func() time.Duration
	// Replace ends this run of the program and starts the next. It does not block; after an error this run continues.
	Replace func(context.Context) error
	Log     *slog.Logger
	Before  Count // of the previous runs of this process
	// Refused is called with every new reason to refuse a file.
	Refused func(error)
}

// Count is the number of files that were accepted and refused since the process started.
type Count struct{ Accepted, Refused int }

// State is the state of the configuration file.
type State struct {
	File      string
	LoadedAt  time.Time // when this run read the configuration in force
	Refused   error     // why the current content is not in force; nil: it is, or will be
	RefusedAt time.Time // when the refused content was read
	Due       time.Time // when the changed file takes effect; zero: it has not changed
	Count     Count
}

// retryPeriod is how often a refused file is read again: the host may be able to apply it now.
const retryPeriod = time.Minute

// Reloader watches the configuration file.
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

// Run watches the file until the context ends.
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
			changed := file.changed()
			r.step(ctx, func(s State) bool {
				return changed || s.Refused != nil && now.Sub(r.checked) >= retryPeriod
			})
		}
	}
}

// Check reads the file now; a change takes effect without a delay. It is safe for concurrent use.
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

// State returns the state. It is safe for concurrent use.
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

// step reads the file if isDue returns true, and replaces this run of the program if a change is due.
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

// check reads the file, and accepts, refuses or keeps it.
func (r *Reloader) check(ctx context.Context) {
	r.checked = time.Now()
	next, warnings, err := r.opt.Load()
	var changed []string
	if err == nil {
		changed = config.Differences(r.opt.Config, next)
	}
	if len(changed) > 0 {
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

// refuse keeps the configuration in force. It logs an error once.
func (r *Reloader) refuse(s State, err error) {
	s.Due = time.Time{}
	if s.Refused != nil && s.Refused.Error() == err.Error() {
		return
	}
	r.opt.Log.Error("The changed configuration file is invalid; the old configuration stays in force",
		"file", s.File, "error", err)
	s.Refused, s.RefusedAt = err, time.Now()
	s.Count.Refused++
	r.set(s)
	r.opt.Refused(err)
}

// accept schedules the time at which a changed file takes effect.
func (r *Reloader) accept(s State, changed, warnings []string) {
	now := time.Now()
	due := now.Add(r.opt.Delay())
	if !s.Due.IsZero() && s.Due.Before(due) {
		due = s.Due // an earlier change is scheduled already
	}
	for _, w := range warnings {
		r.opt.Log.Warn(w)
	}
	r.opt.Log.Info("The configuration file has changed", "file", s.File,
		"delay", max(0, due.Sub(now)).Round(time.Millisecond), "changed", strings.Join(changed, "; "))
	s.Due, s.Refused = due, nil
	r.set(s)
}

// keep records that the file is equal to the configuration in force.
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

// replace starts the next run of the program.
func (r *Reloader) replace(ctx context.Context, s State) {
	s.Due = time.Time{}
	if err := r.opt.Replace(ctx); err != nil && ctx.Err() == nil {
		r.refuse(s, err)
		return
	}
	r.set(s)
}

// pollPeriod is the time between polls. A file is read once two polls agree, as programs write it in several steps.
const pollPeriod = 500 * time.Millisecond

// digest is a digest of the content of a file, or of the error of reading it.
type digest [sha256.Size]byte

// watch detects changes of a file by reading it. It follows symbolic links anywhere in the path, as
// those of a mounted ConfigMap, and needs no times of the file, which some file systems store in seconds.
type watch struct {
	path string

	last     digest // at the last poll
	reported digest // when changed last returned true
}

// changed polls the file. It returns true if the content, or the reason why it cannot be read,
// differs from when changed last returned true, and is the same as at the last poll.
func (w *watch) changed() bool {
	last := w.last
	w.last = digestOf(w.path)
	if w.last != last || w.last == w.reported {
		return false
	}
	w.reported = w.last
	return true
}

func digestOf(path string) digest {
	data, err := config.ReadFile(path)
	if err != nil {
		return sha256.Sum256([]byte(err.Error()))
	}
	return sha256.Sum256(data)
}
