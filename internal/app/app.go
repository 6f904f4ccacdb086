// Package app is the parts list: it builds everything in order, passes each
// part what it needs, and runs all of them until the first ends.
package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	follow "github.com/sluice-proxy/sluice/internal/follow/conntrack"
	"github.com/sluice-proxy/sluice/internal/follow/localnet"
	"github.com/sluice-proxy/sluice/internal/kernel/address"
	"github.com/sluice-proxy/sluice/internal/kernel/conntrack"
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

// source keeps a store current until the context ends.
type source interface {
	Run(ctx context.Context) error
}

// Run serves until the context ends; what is in the kernel stays there.
func Run(ctx context.Context, o Options) error {
	p, families, err := openPlane(ctx, o)
	if err != nil {
		return err
	}
	flows, err := conntrack.Open(conntrack.Options{NetNS: o.NetNS})
	if err != nil {
		return err
	}
	defer func() { _ = flows.Close() }()

	store := cluster.NewStore()
	src, err := openSource(store, o)
	if err != nil {
		return err
	}
	stale := follow.New(follow.Options{Table: flows, Report: func(err error) {
		o.Log.Warn("Cannot end stale UDP flows, retrying", "error", err)
	}})
	local := localnet.New(sysctl.New(sysctl.Options{NetNS: o.NetNS}), func(err error) {
		o.Log.Warn("NodePorts on 127.0.0.1 will not work", "error", err)
	})
	loop := proxy.New(proxy.Options{
		Store:     store,
		Compiler:  route.NewCompiler(Policy(o.Config, families)),
		Plane:     p,
		Followers: []proxy.Follower{stale, local},
		Log:       o.Log,
		MinPeriod: o.Config.MinSyncPeriod,
		Report:    o.report,
		Observe:   o.observe,
	})
	addresses := watcher{address.New(address.Options{NetNS: o.NetNS}), store, stale, o}

	group, ctx := errgroup.WithContext(ctx)
	addressesKnown := store.Feed()
	group.Go(func() error { return addresses.run(ctx, addressesKnown) })
	group.Go(func() error { return src.Run(ctx) })
	group.Go(func() error { return stale.Run(ctx) })
	group.Go(func() error { return loop.Run(ctx) })
	return group.Wait()
}

// watcher passes the addresses of this host on to those who need them.
type watcher struct {
	*address.Watcher
	store *cluster.Store
	stale *follow.Follower
	opt   Options
}

func (w watcher) run(ctx context.Context, known func()) error {
	return w.Run(ctx, func(addrs []netip.Addr) {
		w.store.SetLocalAddresses(addrs)
		w.stale.SetLocal(addrs)
		if len(w.opt.Config.Manifests) > 0 {
			w.store.SetStandIn(w.standIn())
		}
		known()
	})
}

// standIn is the Node as the host itself tells it: manifests need not have one.
func (w watcher) standIn() *cluster.Node {
	primary, err := w.Primary()
	if err != nil {
		w.opt.Log.Warn("Cannot tell this host's own address", "error", err)
	}
	return &cluster.Node{Name: w.opt.Config.NodeName, Addresses: primary}
}

// report tells problems with objects to the log.
func (o Options) report(problems []route.Problem) {
	for _, p := range problems {
		o.Log.Warn("Left out", "object", p.Object, "field", p.Field, "value", p.Value, "reason", p.Reason)
	}
}

func (o Options) observe(s proxy.Sync) {
	level := slog.LevelDebug
	if s.Full && s.Err == nil {
		level = slog.LevelInfo
	}
	o.Log.Log(context.Background(), level, "Synced", "services", s.Services, "steps", s.Steps,
		"compile", s.Compile, "apply", s.Apply, "full", s.Full)
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
	for _, mode := range Modes() {
		p, err := planes()[mode](parts{o.Config, o.NetNS, nil})
		if err != nil {
			return err
		}
		if err := p.Remove(ctx); err != nil {
			return fmt.Errorf("remove what the %s plane left: %w", mode, err)
		}
	}
	return nil
}
