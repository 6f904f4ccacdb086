package manifest

import (
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/source/state"
)

// progress is what was read so far.
type progress struct {
	files  int
	since  time.Time // everything was read once
	latest time.Time // of the last file that was taken over
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
		st.Connected, st.Since = true, r.since
		st.Files, st.LastEvent = r.files, r.latest
	}
	return st
}

// publish makes what was read known to State.
func (s *Source) publish() {
	now := progress{files: len(s.files) + s.streams, latest: s.latest}
	if before := s.progress.Load(); before != nil {
		now.since = before.since
	} else {
		now.since = time.Now()
	}
	s.progress.Store(&now)
}
