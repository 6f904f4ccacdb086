package text

import "testing"

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "ab", 2},
		{"status", "status", 0},
		{"status", "statu", 1},
		{"status", "stauts", 2},
		{"kitten", "sitting", 3},
		{"abc", "xyz", 3},
	} {
		if got := Distance(tt.a, tt.b); got != tt.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
		if got := Distance(tt.b, tt.a); got != tt.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", tt.b, tt.a, got, tt.want)
		}
	}
}

func TestNearest(t *testing.T) {
	flags := []string{"cleanup", "cluster-cidr", "config", "mode", "v"}
	for word, want := range map[string]string{
		"cluster-cdir": "cluster-cidr", "confg": "config", "moda": "mode", "cluster": "", "confgi": "config",
		"nope": "", "x": "", "": "", "metrics": "",
	} {
		if got := Nearest(word, flags); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
