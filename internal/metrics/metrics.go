// Package metrics has all metrics: those that dashboards made for kube-proxy read
// (kubeproxy_*, rest_client_*, kubernetes_*), and Sluice's own (sluice_*). There is no
// series for each Service, so that their number does not grow with the cluster.
package metrics

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Options do not change while the process lives.
type Options struct {
	Mode    string // the data plane
	Reason  string // why this mode
	Version string // of Sluice

	// Families are the enabled ones, that of the cluster's primary addresses first.
	Families []route.Family

	// PartialSyncs adds the metrics of full and of partial syncs, and Plane those that
	// this data plane alone has, a family each.
	PartialSyncs bool
	Plane        []prometheus.Collector

	Gates   []Gate
	Started time.Time // changes before it are not counted as latency
}

// Gate is a feature gate.
type Gate struct {
	Name    string
	Stage   string // "ALPHA", "BETA", "DEPRECATED"; empty: generally available
	Enabled bool
}

// Metrics counts. All methods are safe for concurrent use.
type Metrics struct {
	opt      Options
	registry *prometheus.Registry
	slis     *prometheus.Registry

	readings atomic.Pointer[Readings]
	queued   atomic.Int64 // when the last change came in, in ns since 1970
	expiry   atomic.Pointer[time.Time]
	families map[string]prometheus.Collector

	vectors
}

// vectors are updated by events, as opposed to Readings.
type vectors struct {
	synced, full, partial, programming *prometheus.HistogramVec
	healthz, livez                     *prometheus.CounterVec
	last                               *prometheus.GaugeVec

	steps, latency                 *prometheus.HistogramVec
	failures, comparisons, repairs *prometheus.CounterVec
	rejected                       *prometheus.CounterVec
	adopted, refused               *prometheus.GaugeVec
	reloaded, build, mode          *prometheus.GaugeVec

	kubernetes, gates, healthcheck, started    *prometheus.GaugeVec
	registered, hidden, disabled, healthchecks *prometheus.CounterVec
}

// New makes all families, in a registry of their own.
func New(o Options) *Metrics {
	m := &Metrics{opt: o, registry: prometheus.NewRegistry(), slis: prometheus.NewRegistry(), families: map[string]prometheus.Collector{}}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.registry.MustRegister(o.Plane...)
	n := m.register(m.registry, m.table()) + len(o.Plane)
	m.register(m.slis, m.sliTable())
	m.queued.Store(o.Started.UnixNano())
	m.constants(n)
	return m
}

// Handler serves /metrics, as text, OpenMetrics or protobuf as the client asks.
func (m *Metrics) Handler() http.Handler { return serve(m.registry) }
