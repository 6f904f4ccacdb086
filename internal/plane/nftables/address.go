package nftables

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// disjoint returns the prefixes without those that lie in others: the kernel
// refuses ranges that overlap.
func disjoint(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		sorted[i] = p.Masked()
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	var kept []netip.Prefix
	for _, p := range sorted {
		if len(kept) == 0 || !kept[len(kept)-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return kept
}

// ranges renders the prefixes of one family as elements of an interval set.
func ranges(ip route.Family, prefixes []netip.Prefix) []nft.Element {
	var all []nft.Element
	for _, p := range disjoint(ofFamily(ip, prefixes)) {
		first, end := nft.Range(p)
		e := nft.Element{Key: string(nft.Key{}.Addr(first))}
		if end.IsValid() {
			e.End = string(nft.Key{}.Addr(end))
		}
		all = append(all, e)
	}
	return all
}

func ofFamily(ip route.Family, prefixes []netip.Prefix) []netip.Prefix {
	var own []netip.Prefix
	for _, p := range prefixes {
		if route.FamilyOf(p.Addr()) == ip {
			own = append(own, p)
		}
	}
	return own
}

// addresses renders the addresses of one family as elements of a set.
func addresses(ip route.Family, addrs []netip.Addr) []nft.Element {
	var all []nft.Element
	for _, a := range addrs {
		if route.FamilyOf(a) == ip {
			all = append(all, nft.Element{Key: string(nft.Key{}.Addr(a))})
		}
	}
	return all
}
