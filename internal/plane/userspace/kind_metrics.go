package userspace

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
)

// family is a family of metrics with a series for each Service port.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(relay.Counts) int64
}

// collector collects the counters of all balancers, and those of the engine.
type collector struct {
	counts   func() map[route.PortID]relay.Counts
	stats    func() relay.Stats
	families []family
	refused  *prometheus.Desc
	silent   *prometheus.Desc
}

func newCollector(counts func() map[route.PortID]relay.Counts, stats func() relay.Stats) *collector {
	labels := []string{"namespace", "service", "port", "protocol", "ip_family"}
	of := func(name, help string, kind prometheus.ValueType, value func(relay.Counts) int64) family {
		return family{prometheus.NewDesc("sluice_userspace_"+name, help, labels, nil), kind, value}
	}
	return &collector{
		counts: counts, stats: stats,
		families: []family{
			of("open_connections", "Connections and UDP flows to a Service port that are open.", prometheus.GaugeValue,
				func(c relay.Counts) int64 { return c.Open }),
			of("connections_total", "Connections and UDP flows to a Service port.", prometheus.CounterValue,
				func(c relay.Counts) int64 { return c.Connections }),
			of("received_bytes_total", "Bytes that clients of a Service port sent.", prometheus.CounterValue,
				func(c relay.Counts) int64 { return c.Received }),
			of("sent_bytes_total", "Bytes that were sent to clients of a Service port.", prometheus.CounterValue,
				func(c relay.Counts) int64 { return c.Sent }),
			of("retries_total", "Endpoints that did not accept a connection, after which another one was tried.",
				prometheus.CounterValue, func(c relay.Counts) int64 { return c.Retries }),
			of("failures_total", "Connections that no endpoint accepted.", prometheus.CounterValue,
				func(c relay.Counts) int64 { return c.Failures }),
		},
		refused: prometheus.NewDesc("sluice_userspace_refused_total",
			"New connections and flows that were refused, by the limit that was reached.", []string{"reason"}, nil),
		silent: prometheus.NewDesc("sluice_userspace_unreported_refusals_total",
			"UDP datagrams that an endpoint refused, but whose client got no ICMP error: "+
				"the process lacks CAP_NET_RAW, the system is not Linux, or there were too many.",
			nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range c.families {
		out <- f.desc
	}
	out <- c.refused
	out <- c.silent
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for id, counts := range c.counts() {
		for _, f := range c.families {
			out <- prometheus.MustNewConstMetric(f.desc, f.kind, float64(f.of(counts)),
				id.Service.Namespace, id.Service.Name, id.Name, id.Protocol.String(), id.Family.String())
		}
	}
	stats := c.stats()
	out <- prometheus.MustNewConstMetric(c.silent, prometheus.CounterValue, float64(stats.Unreported))
	for reason, n := range stats.Refused {
		out <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(n), reason)
	}
}
