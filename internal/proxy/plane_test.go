package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// recorder is a plane for a kernel that holds names of Services. It records its calls, and
// reports calls that the contract of a plane forbids.
type recorder struct {
	ops    []string // calls since the last takeOps
	kernel map[string]bool

	fresh      bool // Refresh or Apply succeeded last
	compareAll bool // the next plan compares everything

	applyErrs   []error         // results of the next writes; nil: success
	refreshErr  error           // result of Refresh
	refreshTime time.Duration   // duration of Refresh; the first one begins with the loop
	onApply     func()          // called during a write
	hold        <-chan struct{} // blocks a write until it is closed, or the context ends

	fence atomic.Int32 // orders actions of the test before advance with those of the plane after it
}

func newRecorder() *recorder { return &recorder{kernel: map[string]bool{}} }

func (r *recorder) note(format string, args ...any) {
	r.ops = append(r.ops, fmt.Sprintf(format, args...))
}

// takeOps returns the calls since the last call of takeOps, one per line.
func (r *recorder) takeOps() string {
	defer func() { r.ops = nil }()
	return strings.Join(r.ops, "\n")
}

func (r *recorder) Refresh(ctx context.Context) error {
	r.fence.Load()
	r.note("refresh")
	if r.refreshTime > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(r.refreshTime):
		}
	}
	if r.refreshErr != nil {
		return r.refreshErr
	}
	r.fresh, r.compareAll = true, true
	return nil
}

func (r *recorder) Plan(c route.Change) plane.Plan {
	r.fence.Load()
	if !r.fresh {
		r.note("plan without refresh")
	}
	p := &recordedPlan{plane: r}
	if r.compareAll {
		p.compare(c.Table)
	} else {
		p.touch(c.Touched)
	}
	slices.Sort(p.steps)
	return p
}

// Kept implements plane.Plan.
func (p *recordedPlan) Kept() int { return 0 }

func (r *recorder) Watch(context.Context, func(), func(plane.Edit)) error {
	return errors.New("not part of the loop")
}

func (r *recorder) Remove(context.Context) ([]string, error) {
	return nil, errors.New("not part of the loop")
}

type recordedPlan struct {
	plane *recorder
	steps []string // "+name" or "-name"
}

// compare plans the difference between the kernel and the table.
func (p *recordedPlan) compare(t *route.Table) {
	for name := range t.Services {
		if !p.plane.kernel[name.Name] {
			p.steps = append(p.steps, "+"+name.Name)
		}
	}
	for name := range p.plane.kernel {
		if t.Services[cluster.Name{Namespace: "default", Name: name}] == nil {
			p.steps = append(p.steps, "-"+name)
		}
	}
}

// touch plans the changed Services.
func (p *recordedPlan) touch(touched []route.Touch) {
	for _, t := range touched {
		sign := "+"
		if t.New == nil {
			sign = "-"
		}
		p.steps = append(p.steps, sign+t.Name.Name)
	}
}

func (p *recordedPlan) Steps() int     { return len(p.steps) }
func (p *recordedPlan) String() string { return strings.Join(p.steps, " ") }

func (p *recordedPlan) Apply(ctx context.Context) error {
	r := p.plane
	r.note("apply %s", p)
	if r.onApply != nil {
		r.onApply()
	}
	if r.hold != nil {
		select {
		case <-r.hold:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	var refused plane.Refused
	if len(r.applyErrs) > 0 {
		err := r.applyErrs[0]
		r.applyErrs = r.applyErrs[1:]
		if err != nil && !errors.As(err, &refused) {
			r.fresh = false
			return err
		}
	}
	for _, s := range p.steps {
		if refused[cluster.Name{Namespace: "default", Name: s[1:]}] != nil {
			continue // unchanged in the kernel
		}
		if s[0] == '+' {
			r.kernel[s[1:]] = true
		} else {
			delete(r.kernel, s[1:])
		}
	}
	r.compareAll = false
	if refused != nil {
		return refused
	}
	return nil
}

// recordingFollower is a follower that records its calls.
type recordingFollower struct {
	changes  []route.Change
	repaired []int // number of Services at each repair
}

func (l *recordingFollower) Repaired(t *route.Table) {
	l.repaired = append(l.repaired, len(t.Services))
}

func (l *recordingFollower) Applied(c route.Change) { l.changes = append(l.changes, c) }

// take returns the changes since the last call, one per line. Each Service is "name
// before>after", with its port before and after.
func (l *recordingFollower) take() string {
	lines := make([]string, 0, len(l.changes))
	for _, c := range l.changes {
		var words []string
		for _, t := range c.Touched {
			words = append(words, fmt.Sprintf("%s %s>%s", t.Name.Name, version(t.Old), version(t.New)))
		}
		slices.Sort(words)
		if c.OldHost != nil {
			words = append(words, "host")
		}
		lines = append(lines, strings.Join(words, ", "))
	}
	l.changes = nil
	return strings.Join(lines, "\n")
}

// version identifies the state of a Service by its port.
func version(s *route.Service) string {
	if s == nil || len(s.Ports) == 0 {
		return "-"
	}
	return fmt.Sprint(s.Ports[0].Frontends[0].Port)
}
