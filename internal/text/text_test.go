package text

import "testing"

func TestCount(t *testing.T) {
	for _, tt := range []struct {
		n           int
		thing, want string
	}{
		{0, "rule", "0 rules"},
		{1, "rule", "1 rule"},
		{2, "rule", "2 rules"},
		{1, "address", "1 address"},
		{3, "address", "3 addresses"},
		{2, "virtual server", "2 virtual servers"},
	} {
		if got := Count(tt.n, tt.thing); got != tt.want {
			t.Errorf("Count(%d, %q) = %q, want %q", tt.n, tt.thing, got, tt.want)
		}
	}
}

func TestAlternatives(t *testing.T) {
	for want, list := range map[string][]string{"": nil, "a": {"a"}, "a or b": {"a", "b"}, "a, b or c": {"a", "b", "c"}} {
		if got := Alternatives(list); got != want {
			t.Errorf("%q: got %q, want %q", list, got, want)
		}
	}
}
