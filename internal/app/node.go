package app

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/process"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// Source keeps a store current until the context ends. It has announced its feeds to the store before it runs.
type Source interface {
	Run(ctx context.Context) error
}

// NodeOptions are what a Node is made of.
type NodeOptions struct {
	proxy.Options // NewNode sets those that follow from the fields below, and adds Followers of the plane

	Source Source
	Opened *plane.Opened
	Policy route.Options

	NetNS   int    // file descriptor of the network namespace to serve; 0: the current one
	StandIn string // not empty: without a Node object of this name the host itself takes its place
	Written func() // called once when no more rules are written; may be nil
}

// Node is the proxy of one node: a source, a loop and a plane with its parts.
type Node struct {
	opt   NodeOptions
	loop  *proxy.Loop
	ready func() // announces that the addresses of this host are in the store
}

// NewNode assembles a Node and announces its own feed to the store.
func NewNode(opt NodeOptions) *Node {
	var followers []proxy.Follower
	for _, part := range opt.Opened.Parts {
		if part.Follower != nil {
			followers = append(followers, part.Follower)
		}
	}
	opt.Followers = append(followers, opt.Followers...)
	opt.Compiler, opt.CPU = route.NewCompiler(opt.Policy), process.CPUTime
	opt.Plane, opt.Load = opt.Opened.Plane, opt.Opened.Load
	opt.Due, opt.Ready = opt.Opened.Due, opt.Opened.Ready
	return &Node{opt: opt, loop: proxy.New(opt.Options), ready: opt.Store.Feed()}
}

// Loop returns the loop of the node.
func (n *Node) Loop() *proxy.Loop { return n.loop }

// Run serves until the context ends, once; what is in the kernel stays there. The loop
// first reads the kernel after the watch for edits of other programs has begun.
func (n *Node) Run(ctx context.Context) error {
	defer n.close()
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range n.opt.Opened.Parts {
		if part.Run != nil {
			group.Go(func() error { return part.Run(ctx) })
		}
	}
	watching := make(chan struct{})
	group.Go(func() error { return n.opt.Opened.Plane.Watch(ctx, func() { close(watching) }, n.loop.Edited) })
	group.Go(func() error { return n.addresses(ctx) })
	group.Go(func() error { return n.opt.Source.Run(ctx) })
	group.Go(func() error {
		if n.opt.Written != nil {
			defer n.opt.Written()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watching:
			return n.loop.Run(ctx)
		}
	})
	return group.Wait()
}

// close closes the parts and the plane. Everything was written before.
func (n *Node) close() {
	for _, part := range n.opt.Opened.Parts {
		if part.Close != nil {
			_ = part.Close()
		}
	}
	if n.opt.Opened.Close != nil {
		if err := n.opt.Opened.Close(); err != nil {
			n.opt.Log.Warn("Some rules remain; run with --cleanup to remove them", "error", err)
		}
	}
}

// addresses passes the addresses of this host to the store and to the parts of the plane.
func (n *Node) addresses(ctx context.Context) error {
	w := address.New(address.Options{NetNS: n.opt.NetNS, Except: takeover.ServiceDevice})
	return w.Run(ctx, func(addrs []netip.Addr) {
		if assigned := n.opt.Opened.Assigned; assigned != nil {
			given := assigned()
			addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return slices.Contains(given, a) })
		}
		n.opt.Store.SetLocalAddresses(addrs)
		for _, part := range n.opt.Opened.Parts {
			if part.SetLocal != nil {
				part.SetLocal(addrs)
			}
		}
		if n.opt.StandIn != "" {
			n.opt.Store.SetStandIn(hostNode(w, n.opt.StandIn, n.opt.Log))
		}
		n.ready()
	})
}

func hostNode(w *address.Watcher, name string, log *slog.Logger) *cluster.Node {
	primary, err := w.Primary()
	if err != nil {
		log.Warn("Cannot read this host's own address", "error", err)
	}
	return &cluster.Node{Name: name, Addresses: primary}
}
