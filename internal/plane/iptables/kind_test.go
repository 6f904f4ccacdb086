package iptables

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// What this host lacks becomes a sentence about the Services that are not served.
func TestSupportNamesTheServicesThatAreNotServed(t *testing.T) {
	got := supportOf(probe.Support{IPv4: true, NoIPv6: "the kernel has no IPv6", Missing: []probe.Missing{
		{Name: "match recent", Family: "IPv4", Remedy: "load it"},
		{Name: "match sctp", Family: "IPv4", Remedy: "load that"},
	}})
	want := plane.Support{IPv4: true, Notes: []string{
		"Services that need session affinity are not served in IPv4: iptables match recent is missing: load it",
		"Services that need SCTP are not served in IPv4: iptables match sctp is missing: load that",
		"IPv6 is not served: the kernel has no IPv6",
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := supportOf(probe.Support{IPv4: true, IPv6: true}); got.Notes != nil {
		t.Errorf("with everything: %q", got.Notes)
	}
}
