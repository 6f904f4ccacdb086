package app

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/cluster"
	follow "github.com/sluice-proxy/sluice/internal/follow/conntrack"
	"github.com/sluice-proxy/sluice/internal/follow/localnet"
	"github.com/sluice-proxy/sluice/internal/kernel/address"
	"github.com/sluice-proxy/sluice/internal/kernel/conntrack"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/kernel/process"
	"github.com/sluice-proxy/sluice/internal/kernel/sysctl"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// Source keeps a store current until the context ends. It has announced its
// feeds to the store before it runs.
type Source interface {
	Run(ctx context.Context) error
}

// NodeOptions are what a Node is made of.
type NodeOptions struct {
	Store  *cluster.Store
	Source Source
	Plane  plane.Plane
	Policy route.Options
	Load   plane.Load // what one write contains

	NetNS     int       // file descriptor of the network namespace to serve; 0: the current one
	Tables    *nft.Conn // through which the plane writes nf_tables; nil: it does not
	StandIn   string    // not empty: the host itself stands in for a Node of this name while there is none
	MinPeriod time.Duration
	Log       *slog.Logger
	Followers []proxy.Follower      // besides the node's own
	Report    func([]route.Problem) // may be nil
	Observe   func(proxy.Sync)      // may be nil
	Edited    func(plane.Edit)      // called for each edit by another program; may be nil
	Written   func()                // called once when no more rules are written; may be nil

	// Looked is told of each look for stale flows. It may be nil.
	Looked func(took time.Duration, ended map[route.Family]int)
}

// Node is the proxy of one node: a source, a plane and all that goes with them.
type Node struct {
	opt   NodeOptions
	flows *conntrack.Table
	stale *follow.Follower
	local *localnet.Keeper
	rules *nft.Conn // through which local writes
	loop  *proxy.Loop
	guard *guard
	known func() // the addresses of this host were told once
}

// NewNode assembles a Node and announces its own feed to the store.
func NewNode(opt NodeOptions) (*Node, error) {
	flows, err := conntrack.Open(conntrack.Options{NetNS: opt.NetNS})
	if err != nil {
		return nil, err
	}
	rules, err := nft.Open(nft.Options{NetNS: opt.NetNS, Beside: opt.Tables})
	if err != nil {
		return nil, errors.Join(err, flows.Close())
	}
	n := &Node{opt: opt, flows: flows, rules: rules, guard: newGuard(opt.Log, process.CPUTime), known: opt.Store.Feed()}
	n.stale = follow.New(follow.Options{Table: flows, Scanned: opt.Looked, Report: func(err error) {
		opt.Log.Warn("Cannot end stale flows, retrying", "error", err)
	}})
	n.local = localnet.New(localnet.Options{
		Sysctl: sysctl.New(sysctl.Options{NetNS: opt.NetNS}), Kernel: rules,
		Report: func(err error) { opt.Log.Warn("Loopback addresses", "error", err) },
	})
	n.loop = proxy.New(proxy.Options{
		Store: opt.Store, Compiler: route.NewCompiler(opt.Policy), Plane: opt.Plane, Load: opt.Load,
		Followers: append([]proxy.Follower{n.stale, n.local}, opt.Followers...),
		Log:       opt.Log, MinPeriod: opt.MinPeriod, Report: opt.Report, Observe: n.observe,
	})
	n.guard.loop = n.loop
	return n, nil
}

// Loop is the loop at the heart of the node, to look at it and to ask of it.
func (n *Node) Loop() *proxy.Loop { return n.loop }

// Flows is what ends stale flows.
func (n *Node) Flows() *follow.Follower { return n.stale }

// Run serves until the context ends, once; what is in the kernel stays there.
// The first look at the kernel comes after edits of others would be heard.
func (n *Node) Run(ctx context.Context) error {
	defer func() { _ = errors.Join(n.flows.Close(), n.rules.Close()) }() // nothing is left to lose
	n.local.Begin(ctx)
	group, ctx := errgroup.WithContext(ctx)
	heard := make(chan struct{})
	group.Go(func() error { return n.opt.Plane.Watch(ctx, func() { close(heard) }, n.edited) })
	group.Go(func() error { return n.guard.run(ctx) })
	group.Go(func() error { return n.addresses(ctx) })
	group.Go(func() error { return n.opt.Source.Run(ctx) })
	group.Go(func() error { return n.stale.Run(ctx) })
	group.Go(func() error { return n.local.Run(ctx) })
	group.Go(func() error {
		if n.opt.Written != nil {
			defer n.opt.Written()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-heard:
			return n.loop.Run(ctx)
		}
	})
	return group.Wait()
}

// edited passes an edit by another program on.
func (n *Node) edited(e plane.Edit) {
	n.guard.edit(e)
	if n.opt.Edited != nil && !e.Possible {
		n.opt.Edited(e)
	}
}

// observe passes the outcome of a write on.
func (n *Node) observe(s proxy.Sync) {
	n.guard.observe(s)
	if n.opt.Observe != nil {
		n.opt.Observe(s)
	}
}

// addresses passes the addresses of this host on to those who need them.
func (n *Node) addresses(ctx context.Context) error {
	w := address.New(address.Options{NetNS: n.opt.NetNS, Except: takeover.ServiceDevice})
	return w.Run(ctx, func(addrs []netip.Addr) {
		n.opt.Store.SetLocalAddresses(addrs)
		n.stale.SetLocal(addrs)
		if n.opt.StandIn != "" {
			n.opt.Store.SetStandIn(standIn(w, n.opt.StandIn, n.opt.Log))
		}
		n.known()
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
