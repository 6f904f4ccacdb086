package iptables

import (
	"strings"
	"testing"
)

func ownRuleset(nat, filter Chains) string {
	own := func(name string) bool { return strings.HasPrefix(name, "OWN-") }
	o := Owner{Chain: own, Jump: func(from Chain, to string) bool { return from.Builtin() && own(to) }}
	return o.Ruleset("filter", filter) + o.Ruleset("nat", nat)
}

// A ruleset has the program's own chains and the jumps to them, and nothing of other programs.
func TestRuleset(t *testing.T) {
	const want = `*nat
:OWN-A -
:OWN-B -
-A OWN-A -j OWN-B
-A OWN-A -j RETURN
-A OUTPUT -j OWN-A
-A PREROUTING -j OWN-A
COMMIT
`
	if got := ownRuleset(Chains{
		"PREROUTING": {"ACCEPT", []string{"-j OTHER", "-j OWN-A"}},
		"OUTPUT":     {"ACCEPT", []string{"-j OWN-A"}},
		"OWN-A":      {"-", []string{"-j OWN-B", "-j RETURN"}},
		"OWN-B":      {"-", nil},
		"OTHER":      {"-", []string{"-j RETURN", "-j OWN-B"}},
	}, Chains{"INPUT": {"ACCEPT", []string{"-j DROP"}}}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Replace writes the tables that differ, each as a whole.
func TestReplace(t *testing.T) {
	old := ownRuleset(
		Chains{
			"OUTPUT": {"ACCEPT", []string{"-j OWN-A", "-j OWN-A", "-j OWN-OLD"}}, "OWN-A": {"-", []string{"-j ACCEPT"}},
			"OWN-OLD": {"-", nil},
		},
		Chains{"OWN-F": {"-", []string{"-j DROP"}}},
	)
	now := ownRuleset(
		Chains{
			"OUTPUT": {"ACCEPT", []string{"-j OWN-A", "-j OWN-NEW"}},
			"INPUT":  {"ACCEPT", []string{`-m comment --comment "a b" -j OWN-NEW`}}, "OWN-A": {"-", []string{"-j RETURN"}},
			"OWN-NEW": {"-", nil},
		},
		Chains{"OWN-F": {"-", []string{"-j DROP"}}},
	)
	const want = `*nat
:OWN-A - [0:0]
:OWN-NEW - [0:0]
:OWN-OLD - [0:0]
-A OWN-A -j RETURN
-D OUTPUT -j OWN-A
-D OUTPUT -j OWN-A
-D OUTPUT -j OWN-OLD
-I OUTPUT -j OWN-NEW
-I OUTPUT -j OWN-A
-I INPUT -m comment --comment "a b" -j OWN-NEW
-X OWN-OLD
COMMIT
`
	if got := string(Replace(old, now)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := Replace(now, now); len(got) > 0 {
		t.Errorf("the same ruleset:\n%s", got)
	}
	if got := string(Replace(now, "")); !strings.Contains(got, "-D OUTPUT -j OWN-A\n") || strings.Count(got, "-X ") != 3 {
		t.Errorf("everything removed:\n%s", got)
	}
}
