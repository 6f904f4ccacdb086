package conntrack

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// A kernel before 5.8 ignores the filter and sends every entry of the family. Filter.Match
// selects the right ones from a listing without a filter.
func TestUnfilteredListing(t *testing.T) {
	ct, err := Open(Options{NetNS: kerneltest.Namespace(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ct.Close() }()
	wanted, tcp := sample, sample
	wanted.Zone, tcp.Zone, tcp.Protocol = 0, 0, TCP
	other := wanted
	other.OrigDst = netip.MustParseAddrPort("[fd96::11]:53")
	for _, e := range []Entry{wanted, tcp, other} {
		if err := ct.Create(e); err != nil {
			t.Fatal(err)
		}
	}
	filter := Filter{Family: IPv6, Protocol: UDP, OrigDst: wanted.OrigDst, ReplySrc: wanted.ReplySrc}
	var all, matching []Entry
	err = ct.list(t.Context(), header(IPv6), func(e Entry) error {
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
