//go:build linux

package main

import (
	"math"
	"slices"
	"testing"
	"time"
)

const exposition = `# HELP x_seconds how long
# TYPE x_seconds histogram
x_seconds_bucket{ip_family="IPv4",le="0.001"} 10
x_seconds_bucket{ip_family="IPv4",le="0.01"} 80
x_seconds_bucket{ip_family="IPv4",le="+Inf"} 100
x_seconds_bucket{ip_family="IPv6",le="0.001"} 0
x_seconds_bucket{ip_family="IPv6",le="0.01"} 0
x_seconds_bucket{ip_family="IPv6",le="+Inf"} 0
x_seconds_count 100

# TYPE last_seconds gauge
last_seconds{ip_family="IPv4"} 1.7e+09
last_seconds{ip_family="IPv6"} 0
`

func TestMetrics(t *testing.T) {
	m, err := parseMetrics([]byte(exposition))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.highest("last_seconds"); got != 1.7e9 {
		t.Errorf("the highest is %v", got)
	}
	if got := m.highest("none"); got != 0 {
		t.Errorf("the highest of no series is %v", got)
	}
	want := []bucket{{0.001, 10}, {0.01, 80}, {math.Inf(1), 100}}
	if got := m.histogram("x_seconds"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, text := range []string{"x", "x y"} {
		if _, err := parseMetrics([]byte(text)); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestQuantile(t *testing.T) {
	before := []bucket{{0.001, 10}, {0.01, 10}, {math.Inf(1), 10}}
	after := []bucket{{0.001, 20}, {0.01, 110}, {math.Inf(1), 110}}
	got := since(before, after)
	if want := []bucket{{0.001, 10}, {0.01, 100}, {math.Inf(1), 100}}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for q, want := range map[float64]time.Duration{0.05: 500 * time.Microsecond, 0.1: time.Millisecond, 0.55: 5500 * time.Microsecond, 1: 10 * time.Millisecond} {
		if took := quantile(got, q); took.Round(time.Microsecond) != want {
			t.Errorf("the %v quantile is %v, want %v", q, took, want)
		}
	}
	if took := atLeast(got); took != time.Millisecond {
		t.Errorf("the largest is at least %v", took)
	}
	slow := []bucket{{0.001, 1}, {math.Inf(1), 2}}
	if took := quantile(slow, 1); took != time.Millisecond {
		t.Errorf("the quantile beyond all buckets is %v", took)
	}
	if took := atLeast(slow); took != time.Millisecond {
		t.Errorf("the largest beyond all buckets is at least %v", took)
	}
	if quantile(nil, 0.5) != 0 || atLeast(nil) != 0 {
		t.Error("nothing has a quantile")
	}
}

func TestLogOfSluice(t *testing.T) {
	const log = `time=x level=INFO msg=Synced services=201 steps=12 compile=5.5ms apply=16ms cause=start
time=x level=INFO msg=Other compile=9s apply=9s
time=x level=DEBUG msg=Synced services=1 steps=2 compile=10µs apply=90µs cause=change
`
	if got := firstSteps(log); got != 12 {
		t.Errorf("the first took %d steps", got)
	}
	if got := firstSteps("nothing"); got != -1 {
		t.Errorf("an empty log: %d steps, want -1", got)
	}
	if got, want := syncTimes(log), []time.Duration{21500 * time.Microsecond, 100 * time.Microsecond}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
