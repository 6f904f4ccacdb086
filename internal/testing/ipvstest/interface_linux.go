package ipvstest

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
)

// Interface is one interface in memory, of any name. One goroutine uses it.
type Interface struct{ addrs map[netip.Addr]bool } // nil: it does not exist

// NewInterface returns one that does not exist yet.
func NewInterface() *Interface { return &Interface{} }

// Create creates the interface.
func (f *Interface) Create(context.Context, string) error {
	if f.addrs == nil {
		f.addrs = map[netip.Addr]bool{}
	}
	return nil
}

// Addresses returns the addresses, sorted; rtnl.ErrNotFound without the interface.
func (f *Interface) Addresses(context.Context, string) ([]netip.Addr, error) {
	if f.addrs == nil {
		return nil, rtnl.ErrNotFound
	}
	return slices.SortedFunc(maps.Keys(f.addrs), netip.Addr.Compare), nil
}

// Change removes and adds addresses.
func (f *Interface) Change(_ context.Context, _ string, add, remove []netip.Addr) error {
	if f.addrs == nil && len(add) > 0 {
		return rtnl.ErrNotFound
	}
	for _, a := range remove {
		delete(f.addrs, a)
	}
	for _, a := range add {
		f.addrs[a] = true
	}
	return nil
}

// Delete deletes the interface.
func (f *Interface) Delete(context.Context, string) error {
	f.addrs = nil
	return nil
}
