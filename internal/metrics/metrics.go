// Package metrics has all metrics: the ones that dashboards for kube-proxy read (kubeproxy_*, rest_client_*,
// kubernetes_*), and Sluice's own (sluice_*). Only the busiest Services have series, so that their number does not grow
// with the cluster.
package metrics

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/singleflight"

	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Options do not change while the process lives.
type Options struct {
	Mode       string // that serves
	Configured string // mode; another one if this host does not support it
	Reason     string // why it is configured
	Version    string // of Sluice

	// Families are the enabled families, the primary family of the cluster first.
	Families []route.Family

	// PartialSyncs adds the metrics of full and of partial syncs. Plane has the metrics of this data plane alone, one
	// family each.
	PartialSyncs bool
	Plane        []prometheus.Collector

	Gates   map[string]bool // the feature gates, and whether each is enabled
	Started time.Time       // changes before it are not counted as latency
}

// Metrics counts. All methods are safe for concurrent use.
type Metrics struct {
	opt      Options
	registry *prometheus.Registry
	slis     *prometheus.Registry

	read     atomic.Pointer[func() Readings]
	queued   atomic.Int64 // when the last change was received, in ns since 1970
	expiry   atomic.Pointer[time.Time]
	families map[string]prometheus.Collector // the families that are counted, by name
}

// New returns Metrics with a registry of its own.
func New(o Options) *Metrics {
	m := &Metrics{
		opt: o, registry: prometheus.NewRegistry(), slis: prometheus.NewRegistry(),
		families: map[string]prometheus.Collector{},
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.registry.MustRegister(o.Plane...)
	n := m.register() + len(o.Plane)
	m.queued.Store(o.Started.UnixNano())
	m.constants(n)
	return m
}

// Handler serves /metrics, as text, OpenMetrics or protobuf as the client asks.
func (m *Metrics) Handler() http.Handler { return serve(m.registry) }

// counter returns a series of a counter in metrics.txt.
func (m *Metrics) counter(name string, labels ...string) prometheus.Counter {
	return m.families[name].(*prometheus.CounterVec).WithLabelValues(labels...)
}

// Count adds one to a counter in metrics.txt.
func (m *Metrics) Count(name string, labels ...string) { m.counter(name, labels...).Inc() }

// Observe adds a value to a histogram in metrics.txt.
func (m *Metrics) Observe(name string, value float64, labels ...string) {
	m.families[name].(*prometheus.HistogramVec).WithLabelValues(labels...).Observe(value)
}

// Set sets a gauge in metrics.txt.
func (m *Metrics) Set(name string, value float64, labels ...string) {
	m.families[name].(*prometheus.GaugeVec).WithLabelValues(labels...).Set(value)
}

// Expires sets when the certificate of the client of the API server expires; nil: never.
func (m *Metrics) Expires(at *time.Time) { m.expiry.Store(at) }

// Synced records an attempt to write (proxy.Options.Observe).
func (m *Metrics) Synced(s proxy.Sync) {
	if s.Full() {
		m.Count("sluice_comparisons_total", string(s.Cause))
	}
	took, kind := s.Took(), "kubeproxy_sync_partial_proxy_rules_duration_seconds"
	if s.Full() {
		kind = "kubeproxy_sync_full_proxy_rules_duration_seconds"
	}
	for _, f := range m.opt.Families {
		m.Observe("kubeproxy_sync_proxy_rules_duration_seconds", took.Seconds(), f.String())
		if m.opt.PartialSyncs {
			m.Observe(kind, took.Seconds(), f.String())
		}
	}
	if s.Err != nil {
		m.Count("sluice_apply_failures_total")
		return
	}
	m.succeeded(s, s.Began.Add(took))
}

func (m *Metrics) succeeded(s proxy.Sync, at time.Time) {
	for _, f := range m.opt.Families {
		m.Set("kubeproxy_sync_proxy_rules_last_timestamp_seconds", seconds(at), f.String())
	}
	m.Observe("sluice_apply_steps", float64(s.Steps))
	m.Set("sluice_services_refused", float64(s.Refused))
	if s.Full() {
		m.Set("sluice_adopted_entries", float64(s.Adopted))
	}
	if s.Repair() {
		m.Count("sluice_repairs_total", string(s.Cause))
	}
	if s.In.Empty() {
		return
	}
	m.queued.Store(s.In.Last.UnixNano())
	m.Observe("sluice_event_to_kernel_duration_seconds", at.Sub(s.In.Since).Seconds())
	for _, t := range s.In.Triggers {
		family := route.IPv4
		if t.IPv6 {
			family = route.IPv6
		}
		if t.At.After(m.opt.Started) {
			m.Observe("kubeproxy_network_programming_duration_seconds", at.Sub(t.At).Seconds(), family.String())
		}
	}
}

// Rejected counts problems with objects, each once.
func (m *Metrics) Rejected(problems []route.Problem) {
	for _, p := range problems {
		kind := kindOther
		if object, ok := event.ObjectOf(p); ok {
			kind = object.Kind
		}
		m.counter("sluice_objects_rejected_total", kind, string(event.ClassOf(p))).Add(float64(p.Weight()))
	}
}

// Answered counts an answer of a page on the health port: healthz or livez.
func (m *Metrics) Answered(page string, code int) {
	m.Count("kubeproxy_proxy_"+page+"_total", strconv.Itoa(code))
}

// Kubernetes is the version of kube-proxy whose behaviour this is. Alerts on components whose version differs from the
// cluster's read it.
const (
	Kubernetes = major + "." + minor

	major, minor = "1", "37"
)

// KubernetesVersion returns the version with that of Sluice as build metadata, which has no second + (semver.org, 10).
func KubernetesVersion(sluice string) string {
	return "v" + Kubernetes + ".0+sluice-" + strings.ReplaceAll(sluice, "+", ".")
}

func (m *Metrics) constants(registered int) {
	o := m.opt
	m.Set("sluice_build_info", 1, o.Version, runtime.Version())
	m.Set("sluice_mode_info", 1, o.Mode, o.Configured, o.Reason)
	m.Set("kubernetes_build_info", 1, major, minor, KubernetesVersion(o.Version), "", "", "",
		runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH)
	for name, enabled := range o.Gates {
		m.Set("kubernetes_feature_enabled", truth(enabled), name, "")
	}
	m.counter("registered_metrics_total", "ALPHA", "").Add(float64(registered))
	m.Set("sluice_config_last_reload_timestamp_seconds", seconds(o.Started))
	m.Set("process_start_time_seconds", seconds(o.Started))
}

// Checked counts a health check, which always passes. kube-proxy has one, "ping" of "healthz", on the metrics port.
func (m *Metrics) Checked() {
	m.Set("kubernetes_healthcheck", 1, "ping", "healthz")
	m.Count("kubernetes_healthchecks_total", "ping", "healthz", "success")
}

// SLIs serves /metrics/slis. DELETE removes the outcomes of all checks.
func (m *Metrics) SLIs() http.Handler {
	show := serve(m.slis)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete {
			show.ServeHTTP(w, r)
			return
		}
		for _, name := range []string{"kubernetes_healthcheck", "kubernetes_healthchecks_total"} {
			m.families[name].(interface{ Reset() }).Reset()
		}
		fmt.Fprintln(w, "metrics reset")
	})
}

