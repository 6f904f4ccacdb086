package iptables

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/nfacct"
	"github.com/sluice-proxy/sluice/internal/metrics/vec"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// countWrites returns the metrics that kube-proxy has in this mode only, and a function for Options.Wrote.
func countWrites(families []route.Family) (wrote func(Write), metrics []prometheus.Collector) {
	byTable := func(name, help string) *prometheus.GaugeVec {
		return vec.Desc{
			Name: name, Help: help, Labels: []string{"table", vec.FamilyLabel},
			Series: vec.Each([]string{filter.String(), nat.String()}, text.Strings(families)),
		}.Gauge()
	}
	byFamily := func(name, help string) *prometheus.CounterVec {
		return vec.Desc{Name: name, Help: help}.ByFamily(families).Counter()
	}
	rules := byTable("kubeproxy_sync_proxy_rules_iptables_total", "Rules of Sluice in a table.")
	sent := byTable("kubeproxy_sync_proxy_rules_iptables_last", "Rules that the last write sent to the kernel.")
	failed := byFamily("kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
		"Calls of iptables-restore that failed.")
	failedPartial := byFamily("kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
		"Calls of iptables-restore that failed, and would have written changes only.")
	return func(w Write) {
		ip := w.Family.String()
		if w.Err != nil {
			failed.WithLabelValues(ip).Inc()
		}
		if w.Err != nil && !w.Full {
			failedPartial.WithLabelValues(ip).Inc()
		}
		if _, refused := errors.AsType[plane.Refused](w.Err); w.Err != nil && !refused {
			return
		}
		for _, t := range []table{filter, nat} {
			rules.WithLabelValues(t.String(), ip).Set(float64(w.Rules[t]))
			sent.WithLabelValues(t.String(), ip).Set(float64(w.Written[t]))
		}
	}, []prometheus.Collector{rules, sent, failed, failedPartial}
}

// verbose is the level of messages about optional features that are missing: -v=2.
const verbose = slog.Level(-2)

// accounting returns the objects that rules count with; nil if the kernel or the programs
// do not support them. The kernel has the match in another module than the objects.
func accounting(ctx context.Context, s plane.Setup, tools *iptables.Tools) *nfacct.Objects {
	objects := nfacct.New(s.NetNS)
	err := objects.Available(ctx)
	for _, ip := range s.Families {
		if err == nil {
			input := "*filter\n-A FORWARD -m nfacct --nfacct-name " + InvalidDropped + "\nCOMMIT\n"
			err = tools.Test(ctx, iptables.Family(ip), []byte(input))
		}
	}
	if err != nil {
		s.Log.Log(ctx, verbose, "Packets are not counted by rules", "why", err)
		return nil
	}
	return objects
}

// packetCounts are the metrics of the packets that rules count.
func packetCounts(objects *nfacct.Objects) []prometheus.Collector {
	count := func(object, metric, help string) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: metric, Help: help}, func() float64 {
			n, err := objects.Read(context.Background(), object) // returns at once
			if err != nil {
				return 0 // another program has deleted the object; a comparison creates it again
			}
			return float64(n)
		})
	}
	return []prometheus.Collector{
		count(InvalidDropped, "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
			"Forwarded packets that were dropped because conntrack marked them invalid. Only where the kernel has nfacct."),
		count(LoopbackNodePorts, "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
			"Connections to NodePorts at 127.0.0.0/8. Only where the kernel has nfacct."),
	}
}
