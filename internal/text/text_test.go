package text

import (
	"testing"
	"time"
)

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

func TestLine(t *testing.T) {
	for s, want := range map[string]string{
		"": "", "as it is": "as it is", "one\ntwo\tthree\x1b[2J": "one two three [2J", "größer": "größer",
	} {
		if got := Line(s); got != want {
			t.Errorf("%q fits as %q, want %q", s, got, want)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 bytes", 1: "1 byte", 1023: "1023 bytes", 1 << 10: "1 KiB", 3 << 19: "1.5 MiB",
		200 << 20: "200 MiB", 5 << 30: "5 GiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
}

func TestDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                                 "0s",
		1234567 * time.Nanosecond:         "1.23ms",
		123456 * time.Microsecond:         "123ms",
		4321 * time.Millisecond:           "4.3s",
		192*time.Second + time.Nanosecond: "3m12s",
		25*time.Hour - time.Minute:        "1d0h",
		24*time.Hour - time.Minute:        "23h59m",
		3 * time.Hour:                     "3h", 90 * time.Second: "1m30s",
		time.Hour + time.Second: "1h", 5 * time.Minute: "5m",
		75*time.Hour + 59*time.Minute: "3d3h",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%d is %s, want %s", d, got, want)
		}
	}
}
