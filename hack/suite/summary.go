package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// counts are numbers of tests.
type counts struct{ Passed, Failed, Skipped int }

// plus returns the sum of two counts.
func (c counts) plus(d counts) counts {
	return counts{c.Passed + d.Passed, c.Failed + d.Failed, c.Skipped + d.Skipped}
}

// String implements fmt.Stringer.
func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.Passed, c.Failed, c.Skipped)
}

// id names a package or a test.
type id struct{ pkg, test string }

func (i id) String() string { return strings.TrimSuffix(i.pkg+" "+i.test, " ") }

// summary is the result of all steps. It prints failures at once.
type summary struct {
	out io.Writer

	counts           // of this run
	earlier counts   // of an earlier run
	broken  []string // the failures
	reasons map[string]int
	slow    []timed
	pkgs    []packageResult

	// measured has the attributes of tests whose key is TABLE/ROW: the values, by table and row.
	measured map[string]map[string][]string
}

type timed struct {
	id      id
	elapsed float64 // seconds
}

// packageResult is a package whose tests have ended.
type packageResult struct {
	step string
	counts
	timed
}

// How many of the slowest tests are printed, and from how many seconds on.
const (
	slowest  = 15
	slowFrom = 1.0
)

func newSummary(out io.Writer) *summary {
	return &summary{out: out, reasons: map[string]int{}, measured: map[string]map[string][]string{}}
}

// add adds the counts in a file, which may not exist yet, to the counts for print. Without a file it does nothing.
func (s *summary) add(file string) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s.earlier)
	}
	if err != nil {
		return fmt.Errorf("read the sum of an earlier run from %s: %w", file, err)
	}
	return nil
}

// save writes the counts of this run and earlier ones to a file. Without a file it does nothing.
func (s *summary) save(file string) error {
	if file == "" {
		return nil
	}
	text, err := json.Marshal(s.counts.plus(s.earlier))
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the sum to %s: %w", file, err)
	}
	return nil
}

// measure records a value of a table, once.
func (s *summary) measure(key, value string) {
	table, row, ok := strings.Cut(key, "/")
	if !ok || slices.Contains(s.measured[table][row], value) {
		return
	}
	if s.measured[table] == nil {
		s.measured[table] = map[string][]string{}
	}
	s.measured[table][row] = append(s.measured[table][row], value)
}

// durations returns how long the tests of each package took, by step and package.
func (s *summary) durations() map[string]time.Duration {
	all := map[string]time.Duration{}
	for _, p := range s.pkgs {
		all[p.step+" "+p.id.pkg] = time.Duration(p.elapsed * float64(time.Second))
	}
	return all
}

// print ends the run.
func (s *summary) print() {
	s.list("seconds of each package", s.packages())
	slices.SortFunc(s.slow, func(a, b timed) int { return cmp.Compare(b.elapsed, a.elapsed) })
	var slow []string
	for _, t := range s.slow[:min(slowest, len(s.slow))] {
		slow = append(slow, fmt.Sprintf("%6.1f %s", t.elapsed, t.id))
	}
	s.list("seconds of the slowest tests", slow)
	for _, table := range slices.Sorted(maps.Keys(s.measured)) {
		s.list(strings.ReplaceAll(table, "-", " "), s.rows(table))
	}
	s.list("skipped", s.skips())
	s.list("failed", s.broken)
	if s.earlier != (counts{}) {
		s.printf("\nthis run: %s\n", s.counts)
	}
	s.printf("\nsluice: %s\n", s.counts.plus(s.earlier))
}

func (s *summary) packages() []string {
	slices.SortFunc(s.pkgs, func(a, b packageResult) int { return cmp.Compare(b.elapsed, a.elapsed) })
	var lines []string
	for _, p := range s.pkgs {
		lines = append(lines, fmt.Sprintf("%6.1f %s: %s (%s)", p.elapsed, p.step,
			strings.TrimPrefix(p.id.pkg, module), p.counts))
	}
	return lines
}

func (s *summary) skips() []string {
	var lines []string
	for _, why := range slices.Sorted(maps.Keys(s.reasons)) {
		lines = append(lines, fmt.Sprintf("%dx %s", s.reasons[why], why))
	}
	return lines
}

// rows returns the lines of a table: several values of a row differ between the steps.
func (s *summary) rows(table string) []string {
	var lines []string
	for _, row := range slices.Sorted(maps.Keys(s.measured[table])) {
		lines = append(lines, fmt.Sprintf("%8s %s", strings.Join(s.measured[table][row], ", "), row))
	}
	return lines
}

func (s *summary) list(title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	s.printf("\n%s:\n", title)
	for _, line := range lines {
		s.printf("  %s\n", line)
	}
}

func (s *summary) printf(format string, args ...any) { fmt.Fprintf(s.out, format, args...) }
