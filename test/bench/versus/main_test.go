//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, apiserver.Assets) }

// TestQuick runs all measurements with small amounts.
func TestQuick(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.json")
	o, err := parse([]string{"-quick", "-sizes=200", "-results=" + file}, "", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	o.changes, o.idle, o.churn, o.rolling = 10, 200*time.Millisecond, time.Second, 200
	if err := measure(o); err != nil {
		t.Fatal(err)
	}
	results, err := load(file)
	if err != nil || len(results) != 1 || results[0].Values["rolling.total"] == 0 {
		t.Fatalf("got %d results, %v, want a complete one", len(results), err)
	}
	r := results[0]
	if r.NotReached != "" {
		t.Errorf("not reached: %s", r.NotReached)
	}
	for key, want := range map[string]float64{
		"restart.steps": 0, "change.n": 10, "churn.request.n": 50, "churn.unseen": 0,
		"rolling.writes": 8, "rolling.failed": 0,
	} {
		if got, ok := r.Values[key]; !ok || got != want {
			t.Errorf("%s is %v (measured: %t), want %v", key, got, ok, want)
		}
	}
	for _, row := range rows() {
		// CPU time has ticks of 10 ms
		if value := row.value(r); value < 0 || (value != value && !strings.Contains(row.title, "CPU")) {
			t.Errorf("%s is %v", row.title, value)
		}
	}
	if !strings.Contains(r.Heap, "flat") {
		t.Errorf("the heap profile is %q", r.Heap)
	}
	var report strings.Builder
	if err := run(options{report: true, results: file}, &report); err != nil {
		t.Fatal(err)
	}
	t.Log(report.String())
}
