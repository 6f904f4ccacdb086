package convert

import (
	"net/netip"
	"slices"

	utilnet "k8s.io/utils/net"
)

const (
	wantAddress = "not an IP address"
	wantPrefix  = "not a CIDR"
)

// parseAddr reads an address in any spelling the API ever accepted (leading
// zeros are decimal) and returns its canonical value; IPv4 written as IPv6 is
// IPv4.
func parseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		a, _ = netip.AddrFromSlice(utilnet.ParseIPSloppy(s))
	}
	if !a.IsValid() || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// parsePrefix reads a CIDR in any spelling the API ever accepted and returns
// its canonical value, without host bits.
func parsePrefix(s string) (netip.Prefix, bool) {
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

// readAddr parses an address. It returns the reason why the address cannot be used:
// wantAddress if the text is not an address, otherwise the result of fault, which is empty
// if the address can be used.
func readAddr(text string, fault func(netip.Addr) string) (netip.Addr, string) {
	a, ok := parseAddr(text)
	if !ok {
		return a, wantAddress
	}
	return a, fault(a)
}

// virtualFault returns the reason why an address cannot be a ClusterIP or a load
// balancer address; empty if it can.
func virtualFault(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "the unspecified address cannot be used"
	case a.IsLoopback():
		return "a loopback address cannot be used"
	case a.IsMulticast():
		return "a multicast address cannot be used"
	}
	return ""
}

// remoteFault returns the reason why an address cannot be an endpoint or an
// external IP; empty if it can. A link-local address could lead to a server that is
// meant for this node only, such as a cloud's metadata server.
func remoteFault(a netip.Addr) string {
	if a.IsLinkLocalUnicast() {
		return "a link-local address cannot be used"
	}
	return virtualFault(a)
}

// endpointFault returns the reason why an address cannot be an endpoint; empty if it can.
func (c Converter) endpointFault(a netip.Addr) string {
	if c.LoopbackEndpoints && a.IsLoopback() {
		return ""
	}
	return remoteFault(a)
}

// unique collects values into a list without duplicates.
type unique[T comparable] struct {
	list []T
	seen map[T]struct{} // nil while the list is short enough to be searched
}

// maxSearched is the length up to which a unique list is searched.
const maxSearched = 8

// add appends a value, unless the list has it already.
func (u *unique[T]) add(v T) {
	if u.has(v) {
		return
	}
	u.list = append(u.list, v)
	switch {
	case u.seen != nil:
		u.seen[v] = struct{}{}
	case len(u.list) > maxSearched:
		u.seen = make(map[T]struct{}, 2*len(u.list))
		for _, known := range u.list {
			u.seen[known] = struct{}{}
		}
	}
}

func (u *unique[T]) has(v T) bool {
	if u.seen == nil {
		return slices.Contains(u.list, v)
	}
	_, known := u.seen[v]
	return known
}
