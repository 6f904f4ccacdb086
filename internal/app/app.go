// Package app is the parts list: it builds everything in order, passes each
// part what it needs, and runs all of them until the first ends.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/follow/localnet"
	"github.com/sluice-proxy/sluice/internal/kernel/probe"
	"github.com/sluice-proxy/sluice/internal/kernel/sysctl"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Options for Run.
type Options struct {
	Config *config.Config
	Log    *slog.Logger
	Stdin  io.Reader        // for "--manifests -"
	NetNS  int              // file descriptor of the network namespace to serve; 0: the current one
	Synced func(proxy.Sync) // told of every attempt to write; may be nil
}

// Run serves until the context ends; what is in the kernel stays there.
func Run(ctx context.Context, o Options) error {
	p, families, err := openPlane(ctx, o)
	if err != nil {
		return err
	}
	store := cluster.NewStore()
	src, err := openSource(store, o)
	if err != nil {
		return err
	}
	opt := NodeOptions{
		Store: store, Source: src, Plane: p, Policy: Policy(o.Config, families),
		NetNS: o.NetNS, Log: o.Log, MinPeriod: o.Config.MinSyncPeriod,
		Report: o.report, Observe: o.observe,
		Followers: []proxy.Follower{ignored{o.Log, slog.LevelDebug}},
	}
	if len(o.Config.Manifests) > 0 {
		opt.StandIn = o.Config.NodeName
	}
	n, err := NewNode(opt)
	if err != nil {
		return err
	}
	return n.Run(ctx)
}

// report tells problems with objects to the log.
func (o Options) report(problems []route.Problem) {
	for _, p := range problems {
		said := []slog.Attr{
			slog.String("object", p.Object), slog.String("field", p.Field),
			slog.String("value", p.Value), slog.String("reason", p.Reason),
		}
		said = slices.DeleteFunc(said, func(a slog.Attr) bool { return a.Value.String() == "" })
		o.Log.LogAttrs(context.Background(), slog.LevelWarn, "Problem", said...)
	}
}

// observe logs what was written; what was not, the loop does.
func (o Options) observe(s proxy.Sync) {
	level := slog.LevelDebug
	if s.Full() {
		level = slog.LevelInfo
	}
	if s.Err == nil {
		o.Log.Log(context.Background(), level, "Synced", "services", s.Services, "steps", s.Steps,
			"compile", s.Compile, "apply", s.Apply, "cause", string(s.Cause))
	}
	if o.Synced != nil {
		o.Synced(s)
	}
}

// Policy is what a configuration says about policy.
func Policy(c *config.Config, families []route.Family) route.Options {
	kinds := map[config.Detect]route.DetectorKind{
		config.DetectClusterCIDR:         route.DetectClusterCIDR,
		config.DetectNodeCIDR:            route.DetectNodeCIDR,
		config.DetectBridgeInterface:     route.DetectBridge,
		config.DetectInterfaceNamePrefix: route.DetectInterfacePrefix,
	}
	o := route.Options{
		NodeName: c.NodeName,
		Families: families,
		Detector: route.DetectorOptions{
			Kind: kinds[c.Detector.Mode], CIDRs: c.Detector.ClusterCIDRs,
			Interface: c.Detector.Interface + c.Detector.Prefix, // one of them is empty
		},
		MasqueradeAll: c.MasqueradeAll,
		NodePorts: route.NodePortOptions{
			CIDRs: c.NodePorts.CIDRs, Primary: c.NodePorts.Primary,
			Localhost: c.NodePorts.Localhost, All: c.NodePorts.All,
		},
	}
	if c.BindAddress.IsValid() && !c.BindAddress.IsUnspecified() {
		o.Primary = c.BindAddress
	}
	return o
}

// Cleanup takes everything of Sluice out of the kernel.
func Cleanup(ctx context.Context, o Options) error {
	for _, kind := range kinds() {
		if _, err := kind.probe(ctx, probe.Options{NetNS: o.NetNS}); errors.Is(err, probe.ErrPrivilege) {
			return err
		}
		p, err := kind.open(parts{o.Config, o.NetNS, nil})
		if err != nil {
			return err
		}
		if err := p.Remove(ctx); err != nil {
			return fmt.Errorf("remove what the %s plane left: %w", kind.mode, err)
		}
	}
	if err := localnet.LeftOn(sysctl.New(sysctl.Options{NetNS: o.NetNS})); err != nil {
		o.Log.Warn("Loopback addresses", "error", err)
	}
	return nil
}
