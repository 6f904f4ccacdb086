//go:build linux

package conformance

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

//go:embed uncovered.txt
var uncovered string

const (
	last       = 312 // behaviours of kube-proxy are 1 to last; later ones are of Sluice, each with a scenario
	minCovered = 150
)

// Every S-number is covered by a scenario or listed with the reason why not.
func TestEveryNumberIsCoveredOrListed(t *testing.T) {
	covered := coveredNumbers()
	listed := listedNumbers(t)
	for n := 1; n <= last; n++ {
		switch {
		case covered[n] && listed[n] != "":
			t.Errorf("S-%03d is covered, but uncovered.txt lists it", n)
		case !covered[n] && listed[n] == "":
			t.Errorf("S-%03d is neither covered nor in uncovered.txt", n)
		}
	}
	for n := range listed {
		if n > last {
			t.Errorf("uncovered.txt lists S-%03d, which has no scenario", n)
		}
	}
	t.Logf("%d of %d covered", len(covered), last)
	if len(covered) < minCovered {
		t.Errorf("%d covered, want %d", len(covered), minCovered)
	}
}

// Summaries are names of tests, which are selected level by level: a slash would hide the
// scenario from runs that select a variant.
func TestNoSummaryHasASlash(t *testing.T) {
	for _, s := range scenarios() {
		if strings.Contains(s.summary, "/") {
			t.Errorf("summary %q of S-%v has a slash", s.summary, s.covers)
		}
	}
}

func coveredNumbers() map[int]bool {
	covered := map[int]bool{}
	for _, s := range scenarios() {
		for _, n := range s.covers {
			covered[n] = true
		}
	}
	return covered
}

func listedNumbers(t *testing.T) map[int]string {
	listed := map[int]string{}
	for line := range strings.Lines(uncovered) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		number, reason, _ := strings.Cut(line, "  ")
		var n int
		if _, err := fmt.Sscanf(number, "S-%03d", &n); err != nil || reason == "" {
			t.Errorf("uncovered.txt: want S-number, two spaces, reason: %q", line)
		}
		if listed[n] != "" {
			t.Errorf("uncovered.txt: S-%03d is listed twice", n)
		}
		listed[n] = reason
	}
	return listed
}

// Names begin with all S-numbers, are unique, and are sentences.
func TestNamesAreUniqueAndNumbered(t *testing.T) {
	shape := regexp.MustCompile(`^(S-\d{3} )+[^ ].*[^.]$`)
	seen := map[string]bool{}
	for _, s := range scenarios() {
		name := s.name()
		if !shape.MatchString(name) || len(s.covers) != strings.Count(name[:strings.Index(name, s.summary)], "S-") {
			t.Errorf("name %q, want S-001 a sentence", name)
		}
		if seen[name] {
			t.Errorf("two scenarios have the name %q", name)
		}
		seen[name] = true
		if len(s.steps) == 0 {
			t.Errorf("%s has no steps", name)
		}
	}
}
