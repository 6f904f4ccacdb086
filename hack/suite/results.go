package main

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// event is one line of go test -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a package that was built
	Test        string
	Elapsed     float64 // seconds
	Output      string
	Key, Value  string // of an attribute of a test
	FailedBuild string
}

// results reads the output of one step and adds its tests to a summary. A test with subtests does not count, unless it
// fails and none of its subtests does.
type results struct {
	step string
	sum  *summary

	events   int
	failures int
	output   map[id][]string // of tests and packages that have not ended
	packages map[string]*counts
	parents  map[id]bool // tests with subtests; true if a subtest failed
}

func newResults(step string, sum *summary) *results {
	return &results{
		step: step, sum: sum, output: map[id][]string{}, packages: map[string]*counts{}, parents: map[id]bool{},
	}
}

// end ends the step, whose command ended with err.
func (r *results) end(err error) {
	switch {
	case err != nil && r.failures == 0:
		r.fail(id{pkg: r.step})
		r.sum.printf("FAIL %s: %v\n", r.step, err)
	case err == nil && r.events == 0:
		r.sum.Passed++
	}
}

// line takes one line of output.
func (r *results) line(line string) {
	var e event
	if !strings.HasPrefix(line, `{"`) || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		r.sum.printf("%s: %s", r.step, line)
		return
	}
	r.events++
	key := id{e.Package, e.Test}
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") { // RUN, PAUSE, CONT, NAME
			r.output[key] = append(r.output[key], e.Output)
		}
	case "attr":
		r.sum.measure(e.Key, e.Value)
	case "build-output":
		r.sum.printf("%s", e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.packageEnded(e)
		} else {
			r.testEnded(key, e)
		}
		delete(r.output, key)
	}
}

func (r *results) testEnded(key id, e event) {
	failedBelow, isParent := r.parents[key]
	r.recordParent(key, e.Action)
	if e.Action == "fail" {
		r.sum.printf("%s", strings.Join(r.output[key], ""))
	}
	if isParent && (e.Action != "fail" || failedBelow) {
		return
	}
	if e.Elapsed >= slowFrom {
		r.sum.slow = append(r.sum.slow, timed{key, e.Elapsed})
	}
	p := r.packages[e.Package]
	if p == nil {
		p = &counts{}
		r.packages[e.Package] = p
	}
	switch e.Action {
	case "pass":
		r.sum.Passed++
		p.Passed++
	case "skip":
		r.sum.Skipped++
		p.Skipped++
		r.sum.reasons[reason(r.output[key])]++
	case "fail":
		p.Failed++
		r.fail(key)
	}
}

// recordParent records that the test above this one, if any, has subtests.
func (r *results) recordParent(key id, action string) {
	slash := strings.LastIndexByte(key.test, '/')
	if slash < 0 {
		return
	}
	above := id{key.pkg, key.test[:slash]}
	r.parents[above] = r.parents[above] || action == "fail"
}

// packageEnded records the result of a package. It can fail without a failing test: it does not build, its TestMain
// fails, or it runs out of time.
func (r *results) packageEnded(e event) {
	p := r.packages[e.Package]
	if p == nil && e.Action != "fail" {
		return // no tests
	}
	if p == nil {
		p = &counts{}
	}
	r.sum.pkgs = append(r.sum.pkgs, packageResult{r.step, *p, timed{id{pkg: e.Package}, e.Elapsed}})
	if e.Action != "fail" {
		return
	}
	r.sum.printf("fail %s (%s) %.1fs\n", e.Package, p, e.Elapsed)
	if p.Failed == 0 {
		r.fail(id{pkg: e.Package})
		r.unfinished(e.Package)
	}
}

// unfinished prints the output of a package and of its tests that never ended.
func (r *results) unfinished(pkg string) {
	for _, key := range slices.SortedFunc(maps.Keys(r.output), func(a, b id) int { return cmp.Compare(a.test, b.test) }) {
		if key.pkg == pkg {
			r.sum.printf("%s", strings.Join(r.output[key], ""))
		}
	}
}

func (r *results) fail(what id) {
	r.sum.Failed++
	r.failures++
	r.sum.broken = append(r.sum.broken, what.String())
}

// reason returns why a test was skipped: the text after file and line in its output.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if file, rest, ok := strings.Cut(line, ": "); ok && strings.Contains(file, ".go:") {
			return rest
		}
	}
	return "no reason given"
}
