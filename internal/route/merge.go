package route

import (
	"net/netip"
	"slices"
)

// merge returns the union of two sorted lists.
func merge(a, b []netip.Addr) []netip.Addr {
	if len(a) == 0 || slices.Equal(a, b) {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := slices.Concat(a, b)
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Clip(slices.Compact(out))
}

// share returns like in place of list if they are equal, so that memory holds one.
func share(list, like []netip.AddrPort) []netip.AddrPort {
	if slices.Equal(list, like) {
		return like
	}
	return list
}
