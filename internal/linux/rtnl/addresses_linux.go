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
			requests[i] = l.addition(link.Attrs().Index, a, scope)
		}
		if nl.ExecuteAll(ctx, requests) == nil {
			return nil
		}
		for i, a := range addrs { // one after the other, to find the one that the kernel refuses
			if err := nl.ExecuteAll(ctx, requests[i:i+1]); err != nil {
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

// addition returns the request to add an address, unless it is there. In IPv6, which has no scopes, the address is
// deprecated, so that it is not the source of other connections.
func (l *Links) addition(index int, a netip.Addr, scope byte) nl.Request {
	family, flags := byte(unix.AF_INET), byte(0)
	if a.Is6() {
		family, flags, scope = unix.AF_INET6, unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE // it is nowhere else on this link
	}
	header := []byte{family, byte(a.BitLen()), flags, scope} // struct ifaddrmsg
	attributes := nl.Append(nl.Append(nil, unix.IFA_LOCAL, a.AsSlice()), unix.IFA_ADDRESS, a.AsSlice())
	if a.Is6() {
		var lifetimes [16]byte // struct ifa_cacheinfo
		binary.NativeEndian.PutUint32(lifetimes[4:], math.MaxUint32)
		attributes = nl.Append(attributes, unix.IFA_CACHEINFO, lifetimes[:])
	}
	return nl.Request{
		NetNS: l.netns, Protocol: unix.NETLINK_ROUTE,
		Type: unix.RTM_NEWADDR, Flags: netlink.Create | netlink.Replace,
		Header: binary.NativeEndian.AppendUint32(header, uint32(index)), Attributes: attributes,
	}
}
