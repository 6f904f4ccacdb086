// Package source has the parts that sources of cluster objects share: their state, and
// the reporter of problems with objects.
package source

import (
	"sync"
	"time"

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

// State is the state of a source at one moment.
type State struct {
	From      string    `json:"from,omitempty"`     // the URL of an API server, or paths
	Connected bool      `json:"connected"`          // the server answers, or the paths are watched
	Since     time.Time `json:"since,omitzero"`     // of the last change of Connected; zero: it never changed
	Trouble   string    `json:"trouble,omitempty"`  // the present failure, for people; empty: none
	LastEvent time.Time `json:"lastEvent,omitzero"` // the last list, read or change; zero: never

	// Unrepeatable is why a new run of the program could not read the same input, such as a pipe; empty: it could.
	Unrepeatable string `json:"-"`

	Problems int `json:"-"` // objects or files with problems now

	Objects map[string]int `json:"-"` // how many there are of each kind that was listed
	Files   int            `json:"-"` // how many are read
}
