package convert

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/strict"
)

const (
	wantAddress = "not an IP address"
	wantPrefix  = "not a CIDR"
)

// readAddr parses an address. It returns the reason why the address cannot be used: wantAddress if the text is not an
// address, otherwise the result of fault, which is empty if the address can be used.
func readAddr(text string, fault func(netip.Addr) string) (netip.Addr, string) {
	a, ok := strict.Addr(text)
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
	return parseAll(n, list, func(text string) (netip.Addr, string) { return readAddr(text, fault) })
}

// prefixes parses CIDRs as addresses parses addresses.
func (n *notes) prefixes(list texts) []netip.Prefix {
	return parseAll(n, list, func(text string) (netip.Prefix, string) {
		if p, ok := strict.Prefix(strings.TrimSpace(text)); ok {
			return p, ""
		}
		return netip.Prefix{}, wantPrefix
	})
}

// parseAll parses the elements of a list, each value once, without blank ones. parse returns the reason why an element
// cannot be used; empty if it can.
func parseAll[T comparable](n *notes, list texts, parse func(string) (v T, reason string)) []T {
	var out []T
	for i, text := range list.values {
		if strings.TrimSpace(text) == "" {
			continue
		}
		v, reason := parse(text)
		if reason != "" {
			n.add(at(list.field, i)+list.suffix, text, reason)
			continue
		}
		out = append(out, v)
	}
	return unique(out)
}

// texts are the values of a list in an object, and the path of each: field[i] and the suffix.
type texts struct {
	field, suffix string
	values        []string
}

// assignedRanges are the ranges of assigned ClusterIPs: that of benchmarks (RFC 2544), which no network uses, and a
// random one of unique local addresses (RFC 4193).
func assignedRanges() map[corev1.IPFamily]netip.Prefix {
	return map[corev1.IPFamily]netip.Prefix{
		corev1.IPv4Protocol: netip.MustParsePrefix("198.18.0.0/15"),
		corev1.IPv6Protocol: netip.MustParsePrefix("fd8e:51fc:aa03::/48"),
	}
}

// assignedIPs returns a ClusterIP of each family, by default of IPv4. The number in its range is a hash of the name.
func assignedIPs(name cluster.Name, families []corev1.IPFamily) []netip.Addr {
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name.String())) // it returns no error
	var out []netip.Addr
	for _, f := range families {
		p, known := assignedRanges()[f]
		if !known {
			continue
		}
		addr := p.Addr().AsSlice()
		free := min(uint(p.Addr().BitLen()-p.Bits()), 32)
		number := uint32(uint64(h.Sum32())%(1<<free-2)) + 1 // neither the first nor the last of an IPv4 network
		tail := addr[len(addr)-4:]
		binary.BigEndian.PutUint32(tail, binary.BigEndian.Uint32(tail)+number)
		a, _ := netip.AddrFromSlice(addr)
		out = append(out, a)
	}
	return out
}
