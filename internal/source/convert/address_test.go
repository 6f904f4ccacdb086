package convert

import (
	"strings"
	"testing"
)

func TestParseAddr(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"10.0.0.1", "10.0.0.1"},
		{"172.30.0.041", "172.30.0.41"}, // S-245: decimal, not octal
		{"010.180.00.001", "10.180.0.1"},
		{"fd00:0:0::1", "fd00::1"},
		{"FD00::00A", "fd00::a"},
		{"::ffff:10.0.0.1", "10.0.0.1"},
		{"::ffff:a00:1", "10.0.0.1"},
		{"", ""},
		{"10.0.0", ""},
		{"10.0.0.256", ""},
		{"10.0.0.1/32", ""},
		{" 10.0.0.1", ""},
		{"fe80::1%eth0", ""},
		{"web.example", ""},
	} {
		a, ok := parseAddr(tc.in)
		if ok != (tc.want != "") || ok && a.String() != tc.want {
			t.Errorf("parseAddr(%q) = %v, %v, want %q", tc.in, a, ok, tc.want)
		}
	}
}

func TestParsePrefix(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"10.0.0.0/8", "10.0.0.0/8"},
		{"203.0.113.000/025", "203.0.113.0/25"},
		{"10.1.2.3/8", "10.0.0.0/8"},
		{"0.0.0.0/0", "0.0.0.0/0"},
		{"::/0", "::/0"},
		{"fd00:1::5/64", "fd00:1::/64"},
		{"::ffff:10.0.0.0/104", "10.0.0.0/8"},
		{"10.0.0.0", ""},
		{"10.0.0.0/33", ""},
		{"10.0.0.0/-1", ""},
		{"", ""},
	} {
		p, ok := parsePrefix(tc.in)
		if ok != (tc.want != "") || ok && p.String() != tc.want {
			t.Errorf("parsePrefix(%q) = %v, %v, want %q", tc.in, p, ok, tc.want)
		}
	}
}

func TestInternerSharesStrings(t *testing.T) {
	in := NewInterner()
	a, b := in.Of(strings.Repeat("x", 8)), in.Of(strings.Repeat("x", 8))
	if a != b || a != "xxxxxxxx" {
		t.Fatalf("Of changed the string: %q, %q", a, b)
	}
	for i := range 3 * maxInterned {
		in.Of(number(int32(i)))
	}
	if len(in.seen) > maxInterned {
		t.Errorf("%d strings are kept, want at most %d", len(in.seen), maxInterned)
	}
	if got := (*Interner)(nil).Of("y"); got != "y" {
		t.Errorf("a nil Interner returns %q", got)
	}
}

// FuzzAddr verifies that parsed values are canonical: their text parses to the same value.
func FuzzAddr(f *testing.F) {
	for _, s := range []string{
		"10.0.0.01", "::ffff:1.2.3.4", "fd00::1", "203.0.113.000/025", "::ffff:0:0/96", "::ffff:0:0/95",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if a, ok := parseAddr(s); ok {
			if b, ok := parseAddr(a.String()); !ok || a != b {
				t.Errorf("%q: %v parses to %v", s, a, b)
			}
		}
		if p, ok := parsePrefix(s); ok {
			if q, ok := parsePrefix(p.String()); !ok || p != q {
				t.Errorf("%q: %v parses to %v", s, p, q)
			}
		}
	})
}
