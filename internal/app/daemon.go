package app

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/eject/watch"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/handover"
	"github.com/sluice-proxy/sluice/internal/handover/listen"
	"github.com/sluice-proxy/sluice/internal/health"
	serviceports "github.com/sluice-proxy/sluice/internal/health/nodeport"
	"github.com/sluice-proxy/sluice/internal/host"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/reload"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/source/kube"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/traffic"
	"github.com/sluice-proxy/sluice/internal/web"
)

// daemon is a Node with everything that works beside the rules: health, metrics, Events, the control socket, settings
// of the host, the reload of the configuration file, and the take-over from kube-proxy.
type daemon struct {
	o        Options
	started  time.Time
	before   carried       // from the previous run of the program
	listen   *listen.Ports // of all servers
	plane    *plane.Opened
	families []route.Family

	lock      lock
	held      *admin.Server // nil if the kernel has no lock; then there is no control socket
	store     *cluster.Store
	source    statefulSource
	node      *Node
	events    *kube.Recorder // nil: there is no API server
	metrics   *metrics.Metrics
	sizes     *sizes.Follower
	history   *inspect.History
	problems  *event.Digest
	ejections *event.Digest
	health    *health.Tracker
	ports     *serviceports.Follower
	table     *conntrack.Table // nil: this system has none
	ejection  *watch.Part      // nil: there is no table
	host      *host.Host
	takeover  *takeover.Controller
	reload    *reload.Reloader
	inspect   *inspect.Inspector
	drains    *drain.Waits    // nil: there is no table
	flows     *traffic.Lister // nil: there is no table, or it has no connections to Services
	meter     *traffic.Meter

	healthz, diagnostics, draining *web.Server

	unsaved  atomic.Bool // that ejections cannot be saved was logged
	replaced atomic.Bool // a handover has begun

	inForce     chan struct{} // closed when everything was in the kernel once
	inForceOnce func()
}

// newDaemon assembles everything. First it acquires the lock of this network namespace: if
// another daemon holds it, newDaemon changes nothing.
func newDaemon(ctx context.Context, o Options) (*daemon, error) {
	d := &daemon{
		o: o, started: time.Now(), lock: newLock(o.control(), o.Log),
		store: cluster.NewStore(), history: inspect.NewHistory(), sizes: sizes.New(),
		host:    host.New(host.Options{NetNS: o.NetNS}),
		inForce: make(chan struct{}),
	}
	d.problems = o.digest(d.record)
	d.inForceOnce = sync.OnceFunc(func() { close(d.inForce) })
	if d.o.Before == nil {
		d.o.Before = &handover.Handover{}
	}
	if err := d.o.Before.Get(carriedName, &d.before); err != nil {
		return nil, err
	}
	d.listen = listen.NewPorts(listen.Opener{NetNS: o.NetNS}, d.o.Before.Files)
	if err := d.takeLock(ctx); err != nil {
		return nil, err
	}
	if err := d.assemble(ctx); err != nil {
		release(d.held)
		return nil, err
	}
	return d, nil
}

// assemble makes the parts, each after those that it needs.
func (d *daemon) assemble(ctx context.Context) error {
	o := d.o
	var err error
	if err = d.openPlane(ctx); err != nil {
		return err
	}
	d.sizes.Hashed = o.kind().Facts.Hashes()
	d.metrics = metrics.New(metrics.Options{
		Mode: d.mode().Name, Configured: o.Config.Mode, Reason: o.Reason, Version: o.Version, Families: d.families,
		PartialSyncs: o.kind().PartialSyncs, Plane: d.plane.Metrics(), Gates: o.Config.FeatureGates, Started: d.started,
	})
	if err = d.openSource(); err != nil {
		return err
	}
	d.health = health.New(health.Options{
		Store: d.store, Families: d.families, SyncPeriod: o.Config.SyncPeriod, Before: d.before.Health,
		Waiting: d.plane.Waiting,
		Contest: func() proxy.Contest { return d.node.Loop().Contest() },
	})
	share := budget(o.Log)
	d.ports = serviceports.New(serviceports.Options{
		Listen: d.listen.Listen, Live: d.health.Serving, MaxConns: share.PortClients, MaxListeners: share.Ports,
		Before: d.before.Ports,
		Failed: func(f serviceports.Failure) {
			o.Log.Warn("Cannot open the health check port of a Service, retrying", "service", f.Service.String(), "address",
				f.At.String(), "error", f.Err)
			d.record(event.HealthPortFailed(f.Service.Namespace, f.Service.Name, f))
		},
		Opened: func(service cluster.Name, port uint16) {
			o.Log.Info("The health check port of a Service is open now", "service", service.String(), "port", port)
		},
	})
	if d.table, err = conntrack.Open(o.NetNS); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	d.assembleEjection()
	d.assembleNode()
	other := o.takeover()
	other.Ours, other.Others = mechanisms(d.plane.KubeProxyRules), leftovers(o)
	other.Record = func(note string) { d.record(event.KubeProxyRuns(note)) }
	other.RecordLeft = func(note string) { d.record(event.KubeProxyRulesLeft(note)) }
	d.takeover = takeover.New(other, d.inForce)
	d.reload = d.newReloader()
	d.assembleDrains()
	d.openTraffic()
	asked := inspect.Options{
		Loop: d.node.Loop(), Store: d.store, History: d.history, Sizes: d.sizes.Sizes, Status: d.status, Diff: d.diff,
		Plan: d.plan, Settings: inspect.Settings{Configuration: o.Config.Effective(), Flags: o.Flags}, Opened: *d.plane,
		Selector: convert.Selector,
		Local:    address.New(address.Options{NetNS: o.NetNS}).List, Plane: d.facts(),
		Meter: d.meter, Drain: d.drains,
	}
	if d.flows != nil {
		asked.Flows = d.flows
	}
	d.inspect = inspect.New(asked)
	d.assembleServers()
	d.metrics.Read(d.readings)
	return nil
}

