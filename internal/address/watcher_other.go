//go:build !linux

package address

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// period is the time between two lists.
const period = 5 * time.Second

// Run calls fn with all addresses, at the start and after each change, until ctx is done; it returns nil then. Calls do
// not overlap, and fn may keep the list. A change is noticed within 5 seconds.
func (w *Watcher) Run(ctx context.Context, fn func([]netip.Addr)) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for update := w.update(ctx, fn); ; {
		if err := update(); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// List returns all addresses, sorted and without duplicates.
func (*Watcher) List(context.Context) ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	addrs := make([]netip.Addr, 0, len(list))
	for _, one := range list {
		if p, err := netip.ParsePrefix(one.String()); err == nil {
			addrs = append(addrs, p.Addr().WithZone(""))
		}
	}
	return canonical(addrs), nil
}
