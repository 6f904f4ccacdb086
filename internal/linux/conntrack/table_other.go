//go:build !linux

package conntrack

import (
	"context"
	"errors"
	"net/netip"
)

// Table is the connection tracking table of a network namespace, which only Linux has.
type Table struct{}

// Open returns errors.ErrUnsupported.
func Open(int) (*Table, error) { return nil, errors.ErrUnsupported }

// Each returns errors.ErrUnsupported.
func (*Table) Each(context.Context, Filter, func(Entry) error) error { return errors.ErrUnsupported }

// Get returns errors.ErrUnsupported.
func (*Table) Get(context.Context, Entry) (Entry, bool, error) {
	return Entry{}, false, errors.ErrUnsupported
}

// Load returns errors.ErrUnsupported.
func (*Table) Load() (Load, error) { return Load{}, errors.ErrUnsupported }

// SubscribeRefused returns errors.ErrUnsupported.
func (*Table) SubscribeRefused(context.Context) (func() ([]Entry, error), error) {
	return nil, errors.ErrUnsupported
}

// SubscribeNew returns errors.ErrUnsupported.
func (*Table) SubscribeNew(context.Context, []netip.Addr) (func() ([]Entry, error), error) {
	return nil, errors.ErrUnsupported
}

// Close does nothing.
func (*Table) Close() error { return nil }
