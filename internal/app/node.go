package app

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/cluster"
	follow "github.com/sluice-proxy/sluice/internal/follow/conntrack"
	"github.com/sluice-proxy/sluice/internal/follow/localnet"
	"github.com/sluice-proxy/sluice/internal/kernel/address"
	"github.com/sluice-proxy/sluice/internal/kernel/conntrack"
	"github.com/sluice-proxy/sluice/internal/kernel/sysctl"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Source keeps a store current until the context ends. It has announced its
// feeds to the store before it runs.
type Source interface {
	Run(ctx context.Context) error
}

// Node is the proxy of one node, made of a source, a plane and all that goes
// with them.
type Node struct {
	Store  *cluster.Store
	Source Source
	Plane  plane.Plane
	Policy route.Options

	NetNS     int    // file descriptor of the network namespace to serve; 0: the current one
	StandIn   string // not empty: the host itself stands in for a Node of this name while there is none
	MinPeriod time.Duration
	Log       *slog.Logger
	Followers []proxy.Follower      // besides the node's own
	Report    func([]route.Problem) // may be nil
	Observe   func(proxy.Sync)      // may be nil
}

// Run serves until the context ends; what is in the kernel stays there.
func (n Node) Run(ctx context.Context) error {
	flows, err := conntrack.Open(conntrack.Options{NetNS: n.NetNS})
	if err != nil {
		return err
	}
	defer func() { _ = flows.Close() }() // nothing is left to lose
	stale := follow.New(follow.Options{Table: flows, Report: func(err error) {
		n.Log.Warn("Cannot end stale UDP flows, retrying", "error", err)
	}})
	local := localnet.New(sysctl.New(sysctl.Options{NetNS: n.NetNS}), func(err error) {
		n.Log.Warn("Loopback addresses", "error", err)
	})
	loop := proxy.New(proxy.Options{
		Store: n.Store, Compiler: route.NewCompiler(n.Policy), Plane: n.Plane,
		Followers: append([]proxy.Follower{stale, local}, n.Followers...),
		Log:       n.Log, MinPeriod: n.MinPeriod, Report: n.Report, Observe: n.Observe,
	})
	known := n.Store.Feed()

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.watch(ctx, known, stale) })
	group.Go(func() error { return n.Source.Run(ctx) })
	group.Go(func() error { return stale.Run(ctx) })
	group.Go(func() error { return loop.Run(ctx) })
	return group.Wait()
}

// watch passes the addresses of this host on to those who need them.
func (n Node) watch(ctx context.Context, known func(), stale *follow.Follower) error {
	w := address.New(address.Options{NetNS: n.NetNS})
	return w.Run(ctx, func(addrs []netip.Addr) {
		n.Store.SetLocalAddresses(addrs)
		stale.SetLocal(addrs)
		if n.StandIn != "" {
			n.Store.SetStandIn(standIn(w, n.StandIn, n.Log))
		}
		known()
	})
}

// standIn is a Node as the host itself tells it.
func standIn(w *address.Watcher, name string, log *slog.Logger) *cluster.Node {
	primary, err := w.Primary()
	if err != nil {
		log.Warn("Cannot tell this host's own address", "error", err)
	}
	return &cluster.Node{Name: name, Addresses: primary}
}
