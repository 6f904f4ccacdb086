package app

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/files"
)

// Previewed is the result of Preview.
type Previewed struct {
	Plan     plane.Plan
	Services int  // that the manifests have
	Problems bool // some objects are wrong; they were logged
}

// Preview returns the plan for manifests and a kernel without any rules of Sluice. It needs no privileges.
func Preview(ctx context.Context, o Options) (Previewed, error) {
	f, err := fromFiles(ctx, o)
	if err != nil {
		return Previewed{}, err
	}
	input := f.store.Take()
	services, nodePorts := countServices(input)
	out := Previewed{Services: services}
	change, problems := f.compiler.Compile(input)
	if nodePorts == 0 {
		problems = slices.DeleteFunc(problems, route.IsNoAddress)
	}
	found := o.logged()
	found.Report(problems)
	found.Flush()
	out.Problems = f.problems || len(problems) > 0
	notProgrammed{o.Log, slog.LevelInfo}.Applied(change)
	out.Plan, err = o.preview(ctx, f.families, change)
	return out, err
}

// preview returns the plan for a kernel without any rules of Sluice.
func (o Options) preview(ctx context.Context, families []route.Family, c route.Change) (plane.Plan, error) {
	setup := o.setup()
	setup.Families = families
	p := o.kind().Preview(setup)
	if err := p.Refresh(ctx); err != nil {
		return nil, err
	}
	return p.Plan(c), nil
}

// countServices returns how many Services there are, and how many node ports they have.
func countServices(c cluster.Delta) (services, nodePorts int) {
	for _, s := range c.Services {
		if s.Service == nil {
			continue
		}
		services++
		for _, p := range s.Service.Ports {
			nodePorts += min(1, int(p.NodePort))
		}
	}
	return services, nodePorts
}

// Check verifies that this process can do its work here, and changes nothing.
func Check(ctx context.Context, o Options) error {
	_, err := o.kind().Probe(ctx, o.NetNS)
	return err
}

// Explain answers a question as if everything in the manifests were programmed. It needs no privileges.
func Explain(ctx context.Context, o Options, q explain.Question) (explain.Answer, error) {
	f, err := fromFiles(ctx, o)
	if err != nil {
		return explain.Answer{}, err
	}
	f.compiler.Compile(f.store.Take()) // the answer contains the problems of the Service
	return explain.Ask(explain.View{
		View: proxy.View{Routes: f.compiler.Snapshot(), Started: true},
		Node: f.store.Node(), Local: f.local, Plane: o.kind().Facts,
	}, q), nil
}

// objects are those of manifests, for a node that has the addresses of this host.
type objects struct {
	store    *cluster.Store
	local    []netip.Addr
	families []route.Family
	compiler *route.Compiler // has not compiled yet
	problems bool            // the files have problems
}

func fromFiles(ctx context.Context, o Options) (objects, error) {
	f := objects{store: cluster.NewStore(), families: route.Families()}
	found := o.logged()
	report := func(problems []route.Problem) {
		f.problems = true
		found.Report(problems)
	}
	err := openManifests(f.store, o, report, files.CommandLimits()).Load()
	found.Flush()
	if err != nil {
		return objects{}, err
	}
	addresses := address.New(address.Options{NetNS: o.NetNS})
	if f.local, err = addresses.List(ctx); err != nil {
		return objects{}, err
	}
	f.store.SetLocalAddresses(f.local)
	f.store.SetStandIn(hostNode(addresses, o.Config.NodeName, o.Log))
	f.compiler = route.NewCompiler(o.policy(f.families))
	return f, nil
}
