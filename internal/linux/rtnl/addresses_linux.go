package rtnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"

	"github.com/mdlayher/netlink"
	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// AddAddresses adds addresses to an interface. It ignores those that are there.
func (l *Links) AddAddresses(ctx context.Context, name string, addrs []netip.Addr) error {
	return l.add(ctx, name, addrs, unix.RT_SCOPE_UNIVERSE)
}

// AddHidden adds addresses to an interface that this host has, but never uses as the source of connections to other
// hosts: scope host in IPv4 (rtnetlink(7)), deprecated in IPv6 (RFC 6724, 5). It ignores those that exist.
func (l *Links) AddHidden(ctx context.Context, name string, addrs []netip.Addr) error {
	return l.add(ctx, name, addrs, unix.RT_SCOPE_HOST)
}

func (l *Links) add(ctx context.Context, name string, addrs []netip.Addr, scope byte) error {
	err := l.with(name, func(_ *rtnl.Handle, link rtnl.Link) error {
		requests := make([]nl.Request, len(addrs))
		for i, a := range addrs {
			requests[i] = addition(link.Attrs().Index, a, scope)
		}
		if l.execute(ctx, requests) == nil {
			return nil
		}
		for i, a := range addrs { // one after the other, to find the one that the kernel refuses
			if err := l.execute(ctx, requests[i:i+1]); err != nil {
				return fmt.Errorf("%s: %w", a, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("add addresses to %s: %w", name, err)
	}
	return nil
}

// execute sends requests in few messages. After an error the kernel may have carried out any of them.
func (l *Links) execute(ctx context.Context, requests []nl.Request) error {
	conn, err := nl.Dial(l.netns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all is answered
	return conn.ExecuteAll(ctx, requests)
}

// addition returns the request to add an address, unless it is there. In IPv6, which has no scopes, the address is
// deprecated, so that it is not the source of other connections.
func addition(index int, a netip.Addr, scope byte) nl.Request {
	family, flags := byte(unix.AF_INET), byte(0)
	if a.Is6() {
		family, flags, scope = unix.AF_INET6, unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE // it is nowhere else on this link
	}
	header := []byte{family, byte(a.BitLen()), flags, scope} // struct ifaddrmsg
	return nl.Request{
		Type: unix.RTM_NEWADDR, Flags: netlink.Create | netlink.Replace,
		Header: binary.NativeEndian.AppendUint32(header, uint32(index)),
		Encode: func(ae *netlink.AttributeEncoder) {
			ae.Bytes(unix.IFA_LOCAL, a.AsSlice())
			ae.Bytes(unix.IFA_ADDRESS, a.AsSlice())
			if a.Is6() {
				lifetimes := binary.NativeEndian.AppendUint64(nil, 0)
				binary.NativeEndian.PutUint32(lifetimes[4:], math.MaxUint32)
				ae.Bytes(unix.IFA_CACHEINFO, append(lifetimes, make([]byte, 8)...)) // struct ifa_cacheinfo
			}
		},
	}
}
