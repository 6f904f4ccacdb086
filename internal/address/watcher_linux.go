package address

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Run calls fn with all addresses, at the start and after each change, until ctx is done; it returns nil then. Calls do
// not overlap, and fn may keep the list. Changes during a call cause one further call.
func (w *Watcher) Run(ctx context.Context, fn func([]netip.Addr)) error {
	events, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: w.opts.NetNS})
	if err != nil {
		return fmt.Errorf("open route netlink: %w", err)
	}
	for _, group := range []uint32{unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR} {
		if err := events.JoinGroup(group); err != nil {
			return errors.Join(fmt.Errorf("subscribe to address changes: %w", err), events.Close())
		}
	}
	dirty := make(chan struct{}, 1)
	failed := make(chan error, 1)
	go func() { failed <- listen(events, dirty) }()

	err = w.follow(ctx, fn, func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-dirty:
			return nil
		}
	})
	_ = events.Close() // wakes listen
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// listen marks the list as dirty at each message, and after the kernel dropped messages.
func listen(events *netlink.Conn, dirty chan<- struct{}) error {
	for {
		_, err := events.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("wait for address changes: %w", err)
		}
		select {
		case dirty <- struct{}{}:
		default:
		}
	}
}
