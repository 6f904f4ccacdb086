// Package reload takes over a changed configuration file while the process
// runs. A file that is wrong changes nothing; what cannot change in a running
// process waits for the next start, and is told.
package reload

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// Options for New. All but File and Changed are needed.
type Options struct {
	File   string         // "": there is none, and nothing to watch
	Config *config.Config // in force
	// Load reads flags and file again, and returns what to warn of.
	Load func() (*config.Config, []string, error)
	// Apply makes next hold instead of old, which is in force; they differ only in
	// what can change in a running process. It ends early only with the context.
	Apply func(ctx context.Context, old, next *config.Config)
	Log   *slog.Logger
	// Changed is told of the state after every file that was taken or refused.
	Changed func(State)
}

// State is where things stand.
type State struct {
	File       string
	InForce    *config.Config
	LoadedAt   time.Time      // when what is in force was taken over
	Refused    error          // why the file as it is now does not hold; nil: it does
	RefusedAt  time.Time      // when it was found to be so
	RestartDue []config.Field // what waits for the next start

	// How many files were taken over and refused, without the one at the start.
	Taken, Rejected int
}

// Reloader holds the configuration in force.
type Reloader struct {
	opt Options

	checking sync.Mutex // held while a file is taken over
	mu       sync.Mutex // guards state
	state    State
}

// New returns a Reloader. Nothing is read before Run or Check.
func New(o Options) *Reloader {
	return &Reloader{opt: o, state: State{File: o.File, InForce: o.Config, LoadedAt: time.Now()}}
}

// Run takes over the file whenever it changes, until the context ends.
func (r *Reloader) Run(ctx context.Context) error {
	if r.opt.File != "" {
		Watch(ctx, r.opt.File, r.opt.Log, func() { r.Check(ctx) })
	}
	<-ctx.Done()
	return nil
}

// State returns where things stand. It may be called at any time.
func (r *Reloader) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.state
	s.RestartDue = slices.Clone(s.RestartDue)
	return s
}

// Check reads the file now and takes it over. It may be called at any time.
func (r *Reloader) Check(ctx context.Context) {
	if r.opt.File == "" {
		return
	}
	r.checking.Lock()
	defer r.checking.Unlock()
	before := r.State()
	after := r.take(ctx, before)
	if after.Taken == before.Taken && after.Rejected == before.Rejected {
		return
	}
	r.mu.Lock()
	r.state = after
	r.mu.Unlock()
	if r.opt.Changed != nil {
		r.opt.Changed(r.State())
	}
}

// take returns the state after a look at the file; the same if that says nothing
// new.
func (r *Reloader) take(ctx context.Context, s State) State {
	next, warnings, err := r.opt.Load()
	if err != nil {
		return r.refuse(s, err)
	}
	live, restart := config.Changes(s.InForce, next)
	if len(live) == 0 && s.Refused == nil && slices.Equal(restart, s.RestartDue) {
		return s
	}
	for _, w := range warnings {
		r.opt.Log.Warn(w)
	}
	merged, err := config.Merge(s.InForce, next)
	if err != nil {
		return r.refuse(s, err)
	}
	if len(live) > 0 {
		r.opt.Apply(ctx, s.InForce, merged)
		if ctx.Err() != nil { // the process ends
			return s
		}
	}
	r.tell(s, live, restart)
	s.InForce, s.LoadedAt, s.Refused, s.RestartDue = merged, time.Now(), nil, restart
	s.Taken++
	return s
}

// refuse keeps what is in force. An error is logged when it is new.
func (r *Reloader) refuse(s State, err error) State {
	if s.Refused != nil && s.Refused.Error() == err.Error() {
		return s
	}
	r.opt.Log.Error("The configuration file is refused, the old configuration stays in force",
		"file", s.File, "error", err)
	s.Refused, s.RefusedAt = err, time.Now()
	s.Rejected++
	return s
}

// tell logs what became of a file: one line for what holds now, one for what
// will after the next start.
func (r *Reloader) tell(was State, live, restart []config.Field) {
	switch {
	case len(live) > 0:
		r.opt.Log.Info("The configuration file was taken over", "file", was.File, "changed", join(live))
	case was.Refused != nil:
		r.opt.Log.Info("The configuration file is accepted again", "file", was.File)
	}
	switch {
	case slices.Equal(restart, was.RestartDue):
	case len(restart) > 0:
		r.opt.Log.Warn("The configuration file has changes that need a restart", "file", was.File, "waiting", join(restart))
	default:
		r.opt.Log.Info("The configuration file has no changes any more that need a restart", "file", was.File)
	}
}

func join(fields []config.Field) string {
	var texts []string
	for _, f := range fields {
		texts = append(texts, f.String())
	}
	return strings.Join(texts, "; ")
}
