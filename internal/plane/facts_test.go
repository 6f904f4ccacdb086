package plane

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
)

// A plane checks source ranges always, while a Service is served, or never.
func TestChecks(t *testing.T) {
	restricted, served, unserved := &route.Frontend{Restricted: true}, route.Action{}, route.Action{Verdict: route.Reject}
	for ranges, want := range map[Ranges][2]bool{
		RangesFirst: {true, true}, RangesWhileServed: {true, false}, RangesNever: {false, false},
	} {
		f := Facts{Ranges: ranges}
		if got := [2]bool{f.Checks(restricted, served), f.Checks(restricted, unserved)}; got != want {
			t.Errorf("%d: %v, want %v", ranges, got, want)
		}
		if f.Checks(&route.Frontend{}, served) {
			t.Errorf("%d: there is nothing to check", ranges)
		}
	}
}
