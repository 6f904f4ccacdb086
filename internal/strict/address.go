package strict

import (
	"net/netip"

	utilnet "k8s.io/utils/net"
)

// Addr parses an address in any spelling the API ever accepted (leading zeros are decimal) and returns its canonical
// value: an IPv4 address that is written as IPv6 is IPv4. It returns false for other text, including an address with a
// zone.
func Addr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		a, _ = netip.AddrFromSlice(utilnet.ParseIPSloppy(s))
	}
	if !a.IsValid() || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// Prefix parses a CIDR as Addr parses an address, and clears its host bits.
func Prefix(s string) (netip.Prefix, bool) {
	_, ipnet, err := utilnet.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	a, _ := netip.AddrFromSlice(ipnet.IP)
	bits, size := ipnet.Mask.Size()
	if a.Is4In6() || a.Is4() && size == 128 {
		bits -= 96
	}
	p, err := a.Unmap().Prefix(bits)
	return p, err == nil
}
