package takeover

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/internal/text"
)

// KubeProxy is a kube-proxy that runs on this node.
type KubeProxy struct {
	PID      int    // 0 if it is in another PID namespace, or may not be read
	Program  string // its executable; empty: not known
	Mode     string // as it reports; empty if it does not
	Evidence string // how it was detected
}

// String returns its name, process and mode.
func (r KubeProxy) String() string {
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

// ignoreHint is how to remove the rules although it runs.
const ignoreHint = "to remove them although it runs, start Sluice with --ignore-kube-proxy"

// State is the progress of the take-over.
type State struct {
	Searched  bool              // there was a search, after the first complete sync
	KubeProxy *KubeProxy        // runs beside Sluice; nil: none
	Same      bool              // it writes the same chains as Sluice
	Ignored   string            // why Sluice does not wait for a kube-proxy that runs; empty if none runs
	Leftovers map[Mechanism]int // objects; mechanisms without any are left out
	Removed   map[Mechanism]int // objects, since the start
	Last      Account           // of the last removal
	Err       error             // of the last search or removal
	Others    []string          // sentences about the rules that Sluice left in other modes
}

// Lines returns the state in sentences; none if there was nothing to take over.
func (s State) Lines() []string {
	var out []string
	switch {
	case s.KubeProxy == nil:
	case s.Same:
		out = append(out, s.KubeProxy.String()+
			" runs beside Sluice, and both write the same chains, each against the other: stop it")
	default:
		out = append(out, fmt.Sprintf("%s runs beside Sluice (%s): stop it, then Sluice removes its rules; %s",
			s.KubeProxy, s.KubeProxy.Evidence, ignoreHint))
	}
	if s.Ignored != "" {
		out = append(out, s.Ignored)
	}
	if s.Err != nil {
		out = append(out, fmt.Sprintf("cannot take over, retrying: %v", s.Err))
	}
	return append(append(out, s.Others...), s.Last.Lines()...)
}

// clone returns a State that does not change.
func (s State) clone() State {
	s.Leftovers, s.Removed = maps.Clone(s.Leftovers), maps.Clone(s.Removed)
	s.Others = slices.Clone(s.Others)
	return s
}

// Entry describes the rules of one mechanism.
type Entry struct {
	Mechanism Mechanism
	Count     int    // of objects: tables, chains, rules, virtual servers, sets, interfaces
	What      string // in words, without the mechanism
	Why       string // it cannot be removed; empty if it can, or if What gives the reason
	MayBeOwn  bool   // an earlier run of Sluice in mode iptables or ipvs may have made them, with kube-proxy's names
	Remedy    string // how a person can remove them; empty if no person has to
}

// String returns one line.
func (e Entry) String() string {
	s := fmt.Sprintf("%s: %s", e.Mechanism, e.What)
	if e.MayBeOwn {
		s += " (of kube-proxy, or of Sluice in another mode)"
	}
	if e.Why != "" {
		s += ": " + e.Why
	}
	return s
}

// owner names the program that left the rules, for "leftovers of ...".
func (e Entry) owner() string {
	if e.MayBeOwn {
		return "kube-proxy or of Sluice in mode iptables"
	}
	return "kube-proxy"
}

// Found is the result of Search.
type Found struct {
	KubeProxy *KubeProxy // runs on this node; nil: none
	Same      bool       // it writes the same chains as Sluice (Options.Ours)
	Rules     []Entry    // of kube-proxy; entries with a Remedy are removed only where Sluice can do that
}

// Account lists the removed and the remaining entries.
type Account struct {
	Removed   []Entry
	Lost      []string   // rules of other programs that jumped to kube-proxy's chains, removed with these
	Left      []Entry    // not kube-proxy's, or still in use; What gives the reason
	KubeProxy *KubeProxy // runs and uses the rules; nil: none
	Ignored   *KubeProxy // runs, but is to be ignored; nil: none
	Kept      string     // chains that other programs use as well, in a sentence; empty: none
}

// Lines returns the account for people.
func (a Account) Lines() []string {
	var out []string
	for _, e := range a.Removed {
		out = append(out, "removed "+e.String())
	}
	for _, rule := range a.Lost {
		out = append(out, "removed a rule of another program: "+rule)
	}
	for _, e := range a.Left {
		line := "left " + e.String()
		if e.Remedy != "" {
			line += "; " + e.Remedy
		}
		out = append(out, line)
	}
	if a.Kept != "" {
		out = append(out, a.Kept)
	}
	if a.KubeProxy != nil {
		out = append(out, fmt.Sprintf("%s runs and uses them (%s): stop it first if they are to go, "+
			"or add --ignore-kube-proxy", a.KubeProxy, a.KubeProxy.Evidence))
	}
	if a.Ignored != nil {
		out = append(out, fmt.Sprintf("a process called %s runs, and its rules were removed (%s)",
			a.Ignored, a.Ignored.Evidence))
	}
	return out
}

// counts adds up entries by mechanism.
func counts(entries []Entry) map[Mechanism]int {
	out := map[Mechanism]int{}
	for _, e := range entries {
		out[e.Mechanism] += e.Count
	}
	return out
}