// The pause after a rendering is pace times its duration, but at most longestPause:
// however often clients ask, rendering takes a fifth of a CPU at most.
const (
	pace         = 4
	longestPause = 2 * time.Second
)

// page is the http.Handler of a page of metrics. All requests for one form that wait when its rendering begins share
// it, so that many clients cost as much as one. No answer is older than its request.
// Answers are made in memory, so that a slow client does not delay others.
type page struct {
	handler http.Handler // of promhttp
	waiting singleflight.Group

	busy  chan struct{} // held by the goroutine that renders
	after time.Time     // when the next rendering may begin; guarded by busy
}

// answer is a http.ResponseWriter that keeps the response.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(code int) { a.code = code }

func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

func serve(from prometheus.Gatherer) http.Handler {
	return &page{busy: make(chan struct{}, 1), handler: promhttp.HandlerFor(from, promhttp.HandlerOpts{
		EnableOpenMetrics: true,
		ErrorHandling:     promhttp.ContinueOnError,
	})}
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	form, plain := formOf(r)
	rendering := p.waiting.DoChan(form, func() (any, error) { return p.render(form, plain), nil })
	select {
	case <-r.Context().Done():
	case done := <-rendering:
		a := done.Val.(*answer)
		maps.Copy(w.Header(), a.header)
		w.Header().Set("Content-Length", strconv.Itoa(a.body.Len()))
		w.WriteHeader(a.code)
		_, _ = w.Write(a.body.Bytes()) // fails if the client closed the connection
	}
}

// render answers a request when a rendering is due, even if its client closed the connection, since others may wait
// for it.
func (p *page) render(form string, r *http.Request) *answer {
	p.busy <- struct{}{}
	defer func() { <-p.busy }()
	time.Sleep(time.Until(p.after))
	p.waiting.Forget(form) // requests from now on are later than this rendering
	began := time.Now()
	a := &answer{header: http.Header{}, code: http.StatusOK}
	p.handler.ServeHTTP(a, r)
	p.after = time.Now().Add(min(pace*time.Since(began), longestPause))
	return a
}

// formOf returns the part of a request that decides what the answer is, the same as text: the accepted formats and
// encodings, and the names of metrics.
func formOf(r *http.Request) (text string, plain *http.Request) {
	plain = (&http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: "/metrics"},
		Header: http.Header{"Accept": r.Header["Accept"], "Accept-Encoding": r.Header["Accept-Encoding"]},
	}).WithContext(context.Background())
	if names := r.URL.Query()["name[]"]; len(names) > 0 {
		plain.URL.RawQuery = url.Values{"name[]": names}.Encode()
	}
	var key strings.Builder
	_ = plain.Header.Write(&key) // a Builder takes everything
	return key.String() + plain.URL.RawQuery, plain
}
