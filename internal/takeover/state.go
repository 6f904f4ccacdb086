package takeover

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/text"
)

// Rival is a kube-proxy that runs on this node, or a process that may be one.
type Rival struct {
	PID     int           // 0: it runs where its process cannot be seen
	Program string        // its executable; empty: not known
	Mode    string        // its own answer; empty: none
	How     string        // how it was noticed
	Certain bool          // it does what only a kube-proxy does; false: it has the name, and may change rules
	Age     time.Duration // since it was started, when it was noticed; 0: not known
}

// String names it.
func (r Rival) String() string {
	s := "kube-proxy"
	switch {
	case r.PID != 0 && r.Program != "":
		s += fmt.Sprintf(" (pid %d, %s)", r.PID, text.Line(r.Program))
	case r.PID != 0:
		s += fmt.Sprintf(" (pid %d)", r.PID)
	}
	if r.Mode != "" {
		s += " in mode " + r.Mode
	}
	return s
}

// goOn says how to remove the rules although it runs.
const goOn = "to remove them although it runs, start Sluice with --ignore-kube-proxy"

// State is how far the take-over is.
type State struct {
	Looked    bool              // after the first complete sync
	Rival     *Rival            // runs beside Sluice; nil: none
	Same      bool              // it writes the very chains that Sluice writes
	Doubtful  time.Time         // until then a Rival that is not certain is waited for
	Ignored   string            // why a process called kube-proxy is not waited for, a sentence; empty: there is none
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
	case !s.Rival.Certain:
		out = append(out, fmt.Sprintf("a process called %s runs: unless it listens or changes rules as a kube-proxy does, "+
			"Sluice removes kube-proxy's rules after %s; %s", s.Rival, s.Doubtful.UTC().Format(time.TimeOnly+" MST"), goOn))
	default:
		out = append(out, fmt.Sprintf("%s runs beside Sluice (%s): stop it, then Sluice removes its rules; %s", s.Rival, s.Rival.How, goOn))
	}
	if s.Ignored != "" {
		out = append(out, s.Ignored)
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
