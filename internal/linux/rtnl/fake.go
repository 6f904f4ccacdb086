package rtnl

import (
	"context"
	"maps"
	"net/netip"
	"slices"
)

// Fake is one interface in memory, of any name. One goroutine uses it.
type Fake struct{ addrs map[netip.Addr]bool } // nil: it does not exist

// NewFake returns no interface.
func NewFake() *Fake { return &Fake{} }

// Create creates the interface.
func (f *Fake) Create(context.Context, string) error {
	if f.addrs == nil {
		f.addrs = map[netip.Addr]bool{}
	}
	return nil
}

// Addresses returns the addresses, sorted; ErrNotFound without the interface.
func (f *Fake) Addresses(context.Context, string) ([]netip.Addr, error) {
	if f.addrs == nil {
		return nil, ErrNotFound
	}
	return slices.SortedFunc(maps.Keys(f.addrs), netip.Addr.Compare), nil
}

// Change removes and adds addresses.
func (f *Fake) Change(_ context.Context, _ string, add, remove []netip.Addr) error {
	if f.addrs == nil && len(add) > 0 {
		return ErrNotFound
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
func (f *Fake) Delete(context.Context, string) error {
	f.addrs = nil
	return nil
}
