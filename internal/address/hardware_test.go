package address

import (
	"net"
	"net/netip"
	"testing"
)

// Each address of an interface leads to the MAC address of the interface, if it has one.
func TestHardwareAddr(t *testing.T) {
	w := New(Options{})
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		addrs, err := link.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range parsedText(t, addrs) {
			got, err := w.HardwareAddr(a)
			if (err == nil) != (len(link.HardwareAddr) > 0) || got != link.HardwareAddr.String() {
				t.Errorf("%s: %q, %v; the interface has %q", a, got, err, link.HardwareAddr)
			}
		}
	}
	if got, err := w.HardwareAddr(netip.MustParseAddr("192.0.2.99")); err == nil {
		t.Errorf("an address of no interface: %s", got)
	}
}

func parsedText(t *testing.T, list []net.Addr) []netip.Addr {
	t.Helper()
	var all []netip.Addr
	for _, a := range list {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			t.Fatal(err)
		}
		if !p.Addr().IsLinkLocalUnicast() { // several interfaces may have the same one
			all = append(all, p.Addr())
		}
	}
	return all
}
