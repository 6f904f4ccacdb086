package takeover

import (
	"fmt"
	"strings"
)

// Entry is what one mechanism has, or had.
type Entry struct {
	Mechanism Mechanism
	Count     int    // of objects: tables, chains, rules, virtual servers, sets, interfaces
	What      string // in words, without the mechanism
	MayBeOwn  bool   // of Sluice in an earlier run in mode iptables, whose chains have kube-proxy's names
	Remedy    string // what a person can do to have it removed; empty: nothing has to be done
}

// String returns one line.
func (e Entry) String() string {
	s := fmt.Sprintf("%s: %s", e.Mechanism, e.What)
	if e.MayBeOwn {
		s += " (of kube-proxy, or of Sluice in mode iptables)"
	}
	return s
}

// whose says who left it.
func (e Entry) whose() string {
	if e.MayBeOwn {
		return "kube-proxy, or Sluice in mode iptables,"
	}
	return "kube-proxy"
}

// Account says what was removed and what was not.
type Account struct {
	Removed []Entry
	Lost    []string // rules of others that led to kube-proxy's chains, and went with them
	Left    []Entry  // not kube-proxy's, or still in use; What says why
	Rival   *Rival   // runs, and uses all that is there; nil: none
	Ignored *Rival   // runs, but is not a kube-proxy or is to be ignored; nil: none
}

// Lines are the account for people, one line each.
func (a Account) Lines() []string {
	var out []string
	for _, e := range a.Removed {
		out = append(out, "removed "+e.String())
	}
	for _, rule := range a.Lost {
		out = append(out, "removed a rule of others: "+rule)
	}
	for _, e := range a.Left {
		line := "left " + e.String()
		if e.Remedy != "" {
			line += ": " + e.Remedy
		}
		out = append(out, line)
	}
	if a.Rival != nil {
		out = append(out, fmt.Sprintf("%s runs and uses them (%s): stop it first if they are to go, or add --ignore-kube-proxy", a.Rival, a.Rival.How))
	}
	if a.Ignored != nil {
		out = append(out, fmt.Sprintf("a process called %s runs and was not spared (%s)", a.Ignored, a.Ignored.How))
	}
	return out
}

// String returns the account in one line.
func (a Account) String() string { return strings.Join(a.Lines(), "; ") }

// counts adds up entries by mechanism.
func counts(entries []Entry) map[Mechanism]int {
	out := map[Mechanism]int{}
	for _, e := range entries {
		out[e.Mechanism] += e.Count
	}
	return out
}
