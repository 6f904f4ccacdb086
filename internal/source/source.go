// Package source has the parts that sources of cluster objects share: their state, and
// the reporter of problems with objects.
package source

import (
	"sync"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Reporter reports each problem of an object once for as long as it lasts. It is safe for concurrent use.
type Reporter struct {
	report func([]route.Problem)

	mu    sync.Mutex
	known map[string]map[route.Problem]struct{} // objects without problems are not in it
}

// NewReporter passes new problems, never none, to report, which may be nil. Calls of report never overlap.
func NewReporter(report func([]route.Problem)) *Reporter {
	if report == nil {
		report = func([]route.Problem) {}
	}
	return &Reporter{report: report, known: map[string]map[route.Problem]struct{}{}}
}

// Set replaces the problems of an object and reports the new ones. A problem that went away and comes back is new.
func (r *Reporter) Set(object string, problems []route.Problem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.known[object]
	if len(problems) == 0 {
		delete(r.known, object)
		return
	}
	now := make(map[route.Problem]struct{}, len(problems))
	var fresh []route.Problem
	for _, p := range problems {
		_, before := old[p]
		_, twice := now[p]
		now[p] = struct{}{}
		if !before && !twice {
			fresh = append(fresh, p)
		}
	}
	r.known[object] = now
	if len(fresh) > 0 {
		r.report(fresh)
	}
}

// Count returns how many objects have problems now.
func (r *Reporter) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.known)
}
