package convert

import (
	"net/netip"
	"slices"
	"strings"

	utilnet "k8s.io/utils/net"
)

const (
	wantAddress = "not an IP address"
	wantPrefix  = "not a CIDR"
)

// parseAddr reads an address in any spelling the API ever accepted (leading zeros are decimal) and returns its
// canonical value; IPv4 written as IPv6 is IPv4.
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

// parsePrefix reads a CIDR in any spelling the API ever accepted and returns its canonical value, without host bits.
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

// readAddr parses an address. It returns the reason why the address cannot be used: wantAddress if the text is not an
// address, otherwise the result of fault, which is empty if the address can be used.
func readAddr(text string, fault func(netip.Addr) string) (netip.Addr, string) {
	a, ok := parseAddr(text)
	if !ok {
		return a, wantAddress
	}
	return a, fault(a)
}

// virtualFault returns the reason why an address cannot be a ClusterIP or a load balancer address; empty if it can.
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

// remoteFault returns the reason why an address cannot be an endpoint or an external IP; empty if it can. A link-local
// address could lead to a server that is meant for this node only, such as a cloud's metadata server.
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

// unique returns the values of a list, each once, in the memory of the list.
func unique[T comparable](list []T) []T {
	if len(list) < 2 {
		return list
	}
	seen := make(map[T]struct{}, len(list))
	return slices.DeleteFunc(list, func(v T) bool {
		_, twice := seen[v]
		seen[v] = struct{}{}
		return twice
	})
}

// addresses parses the elements of a list, each address once, without blank ones. For fault see readAddr.
func (n *notes) addresses(list texts, fault func(netip.Addr) string) []netip.Addr {
	var out []netip.Addr
	for i, text := range list.values {
		if strings.TrimSpace(text) == "" {
			continue
		}
		a, reason := readAddr(text, fault)
		if reason != "" {
			n.add(at(list.field, i)+list.suffix, text, reason)
			continue
		}
		out = append(out, a)
	}
	return unique(out)
}

// prefixes parses CIDRs as addresses parses addresses.
func (n *notes) prefixes(list texts) []netip.Prefix {
	var out []netip.Prefix
	for i, text := range list.values {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		p, ok := parsePrefix(text)
		if !ok {
			n.add(at(list.field, i)+list.suffix, text, wantPrefix)
			continue
		}
		out = append(out, p)
	}
	return unique(out)
}

// texts are the values of a list in an object, and the path of each: field[i] and the suffix.
type texts struct {
	field, suffix string
	values        []string
}
