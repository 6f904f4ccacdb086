package takeover

import (
	"fmt"
	"maps"
	"slices"
)

// Rival is a kube-proxy that runs on this node.
type Rival struct {
	PID  int    // 0: it runs where its process cannot be seen
	Mode string // as it says itself; empty: it does not say
	How  string // how it was noticed
}

// String names it.
func (r Rival) String() string {
	s := "kube-proxy"
	if r.PID != 0 {
		s += fmt.Sprintf(" (pid %d)", r.PID)
	}
	if r.Mode != "" {
		s += " in mode " + r.Mode
	}
	return s
}

// State is how far the take-over is.
type State struct {
	Looked    bool              // after the first complete sync
	Rival     *Rival            // runs beside Sluice; nil: none
	Same      bool              // it writes the very chains that Sluice writes
	Leftovers map[Mechanism]int // objects; nothing of those that are clean
	Removed   map[Mechanism]int // objects, since the start
	Last      Account           // what was removed last, and what is left alone
	Err       error             // of the last look or removal
	Others    []string          // what Sluice itself had left in other modes, removed or not yet, a sentence each
}

// Lines say it in sentences, none if there never was anything to take over.
func (s State) Lines() []string {
	var out []string
	switch {
	case s.Rival == nil:
	case s.Same:
		out = append(out, fmt.Sprintf("%s runs beside Sluice, and both write the same chains, each against the other: stop it", s.Rival))
	default:
		out = append(out, fmt.Sprintf("%s runs beside Sluice: stop it, then Sluice removes its rules", s.Rival))
	}
	if s.Err != nil {
		out = append(out, fmt.Sprintf("cannot take over, retrying: %v", s.Err))
	}
	return append(append(out, s.Others...), s.Last.Lines()...)
}

// clone is a State that does not change.
func (s State) clone() State {
	s.Leftovers, s.Removed = maps.Clone(s.Leftovers), maps.Clone(s.Removed)
	s.Others = slices.Clone(s.Others)
	return s
}
