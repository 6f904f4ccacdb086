package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/mdlayher/netlink"
	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// addAll adds addresses that are new to an interface, in few messages. After an error any of
// them may be there.
func (l *Links) addAll(ctx context.Context, index int, addrs []netip.Addr) error {
	conn, err := nl.Dial(l.netns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all is answered
	requests := make([]nl.Request, len(addrs))
	for i, a := range addrs {
		requests[i] = addition(index, a)
	}
	return conn.ExecuteAll(ctx, requests)
}

// addition returns the request to add an address.
func addition(index int, a netip.Addr) nl.Request {
	family, flags := byte(unix.AF_INET), byte(0)
	if a.Is6() {
		family, flags = unix.AF_INET6, unix.IFA_F_NODAD // it is nowhere else on this link
	}
	header := []byte{family, byte(a.BitLen()), flags, unix.RT_SCOPE_UNIVERSE} // struct ifaddrmsg
	return nl.Request{
		Type: unix.RTM_NEWADDR, Flags: netlink.Create | netlink.Excl,
		Header: binary.NativeEndian.AppendUint32(header, uint32(index)),
		Encode: func(ae *netlink.AttributeEncoder) {
			ae.Bytes(unix.IFA_LOCAL, a.AsSlice())
			ae.Bytes(unix.IFA_ADDRESS, a.AsSlice())
			if a.Is6() { // deprecated, so that it is not the source of other connections
				lifetimes := binary.NativeEndian.AppendUint64(nil, 0)
				binary.NativeEndian.PutUint32(lifetimes[4:], math.MaxUint32)
				ae.Bytes(unix.IFA_CACHEINFO, append(lifetimes, make([]byte, 8)...)) // struct ifa_cacheinfo
			}
		},
	}
}

// AddAddresses adds addresses to an interface. It ignores those that are there.
func (l *Links) AddAddresses(ctx context.Context, name string, addrs []netip.Addr) error {
	err := l.with(name, func(_ *rtnl.Handle, link rtnl.Link) error {
		index := link.Attrs().Index
		if len(addrs) > 1 && l.addAll(ctx, index, addrs) == nil {
			return nil
		}
		return l.addEach(ctx, index, addrs)
	})
	if err != nil {
		return fmt.Errorf("add addresses to %s: %w", name, err)
	}
	return nil
}

// addEach adds one address after the other, unless they are there.
func (l *Links) addEach(ctx context.Context, index int, addrs []netip.Addr) error {
	conn, err := nl.Dial(l.netns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all is answered
	for _, a := range addrs {
		r := addition(index, a)
		r.Flags |= netlink.Acknowledge
		if _, err := conn.Execute(ctx, r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	return nil
}
