package strict

import "testing"

func TestAddr(t *testing.T) {
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
		a, ok := Addr(tc.in)
		if ok != (tc.want != "") || ok && a.String() != tc.want {
			t.Errorf("Addr(%q) = %v, %v, want %q", tc.in, a, ok, tc.want)
		}
	}
}

func TestPrefix(t *testing.T) {
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
		{"fd00::/129", ""},
		{"fe80::%eth0/64", ""},
		{"all", ""},
		{"", ""},
	} {
		p, ok := Prefix(tc.in)
		if ok != (tc.want != "") || ok && p.String() != tc.want {
			t.Errorf("Prefix(%q) = %v, %v, want %q", tc.in, p, ok, tc.want)
		}
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
		if a, ok := Addr(s); ok {
			if b, ok := Addr(a.String()); !ok || a != b {
				t.Errorf("%q: %v parses to %v", s, a, b)
			}
		}
		if p, ok := Prefix(s); ok {
			if q, ok := Prefix(p.String()); !ok || p != q {
				t.Errorf("%q: %v parses to %v", s, p, q)
			}
		}
	})
}
