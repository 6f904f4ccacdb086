package netfilter

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/metrics/vec"
	"github.com/sluice-proxy/sluice/internal/route"
)

// staleMetrics are the metrics of stale conntrack entries.
type staleMetrics struct {
	families []route.Family
	duration *prometheus.HistogramVec
	ended    *prometheus.CounterVec
}

func newMetrics(families []route.Family) *staleMetrics {
	return &staleMetrics{
		families: families,
		duration: vec.Desc{
			Name: "kubeproxy_conntrack_reconciler_sync_duration_seconds", Buckets: vec.Durations(),
			Help: "Duration of one scan for stale conntrack entries.",
		}.ByFamily(families).Histogram(),
		ended: vec.Desc{
			Name: "kubeproxy_conntrack_reconciler_deleted_entries_total", Help: "Stale conntrack entries that were deleted.",
		}.ByFamily(families).Counter(),
	}
}

// scanned adds one scan.
func (m *staleMetrics) scanned(took time.Duration, ended map[route.Family]int) {
	for _, f := range m.families {
		m.duration.WithLabelValues(f.String()).Observe(took.Seconds())
		m.ended.WithLabelValues(f.String()).Add(float64(ended[f]))
	}
}

func (m *staleMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.ended}
}