func (d *daemon) assembleNode() {
	policy := d.o.policy(d.families)
	policy.PreserveDestination = d.plane.PreserveDestination
	opt := NodeOptions{Source: d.source, Opened: d.plane, Policy: policy, NetNS: d.o.NetNS, Written: d.o.Written}
	opt.Options = proxy.Options{
		Store: d.store, Log: d.o.Log, MinPeriod: d.o.Config.MinSyncPeriod,
		Report: d.report, Observe: d.observe, Contested: d.contested,
		Followers: []proxy.Follower{newChanges(d.o.Log, d.history.Record), d.ports, d.sizes},
	}
	if len(d.o.Config.Manifests) > 0 {
		opt.StandIn = d.o.Config.NodeName
	}
	if d.ejection != nil {
		opt.Followers = append(opt.Followers, d.ejection)
	}
	d.node = NewNode(opt)
}

// report passes problems of objects to the log, the metrics, the Events and the answers to commands.
func (d *daemon) report(problems []route.Problem) {
	d.problems.Report(problems)
	d.history.Report(problems)
	d.metrics.Rejected(problems)
}

// observe passes the result of an attempt to write to all parts that need it.
func (d *daemon) observe(s proxy.Sync) {
	d.metrics.Synced(s)
	d.health.Observe(s)
	d.history.Observe(s)
	if s.Err == nil {
		d.inForceOnce()
	}
	if s.Err != nil && d.plane.WriteFailed != nil {
		d.plane.WriteFailed()
	}
	d.o.observe(s)
}

func (d *daemon) contested(c proxy.Contest) {
	e := event.RulesUncontested()
	if c.Active() {
		e = event.RulesContested(c.String(), d.o.kind().Owned)
	}
	d.record(e)
}

// run runs all parts until the context ends or one of them returns. It answers commands
// until no more rules are written.
func (d *daemon) run(ctx context.Context) error {
	if d.table != nil {
		defer func() { _ = d.table.Close() }() // nothing was written
	}
	if !d.o.Config.Unprivileged() {
		if err := d.host.Configure(d.o.Config); err != nil {
			d.o.Log.Warn("Cannot apply all host settings; Services are still served", "error", err)
		}
	}
	d.record(event.Starting())
	if m := d.mode(); m.Configured != "" {
		d.record(event.ModeFallback(m.Configured, m.Name, m.Fallback))
	}
	group, ctx := errgroup.WithContext(ctx)
	answering, stop := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return d.answer(answering) })
	group.Go(func() error {
		defer stop()
		return d.work(ctx)
	})
	return group.Wait()
}

// work runs all parts except the control socket.
func (d *daemon) work(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	parts := []func(context.Context) error{
		d.node.Run, d.health.Run, d.ports.Run,
		d.listen.Run, d.healthz.Run, d.diagnostics.Run, d.draining.Run, d.reload.Run, d.onRequest,
		d.problems.Run,
	}
	if !d.o.Config.Unprivileged() {
		parts = append(parts, d.takeover.Run)
	}
	if d.ejection != nil {
		parts = append(parts, d.ejection.Run, d.ejections.Run)
	}
	if d.events != nil {
		parts = append(parts, d.events.Run)
	}
	if d.flows != nil {
		parts = append(parts, d.flows.Run)
	}
	for _, part := range parts {
		group.Go(func() error { return part(ctx) })
	}
	return group.Wait()
}

// answer answers commands until the context ends, then releases the lock. Without a place for the socket it only holds
// the lock.
func (d *daemon) answer(ctx context.Context) error {
	if d.held == nil {
		return nil
	}
	err := d.held.Serve(ctx, d.inspect.Handler())
	if !errors.Is(err, admin.ErrNoSocket) {
		return err
	}
	d.o.Log.Warn("The commands sluice get, status, diff and explain cannot connect; "+
		"make the directory of the socket writable for this user only, in a pod with a volume (emptyDir)", "error", err)
	<-ctx.Done()
	return d.held.Close()
}

// onRequest reads the configuration and compares everything on each signal.
func (d *daemon) onRequest(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.o.Compare:
			d.reload.Check(ctx)
			if err := d.node.Loop().Compare(ctx, proxy.Request); err != nil {
				return nil // the context ended
			}
		}
	}
}

// takeover returns the options by which every search for kube-proxy begins.
func (o Options) takeover() takeover.Options {
	return takeover.Options{
		NetNS: o.NetNS, Log: o.Log, Dial: listen.Opener{NetNS: o.NetNS}.Dial, Address: kubeProxyAddress(o.Config),
		IgnoreKubeProxy: o.Config.IgnoreKubeProxy,
	}
}

// kubeProxyAddress returns where a kube-proxy with the same configuration serves its diagnostics; "": it serves none.
func kubeProxyAddress(c *config.Config) string {
	at := c.Metrics
	if at.IsValid() && at.Addr().IsUnspecified() {
		local := netip.IPv6Loopback()
		if at.Addr().Is4() {
			local = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		at = netip.AddrPortFrom(local, at.Port())
	}
	if !at.IsValid() {
		return ""
	}
	return at.String()
}
