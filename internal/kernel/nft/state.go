package nft

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
)

// State is what a table holds.
type State struct {
	Chains map[string]ChainState
	Sets   map[string]SetState

	// Dormant says that its chains are switched off. Adding the table again
	// switches them on.
	Dormant bool
}

// ChainState is what a chain holds.
type ChainState struct {
	hook  string
	drops bool // its policy is to drop
	rules []string
}

// SetState is what a set holds. The elements of dynamic sets, which are the
// kernel's own, are left out.
type SetState struct {
	definition string
	Elements   map[string]Element // by Key and End together
}

// Entrance reports whether the kernel sends packets into the chain before it knows
// where they go: once none does no connection gets into the table any more.
func (s ChainState) Entrance() bool {
	return s.hook != "" && !strings.Contains(s.hook, " hook "+Postrouting.String()+" ")
}

// Is reports whether the chain is exactly as wanted.
func (s ChainState) Is(c Chain) bool {
	if s.drops || s.hook != c.Hook.text() || len(s.rules) != len(c.Rules) {
		return false
	}
	for i, r := range c.Rules {
		if canonical(r.exprs()) != s.rules[i] {
			return false
		}
	}
	return true
}

// SameHook reports whether the chain is registered as wanted, whatever its
// rules: a hook cannot be changed in place.
func (s ChainState) SameHook(c Chain) bool { return s.hook == c.Hook.text() }

// Is reports whether the set is defined as wanted, whatever its elements.
func (s SetState) Is(f Family, want Set) bool { return s.definition == want.identity(f) }

// verdictMap is all that can be told of the definition of one that was read.
const verdictMap = "verdict map"

// identity says what a set is as far as it can be told of one that was read.
func (s Set) identity(f Family) string {
	if s.verdicts() {
		return verdictMap
	}
	return s.definition(f)
}

// canonical writes down what the kernel runs, so that what was sent can be
// compared with what is reported.
func canonical(exprs []expr.Any) string {
	var b strings.Builder
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Lookup:
			same := *e
			same.SetID = 0
			fmt.Fprintf(&b, "%+v;", same)
		case *expr.Dynset:
			same := *e
			same.SetID = 0
			fmt.Fprintf(&b, "%+v;", same)
		default:
			fmt.Fprintf(&b, "%T%+v;", e, e)
		}
	}
	return b.String()
}

// String lists the state, sorted, for tests and for people.
func (s *State) String() string {
	if s == nil {
		return "no table\n"
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.Sets)) {
		set := s.Sets[name]
		fmt.Fprintf(&b, "set %s %s\n", name, set.definition)
		for _, k := range slices.Sorted(maps.Keys(set.Elements)) {
			e := set.Elements[k]
			fmt.Fprintf(&b, "  %x-%x : %x %s %q\n", e.Key, e.End, e.Data, e.Goto, e.Comment)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Chains)) {
		c := s.Chains[name]
		fmt.Fprintf(&b, "chain %s%s\n", name, c.hook)
		for _, r := range c.rules {
			fmt.Fprintf(&b, "  %s\n", r)
		}
	}
	return b.String()
}

// Count returns the number of elements in all sets.
func (s *State) Count() int {
	n := 0
	for _, set := range s.Sets {
		n += len(set.Elements)
	}
	return n
}
