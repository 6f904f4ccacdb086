package netfilter

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/metrics/vec"
	"github.com/sluice-proxy/sluice/internal/route"
)

// staleMetrics are about the conntrack entries that a plane left behind.
type staleMetrics struct {
	families []route.Family
	took     *prometheus.HistogramVec
	ended    *prometheus.CounterVec
}

func newMetrics(families []route.Family) *staleMetrics {
	return &staleMetrics{
		families: families,
		took: vec.Desc{
			Name: "kubeproxy_conntrack_reconciler_sync_duration_seconds", Buckets: vec.Durations(), Help: "Time of one look for stale flows.",
		}.ByFamily(families).Histogram(),
		ended: vec.Desc{
			Name: "kubeproxy_conntrack_reconciler_deleted_entries_total", Help: "Stale flows that were ended.",
		}.ByFamily(families).Counter(),
	}
}

// looked counts one look for stale flows.
func (m *staleMetrics) looked(took time.Duration, ended map[route.Family]int) {
	for _, f := range m.families {
		m.took.WithLabelValues(f.String()).Observe(took.Seconds())
		m.ended.WithLabelValues(f.String()).Add(float64(ended[f]))
	}
}

func (m *staleMetrics) collectors(total func() float64) []prometheus.Collector {
	return []prometheus.Collector{m.took, m.ended, prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "sluice_conntrack_entries_removed_total", Help: "Stale flows of both families that were ended.",
	}, total)}
}
