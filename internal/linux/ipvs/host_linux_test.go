package ipvs

import (
	"slices"
	"testing"
)

func TestParametersByRelease(t *testing.T) {
	const reuse = "net/ipv4/vs/conn_reuse_mode=0"
	for release, old := range map[string]bool{
		"4.19.0-8-amd64": true, "5.8.18": true, "5.9.0": false, "6.1.90": false, "unknown": false,
	} {
		if got := Parameters(release); slices.Contains(got, reuse) != old {
			t.Errorf("%s: %q", release, got)
		}
	}
}
