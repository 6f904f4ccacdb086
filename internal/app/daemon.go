package app

import (
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/event"
	serviceports "github.com/sluice-proxy/sluice/internal/follow/health"
	"github.com/sluice-proxy/sluice/internal/follow/hidden"
	"github.com/sluice-proxy/sluice/internal/follow/sizes"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/host"
	"github.com/sluice-proxy/sluice/internal/inspect"
	"github.com/sluice-proxy/sluice/internal/kernel/address"
	"github.com/sluice-proxy/sluice/internal/kernel/listen"
	"github.com/sluice-proxy/sluice/internal/kernel/socket"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/reload"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/web"
)

// daemon is a Node with all that is beside the rules: health, metrics, Events,
// answers to questions, settings of the host, a configuration that may change,
// and another proxy's rules to take over.
type daemon struct {
	o        Options
	started  time.Time
	kernel   *opened
	families []route.Family

	place    place
	held     *control.Server // nil if the kernel has no lock; then the daemon cannot be asked
	store    *cluster.Store
	source   stated
	node     *Node
	events   recorder
	metrics  *metrics.Metrics
	sizes    *sizes.Follower
	history  *inspect.History
	logged   *event.Digest
	health   *health.Tracker
	contests *contestReporter
	ports    *serviceports.Follower
	hidden   *hidden.Follower
	host     *host.Host
	keeper   *takeover.Keeper
	reload   *reload.Reloader
	inspect  *inspect.Inspector

	warnings *event.Digest

	healthz, diagnostics *web.Server

	unset string // settings of the host that could not be made, as told

	inForce     chan struct{} // closed when everything was in the kernel once
	inForceOnce func()
}

// newDaemon assembles everything. It takes the place of the daemon of this
// network namespace first: where there is one already nothing is touched.
func newDaemon(ctx context.Context, o Options) (*daemon, error) {
	d := &daemon{
		o: o, started: time.Now(), place: placeIn(o.NetNS, o.Log),
		store: cluster.NewStore(), history: inspect.NewHistory(), sizes: sizes.New(), host: host.New(host.Options{NetNS: o.NetNS}),
		inForce: make(chan struct{}), logged: o.logged(),
	}
	d.warnings = warnings(func(e event.Event) { d.events.Record(e) })
	d.inForceOnce = sync.OnceFunc(func() { close(d.inForce) })
	var err error
	if d.held, err = d.place.takeAfter(ctx, toDie); err != nil {
		return nil, err
	}
	if err := d.assemble(ctx); err != nil {
		leave(d.held)
		return nil, err
	}
	return d, nil
}

// assemble makes the parts, those first that others need.
func (d *daemon) assemble(ctx context.Context) error {
	o := d.o
	var err error
	if d.kernel, d.families, err = openPlane(ctx, o); err != nil {
		return err
	}
	d.metrics = metrics.New(metrics.Options{
		Mode: o.Config.Mode, Reason: o.Reason, Version: o.Version, Families: d.families,
		Gates: gates(o.Config), Started: d.started,
	})
	if d.source, d.events, err = d.openSource(); err != nil {
		return err
	}
	d.health = health.New(health.Options{Store: d.store, Families: d.families, SyncPeriod: o.Config.SyncPeriod})
	d.contests = newContestReporter(d.health.Contest, d.events, o.Log)
	door, share := listen.Door{NetNS: o.NetNS}, budget(o.Log)
	d.ports = serviceports.New(serviceports.Options{
		Listen: door.Listen, Live: d.health.Serving, MaxConns: share.PortClients, MaxListeners: share.Ports,
		Failed: func(f serviceports.Failure) {
			o.Log.Warn("Cannot open the health check port of a Service, retrying", "service", f.Service.String(), "address", f.At.String(), "error", f.Err)
			d.events.Record(event.HealthPortFailed(f.Service.Namespace, f.Service.Name, f))
		},
		Opened: func(service cluster.Name, port uint16) {
			o.Log.Info("The health check port of a Service is open now", "service", service.String(), "port", port)
		},
	})
	d.assembleHidden()
	if err := d.assembleNode(); err != nil {
		return err
	}
	d.keeper = takeover.New(takeover.Options{
		NetNS: o.NetNS, Log: o.Log, Ours: d.kernel.ours, Others: leftovers(o),
		NodePorts: d.nodePorts, Dial: door.Dial, Address: rivalAddress(o.Config),
		IgnoreKubeProxy: o.Config.IgnoreKubeProxy,
		Record:          func(note string) { d.events.Record(event.KubeProxyRuns(note)) },
		RecordLeft:      func(note string) { d.events.Record(event.KubeProxyRulesLeft(note)) },
	}, d.inForce)
	d.reload = reload.New(reload.Options{
		File: o.File, Config: o.Config, Load: o.Load, Apply: d.apply, Log: o.Log, Changed: d.reloaded,
	})
	d.inspect = inspect.New(inspect.Options{
		Loop: d.node.Loop(), Store: d.store, History: d.history, Sizes: d.sizes.Sizes, Status: d.status, Diff: d.diff, Explain: d.explainer(),
	})
	d.assembleServers(door)
	d.metrics.Read(d.readings())
	return nil
}

