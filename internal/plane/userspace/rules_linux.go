package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// loopbackDevice has the addresses of the sockets.
const loopbackDevice = "lo"

// listenAddrs returns the addresses at which the sockets listen. Rules drop what neighbours send there.
func listenAddrs(families []route.Family) []netip.Addr {
	return slices.DeleteFunc(address.OfSockets(), func(a netip.Addr) bool {
		return !slices.Contains(families, route.FamilyOf(a))
	})
}

// Kind returns the plane whose packets are led to the sockets by the rules of another plane.
func Kind(rules plane.Kind) plane.Kind {
	k := plane.Kind{
		Mode: mode, Bind: config.BindRules, Facts: rules.Facts, ListLocal: rules.ListLocal, PartialSyncs: rules.PartialSyncs,
		Excess:  rules.Excess,
		Owned:   rules.Owned + ", and the listening sockets of the process",
		Cleanup: rules.Cleanup, Prepare: rules.Prepare,
	}
	k.Facts.Lacking, k.Facts.SchedulerName = nil, schedulerName
	k.Facts.Name, k.Facts.Proxied, k.Facts.Weights, k.Facts.Without = mode, true, true, without(plane.Refuse)
	k.Probe = func(ctx context.Context, netns int) (plane.Support, error) {
		s, err := rules.Probe(ctx, netns)
		return withNotes(s), err
	}
	k.Preview = func(s plane.Setup) plane.Plane {
		s.Listeners = listenAddrs(s.Families)
		return New(noListener, options(s, s.Listeners, rules.Preview(s)))
	}
	k.Open = func(ctx context.Context, s plane.Setup) (*plane.Opened, error) {
		s.Listeners = listenAddrs(s.Families)
		if err := addAddresses(ctx, s); err != nil {
			return nil, err
		}
		on, err := rules.Open(ctx, s)
		if err != nil {
			return nil, err
		}
		on.Parts = append(on.Parts, restorePeriodically(s, func(ctx context.Context) error { return addAddresses(ctx, s) }))
		return open(s, on, options(s, s.Listeners, on.Plane))
	}
	k.Remove = removeAddresses // the take-over removes the rules
	return k
}

func addAddresses(ctx context.Context, s plane.Setup) error {
	links := rtnl.New(s.NetNS)
	if err := links.AddHidden(ctx, loopbackDevice, s.Listeners); err != nil {
		return fmt.Errorf("add the addresses of the listening sockets: %w", err)
	}
	return nil
}

// removeAddresses removes the addresses of the sockets. The rules have kube-proxy's names, and the
// take-over removes them.
func removeAddresses(ctx context.Context, s plane.Setup) ([]string, error) {
	links := rtnl.New(s.NetNS)
	have, err := links.Addresses(ctx, loopbackDevice)
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(address.OfSockets(), func(a netip.Addr) bool { return !slices.Contains(have, a) })
	if len(found) == 0 {
		return nil, nil
	}
	if err := links.Change(ctx, loopbackDevice, nil, found); err != nil {
		return nil, err
	}
	return []string{text.Count(len(found), "address") + " of " + loopbackDevice}, nil
}
