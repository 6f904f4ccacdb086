//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/explain"
	"github.com/sluice-proxy/sluice/test/lab"
)

// What explain said is believed only of connections that did all of it.
func TestObserve(t *testing.T) {
	expected := explain.Case{SourceNAT: &explain.SourceNAT{}}
	for i := range 3 {
		expected.Backends = append(expected.Backends, explain.Backend{Chance: "1/3", Address: fmt.Sprintf("10.0.0.%d:80", i+1)})
	}
	answers := func(numbers ...int) []lab.Result {
		var out []lab.Result
		for i, n := range numbers {
			by := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 80)
			out = append(out, slices.Repeat([]lab.Result{{Outcome: lab.Answered, Backend: by}}, n)...)
		}
		return out
	}
	client, node := netip.MustParseAddrPort("10.9.9.9:1"), netip.MustParseAddrPort("10.8.8.8:1")
	for _, c := range []struct {
		name    string
		results []lab.Result
		want    string // counts, or words of the error
	}{
		{"even", answers(20, 21, 19), "20 + 21 + 19"},
		{"one never", answers(40, 40, 0), "others map[]"},
		{"another one", answers(20, 20, 19, 1), "10.0.0.4:80:1"},
		{"one lost", append(answers(20, 20, 19), lab.Result{Outcome: lab.TimedOut}), "timed out"},
		{"not its own address", []lab.Result{{Outcome: lab.Answered, Local: client, Source: node}}, "which saw 10.8.8.8:1"},
	} {
		counts, err := observe(expected, c.results)
		got := strings.Join(counts, " + ")
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	for n, want := range map[int]string{1: "all to 1, which sees", 3: "1/3 each to 3, which see"} {
		if got := foretell(expected.Backends[:n]); got != want {
			t.Errorf("of %d: %q, want %q", n, got, want)
		}
	}
}

func TestClip(t *testing.T) {
	for text, want := range map[string]string{"": "", "12345": "12345", "123456": "1234…", "äöüäöü": "äöüä…"} {
		if got := clip(text, 5); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestQuoted(t *testing.T) {
	const line = `level=INFO msg="Removed it" mechanism=nftables removed="two tables, one chain"`
	for name, want := range map[string]string{"removed": "two tables, one chain", "mechanism": "nftables", "left": ""} {
		if got := quoted(line, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestParseRepairs(t *testing.T) {
	const others = "sluice_repairs_total{cause=\"failure\"} 7\n"
	for text, want := range map[string]int{
		"": 0, others: 0, others + "sluice_repairs_total{cause=\"foreign-edit\"} 12\n": 12,
	} {
		if got := parseRepairs(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestUnderWay(t *testing.T) {
	start := time.Unix(100, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	all := requests{
		{begun: at(0), ended: at(9)},
		{begun: at(0), ended: at(11)},
		{begun: at(12), ended: at(13)},
		{begun: at(19), ended: at(30)},
		{begun: at(21), ended: at(22)},
		{begun: at(0), ended: at(99)},
	}
	want := []time.Time{at(11), at(13), at(30), at(99)}
	var got []time.Time
	for _, q := range all.underWay(gap{begun: at(10), deleted: at(11), ended: at(20)}) {
		got = append(got, q.ended)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
