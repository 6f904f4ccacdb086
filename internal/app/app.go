// Package app is the parts list: it builds everything in order, passes each
// part what it needs, and runs all of them until the first ends.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/follow/localnet"
	"github.com/sluice-proxy/sluice/internal/host"
	"github.com/sluice-proxy/sluice/internal/kernel/handover"
	"github.com/sluice-proxy/sluice/internal/kernel/listen"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/kernel/probe"
	"github.com/sluice-proxy/sluice/internal/kernel/sysctl"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// Options for Run.
type Options struct {
	Config *config.Config
	Log    *slog.Logger
	Stdin  io.Reader        // for "--manifests -"
	NetNS  int              // file descriptor of the network namespace to serve; 0: the current one
	Synced func(proxy.Sync) // told of every attempt to write; may be nil

	// Written is called once when the context has ended and no more rules are
	// written, unless Run ends before it writes any. It may be nil.
	Written func()

	Reason  string            // why Config.Mode is the mode
	Version string            // of this program
	Flags   map[string]string // the command line, for /flagz

	SetVerbosity func(level int) // sets how much is logged; nil: that cannot be set

	// Load reads the command line and File again; File is empty if there is none.
	Load func() (*config.Config, []string, error)
	File string

	// Replace ends this run of the program and begins the next, which gets the
	// Handover as Before. It returns at once. It is needed if there is a File.
	Replace func(*handover.Handover)
	Before  *handover.Handover // nil: another process started this one

	// Compare asks for the configuration to be read and everything to be compared
	// with the kernel, now.
	Compare <-chan os.Signal
}

// Run serves until the context ends; what is in the kernel stays there.
func Run(ctx context.Context, o Options) error {
	d, err := newDaemon(ctx, o)
	if err != nil {
		return err
	}
	return d.run(ctx)
}

// Policy is what a configuration says about policy.
func Policy(c *config.Config, families []route.Family) route.Options {
	kinds := map[config.Detect]route.DetectorKind{
		config.DetectClusterCIDR:         route.DetectClusterCIDR,
		config.DetectNodeCIDR:            route.DetectNodeCIDR,
		config.DetectBridgeInterface:     route.DetectBridge,
		config.DetectInterfaceNamePrefix: route.DetectInterfacePrefix,
	}
	loopbacks := map[config.Loopback]route.Loopback{
		config.LoopbackNamed:    route.LoopbackNamed,
		config.LoopbackIncluded: route.LoopbackIncluded,
		config.LoopbackNever:    route.LoopbackNever,
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
			Localhost: c.NodePorts.Localhost, All: c.NodePorts.All, Loopback: loopbacks[c.Loopback],
		},
	}
	for _, l := range []route.Listener{
		{At: c.Healthz, Name: "health server (healthzBindAddress)"}, {At: c.Metrics, Name: "metrics server (metricsBindAddress)"},
	} {
		if l.At.IsValid() {
			o.Listeners = append(o.Listeners, l)
		}
	}
	if c.BindAddress.IsValid() && !c.BindAddress.IsUnspecified() {
		o.Primary = c.BindAddress
	}
	return o
}

// Cleanup takes everything of Sluice out of the kernel, and what kube-proxy of
// any mode left there. It returns what that was, a line each. A daemon would put
// its rules back: one that does not end soon is a *control.TakenError, and
// nothing is removed.
func Cleanup(ctx context.Context, o Options) (removed []string, err error) {
	return cleanup(ctx, o, endingTime)
}

func cleanup(ctx context.Context, o Options, wait time.Duration) (removed []string, err error) {
	held, err := placeIn(o.NetNS, o.Log).takeAfter(ctx, toEnd(wait))
	if err != nil {
		return nil, err
	}
	defer leave(held)
	return removeAll(ctx, o)
}

func removeAll(ctx context.Context, o Options) (removed []string, err error) {
	var errs []error // one thing that cannot be removed keeps nothing else from it
	for _, kind := range kinds() {
		if kind.kubeProxys {
			continue
		}
		if _, err := kind.probe(ctx, probe.Options{NetNS: o.NetNS}); errors.Is(err, probe.ErrPrivilege) {
			return removed, err
		}
		gone, err := kind.remove(ctx, o)
		if err != nil {
			errs = append(errs, fmt.Errorf("remove what the %s plane left: %w", kind.mode, err))
		}
		for _, what := range gone {
			removed = append(removed, "removed sluice: "+what)
		}
	}
	lines, err := withKeeper(o, func(k *localnet.Keeper) ([]string, error) { return k.Remove(ctx) })
	if err != nil {
		errs = append(errs, fmt.Errorf("stop routing loopback addresses: %w", err))
	}
	removed = append(removed, lines...)
	account, err := takeover.Cleanup(ctx, takeover.Options{
		NetNS: o.NetNS, Log: o.Log, Dial: listen.Opener{NetNS: o.NetNS}.Dial, Address: rivalAddress(o.Config),
		IgnoreKubeProxy: o.Config.IgnoreKubeProxy,
	})
	return append(removed, account.Lines()...), errors.Join(append(errs, err)...)
}

// withKeeper uses a localnet.Keeper once.
func withKeeper(o Options, use func(*localnet.Keeper) ([]string, error)) (lines []string, err error) {
	conn, err := nft.Open(nft.Options{NetNS: o.NetNS})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // all is answered
	return use(localnet.New(localnet.Options{Sysctl: sysctl.New(sysctl.Options{NetNS: o.NetNS}), Kernel: conn}))
}

// Prepare does what takes more privileges than serving does, and ends: a later
// process finds the host as it wants it.
func Prepare(ctx context.Context, o Options) error {
	if err := Check(ctx, o); err != nil {
		return err
	}
	_, err := withKeeper(o, func(k *localnet.Keeper) ([]string, error) {
		if host.ServesLoopback(o.Config) {
			return nil, k.Prepare(ctx)
		}
		return nil, k.Guard(ctx)
	})
	if err != nil {
		err = fmt.Errorf("loopback addresses: %w", err)
	}
	return errors.Join(host.New(host.Options{NetNS: o.NetNS}).Prepare(o.Config), err)
}
