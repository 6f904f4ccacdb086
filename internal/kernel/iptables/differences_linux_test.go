package iptables

import (
	"slices"
	"testing"
)

// entries makes rules of letters: capitals lead to chains of ours.
func entries(letters string) []Entry {
	var all []Entry
	for _, letter := range letters {
		all = append(all, Entry{Sum: uint64(letter), Leads: letter >= 'A' && letter <= 'Z'})
	}
	return all
}

// Rules that lead to ours may not come, go or change their place among others;
// others may come and go, and change places where none of ours is between them.
func TestMoved(t *testing.T) {
	for _, tt := range []struct {
		was, is string
		want    bool
	}{
		{"", "", false},
		{"aAb", "aAb", false},
		{"aAb", "xaAyb", false},
		{"aAb", "A", false},
		{"abAcd", "baAdc", false},
		{"aaAa", "aAa", true}, // which of equal rules went cannot be known: reported rather than not
		{"aAb", "abA", true},
		{"aAb", "Aab", true},
		{"aAb", "ab", true},
		{"aAb", "aAAb", true},
		{"AB", "BA", true},
		{"", "A", true},
		{"A", "", true},
	} {
		if got := moved(entries(tt.was), entries(tt.is)); got != tt.want {
			t.Errorf("from %q to %q: %t", tt.was, tt.is, got)
		}
	}
}

// What input of ours named may differ; everything else is reported.
func TestDifferences(t *testing.T) {
	was := Digest{
		Chains: map[string]uint64{"A": 1, "B": 2, "C": 3, "MINE": 4},
		Others: map[string][]Entry{"INPUT": entries("aA"), "OUTPUT": entries("A")},
	}
	is := Digest{
		Chains: map[string]uint64{"A": 1, "B": 5, "D": 6, "MINE": 7},
		Others: map[string][]Entry{"INPUT": entries("Aa"), "FORWARD": entries("A")},
	}
	mine := func(chain string) bool { return chain == "MINE" || chain == "FORWARD" }
	want := []string{"rule of B", "chain C", "chain D", "rule of INPUT", "rule of OUTPUT"}
	if got := differences(was, is, mine); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := differences(was, was, mine); len(got) > 0 {
		t.Errorf("a table differs from itself: %q", got)
	}
	if got := differences(Digest{}, Digest{}, mine); len(got) > 0 {
		t.Errorf("nothing differs from nothing: %q", got)
	}
}
