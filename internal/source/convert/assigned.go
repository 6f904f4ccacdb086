package convert

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

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
