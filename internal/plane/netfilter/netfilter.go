// Package netfilter provides the parts of every plane that translates addresses with netfilter: they delete stale
// conntrack entries, let NodePorts be reached on 127.0.0.1, and report sockets that Services hide.
package netfilter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	kernel "github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
	"github.com/sluice-proxy/sluice/internal/metrics/vec"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/netfilter/conntrack"
	"github.com/sluice-proxy/sluice/internal/plane/netfilter/localnet"
	"github.com/sluice-proxy/sluice/internal/plane/netfilter/shadowed"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Parts returns the parts of a plane. tables is the Conn through which the plane writes
// nf_tables, so that neither reports edits made through the other; nil: it writes none.
func Parts(s plane.Setup, tables *nft.Conn) ([]plane.Part, error) {
	flows, err := kernel.Open(s.NetNS)
	if err != nil {
		return nil, err
	}
	loopback, err := loopback(s, tables)
	if err != nil {
		return nil, errors.Join(err, flows.Close())
	}
	parts := []plane.Part{staleFlows(s, flows), loopback}
	if s.Report != nil {
		parts = append(parts, shadowedSockets(s))
	}
	return parts, nil
}

// staleFlows deletes conntrack entries that a change made stale.
func staleFlows(s plane.Setup, flows *kernel.Table) plane.Part {
	scanned, metrics := countScans(s.Families)
	f := conntrack.New(conntrack.Options{Table: flows, Scanned: scanned, Report: func(err error) {
		s.Log.Warn("Cannot end stale flows, retrying", "error", err)
	}})
	return plane.Part{
		Follower: f, Run: f.Run, SetLocal: f.SetLocal, Close: flows.Close,
		Metrics: append(metrics, load{flows.Load}),
	}
}

// load is the metrics of the conntrack table, which a scrape reads. If they cannot be read, they are missing.
type load struct{ read func() (kernel.Load, error) }

// Describe implements prometheus.Collector.
func (l load) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(l, ch) }

// Collect implements prometheus.Collector.
func (l load) Collect(ch chan<- prometheus.Metric) {
	now, err := l.read()
	if err != nil {
		return
	}
	for _, m := range []struct {
		name, help string
		kind       prometheus.ValueType
		value      float64
	}{
		{
			"sluice_conntrack_entries", "Entries of connections and flows in the conntrack table.",
			prometheus.GaugeValue, float64(now.Entries),
		},
		{
			"sluice_conntrack_entries_limit", "The limit of conntrack entries (net.netfilter.nf_conntrack_max); 0: none.",
			prometheus.GaugeValue, float64(now.Limit),
		},
		{
			"sluice_conntrack_insert_failed_total", "Packets that were lost because conntrack could not add their flow.",
			prometheus.CounterValue, float64(now.InsertFailed),
		},
		{
			"sluice_conntrack_early_dropped_total", "Entries of connections that conntrack evicted because the table was full.",
			prometheus.CounterValue, float64(now.EarlyDropped),
		},
	} {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(m.name, m.help, nil, nil), m.kind, m.value)
	}
}

// countScans returns the metrics of scans for stale conntrack entries, and a function that adds one scan.
func countScans(families []route.Family) (scanned func(time.Duration, map[route.Family]int), m []prometheus.Collector) {
	duration := vec.Desc{
		Name: "kubeproxy_conntrack_reconciler_sync_duration_seconds", Buckets: vec.Durations(),
		Help: "Duration of one scan for stale conntrack entries.",
	}.ByFamily(families).Histogram()
	deleted := vec.Desc{
		Name: "kubeproxy_conntrack_reconciler_deleted_entries_total", Help: "Stale conntrack entries that were deleted.",
	}.ByFamily(families).Counter()
	return func(took time.Duration, ended map[route.Family]int) {
		for _, f := range families {
			duration.WithLabelValues(f.String()).Observe(took.Seconds())
			deleted.WithLabelValues(f.String()).Add(float64(ended[f]))
		}
	}, []prometheus.Collector{duration, deleted}
}

// loopback lets 127.0.0.0/8 be routed where NodePorts need it, and drops packets of neighbours to it.
func loopback(s plane.Setup, tables *nft.Conn) (plane.Part, error) {
	rules, err := nft.Open(nft.Options{NetNS: s.NetNS, Beside: tables})
	if err != nil {
		return plane.Part{}, err
	}
	f := localnetFollower(s, rules)
	return plane.Part{Follower: f, Run: f.Run, Close: rules.Close}, nil
}

func localnetFollower(s plane.Setup, rules *nft.Conn) *localnet.Follower {
	return localnet.New(localnet.Options{
		Sysctl: sysctl.New(sysctl.Options{NetNS: s.NetNS}), Kernel: rules,
		Report: func(err error) { s.Log.Warn("Loopback addresses", "error", err) },
	})
}

// shadowedSockets reports sockets of this node that Services shadow.
func shadowedSockets(s plane.Setup) plane.Part {
	f := shadowed.New(shadowed.Options{
		Listeners: sockdiag.Node{NetNS: s.NetNS}.Listeners, Local: s.Local, Report: s.Report,
		Failed: func(err error) {
			s.Log.Warn("Cannot find the sockets of this node that Services hide", "error", err)
		},
	})
	return plane.Part{Follower: f, Run: f.Run}
}

// Prepare lets 127.0.0.0/8 be routed, guarded, for a later process that may not do that
// itself. If its NodePorts do not need that, it guards what is routed already.
func Prepare(ctx context.Context, s plane.Setup) error {
	err := withLocalnet(s, func(f *localnet.Follower) error {
		if s.Config.NodePorts.ServesLoopback() {
			return f.Prepare(ctx)
		}
		return f.Guard(ctx)
	})
	if err != nil {
		return fmt.Errorf("loopback addresses: %w", err)
	}
	return nil
}

// Cleanup undoes what Prepare and the parts did to the host. It returns a line for each
// thing that it removed, or that stays.
func Cleanup(ctx context.Context, s plane.Setup) (lines []string, err error) {
	err = withLocalnet(s, func(f *localnet.Follower) (err error) {
		lines, err = f.Remove(ctx)
		return err
	})
	if err != nil {
		return lines, fmt.Errorf("stop routing loopback addresses: %w", err)
	}
	return lines, nil
}

// withLocalnet calls use with a Follower that is not run.
func withLocalnet(s plane.Setup, use func(*localnet.Follower) error) error {
	rules, err := nft.Open(nft.Options{NetNS: s.NetNS})
	if err != nil {
		return err
	}
	defer func() { _ = rules.Close() }() // all is answered
	return use(localnetFollower(s, rules))
}
