package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The methods in this file count the requests of clients of the API server (kube.Meter). A name that is not in
// metrics.txt counts nothing.

// Count adds one to a counter.
func (m *Metrics) Count(name string, labels ...string) {
	if v, ok := m.families[name].(*prometheus.CounterVec); ok {
		v.WithLabelValues(labels...).Inc()
	}
}

// Observe adds a value to a histogram.
func (m *Metrics) Observe(name string, value float64, labels ...string) {
	if v, ok := m.families[name].(*prometheus.HistogramVec); ok {
		v.WithLabelValues(labels...).Observe(value)
	}
}

// Set sets a gauge.
func (m *Metrics) Set(name string, value float64) {
	if v, ok := m.families[name].(*prometheus.GaugeVec); ok {
		v.WithLabelValues().Set(value)
	}
}

// Expires sets when the certificate of this client expires; nil: never.
func (m *Metrics) Expires(at *time.Time) { m.expiry.Store(at) }
