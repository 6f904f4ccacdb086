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

	"github.com/sluice-proxy/sluice/internal/cluster"
	follow "github.com/sluice-proxy/sluice/internal/follow/conntrack"
	"github.com/sluice-proxy/sluice/internal/kernel/address"
	"github.com/sluice-proxy/sluice/internal/kernel/conntrack"
	"github.com/sluice-proxy/sluice/internal/kernel/sysctl"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/lab"
)

// patience is how long a change may take until clients see it.
const patience = 2 * time.Second

// proxyUnderTest runs the parts of the proxy for one host, as the program does.
type proxyUnderTest struct {
	t       testing.TB
	host    *lab.Host
	plane   Plane
	options route.Options

	barrier *barrier
	store   *cluster.Store
	stop    func() // nil: not running
}

func newProxy(t testing.TB, host *lab.Host, p Plane, o route.Options) *proxyUnderTest {
	return &proxyUnderTest{t: t, host: host, plane: p, options: o}
}

// options are the settings as the compiler wants them.
func options(s settings, tr translator) route.Options {
	o := route.Options{NodeName: "node-a", MasqueradeAll: s.masqueradeAll, Detector: detector(s.detector)}
	switch s.disabledFamily {
	case "IPv4":
		o.Families = []route.Family{route.IPv6}
	case "IPv6":
		o.Families = []route.Family{route.IPv4}
	}
	if s.nodePorts == nil {
		o.NodePorts.Primary = true
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

// start runs the proxy until stop, or until the test ends, and waits until the
// kernel does what the objects say.
func (p *proxyUnderTest) start(objects *objects) error {
	table, err := conntrack.Open(conntrack.Options{NetNS: p.host.NetNSFD()})
	if err != nil {
		return fmt.Errorf("open conntrack: %w", err)
	}
	p.store = cluster.NewStore()
	told, listed := p.store.Feed(), p.store.Feed()
	flows := follow.New(follow.Options{Table: table})
	watcher := address.New(address.Options{NetNS: p.host.NetNSFD()})
	p.barrier = newBarrier()
	localnet := routeLocalnet{sysctl.New(sysctl.Options{NetNS: p.host.NetNSFD()})}
	loop := proxy.New(proxy.Options{
		Store: p.store, Compiler: route.NewCompiler(p.options), Plane: p.plane.Start(p.t, p.host),
		Followers: []proxy.Follower{flows, localnet, p.barrier},
		Log:       slog.New(slog.NewTextHandler(testLog{p.t}, nil)),
	})
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	run := func(f func(context.Context) error) {
		running.Go(func() {
			if err := f(ctx); err != nil {
				p.t.Errorf("a part of the proxy ended: %v", err)
			}
		})
	}
	run(loop.Run)
	run(flows.Run)
	run(func(ctx context.Context) error {
		return watcher.Run(ctx, func(addrs []netip.Addr) {
			p.store.SetLocalAddresses(addrs)
			flows.SetLocal(addrs)
			listed()
		})
	})
	p.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = table.Close() // nothing is left to lose
		objects.store = nil
	})
	p.t.Cleanup(p.stop)
	objects.feed(p.store)
	p.barrier.raise(p.store)
	told()
	return p.barrier.wait()
}

// settle waits until the kernel does what the store says.
func (p *proxyUnderTest) settle() error {
	p.barrier.raise(p.store)
	return p.barrier.wait()
}

// routeLocalnet lets connections to loopback addresses leave the host where they
// serve NodePorts.
type routeLocalnet struct{ sysctl *sysctl.Sysctl }

func (r routeLocalnet) Applied(c route.Change) {
	for _, a := range c.Table.Host.NodePorts.Addrs {
		if a.IsLoopback() {
			_ = r.sysctl.SetInt("net/ipv4/conf/all/route_localnet", 1) // clients see when it failed
			return
		}
	}
}

// barrier tells when everything that was put into a store is in the kernel: it
// puts a Service in after it, and waits for that.
type barrier struct {
	mu     sync.Mutex
	raised uint16
	seen   chan uint16
}

func newBarrier() *barrier { return &barrier{seen: make(chan uint16, 64)} }

func (b *barrier) name() cluster.Name { return cluster.Name{Namespace: "conformance", Name: "barrier"} }

func (b *barrier) raise(store *cluster.Store) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.raised++
	store.SetService(&cluster.Service{
		Name: b.name(),
		ClusterIPs: []netip.Addr{
			netip.MustParseAddr("172.30.255.254"), netip.MustParseAddr("fd00:172:30:255::254"),
		},
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: b.raised}},
	})
}

func (b *barrier) wait() error {
	deadline := time.After(patience)
	for {
		select {
		case port := <-b.seen:
			if port == b.raised {
				return nil
			}
		case <-deadline:
			return fmt.Errorf("the change was not written within %v", patience)
		}
	}
}

// Applied implements proxy.Follower.
func (b *barrier) Applied(c route.Change) {
	for _, t := range c.Touched {
		if t.Name == b.name() && t.New != nil && len(t.New.Ports) > 0 {
			b.seen <- t.New.Ports[0].Fronts[0].Port
		}
	}
}

// testLog writes a log to a test.
type testLog struct{ t testing.TB }

func (l testLog) Write(line []byte) (int, error) {
	l.t.Logf("%s", line)
	return len(line), nil
}
