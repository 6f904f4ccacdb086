package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/source/state"
	"github.com/sluice-proxy/sluice/internal/text"
)

// progress is what was read so far.
type progress struct {
	files   int
	trouble string
	broken  int       // files of which older content is in use
	since   time.Time // everything was read once; zero: not yet
	latest  time.Time // of the last file that was taken over
}

// State tells how the Source is doing. It is connected from when everything was
// read once. It is safe for concurrent use.
func (s *Source) State() state.State {
	paths := make([]string, len(s.roots))
	for i, r := range s.roots {
		paths[i] = r.path
	}
	st := state.State{From: strings.Join(paths, ", "), Problems: s.report.Count()}
	if r := s.progress.Load(); r != nil {
		st.Connected, st.Since = !r.since.IsZero(), r.since
		st.Files, st.LastEvent, st.Trouble = r.files, r.latest, r.trouble
		if r.broken > 0 {
			st.Unrepeatable = text.Count(r.broken, "file") + " cannot be read as a whole at present"
		}
	}
	for _, r := range s.roots {
		if r.isStream {
			st.Unrepeatable = r.path + " can be read once only"
		}
	}
	return st
}

// publish makes what was read known to State.
func (s *Source) publish() {
	now := progress{files: s.streams, latest: s.latest, trouble: s.trouble()}
	for _, f := range s.files {
		if f.wasRead {
			now.files++
		}
		if f.content.isBroken() || f.wasRead && f.attempts > 0 {
			now.broken++
		}
	}
	if before := s.progress.Load(); before != nil {
		now.since = before.since
	}
	if s.loaded && now.since.IsZero() {
		now.since = time.Now()
	}
	s.progress.Store(&now)
}

// count notes how many problems a file has.
func (s *Source) count(path string, problems int) {
	delete(s.counts, path)
	if problems > 0 {
		s.counts[path] = problems
	}
}

// trouble says how many problems the files have; empty: none.
func (s *Source) trouble() string {
	if len(s.counts) == 0 {
		return ""
	}
	total := 0
	for _, n := range s.counts {
		total += n
	}
	worst := slices.MaxFunc(slices.Sorted(maps.Keys(s.counts)), func(a, b string) int { return cmp.Compare(s.counts[a], s.counts[b]) })
	if len(s.counts) == 1 {
		return fmt.Sprintf("%s in %s", text.Count(total, "problem"), worst)
	}
	return fmt.Sprintf("%s in %s, %d in %s", text.Count(total, "problem"), text.Count(len(s.counts), "file"), s.counts[worst], worst)
}
