package conntrack_test

import (
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/testing/conntracktest"
)

// A kernel before 5.8 ignores the filter and sends every entry of the family. Filter.Match selects the matching ones.
func TestUnfilteredListing(t *testing.T) {
	ct := conntracktest.Open(t)
	wanted := flow(conntrack.UDP, "[fd00::1]:1000", "[fd96::10]:53", "[fd01::1]:5353")
	create(t, ct, wanted,
		flow(conntrack.TCP, "[fd00::1]:1000", "[fd96::10]:53", "[fd01::1]:5353"),
		flow(conntrack.UDP, "[fd00::1]:1000", "[fd96::11]:53", "[fd01::1]:5353"))
	filter := conntrack.Filter{
		Family: conntrack.IPv6, Protocol: conntrack.UDP, OrigDst: wanted.OrigDst, ReplySrc: wanted.ReplySrc,
	}
	var all, matching []conntrack.Entry
	err := ct.ListAll(t.Context(), conntrack.IPv6, func(e conntrack.Entry) error {
		all = append(all, e)
		if filter.Match(e) {
			matching = append(matching, e)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 3 || len(matching) != 1 || matching[0].OrigDst != wanted.OrigDst {
		t.Errorf("all: %v\nmatching: %v", all, matching)
	}
}

// The kernel applies a filter for unanswered connections of both families.
func TestUnansweredOfBothFamilies(t *testing.T) {
	ct := conntracktest.Open(t)
	opening := flow(conntrack.TCP, "[fd00::1]:1000", "[fd96::10]:53", "[fd01::1]:5353")
	create(t, ct, opening, answered(flow(conntrack.TCP, "10.0.0.1:1000", "10.96.0.10:53", "10.1.0.1:5353")))
	var got []string
	err := ct.ListFiltered(t.Context(), conntrack.Filter{Protocol: conntrack.TCP, Unanswered: true},
		func(e conntrack.Entry) error { got = append(got, e.String()); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{opening.String()}; !slices.Equal(got, want) {
		t.Errorf("the kernel selects %q, want %q", got, want)
	}
}
