package text

import "testing"

func TestLine(t *testing.T) {
	for s, want := range map[string]string{
		"": "", "as it is": "as it is", "one\ntwo\tthree\x1b[2J": "one two three [2J", "größer": "größer",
	} {
		if got := Line(s); got != want {
			t.Errorf("%q fits as %q, want %q", s, got, want)
		}
	}
}
