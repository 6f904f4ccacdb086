// Package netfilter has what works beside the rules of every plane that translates
// addresses with netfilter: it ends stale conntrack entries, lets NodePorts be reached
// on 127.0.0.1, and reports sockets that Services hide.
package netfilter

import (
	"context"
	"errors"
	"fmt"

	kernel "github.com/sluice-proxy/sluice/internal/kernel/conntrack"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/kernel/socket"
	"github.com/sluice-proxy/sluice/internal/kernel/sysctl"

	"github.com/sluice-proxy/sluice/internal/follow/conntrack"
	"github.com/sluice-proxy/sluice/internal/follow/hidden"
	"github.com/sluice-proxy/sluice/internal/follow/localnet"
	"github.com/sluice-proxy/sluice/internal/host"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// Parts returns the parts of a plane. Tables is the connection through which the plane
// writes nf_tables, so that neither reports what is written through the other; nil: it
// does not write nf_tables.
func Parts(s plane.Setup, tables *nft.Conn) ([]plane.Part, error) {
	flows, err := kernel.Open(kernel.Options{NetNS: s.NetNS})
	if err != nil {
		return nil, err
	}
	loopback, err := loopback(s, tables)
	if err != nil {
		return nil, errors.Join(err, flows.Close())
	}
	parts := []plane.Part{stale(s, flows), loopback}
	if s.Report != nil {
		parts = append(parts, sockets(s))
	}
	return parts, nil
}

// stale ends conntrack entries that a change made stale.
func stale(s plane.Setup, flows *kernel.Table) plane.Part {
	count := newMetrics(s.Families)
	f := conntrack.New(conntrack.Options{Table: flows, Scanned: count.looked, Report: func(err error) {
		s.Log.Warn("Cannot end stale flows, retrying", "error", err)
	}})
	return plane.Part{
		Follower: f, Run: f.Run, SetLocal: f.SetLocal, Close: flows.Close,
		Metrics: count.collectors(func() float64 { return float64(f.Stats().Deleted) }),
	}
}

// loopback lets 127.0.0.0/8 be routed where NodePorts need it, and keeps neighbours
// out.
func loopback(s plane.Setup, tables *nft.Conn) (plane.Part, error) {
	rules, err := nft.Open(nft.Options{NetNS: s.NetNS, Beside: tables})
	if err != nil {
		return plane.Part{}, err
	}
	k := keeper(s, rules)
	return plane.Part{
		Follower: k, Close: rules.Close,
		Run: func(ctx context.Context) error {
			k.Begin(ctx)
			return k.Run(ctx)
		},
	}, nil
}

func keeper(s plane.Setup, rules *nft.Conn) *localnet.Keeper {
	return localnet.New(localnet.Options{
		Sysctl: sysctl.New(sysctl.Options{NetNS: s.NetNS}), Kernel: rules,
		Report: func(err error) { s.Log.Warn("Loopback addresses", "error", err) },
	})
}

// sockets reports sockets of this node that Services hide.
func sockets(s plane.Setup) plane.Part {
	f := hidden.New(hidden.Options{
		Listeners: socket.New(socket.Options{NetNS: s.NetNS}).Listeners, Local: s.Local, Report: s.Report,
		Failed: func(err error) {
			s.Log.Warn("Cannot tell which sockets of this node are hidden by Services", "error", err)
		},
	})
	return plane.Part{Follower: f, Run: f.Run}
}

// Prepare lets 127.0.0.0/8 be routed, guarded, for a later process that may not do that
// itself. If its NodePorts do not need that, it guards what is routed already.
func Prepare(ctx context.Context, s plane.Setup) error {
	err := withKeeper(s, func(k *localnet.Keeper) error {
		if host.ServesLoopback(s.Config) {
			return k.Prepare(ctx)
		}
		return k.Guard(ctx)
	})
	if err != nil {
		return fmt.Errorf("loopback addresses: %w", err)
	}
	return nil
}

// Cleanup undoes what Prepare and the parts did to the host. It returns a line for each
// thing that it removed, or that stays.
func Cleanup(ctx context.Context, s plane.Setup) (lines []string, err error) {
	err = withKeeper(s, func(k *localnet.Keeper) (err error) {
		lines, err = k.Remove(ctx)
		return err
	})
	if err != nil {
		return lines, fmt.Errorf("stop routing loopback addresses: %w", err)
	}
	return lines, nil
}

// withKeeper uses a Keeper once.
func withKeeper(s plane.Setup, use func(*localnet.Keeper) error) error {
	rules, err := nft.Open(nft.Options{NetNS: s.NetNS})
	if err != nil {
		return err
	}
	defer func() { _ = rules.Close() }() // all is answered
	return use(keeper(s, rules))
}
