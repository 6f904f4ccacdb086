package kube

import (
	"context"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/tools/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// demoted is a slog.Handler that logs messages of libraries at the debug level: the proxy logs failures itself.
type demoted struct{ slog.Handler }

func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return d.Handler.Enabled(ctx, min(level, slog.LevelDebug))
}

// intended begins what client-go logs once for each kind about IsWatchListSemanticsUnSupported of a listing, as if it
// were a fault. To list is a choice: docs/decisions/0031-one-list-at-the-start.md.
const intended = "The client used to build this informer/reflector doesn't support WatchList semantics."

// Handle checks the level, because logr passes errors on without a call of Enabled.
func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	if !d.Enabled(ctx, r.Level) || strings.HasPrefix(r.Message, intended) {
		return nil
	}
	r.Level = min(r.Level, slog.LevelDebug)
	return d.Handler.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}

func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }

// DemoteLibraries sends the messages that client libraries log through process-wide loggers to log at the debug level.
// Call it at the start of a program, before there is a client.
func DemoteLibraries(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(demoted{log.Handler()}))
}

// contextClock is a clock whose After ends with a context: a reflector waits on it alone while a server is away.
type contextClock struct {
	clock.RealClock

	done context.Context
}

func (c contextClock) After(d time.Duration) <-chan time.Time {
	ctx, cancel := context.WithTimeout(c.done, d)
	over := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() {
		cancel()
		over <- c.Now()
	})
	return over
}

// Meter receives the measurements of API clients, under the names of metrics that all of Kubernetes uses. Label values
// come in the order of Kubernetes' labels. It is safe for concurrent use.
type Meter interface {
	Count(name string, labels ...string)
	Observe(name string, value float64, labels ...string) // seconds or bytes
	Set(name string, value float64, labels ...string)
	Expires(at *time.Time) // the certificate of an exec plugin; nil: there is none
}

// MeasureClients passes the measurements of all API clients of this process to a Meter. Call it at the start of a
// program, before there is a client; only the first call has an effect.
func MeasureClients(m Meter) {
	metrics.Register(metrics.RegisterOpts{
		ClientCertExpiry:             expiry{m},
		ClientCertRotationAge:        duration{m, "rest_client_exec_plugin_certificate_rotation_age"},
		RequestLatency:               latency{m, "rest_client_request_duration_seconds"},
		RateLimiterLatency:           latency{m, "rest_client_rate_limiter_duration_seconds"},
		RequestSize:                  size{m, "rest_client_request_size_bytes"},
		ResponseSize:                 size{m, "rest_client_response_size_bytes"},
		RequestResult:                requests{m},
		RequestRetry:                 requests{m},
		ExecPluginCalls:              calls{m},
		TransportCacheEntries:        entries{m},
		TransportCreateCalls:         result{m, "rest_client_transport_create_calls_total"},
		TransportCAReloads:           reloads{m},
		TransportCertRotationGCCalls: once{m},
		TransportCacheGCCalls:        result{m, "rest_client_transport_cache_gc_calls_total"},
	})
}

// named is a Meter with the name of a metric.
type named struct {
	m    Meter
	name string
}

// Each adapter has the methods of the interfaces whose fields it is assigned to above.
type (
	expiry   struct{ m Meter }
	requests struct{ m Meter }
	calls    struct{ m Meter }
	entries  struct{ m Meter }
	reloads  struct{ m Meter }
	once     struct{ m Meter }
	duration named
	latency  named
	size     named
	result   named
)

func (e expiry) Set(at *time.Time) { e.m.Expires(at) }

func (d duration) Observe(took time.Duration) { d.m.Observe(d.name, took.Seconds()) }

func (l latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	l.m.Observe(l.name, took.Seconds(), verb, u.Host)
}

func (s size) Observe(_ context.Context, verb, host string, bytes float64) {
	s.m.Observe(s.name, bytes, verb, host)
}

func (r requests) Increment(_ context.Context, code, method, host string) {
	r.m.Count("rest_client_requests_total", code, method, host)
}

func (r requests) IncrementRetry(_ context.Context, code, verb, host string) {
	r.m.Count("rest_client_request_retries_total", code, verb, host)
}

func (c calls) Increment(code int, status string) {
	c.m.Count("rest_client_exec_plugin_call_total", strconv.Itoa(code), status)
}

func (e entries) Observe(n int) { e.m.Set("rest_client_transport_cache_entries", float64(n)) }

func (r result) Increment(how string) { r.m.Count(r.name, how) }

func (r reloads) Increment(how, why string) {
	r.m.Count("rest_client_transport_ca_reload_total", how, why)
}

func (o once) Increment() { o.m.Count("rest_client_transport_cert_rotation_gc_calls_total") }
