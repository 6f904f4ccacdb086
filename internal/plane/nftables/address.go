package nftables

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// ranges renders the prefixes of one family as elements of an interval set.
func ranges(ip route.Family, prefixes []netip.Prefix) []nft.Element {
	var all []nft.Element
	for _, p := range ofFamily(ip, prefixes) {
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
