package app

import (
	"context"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/explain"
	"github.com/sluice-proxy/sluice/internal/kernel/address"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/manifest"
)

// Explain answers a question as if the kernel had what the manifests say. It needs
// no privileges.
func Explain(ctx context.Context, o Options, q explain.Question) (explain.Answer, error) {
	f, err := fromFiles(ctx, o)
	if err != nil {
		return explain.Answer{}, err
	}
	f.compiler.Compile(f.store.Take()) // problems of what is asked about are in the answer
	return explain.Ask(explain.View{
		View: proxy.View{Routes: f.compiler.Snapshot(), Started: true},
		Node: f.store.Node(), Local: f.local, Plane: o.kind().Facts,
	}, q), nil
}

// files are manifests, read for a node that has this machine's addresses.
type files struct {
	store    *cluster.Store
	local    []netip.Addr
	families []route.Family
	compiler *route.Compiler // has compiled nothing
}

func fromFiles(ctx context.Context, o Options) (files, error) {
	f := files{store: cluster.NewStore(), families: []route.Family{route.IPv4, route.IPv6}}
	found := o.logged()
	err := openManifests(f.store, o, found.Report, manifest.CommandLimits()).Load()
	found.Flush()
	if err != nil {
		return files{}, err
	}
	addresses := address.New(address.Options{NetNS: o.NetNS})
	if f.local, err = addresses.List(ctx); err != nil {
		return files{}, err
	}
	f.store.SetLocalAddresses(f.local)
	f.store.SetStandIn(standIn(addresses, o.Config.NodeName, o.Log))
	f.compiler = route.NewCompiler(o.policy(f.families))
	return f, nil
}
