//go:build linux

package conformance

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/userspace"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/lab"
)

// changeTimeout is how long a change may take until it is in the kernel.
const changeTimeout = 30 * time.Second

// proxyUnderTest runs the parts of the proxy for one host.
type proxyUnderTest struct {
	t       testing.TB
	host    *lab.Host
	plane   Plane
	options route.Options
	args    []string // of the command line, if the proxy is a separate process
	running *running // nil: the proxy runs in this process

	barrier     *barrier
	store       *cluster.Store
	stop        func() // nil: not running
	skipExplain bool   // the rules may differ from the routes: deleted, or written by another process

	shares shares // of the plane that runs; nil if they follow from the weights

	// routes returns nil if the routes are not in the kernel.
	routes func() (*route.Snapshot, error)
}

func newProxy(t testing.TB, host *lab.Host, p Plane, o route.Options) *proxyUnderTest {
	return &proxyUnderTest{t: t, host: host, plane: p, options: o}
}

// options returns the settings as options of the compiler, with the defaults of the mode.
func options(s settings, tr translator, n Traits) route.Options {
	o := route.Options{NodeName: "node-a", MasqueradeAll: s.masqueradeAll, Detector: detector(s.detector)}
	switch s.disabledFamily {
	case "IPv4":
		o.Families = []route.Family{route.IPv6}
	case "IPv6":
		o.Families = []route.Family{route.IPv4}
	}
	o.NodePorts.Loopback, o.ListLocal = n.loopback, n.listLocal
	if s.noLocalhost && n.loopback == route.LoopbackIncluded {
		o.NodePorts.Loopback = route.LoopbackNever
	}
	if s.nodePorts == nil {
		s.nodePorts = n.nodePorts
	}
	for _, text := range tr.texts(s.nodePorts) {
		switch text {
		case "primary":
			o.NodePorts.Primary = true
		case "localhost":
			o.NodePorts.Localhost = true
		case "all":
			o.NodePorts.All = true
		default:
			o.NodePorts.CIDRs = append(o.NodePorts.CIDRs, netip.MustParsePrefix(text))
		}
	}
	return o
}

func detector(text string) route.DetectorOptions {
	kind, name, _ := strings.Cut(text, " ")
	switch kind {
	case "none":
		return route.DetectorOptions{}
	case "NodeCIDR":
		return route.DetectorOptions{Kind: route.DetectNodeCIDR}
	case "bridge":
		return route.DetectorOptions{Kind: route.DetectBridge, Interface: name}
	case "prefix":
		return route.DetectorOptions{Kind: route.DetectInterfacePrefix, Interface: name}
	}
	return route.DetectorOptions{Kind: route.DetectClusterCIDR, CIDRs: []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:10::/32"),
	}}
}

// start runs the proxy until stop is called or the test ends. It returns when the objects are in the kernel.
func (p *proxyUnderTest) start(objects *objects) error {
	if p.plane.Launch != nil {
		return p.launch(objects)
	}
	p.store = cluster.NewStore()
	p.barrier = newBarrier()
	log := slog.New(slog.NewTextHandler(testLog{p.t}, nil))
	setup := plane.Setup{
		NetNS: p.host.NetNSFD(), Families: p.options.Families, Log: log,
		Config: &config.Config{NodePorts: p.options.NodePorts, MasqueradeMark: 0x4000},
	}
	if setup.Families == nil {
		setup.Families = route.Families()
	}
	kind := plane.Kind{Open: func(_ context.Context, s plane.Setup) (*plane.Opened, error) {
		return p.plane.Open(p.t, p.host, s), nil
	}}
	if !p.plane.proxied { // which has sockets for everything
		kind = userspace.WithLocalhost(kind)
	}
	opened, err := kind.Open(context.Background(), setup)
	if err != nil {
		return err
	}
	followers, stopEjection := []proxy.Follower{p.barrier}, func() {}
	if ejects(&p.plane.Traits) && objects.ejecting() {
		part, stop, err := p.startEjection()
		if err != nil {
			return err
		}
		followers, stopEjection = append(followers, part), stop
	}
	node := app.NewNode(app.NodeOptions{
		Options: proxy.Options{Store: p.store, Followers: followers, Log: log},
		Source:  newSource(objects, p.store, p.barrier), Opened: opened, Policy: p.options, NetNS: p.host.NetNSFD(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx) }()
	p.skipExplain, p.routes, p.shares = false, routesOf(node.Loop()), opened.Shares
	p.stop = sync.OnceFunc(func() {
		last, err := p.routes()
		p.routes, p.shares = func() (*route.Snapshot, error) { return last, err }, nil
		stopEjection()
		cancel()
		if err := <-ended; err != nil {
			p.t.Errorf("the proxy ended: %v", err)
		}
		objects.store = nil
	})
	p.t.Cleanup(p.stop)
	return p.barrier.wait()
}

// routesOf returns a function that returns the routes of a running proxy.
func routesOf(loop *proxy.Loop) func() (*route.Snapshot, error) {
	return func() (*route.Snapshot, error) {
		ctx, cancel := context.WithTimeout(context.Background(), changeTimeout)
		defer cancel()
		v, err := loop.View(ctx)
		if err != nil || !v.Started || v.Pending.Len() > 0 || v.Err != nil {
			return nil, err
		}
		return v.Routes, nil
	}
}

// staticSource is the source of a store that has all objects from the start.
type staticSource struct{ done func() }

func newSource(o *objects, store *cluster.Store, b *barrier) staticSource {
	f := staticSource{store.Feed()}
	o.fill(store)
	b.insert(store)
	return f
}

// Run implements app.Source.
func (f staticSource) Run(ctx context.Context) error {
	f.done()
	<-ctx.Done()
	return nil
}

// settle waits until everything in the store is in the kernel.
func (p *proxyUnderTest) settle() error {
	if p.running != nil {
		return p.running.settle()
	}
	p.skipExplain = false
	p.barrier.insert(p.store)
	return p.barrier.wait()
}

// barrier detects when everything that was put into a store is in the kernel: it adds a Service
// after it, and waits until that one is applied.
type barrier struct {
	mu       sync.Mutex
	inserted uint16
	seen     chan uint16
}

func newBarrier() *barrier { return &barrier{seen: make(chan uint16, 64)} }

func (b *barrier) name() cluster.Name { return cluster.Name{Namespace: "conformance", Name: "barrier"} }

func (b *barrier) insert(store *cluster.Store) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inserted++
	store.SetService(&cluster.Service{
		Name: b.name(),
		ClusterIPs: []netip.Addr{
			netip.MustParseAddr("172.30.255.254"), netip.MustParseAddr("fd00:172:30:255::254"),
		},
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: b.inserted}},
	})
}

func (b *barrier) wait() error {
	deadline := time.After(changeTimeout)
	for {
		select {
		case port := <-b.seen:
			if port == b.inserted {
				return nil
			}
		case <-deadline:
			return fmt.Errorf("the change was not written within %v", changeTimeout)
		}
	}
}

// Applied implements proxy.Follower.
func (b *barrier) Applied(c route.Change) {
	for _, t := range c.Touched {
		if t.Name == b.name() && t.New != nil && len(t.New.Ports) > 0 {
			b.seen <- t.New.Ports[0].Frontends[0].Port
		}
	}
}

type testLog struct{ t testing.TB }

func (l testLog) Write(line []byte) (int, error) {
	l.t.Logf("%s", line)
	return len(line), nil
}
