package metrics

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Client counts what a client of the API server does. Families go by their
// names; one that is in no table counts nothing.
type Client struct {
	families map[string]prometheus.Collector
	expiry   *atomic.Pointer[time.Time]
}

// Client returns the counters of requests to the API server.
func (m *Metrics) Client() Client { return Client{m.families, &m.expiry} }

// Count adds one to a counter.
func (c Client) Count(name string, labels ...string) {
	if v, ok := c.families[name].(*prometheus.CounterVec); ok {
		v.WithLabelValues(labels...).Inc()
	}
}

// Observe puts a value into a histogram.
func (c Client) Observe(name string, value float64, labels ...string) {
	if v, ok := c.families[name].(*prometheus.HistogramVec); ok {
		v.WithLabelValues(labels...).Observe(value)
	}
}

// Set sets a gauge.
func (c Client) Set(name string, value float64) {
	if v, ok := c.families[name].(*prometheus.GaugeVec); ok {
		v.WithLabelValues().Set(value)
	}
}

// Expires sets when the certificate of this client expires; nil: never.
func (c Client) Expires(at *time.Time) { c.expiry.Store(at) }

// clientTable has the families of every client of an API server.
func (m *Metrics) clientTable() []family {
	verb, result := []string{"verb", "host"}, []string{"result"}
	waits := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	bytes := []float64{64, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
	return []family{{
		name: "rest_client_requests_total", labels: []string{"code", "method", "host"}, into: new(*prometheus.CounterVec),
		help: "Requests, by how they were answered.",
	}, {
		name: "rest_client_request_retries_total", labels: []string{"code", "verb", "host"}, into: new(*prometheus.CounterVec),
		help: "Requests that were made again, by how they were answered before.",
	}, {
		name: "rest_client_request_duration_seconds", labels: verb, buckets: waits, into: new(*prometheus.HistogramVec),
		help: "Time of requests.",
	}, {
		name: "rest_client_rate_limiter_duration_seconds", labels: verb, buckets: waits, into: new(*prometheus.HistogramVec),
		help: "Time that requests waited for their turn.",
	}, {
		name: "rest_client_request_size_bytes", labels: verb, buckets: bytes, into: new(*prometheus.HistogramVec),
		help: "Size of requests.",
	}, {
		name: "rest_client_response_size_bytes", labels: verb, buckets: bytes, into: new(*prometheus.HistogramVec),
		help: "Size of answers.",
	}, {
		name: "rest_client_exec_plugin_ttl_seconds", into: reading{gauge, m.certificateLeft},
		help: "Time for which the certificate from an exec plugin is good; +Inf: there is none.",
	}, {
		name: "rest_client_exec_plugin_certificate_rotation_age", buckets: ages(), into: new(*prometheus.HistogramVec),
		help: "Age of certificates from exec plugins when they were replaced, in seconds.",
	}, {
		name: "rest_client_exec_plugin_call_total", labels: []string{"code", "call_status"}, into: new(*prometheus.CounterVec),
		help: "Calls of exec plugins, by how they ended.",
	}, {
		name: "rest_client_transport_cache_entries", into: new(*prometheus.GaugeVec),
		help: "Transports that are kept.",
	}, {
		name: "rest_client_transport_create_calls_total", labels: result, into: new(*prometheus.CounterVec),
		help: "Transports asked for, by where they came from.",
	}, {
		name: "rest_client_transport_ca_reload_total", labels: []string{"result", "reason"}, into: new(*prometheus.CounterVec),
		help: "Certificate authorities read again, by how it ended.",
	}, {
		name: "rest_client_transport_cert_rotation_gc_calls_total", into: new(*prometheus.CounterVec),
		help: "Watches of certificates that ended with their transport.",
	}, {
		name: "rest_client_transport_cache_gc_calls_total", labels: result, into: new(*prometheus.CounterVec),
		help: "Transports that nobody uses any more, by what became of them.",
	}}
}

// ages are 10 minutes to 4 years.
func ages() []float64 {
	const minute, hour, day = 60, 3600, 86400
	return []float64{
		10 * minute, 30 * minute, hour, 4 * hour, day, 7 * day,
		30 * day, 90 * day, 180 * day, 360 * day, 1440 * day,
	}
}

// certificateLeft is infinite if there is no certificate.
func (m *Metrics) certificateLeft(_ Readings, p put) {
	if at := m.expiry.Load(); at != nil {
		p(time.Until(*at).Seconds())
		return
	}
	p(math.Inf(1))
}