func (d *daemon) assembleHidden() {
	d.hidden = hidden.New(hidden.Options{
		Listeners: socket.New(socket.Options{NetNS: d.o.NetNS}).Listeners,
		Local:     address.New(address.Options{NetNS: d.o.NetNS, Except: takeover.ServiceDevice}).List,
		Report:    d.report,
		Failed: func(err error) {
			d.o.Log.Warn("Cannot tell which sockets of this node are hidden by Services", "error", err)
		},
	})
}

func (d *daemon) assembleNode() error {
	opt := NodeOptions{
		Store: d.store, Source: d.source, Plane: d.kernel.plane(d.o.Config, d.metrics), Policy: kindOf(d.o.Config.Mode).limited(Policy(d.o.Config, d.families)), Load: d.kernel.load,
		NetNS: d.o.NetNS, Tables: d.kernel.tables, Log: d.o.Log, MinPeriod: d.o.Config.MinSyncPeriod,
		Report: d.report, Observe: d.observe, Edited: d.edited, Written: d.o.Written, Looked: d.metrics.Looked,
		Followers: []proxy.Follower{ignored{d.o.Log, slog.LevelDebug}, d.ports, d.sizes, d.hidden},
	}
	if len(d.o.Config.Manifests) > 0 {
		opt.StandIn = d.o.Config.NodeName
	}
	var err error
	d.node, err = NewNode(opt)
	return err
}

// report tells of problems with objects, wherever people look.
func (d *daemon) report(problems []route.Problem) {
	d.logged.Report(problems)
	d.history.Report(problems)
	d.metrics.Rejected(problems)
	d.warnings.Report(problems)
}

// observe takes note of an attempt to write.
func (d *daemon) observe(s proxy.Sync) {
	d.metrics.Synced(s)
	d.health.Observe(s)
	d.history.Observe(s)
	if s.Err == nil && s.Waiting == 0 {
		d.inForceOnce()
	}
	if s.Repair() {
		d.contests.edited()
	}
	d.o.observe(s)
}

// run runs all parts until the context ends or one of them does. It gives the
// place up last, when nothing is written any more.
func (d *daemon) run(ctx context.Context) error {
	d.bring(d.o.Config)
	d.events.Record(event.Starting())
	group, ctx := errgroup.WithContext(ctx)
	asked, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return d.answer(asked) })
	group.Go(func() error {
		defer hangUp()
		return d.work(ctx)
	})
	return group.Wait()
}

// work runs all parts that make rules, or tell of them unasked.
func (d *daemon) work(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range []func(context.Context) error{
		d.node.Run, d.events.Run, d.health.Run, d.ports.Run, d.hidden.Run, d.keeper.Run,
		d.healthz.Run, d.diagnostics.Run, d.reload.Run, d.onRequest,
		d.logged.Run, d.warnings.Run, d.contests.run,
	} {
		group.Go(func() error { return part(ctx) })
	}
	return group.Wait()
}

// answer answers questions until the context ends.
func (d *daemon) answer(ctx context.Context) error {
	if d.held == nil {
		return nil
	}
	return d.held.Serve(ctx, d.identity(), d.inspect.Handler())
}

// onRequest reads the configuration and compares everything whenever somebody
// asks.
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

// bring gives the host its settings. Traffic does not wait for them.
func (d *daemon) bring(c *config.Config) {
	said := ""
	if err := d.host.Bring(c); err != nil {
		said = err.Error()
	}
	switch {
	case said == d.unset:
	case said != "":
		d.o.Log.Warn("Cannot make all settings of the host; serving goes on", "error", said)
	default:
		d.o.Log.Info("All settings of the host are made")
	}
	d.unset = said
}

// apply makes another configuration hold, as far as that is possible in a
// running process.
func (d *daemon) apply(ctx context.Context, old, c *config.Config) {
	if d.o.Logs != nil {
		d.o.Logs.Set(c.Logging)
	}
	d.health.SetSyncPeriod(c.SyncPeriod)
	d.setServers(c)
	if c.Conntrack != old.Conntrack || c.OOMScoreAdj != old.OOMScoreAdj {
		d.bring(c)
	}
	policy := Policy(c, d.families)
	if c.MinSyncPeriod == old.MinSyncPeriod && c.PollPeriod() == old.PollPeriod() && c.MasqueradeMark == old.MasqueradeMark &&
		c.Conntrack.TCPBeLiberal == old.Conntrack.TCPBeLiberal && reflect.DeepEqual(policy, Policy(old, d.families)) {
		return
	}
	_ = d.node.Loop().Replace(ctx, route.NewCompiler(kindOf(c.Mode).limited(policy)), d.kernel.plane(c, d.metrics), c.MinSyncPeriod) // fails when the context ends
}

// reloaded takes note of a configuration that was taken over or refused.
func (d *daemon) reloaded(s reload.State) { d.metrics.Reloaded(s.LoadedAt, s.Refused) }

// rivalAddress is where a kube-proxy with the same configuration answers; empty:
// it is not known, or nowhere.
func rivalAddress(c *config.Config) string {
	at := c.Metrics
	if at.IsValid() && at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(loopback(at.Addr()), at.Port())
	}
	if !at.IsValid() {
		return ""
	}
	return at.String()
}

func loopback(of netip.Addr) netip.Addr {
	if of.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

func gates(c *config.Config) []metrics.Gate {
	var list []metrics.Gate
	for name, on := range c.FeatureGates {
		list = append(list, metrics.Gate{Name: name, Enabled: on})
	}
	return list
}
