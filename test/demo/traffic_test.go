//go:build linux

package main

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// sample has one request per millisecond, answered by the backends in order, or
// lost for an empty backend.
func sample(backends ...string) requests {
	start := time.Unix(100, 0)
	var out requests
	for i, b := range backends {
		r := request{began: start.Add(time.Duration(i) * time.Millisecond)}
		r.ended = r.began.Add(time.Duration(i) * time.Microsecond)
		r.result.Outcome = lab.TimedOut
		if b != "" {
			r.result = lab.Result{Outcome: lab.Answered, Backend: netip.AddrPortFrom(netip.MustParseAddr(b), 80)}
		}
		out = append(out, r)
	}
	return out
}

func TestRequests(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	all := sample("10.0.0.1", "10.0.0.2", "", "10.0.0.1", "10.0.0.3")
	start := all[0].began
	for _, c := range []struct {
		name string
		got  requests
		want []int // which of all
	}{
		{"lost", all.lost(), []int{2}},
		{"by one", all.answeredBy([]netip.Addr{a}), []int{0, 3}},
		{"by two", all.answeredBy([]netip.Addr{a, b}), []int{0, 1, 3}},
		{"by none", all.answeredBy(nil), nil},
		{"in a span", all.between(start.Add(time.Millisecond), start.Add(3*time.Millisecond)), []int{1, 2}},
		{"all", all, []int{0, 1, 2, 3, 4}},
	} {
		var got []int
		for _, q := range c.got {
			got = append(got, int(q.began.Sub(start)/time.Millisecond))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := slices.Max(all.times()); got != 4*time.Microsecond {
		t.Errorf("slowest %v", got)
	}
}

func TestFair(t *testing.T) {
	for _, c := range []struct {
		counts []int
		fair   bool
	}{
		{[]int{100, 100, 100}, true},
		{[]int{86, 96, 118}, true},
		{[]int{480}, true}, // a single backend
		{[]int{0, 0, 0}, true},
		{[]int{150, 150, 0}, false},
		{[]int{300, 0, 0}, false},
		{[]int{160, 80, 60}, false},
		{[]int{1, 250, 250, 250, 250}, false},
	} {
		if got := fair(c.counts); got != c.fair {
			t.Errorf("%v: fair: %t, want %t", c.counts, got, c.fair)
		}
	}
}
