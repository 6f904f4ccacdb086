package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// newRunner returns a runner whose output is out.
func newRunner(t *testing.T, out *bytes.Buffer) *runner {
	t.Helper()
	known, err := readTimes(filepath.Join(t.TempDir(), "cache", "times.json"))
	if err != nil {
		t.Fatal(err)
	}
	return &runner{title: "make x", env: []string{"GREETING=day"}, sum: newSummary(out), times: known}
}

func TestAllStepsRunExceptThoseThatNeedAFailedOne(t *testing.T) {
	var out bytes.Buffer
	r := newRunner(t, &out)
	err := r.run(t.Context(), []step{
		{name: "bad", command: "echo wrong >&2; exit 3"},
		{name: "needs-bad", command: "echo never", after: []string{"bad"}},
		{name: "needs-that", command: "echo never", after: []string{"needs-bad"}},
		{name: "good", command: "echo fine $GREETING"},
		{name: "needs-good", command: "true", after: []string{"good"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := (counts{Passed: 2, Failed: 3}); r.sum.counts != want {
		t.Errorf("%s, want %s", r.sum.counts, want)
	}
	for _, want := range []string{
		"bad: wrong\n", "FAIL bad: exit status 3\n", "good: fine day\n",
		"FAIL needs-bad: not run: it needs bad, which failed\n",
		"FAIL needs-that: not run: it needs needs-bad, which failed\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("does not say %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "never") {
		t.Errorf("runs a step that needs a failed one:\n%s", &out)
	}
}

func TestAStepThatWaitsRunsBesideTwoThatCompute(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	wait := "while [ ! -e " + file + " ]; do sleep 0.01; done"
	var out bytes.Buffer
	r := newRunner(t, &out)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := r.run(ctx, []step{
		{name: "a", command: wait},
		{name: "b", command: wait},
		{name: "waits", waits: true, command: "touch " + file},
	})
	if err != nil || r.sum.Failed > 0 {
		t.Fatalf("%v\n%s", err, &out)
	}
}

// Each step writes a line when it begins and ends; the file shows which steps ran at the same time.
func TestStepsRunTwoAtATimeAndAloneIfTheySaySo(t *testing.T) {
	dir := t.TempDir()
	begin := func(name string) string { return "echo >>" + dir + "/log +" + name }
	end := func(name string) string { return "; echo >>" + dir + "/log -" + name }
	wait := func(file string) string { return "; while [ ! -e " + dir + "/" + file + " ]; do sleep 0.01; done" }
	var out bytes.Buffer
	r := newRunner(t, &out)
	err := r.run(t.Context(), []step{
		{name: "a", command: begin("a") + wait("b") + end("a")},
		{name: "alone", alone: true, command: begin("alone") + end("alone")},
		{name: "b", command: begin("b") + "; touch " + dir + "/b" + end("b")},
		{name: "c", after: []string{"a"}, command: begin("c") + end("c")},
	})
	if err != nil || r.sum.Failed > 0 {
		t.Fatalf("%v\n%s", err, &out)
	}
	log, err := os.ReadFile(dir + "/log")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(log))
	for i, line := range lines {
		if line == "+alone" && (i+1 == len(lines) || lines[i+1] != "-alone") {
			t.Errorf("a step runs beside one that runs alone: %q", lines)
		}
	}
	if at := strings.Join(lines, " "); strings.Index(at, "+c") < strings.Index(at, "-a") {
		t.Errorf("c does not wait for a: %q", lines)
	}
}

func TestPackagesThatTookLongestComeFirst(t *testing.T) {
	var out bytes.Buffer
	r := newRunner(t, &out)
	r.times.known["unit "+module+"internal/text"] = time.Second
	r.times.known["unit "+module+"internal/strict"] = time.Minute
	got, err := r.list(t.Context(), step{name: "unit", packages: []string{
		"../../internal/event", "../../internal/text", "../../internal/strict",
		"../../internal/testing/texttest", "-../../internal/event",
	}})
	want := []string{module + "internal/strict", module + "internal/text"}
	if err != nil || strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestPackagesWhoseTestsImportOne(t *testing.T) {
	var out bytes.Buffer
	got, err := newRunner(t, &out).list(t.Context(), step{
		packages: []string{"../../internal/strict", "../../internal/route"}, importing: module + "test/seeds",
	})
	if err != nil || strings.Join(got, " ") != module+"internal/route" {
		t.Errorf("got %q, %v, want internal/route", got, err)
	}
}

func TestDurationsAreKeptForTheNextRun(t *testing.T) {
	var out bytes.Buffer
	r := newRunner(t, &out)
	r.sum.pkgs = []packageResult{{step: "a", timed: timed{id{pkg: "p"}, 2.5}}}
	if err := r.run(t.Context(), []step{{name: "a", command: "true"}, {name: "b", command: "false"}}); err != nil {
		t.Fatal(err)
	}
	again, err := readTimes(r.times.path)
	if err != nil {
		t.Fatal(err)
	}
	if got := again.known["a p"]; got != 2500*time.Millisecond {
		t.Errorf("package p took %v", got)
	}
	if again.known["make x"] == 0 || again.known["make x: a"] == 0 {
		t.Errorf("the run or its step has no duration: %v", again.known)
	}
	if d, known := again.known["make x: b"]; known {
		t.Errorf("a step that failed has the duration %v", d)
	}
}

func TestAnInterruptEndsTheSteps(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	go func() {
		defer cancel()
		for begun := false; !begun; time.Sleep(time.Millisecond) {
			_, err := os.Stat(dir + "/begun")
			begun = err == nil
		}
	}()
	var out bytes.Buffer
	r := newRunner(t, &out)
	if err := r.run(ctx, []step{{name: "a", command: "touch " + dir + "/begun; sleep 1000 & wait"}}); err == nil {
		t.Errorf("an interrupted run succeeds:\n%s", &out)
	}
}

func TestSumsOfTwoRuns(t *testing.T) {
	file := t.TempDir() + "/sum"
	for _, want := range []string{"sluice: 2 passed, 1 failed, 0 skipped", "sluice: 4 passed, 2 failed, 0 skipped"} {
		var out bytes.Buffer
		s := newSummary(&out)
		if err := s.add(file); err != nil {
			t.Fatal(err)
		}
		s.counts = counts{Passed: 2, Failed: 1}
		s.print()
		if !strings.HasSuffix(out.String(), want+"\n") {
			t.Errorf("ends with %q, want %q", &out, want)
		}
		if err := s.save(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := newSummary(&bytes.Buffer{}).add(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a broken file: %v", err)
	}
}
