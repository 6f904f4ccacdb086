package conntrack_test

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

// A message names all parts of a filter.
func TestFilterInMessages(t *testing.T) {
	at := netip.MustParseAddrPort
	for want, f := range map[string]conntrack.Filter{
		"IPv4 and IPv6 protocol 0":               {},
		"IPv4 and IPv6 protocol 6 unanswered":    {Protocol: conntrack.TCP, Unanswered: true},
		"IPv4 protocol 0 answered by 10.1.0.1:0": {Family: conntrack.IPv4, ReplySrc: at("10.1.0.1:0")},
		"IPv6 protocol 17 to port 53": {
			Family: conntrack.IPv6, Protocol: conntrack.UDP, OrigDst: netip.AddrPortFrom(netip.Addr{}, 53),
		},
		"IPv6 protocol 6 to [fd96::1]:80 answered by [fd01::1]:8080": {
			Family: conntrack.IPv6, Protocol: conntrack.TCP, OrigDst: at("[fd96::1]:80"), ReplySrc: at("[fd01::1]:8080"),
		},
	} {
		if got := f.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
