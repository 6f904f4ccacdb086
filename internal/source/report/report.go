// Package report tells each problem of an object once, for as long as it lasts.
package report

import (
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Reporter remembers which problems objects have. It is safe for concurrent
// use.
type Reporter struct {
	tell func([]route.Problem)

	mu    sync.Mutex
	known map[string][]route.Problem // objects without problems are not in it
}

// New returns a Reporter that calls tell, never with an empty list and never
// twice at once. Nil: nobody is told.
func New(tell func([]route.Problem)) *Reporter {
	if tell == nil {
		tell = func([]route.Problem) {}
	}
	return &Reporter{tell: tell, known: map[string][]route.Problem{}}
}

// Set says that these are now all problems of an object, and tells the new
// ones. A problem that went away and comes back is new.
func (r *Reporter) Set(object string, problems []route.Problem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.known[object]
	if len(problems) == 0 {
		delete(r.known, object)
		return
	}
	r.known[object] = problems
	fresh := slices.DeleteFunc(slices.Clone(problems), func(p route.Problem) bool {
		return slices.Contains(old, p)
	})
	if len(fresh) > 0 {
		r.tell(fresh)
	}
}

// Current returns the problems there are, by object.
func (r *Reporter) Current() map[string][]route.Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string][]route.Problem, len(r.known))
	for object, problems := range r.known {
		out[object] = slices.Clone(problems)
	}
	return out
}
