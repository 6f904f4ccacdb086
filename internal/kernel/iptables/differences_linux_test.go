package iptables

import (
	"slices"
	"testing"
)

// entries returns rules for letters: capital letters are rules that jump to our chains.
func entries(letters string) []Entry {
	var all []Entry
	for _, letter := range letters {
		all = append(all, Entry{Sum: uint64(letter), Leads: letter >= 'A' && letter <= 'Z'})
	}
	return all
}

// Rules that jump to our chains may not be added, deleted or moved relative to other rules.
// Other rules may be added and deleted, and reordered between ours.
func TestMoved(t *testing.T) {
	for _, tt := range []struct {
		before, after string
		want          bool
	}{
		{"", "", false},
		{"aAb", "aAb", false},
		{"aAb", "xaAyb", false},
		{"aAb", "A", false},
		{"abAcd", "baAdc", false},
		{"aaAa", "aAa", true}, // it is unknown which of the equal rules was deleted, so it is reported
		{"aAb", "abA", true},
		{"aAb", "Aab", true},
		{"aAb", "ab", true},
		{"aAb", "aAAb", true},
		{"AB", "BA", true},
		{"", "A", true},
		{"A", "", true},
	} {
		if got := moved(entries(tt.before), entries(tt.after)); got != tt.want {
			t.Errorf("from %q to %q: %t", tt.before, tt.after, got)
		}
	}
}

// Chains that our input names may differ; all other differences are reported.
func TestDifferences(t *testing.T) {
	before := Digest{
		Chains: map[string]uint64{"A": 1, "B": 2, "C": 3, "NAMED": 4},
		Others: map[string][]Entry{"INPUT": entries("aA"), "OUTPUT": entries("A")},
	}
	after := Digest{
		Chains: map[string]uint64{"A": 1, "B": 5, "D": 6, "NAMED": 7},
		Others: map[string][]Entry{"INPUT": entries("Aa"), "FORWARD": entries("A")},
	}
	named := func(chain string) bool { return chain == "NAMED" || chain == "FORWARD" }
	want := []string{"rule of B", "chain C", "chain D", "rule of INPUT", "rule of OUTPUT"}
	if got := differences(before, after, named); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := differences(before, before, named); len(got) > 0 {
		t.Errorf("a table differs from itself: %q", got)
	}
	if got := differences(Digest{}, Digest{}, named); len(got) > 0 {
		t.Errorf("empty tables differ: %q", got)
	}
}
