package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// event is one line of go test -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of what is built
	Test        string
	Elapsed     float64 // seconds
	Output      string
	Key, Value  string // of an attribute of a test
	FailedBuild string
}

// id names a package or a test.
type id struct{ pkg, test string }

func (i id) String() string { return strings.TrimSuffix(i.pkg+" "+i.test, " ") }

// pkgResult counts the tests of one package.
type pkgResult struct{ passed, failed, skipped int }

// summary counts tests and prints the progress. A test with subtests does not
// count, unless it fails and none of its subtests does.
type summary struct {
	out                     io.Writer
	passed, failed, skipped int

	step     string
	started  time.Time
	events   int // of this step
	failures int // of this step

	output   map[id][]string // of tests and packages that have not ended
	packages map[string]*pkgResult
	parents  map[id]bool    // tests with subtests; true: one of those failed
	reasons  map[string]int // why tests were skipped
	broken   []string       // what failed
	slow     []timed

	// measured has the attributes of tests whose key is TABLE/ROW: the values, by table and row.
	measured map[string]map[string][]string
}

type timed struct {
	id      id
	elapsed float64
}

// How many of the slowest tests are printed, and from how many seconds on.
const (
	slowest  = 10
	slowFrom = 1.0
)

func newSummary(out io.Writer) *summary {
	return &summary{
		out: out, output: map[id][]string{}, packages: map[string]*pkgResult{},
		parents: map[id]bool{}, reasons: map[string]int{}, measured: map[string]map[string][]string{},
	}
}

// begin begins a step.
func (s *summary) begin(step string) {
	s.step, s.started, s.events, s.failures = step, time.Now(), 0, 0
	clear(s.packages)
	clear(s.parents)
	clear(s.output)
}

// end ends a step whose command ended with err.
func (s *summary) end(err error) {
	switch {
	case err != nil && s.failures == 0:
		s.fail(id{pkg: s.step})
		s.printf("FAIL %s: %v\n", s.step, err)
	case err == nil && s.events == 0:
		s.passed++
	}
	s.printf("--- %s: %s\n", s.step, time.Since(s.started).Round(time.Second))
}

// line takes one line of output.
func (s *summary) line(line string) {
	var e event
	if !strings.HasPrefix(line, `{"`) || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		s.printf("%s", line)
		return
	}
	s.events++
	key := id{e.Package, e.Test}
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") { // RUN, PAUSE, CONT, NAME
			s.output[key] = append(s.output[key], e.Output)
		}
	case "attr":
		s.measure(e.Key, e.Value)
	case "build-output":
		s.printf("%s", e.Output)
	case "pass", "fail", "skip":
		s.ended(key, e)
		delete(s.output, key)
	}
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

func (s *summary) ended(key id, e event) {
	if e.Test == "" {
		s.packageEnded(e)
		return
	}
	p := s.packages[e.Package]
	if p == nil {
		p = &pkgResult{}
		s.packages[e.Package] = p
	}
	failedBelow, isParent := s.parents[key]
	s.recordParent(key, e.Action)
	if isParent && (e.Action != "fail" || failedBelow) {
		if e.Action == "fail" {
			s.printf("%s", strings.Join(s.output[key], ""))
		}
		return
	}
	if e.Elapsed >= slowFrom {
		s.slow = append(s.slow, timed{key, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		s.passed++
		p.passed++
	case "skip":
		s.skipped++
		p.skipped++
		s.reasons[reason(s.output[key])]++
	case "fail":
		p.failed++
		s.fail(key)
		s.printf("%s", strings.Join(s.output[key], ""))
	}
}

// recordParent records that the test above this one, if any, has subtests.
func (s *summary) recordParent(key id, action string) {
	slash := strings.LastIndexByte(key.test, '/')
	if slash < 0 {
		return
	}
	above := id{key.pkg, key.test[:slash]}
	s.parents[above] = s.parents[above] || action == "fail"
}

// packageEnded prints the result of a package. It can fail without a failing test:
// it does not build, its TestMain fails, or it runs out of time.
func (s *summary) packageEnded(e event) {
	p := s.packages[e.Package]
	if p == nil && e.Action != "fail" {
		return // no tests
	}
	if p == nil {
		p = &pkgResult{}
	}
	s.printf("%-4s %s (%d passed, %d failed, %d skipped) %.1fs\n",
		e.Action, e.Package, p.passed, p.failed, p.skipped, e.Elapsed)
	if e.Action == "fail" && p.failed == 0 {
		s.fail(id{pkg: e.Package})
		s.unfinished(e.Package)
	}
}

// unfinished prints the output of a package and of its tests that never ended.
func (s *summary) unfinished(pkg string) {
	for _, key := range slices.SortedFunc(maps.Keys(s.output), func(a, b id) int { return cmp.Compare(a.test, b.test) }) {
		if key.pkg == pkg {
			s.printf("%s", strings.Join(s.output[key], ""))
		}
	}
}

func (s *summary) fail(what id) {
	s.failed++
	s.failures++
	s.broken = append(s.broken, what.String())
}

// reason returns why a test was skipped: the text after file and line in its
// output.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if file, rest, ok := strings.Cut(line, ": "); ok && strings.Contains(file, ".go:") {
			return rest
		}
	}
	return "no reason given"
}

// print ends the run.
func (s *summary) print() {
	slices.SortFunc(s.slow, func(a, b timed) int { return cmp.Compare(b.elapsed, a.elapsed) })
	for i, t := range s.slow[:min(slowest, len(s.slow))] {
		if i == 0 {
			s.printf("\nslowest:\n")
		}
		s.printf("  %6.1fs %s\n", t.elapsed, t.id)
	}
	for _, table := range slices.Sorted(maps.Keys(s.measured)) {
		s.list(strings.ReplaceAll(table, "-", " "), s.rows(table))
	}
	s.list("skipped", s.skips())
	s.list("failed", s.broken)
	s.printf("\nsluice: %d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
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

func (s *summary) printf(format string, args ...any) {
	fmt.Fprintf(s.out, format, args...)
}
