package address

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// A listing during which addresses change is repeated, after a pause that grows from
// minPause to maxPause.
const (
	minPause = time.Millisecond
	maxPause = 100 * time.Millisecond
)

// List returns all addresses, sorted and without duplicates.
func (w *Watcher) List(ctx context.Context) ([]netip.Addr, error) {
	handle, err := open(w.opts)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	for pause := minPause; ctx.Err() == nil; pause = min(2*pause, maxPause) {
		list, err := handle.AddrList(nil, netlink.FAMILY_ALL)
		if err == nil {
			return canonical(w.without(handle, list)), nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("list addresses: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil, fmt.Errorf("list addresses: %w", context.Cause(ctx))
}

func open(opts Options) (*netlink.Handle, error) {
	handle, err := netns.Handle(opts.NetNS, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	return handle, nil
}

// without leaves out the addresses of the excluded interface.
func (w *Watcher) without(handle *netlink.Handle, list []netlink.Addr) []netlink.Addr {
	if w.opts.Except == "" {
		return list
	}
	link, err := handle.LinkByName(w.opts.Except)
	if err != nil {
		return list // the interface does not exist
	}
	return slices.DeleteFunc(list, func(a netlink.Addr) bool { return a.LinkIndex == link.Attrs().Index })
}

func canonical(list []netlink.Addr) []netip.Addr {
	addrs := make([]netip.Addr, 0, len(list))
	for _, l := range list {
		if l.IPNet == nil { // the message names none
			continue
		}
		if a, ok := netip.AddrFromSlice(l.IP); ok && !a.IsLinkLocalUnicast() {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
