//go:build linux

package main

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

// An explanation is correct only if all connections match it.
func TestExplanation(t *testing.T) {
	var e explanation
	err := json.Unmarshal([]byte(`{"cases": [{"verdict": "balanced", "sourceNAT": {"applied": false}, "backends": [
		{"address": "10.0.0.1:80", "chance": "1/3"}, {"address": "10.0.0.2:80", "chance": "1/3"}, {"address": "10.0.0.3:80", "chance": "1/3"}
	]}]}`), &e)
	if err != nil {
		t.Fatal(err)
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
		{"even", answers(20, 21, 19), "20 + 21 + 19, the client"},
		{"one never", answers(40, 40, 0), "others map[]"},
		{"another one", answers(20, 20, 19, 1), "10.0.0.4:80:1"},
		{"one lost", append(answers(20, 20, 19), lab.Result{Outcome: lab.TimedOut}), "timed out"},
		{"not its own address", []lab.Result{{Outcome: lab.Answered, Local: client, Source: node}}, "which saw 10.8.8.8:1"},
	} {
		explained, got, err := e.check(c.results)
		if err == nil && explained != "1/3 each to 3, which see the client" {
			t.Errorf("%s: explained %q", c.name, explained)
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
