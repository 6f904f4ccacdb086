package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/kernel/link"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// loopbackDevice has the addresses of the sockets.
const loopbackDevice = "lo"

// listenAddrs returns the addresses at which the sockets listen. They are the same on every node:
// a link-local address and one of a private range (RFC 4193) that no other program uses, so that
// every port is free, and that no neighbour reaches.
func listenAddrs(families []route.Family) []netip.Addr {
	var list []netip.Addr
	for _, f := range families {
		if f == route.IPv4 {
			list = append(list, netip.AddrFrom4([4]byte{169, 254, 73, 1}))
		} else {
			list = append(list, netip.MustParseAddr("fd73:6c75:6963:65::1"))
		}
	}
	return list
}

// Kind returns the plane whose packets are led to the sockets by the rules of another plane.
func Kind(rules plane.Kind) plane.Kind {
	k := plane.Kind{
		Mode: mode, Bind: config.BindRules, Facts: rules.Facts, ListLocal: rules.ListLocal, PartialSyncs: rules.PartialSyncs,
		Excess:  rules.Excess,
		Owned:   rules.Owned + ", and the listening sockets of the process",
		Prepare: rules.Prepare, Cleanup: rules.Cleanup,
	}
	k.Facts.Name, k.Facts.Proxied, k.Facts.Weights = mode, true, true
	k.Probe = func(ctx context.Context, netns int) (plane.Support, error) {
		s, err := rules.Probe(ctx, netns)
		return withNotes(s), err
	}
	k.Preview = func(s plane.Setup) plane.Plane {
		s.Listeners, s.Transparent = listenAddrs(s.Families), s.Config.Userspace.Transparent
		return New(noEngine{}, options(s, s.Listeners, rules.Preview(s)))
	}
	k.Open = func(ctx context.Context, s plane.Setup) (*plane.Opened, error) {
		s.Listeners, s.Transparent = listenAddrs(s.Families), s.Config.Userspace.Transparent
		if err := addAddresses(ctx, s); err != nil {
			return nil, err
		}
		on, err := rules.Open(ctx, s)
		if err != nil {
			return nil, err
		}
		return open(s, on, s.Listeners)
	}
	k.Remove = func(ctx context.Context, s plane.Setup) ([]string, error) {
		var removed []string
		if rules.Remove != nil {
			var err error
			if removed, err = rules.Remove(ctx, s); err != nil {
				return removed, err
			}
		}
		addrs, err := removeAddresses(ctx, s)
		return append(removed, addrs...), err
	}
	return k
}

func addAddresses(ctx context.Context, s plane.Setup) error {
	links := link.New(s.NetNS)
	if err := links.AddHidden(ctx, loopbackDevice, s.Listeners); err != nil {
		return fmt.Errorf("add the addresses of the listening sockets: %w", err)
	}
	return nil
}

// removeAddresses removes the addresses of the sockets. The rules have kube-proxy's names, and the
// take-over removes them.
func removeAddresses(ctx context.Context, s plane.Setup) ([]string, error) {
	links := link.New(s.NetNS)
	have, err := links.Addresses(ctx, loopbackDevice)
	if errors.Is(err, link.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	for _, a := range listenAddrs([]route.Family{route.IPv4, route.IPv6}) {
		for _, h := range have {
			if h == a {
				found = append(found, a)
			}
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	if err := links.Change(ctx, loopbackDevice, nil, found); err != nil {
		return nil, err
	}
	return []string{text.Count(len(found), "address") + " of " + loopbackDevice}, nil
}
