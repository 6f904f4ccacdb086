package cli

import "testing"

func TestFitATerminal(t *testing.T) {
	if got, want := fit("short\n€uros and more\nbelow\n", 6, 2), "short\n€uros \n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
