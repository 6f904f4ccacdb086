package event

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Group identifies problems that are counted together.
type Group struct {
	Kind, Namespace string // of the object; empty if it is not an object of the cluster
	Class           Class

	// Field, without indexes, Value and Reason are empty if problems with different
	// ones are counted together. So is the Reason of conflicts, as owners change.
	Field, Value, Reason string
}

// SameClass groups the problems of a class with objects of one kind in one namespace.
func SameClass(p route.Problem) Group {
	g := Group{Class: ClassOf(p)}
	if o, ok := ObjectOf(p); ok {
		g.Kind, g.Namespace = o.Kind, o.Namespace
	}
	return g
}

// SameProblem groups problems of SameClass that differ only in the object.
func SameProblem(p route.Problem) Group {
	g := SameClass(p)
	g.Field, _, _ = strings.Cut(p.Field, "[")
	g.Value = p.Value
	if g.Class != Conflict {
		g.Reason = p.Reason
	}
	return g
}

// The windows in which problems are counted. Each is twice as long as the one
// before while more problems of the group come.
const (
	firstWindow = 10 * time.Second
	lastWindow  = 640 * time.Second
)

// maxGroups bounds the memory for groups. Where there are more, only the last level counts.
const maxGroups = 4096

// level bounds how many problems of a group are forwarded one by one.
type level struct {
	group  func(route.Problem) Group
	listed int
}

func levels() []level { return []level{{SameProblem, 10}, {SameClass, 100}} }

// Digest forwards problems. Of problems that repeat it forwards the first few; while more come, it forwards one that
// counts the others, after 10 seconds and then less and less often. It is safe for concurrent use.
type Digest struct {
	opt    DigestOptions
	levels []level

	mu     sync.Mutex
	groups map[levelGroup]*counted
}

type levelGroup struct {
	level int
	Group
}

type counted struct {
	listed int
	held   route.Problem // the latest that was not passed on
	count  int           // of the problems that were not forwarded
	quiet  bool          // no problem came in this window
	window time.Duration
	due    time.Time // when the window ends
}

// DigestOptions for NewDigest. Both are needed.
type DigestOptions struct {
	// Report receives the problems that are not held back, never an empty list. Summary receives one problem that
	// stands for all problems of a group that were held back.
	Report  func([]route.Problem)
	Summary func(Group, route.Problem)
}

// NewDigest returns an empty Digest.
func NewDigest(o DigestOptions) *Digest {
	return &Digest{opt: o, levels: levels(), groups: map[levelGroup]*counted{}}
}

// Report takes new problems.
func (d *Digest) Report(problems []route.Problem) {
	var passed []route.Problem
	now := time.Now()
	d.mu.Lock()
	for _, p := range problems {
		if d.pass(p, now) {
			passed = append(passed, p)
		}
	}
	d.mu.Unlock()
	if len(passed) > 0 {
		d.opt.Report(passed)
	}
}

// pass reports whether a problem is passed on. Otherwise it is counted.
func (d *Digest) pass(p route.Problem, now time.Time) bool {
	for i, l := range d.levels {
		key := levelGroup{i, l.group(p)}
		g := d.groups[key]
		if g == nil {
			if len(d.groups) >= maxGroups && i < len(d.levels)-1 {
				continue
			}
			g = &counted{window: firstWindow, due: now.Add(firstWindow)}
			d.groups[key] = g
		}
		g.quiet = false
		if g.listed == l.listed {
			g.held = p
			g.count += p.Weight()
			return false
		}
		g.listed++
	}
	return true
}

// Run forwards the counts until the context ends, and then the remaining counts.
func (d *Digest) Run(ctx context.Context) error {
	tick := time.NewTicker(firstWindow)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			d.Flush()
			return nil
		case now := <-tick.C:
			d.flush(now)
		}
	}
}

// Flush passes on all counts at once.
func (d *Digest) Flush() { d.flush(time.Now().Add(lastWindow)) }

// flush passes on the counts of the windows that have ended.
func (d *Digest) flush(now time.Time) {
	for _, s := range d.due(now) {
		d.opt.Summary(s.group, s.problem)
	}
}

// summary is a problem that stands for many.
type summary struct {
	group   Group
	problem route.Problem
}

// due returns the counts of the windows that have ended. A group without problems for a whole window begins again.
func (d *Digest) due(now time.Time) []summary {
	d.mu.Lock()
	defer d.mu.Unlock()
	var due []summary
	for key, g := range d.groups {
		if now.Before(g.due) {
			continue
		}
		if g.quiet {
			delete(d.groups, key)
			continue
		}
		if g.count > 0 {
			due = append(due, summary{key.Group, g.summary(key.Group)})
			g.window = min(2*g.window, lastWindow)
		}
		g.held, g.count, g.quiet, g.due = route.Problem{}, 0, true, now.Add(g.window)
	}
	return due
}

// summary is the latest problem that was held, as one of all that were.
func (g *counted) summary(of Group) route.Problem {
	p := g.held
	more := g.count - p.Weight()
	if more == 0 {
		return p
	}
	where := ""
	if of.Namespace != "" {
		where = " in namespace " + of.Namespace
	}
	p.Reason += fmt.Sprintf("; %d more such problems%s", more, where)
	p.Count = g.count
	return p
}
