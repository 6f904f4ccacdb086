//go:build !linux

package address

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

// period is the time between two lists.
const period = 5 * time.Second

// Run calls fn with all addresses, at the start and after each change, until ctx is done;
// it returns nil then. Calls do not overlap, and fn may keep the list. A change is noticed
// within 5 seconds.
func (w *Watcher) Run(ctx context.Context, fn func([]netip.Addr)) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	err := w.follow(ctx, fn, func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			return nil
		}
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// List returns all addresses, sorted and without duplicates.
func (w *Watcher) List(context.Context) ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	except, err := w.excepted()
	if err != nil {
		return nil, err
	}
	addrs := parsed(list)
	return canonical(slices.DeleteFunc(addrs, func(a netip.Addr) bool { return slices.Contains(except, a) })), nil
}

// excepted returns the addresses of the interface that is left out.
func (w *Watcher) excepted() ([]netip.Addr, error) {
	if w.opts.Except == "" {
		return nil, nil
	}
	link, err := net.InterfaceByName(w.opts.Except)
	if err != nil {
		return nil, nil // the interface does not exist
	}
	list, err := link.Addrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", w.opts.Except, err)
	}
	return parsed(list), nil
}

func parsed(list []net.Addr) []netip.Addr {
	addrs := make([]netip.Addr, 0, len(list))
	for _, one := range list {
		if p, err := netip.ParsePrefix(one.String()); err == nil {
			addrs = append(addrs, p.Addr().WithZone(""))
		}
	}
	return addrs
}

// Primary returns the primary address of this host in each family: the source address
// of the default route, or without such a route the first that is not loopback. It
// sends no packet.
func (w *Watcher) Primary() ([]netip.Addr, error) {
	all, err := w.List(context.Background())
	if err != nil {
		return nil, err
	}
	return primary(all, source), nil
}

// source returns the source address of packets to an address; invalid if there is no
// route.
func source(remote netip.Addr) netip.Addr {
	const discard = 9
	// UDP: this connects and sends nothing.
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, discard)))
	if err != nil {
		return netip.Addr{}
	}
	defer func() { _ = conn.Close() }()
	local, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}
	}
	a := local.AddrPort().Addr().Unmap().WithZone("")
	if a.Is4() != remote.Is4() || a.IsLoopback() {
		return netip.Addr{}
	}
	return a
}
