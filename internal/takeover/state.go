package takeover

import (
	"errors"
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

// errBeyondReach means that legacy rules stay as Sluice lacks the programs of iptables or the right to use them.
var errBeyondReach = errors.New("cannot remove leftovers of iptables-legacy")

// State is the progress of the take-over.
type State struct {
	Searched  bool              // there was a search, after the first complete sync
	KubeProxy *KubeProxy        // runs beside Sluice; nil: none
	Same      bool              // it writes the same chains as Sluice
	Leftovers map[Mechanism]int // objects; mechanisms without any are left out
	Removed   map[Mechanism]int // objects, since the start
	Gone      []string          // the last removals, in sentences
	Left      []string          // what the last removal left, and why, in a few words each
	Err       error             // of the last attempt
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
		out = append(out, fmt.Sprintf("%s runs beside Sluice (%s): stop it, then Sluice removes its rules; "+
			"to remove them although it runs, start Sluice with --ignore-kube-proxy", s.KubeProxy, s.KubeProxy.Evidence))
	}
	if s.Err != nil {
		out = append(out, fmt.Sprintf("retrying: %v", s.Err))
	}
	return append(append(out, s.Gone...), leftLines(s.Left)...)
}

// clone returns a State that does not change.
func (s State) clone() State {
	s.Leftovers, s.Removed = maps.Clone(s.Leftovers), maps.Clone(s.Removed)
	s.Gone = slices.Clone(s.Gone)
	return s
}

// Entry describes the rules of one mechanism.
type Entry struct {
	Mechanism Mechanism
	Count     int    // of objects: tables, chains, rules, virtual servers, sets, interfaces
	What      string // in words, without the mechanism
}

// String returns one line.
func (e Entry) String() string { return fmt.Sprintf("%s: %s", e.Mechanism, e.What) }

// Found is the result of Search.
type Found struct {
	KubeProxy *KubeProxy // runs on this node; nil: none
	Same      bool       // it writes the same chains as Sluice (Options.Ours)
	Rules     []Entry    // of kube-proxy, or of Sluice in mode iptables or ipvs
}

// Account lists the removed and the remaining objects.
type Account struct {
	Removed   []Entry
	Left      []string   // objects that are not kube-proxy's, or are still in use, with the reason
	KubeProxy *KubeProxy // runs, and uses rules that stay; nil: none
}

// Lines returns the account for people.
func (a Account) Lines() []string {
	var out []string
	for _, e := range a.Removed {
		out = append(out, "removed "+e.String())
	}
	out = append(out, leftLines(a.Left)...)
	if a.KubeProxy != nil {
		out = append(out, fmt.Sprintf("%s runs (%s): left the rules that it may use; to remove them stop it first, "+
			"or add --ignore-kube-proxy", a.KubeProxy, a.KubeProxy.Evidence))
	}
	return out
}

func leftLines(left []string) (lines []string) {
	for _, what := range left {
		lines = append(lines, "left "+what)
	}
	return lines
}

// counts adds up entries by mechanism.
func counts(entries []Entry) map[Mechanism]int {
	out := map[Mechanism]int{}
	for _, e := range entries {
		out[e.Mechanism] += e.Count
	}
	return out
}
