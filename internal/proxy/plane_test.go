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

// recorder is a plane over a kernel that holds names of services. It keeps a
// diary, and refuses what the contract of a plane forbids.
type recorder struct {
	diary  []string
	kernel map[string]bool

	fresh   bool // Refresh came, or the last Apply went well
	compare bool // the next plan compares everything

	refuse  []error         // what the next writes end with, each once; nil: well
	blind   error           // what Refresh ends with
	reads   time.Duration   // how long Refresh takes
	onApply func()          // runs while a write is under way
	hold    <-chan struct{} // a write waits for it, or for its context

	fence atomic.Int32 // what the test did before it let time pass is seen after it
}

func newRecorder() *recorder { return &recorder{kernel: map[string]bool{}} }

func (r *recorder) note(format string, args ...any) {
	r.diary = append(r.diary, fmt.Sprintf(format, args...))
}

// read returns the diary since the last read.
func (r *recorder) read() string {
	defer func() { r.diary = nil }()
	return strings.Join(r.diary, "\n")
}

func (r *recorder) Refresh(ctx context.Context) error {
	r.fence.Load()
	r.note("refresh")
	if r.reads > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(r.reads):
		}
	}
	if r.blind != nil {
		return r.blind
	}
	r.fresh, r.compare = true, true
	return nil
}

func (r *recorder) Plan(c route.Change) plane.Plan {
	r.fence.Load()
	if !r.fresh {
		r.note("plan without belief")
	}
	p := &recorded{plane: r}
	if r.compare {
		p.compare(c.Table)
	} else {
		p.touch(c.Touched)
	}
	slices.Sort(p.steps)
	return p
}

// Kept implements plane.Plan.
func (p *recorded) Kept() int { return 0 }

func (r *recorder) Watch(context.Context, func(), func(plane.Edit)) error {
	return errors.New("not part of the loop")
}

func (r *recorder) Remove(context.Context) ([]string, error) {
	return nil, errors.New("not part of the loop")
}

type recorded struct {
	plane *recorder
	steps []string // "+name" or "-name"
}

// compare plans the difference between the kernel and all that should be.
func (p *recorded) compare(t *route.Table) {
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

// touch plans what a change names.
func (p *recorded) touch(touched []route.Touch) {
	for _, t := range touched {
		sign := "+"
		if t.New == nil {
			sign = "-"
		}
		p.steps = append(p.steps, sign+t.Name.Name)
	}
}

func (p *recorded) Steps() int     { return len(p.steps) }
func (p *recorded) String() string { return strings.Join(p.steps, " ") }

func (p *recorded) Apply(ctx context.Context) error {
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
	if len(r.refuse) > 0 {
		err := r.refuse[0]
		r.refuse = r.refuse[1:]
		if err != nil && !errors.As(err, &refused) {
			r.fresh = false
			return err
		}
	}
	for _, s := range p.steps {
		if refused[cluster.Name{Namespace: "default", Name: s[1:]}] != nil {
			continue // it is as it was
		}
		if s[0] == '+' {
			r.kernel[s[1:]] = true
		} else {
			delete(r.kernel, s[1:])
		}
	}
	r.compare = false
	if refused != nil {
		return refused
	}
	return nil
}

// listener is a follower that keeps what it is told.
type listener struct {
	told     []route.Change
	repaired []int // how many Services there were each time
}

func (l *listener) Repaired(t *route.Table) { l.repaired = append(l.repaired, len(t.Services)) }

func (l *listener) Applied(c route.Change) { l.told = append(l.told, c) }

// read says what was told since the last read: one line for each time, with
// each service as "name before>after", by the number of its ports.
func (l *listener) read() string {
	lines := make([]string, 0, len(l.told))
	for _, c := range l.told {
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
	l.told = nil
	return strings.Join(lines, "\n")
}

// version tells the states of a service apart by the port it has.
func version(s *route.Service) string {
	if s == nil || len(s.Ports) == 0 {
		return "-"
	}
	return fmt.Sprint(s.Ports[0].Frontends[0].Port)
}
