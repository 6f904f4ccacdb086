package app

import (
	"context"
	"log/slog"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/address"
	"github.com/sluice-proxy/sluice/internal/kernel/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Preview plans what manifests would put into a kernel that holds nothing yet.
// It needs no privileges.
func Preview(ctx context.Context, o Options) (plane.Plan, error) {
	store := cluster.NewStore()
	if err := openManifests(store, o, o.report).Load(); err != nil {
		return nil, err
	}
	addresses := address.New(address.Options{NetNS: o.NetNS})
	local, err := addresses.List(ctx)
	if err != nil {
		return nil, err
	}
	store.SetLocalAddresses(local)
	store.SetStandIn(standIn(addresses, o.Config.NodeName, o.Log))

	families := []route.Family{route.IPv4, route.IPv6}
	compiler := route.NewCompiler(Policy(o.Config, families))
	change, problems := compiler.Compile(store.Take())
	o.report(problems)
	ignored{o.Log, slog.LevelInfo}.Applied(change)
	p := kindOf(o.Config.Mode).preview(parts{o.Config, o.NetNS, families})
	if err := p.Refresh(ctx); err != nil {
		return nil, err
	}
	return p.Plan(change), nil
}

// Check makes sure that this process can do its work here, and does nothing.
func Check(ctx context.Context, o Options) error {
	_, err := kindOf(o.Config.Mode).probe(ctx, probe.Options{NetNS: o.NetNS})
	return err
}
