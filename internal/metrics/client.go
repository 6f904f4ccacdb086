package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Client counts the requests of a client of the API server. A name that is not in
// metrics.txt counts nothing.
type Client struct{ m *Metrics }

// Client returns the counters of requests to the API server.
func (m *Metrics) Client() Client { return Client{m} }

// Count adds one to a counter.
func (c Client) Count(name string, labels ...string) {
	if v, ok := c.m.families[name].(*prometheus.CounterVec); ok {
		v.WithLabelValues(labels...).Inc()
	}
}

// Observe adds a value to a histogram.
func (c Client) Observe(name string, value float64, labels ...string) {
	if v, ok := c.m.families[name].(*prometheus.HistogramVec); ok {
		v.WithLabelValues(labels...).Observe(value)
	}
}

// Set sets a gauge.
func (c Client) Set(name string, value float64) {
	if v, ok := c.m.families[name].(*prometheus.GaugeVec); ok {
		v.WithLabelValues().Set(value)
	}
}

// Expires sets when the certificate of this client expires; nil: never.
func (c Client) Expires(at *time.Time) { c.m.expiry.Store(at) }
