package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/sluice-proxy/sluice/internal/kernel/address"
	"github.com/sluice-proxy/sluice/internal/kernel/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// Kinds are the data planes of this build, the default first. A further plane is one
// more line here.
func Kinds() []plane.Kind {
	return []plane.Kind{
		nftables.Kind(),
		iptables.Kind(),
	}
}

// Modes returns the names of data planes.
func Modes(kinds []plane.Kind) []string {
	var modes []string
	for _, k := range kinds {
		modes = append(modes, k.Mode)
	}
	return modes
}

// kind returns the plane of the configured mode, which the configuration has checked.
func (o Options) kind() plane.Kind {
	return o.Kinds[slices.IndexFunc(o.Kinds, func(k plane.Kind) bool { return k.Mode == o.Config.Mode })]
}

// AfterStop says what becomes of traffic when the process has stopped, for its log.
func AfterStop(o Options) string {
	if o.kind().Persistent {
		return "the rules stay"
	}
	return "Services are not served until it runs again"
}

// setup is what planes are opened with, as far as it follows from the options.
func (o Options) setup() plane.Setup {
	return plane.Setup{
		Config: o.Config, NetNS: o.NetNS, Log: o.Log,
		Local: address.New(address.Options{NetNS: o.NetNS, Except: takeover.ServiceDevice}).List,
	}
}

// policy is what the configuration says about policy, with the limits of the plane.
func (o Options) policy(families []route.Family) route.Options {
	p := Policy(o.Config, families)
	p.Excess = o.kind().Excess
	return p
}

// openPlane verifies that the kernel can do what the mode needs, and opens the plane
// for the life of the process.
func openPlane(ctx context.Context, o Options, report reporter) (*plane.Opened, []route.Family, error) {
	kind := o.kind()
	support, err := kind.Probe(ctx, o.NetNS)
	if err != nil {
		return nil, nil, err
	}
	for _, note := range support.Notes {
		o.Log.LogAttrs(ctx, slog.LevelInfo, note)
	}
	s := o.setup()
	s.Families, s.Report = support.Families(), report
	opened, err := kind.Open(ctx, s)
	if err == nil && opened.How != "" {
		o.Log.Info("Rules are written " + opened.How)
	}
	return opened, s.Families, err
}

// leftovers are what other planes may have left when the mode changed, except those
// that the take-over removes, and those that this plane stands on.
func leftovers(o Options) []takeover.Leftover {
	var list []takeover.Leftover
	for _, k := range o.Kinds {
		if k.Mode == o.Config.Mode || k.Mode == o.kind().On || k.Remove == nil {
			continue
		}
		list = append(list, takeover.Leftover{Mode: k.Mode, Remove: func(ctx context.Context) ([]string, error) {
			return removeRules(ctx, k, o)
		}})
	}
	return list
}

// removeRules removes all rules of a plane. Where the kernel cannot do what the plane
// needs there are none.
func removeRules(ctx context.Context, k plane.Kind, o Options) ([]string, error) {
	if _, err := k.Probe(ctx, o.NetNS); errors.Is(err, probe.ErrFeature) {
		return nil, nil
	}
	return k.Remove(ctx, o.setup())
}

// mechanisms are those in which the rules of the plane have kube-proxy's names.
func mechanisms(of *plane.Opened) []takeover.Mechanism {
	var all []takeover.Mechanism
	for _, name := range of.KubeProxyRules {
		all = append(all, takeover.Mechanism(name))
	}
	return all
}
