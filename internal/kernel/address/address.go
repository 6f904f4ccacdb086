// Package address watches the addresses of this host's interfaces, of both
// families, loopback ones included and link-local ones not.
package address

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// Fake has the addresses it was given, and tells of changes as a Watcher does.
// The zero value has none.
type Fake struct {
	mu      sync.Mutex
	addrs   []netip.Addr
	changed chan struct{}
}

// Set replaces the addresses.
func (f *Fake) Set(addrs ...netip.Addr) {
	addrs = slices.Clone(addrs)
	slices.SortFunc(addrs, netip.Addr.Compare)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addrs = slices.Compact(addrs)
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// Run is as Watcher.Run.
func (f *Fake) Run(ctx context.Context, fn func([]netip.Addr)) error {
	var told []netip.Addr
	for first := true; ctx.Err() == nil; first = false {
		now, changed := f.current()
		if first || !slices.Equal(told, now) {
			told = now
			fn(slices.Clone(now))
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return nil
}

// current returns the addresses, and what is closed when they are replaced.
func (f *Fake) current() ([]netip.Addr, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.addrs, f.changed
}
