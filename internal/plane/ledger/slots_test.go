package ledger

import (
	"net/netip"
	"slices"
	"testing"
)

func TestArrangeMovesAsLittleAsPossible(t *testing.T) {
	list := func(text string) []netip.AddrPort {
		var all []netip.AddrPort
		for _, c := range text {
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(c)}), 80))
			if c == '.' {
				all[len(all)-1] = netip.AddrPort{}
			}
		}
		return all
	}
	for _, c := range []struct{ before, want, slots string }{
		{"", "abc", "abc"},
		{"abc", "abc", "abc"},
		{"abc", "abcd", "abcd"},
		{"bcd", "abcd", "bcda"},
		{"abc", "bc", "cb"}, // the last moves into the hole
		{"abcd", "bd", "db"},
		{"abc", "ab", "ab"},
		{"abc", "xyz", "xyz"},
		{"cab", "abc", "cab"},
		{"cab", "abx", "xab"},
		{"a.c", "ac", "ac"}, // a hole somebody made
		{"aab", "ab", "ab"}, // twice the same
		{"...", "a", "a"},
		{"abc", "", ""},
	} {
		want := list(c.want)
		slices.SortFunc(want, netip.AddrPort.Compare)
		if got := Arrange(list(c.before), want); !slices.Equal(got, list(c.slots)) {
			t.Errorf("%q -> %q: %v, want %q", c.before, c.want, got, c.slots)
		}
	}
}
