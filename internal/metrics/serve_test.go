package metrics

import (
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
)

// Each scrape reads the time until the certificate expires.
func TestCertificateOfExecPlugin(t *testing.T) {
	m := newMetrics()
	left := func() float64 {
		for _, f := range metricstest.Gather(t, m.registry) {
			if f.GetName() == "rest_client_exec_plugin_ttl_seconds" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return math.NaN()
	}
	if got := left(); !math.IsInf(got, 1) {
		t.Errorf("without a certificate %v is left, want +Inf", got)
	}
	m.Expires(new(time.Now().Add(time.Hour)))
	if got := left(); got < 3590 || got > 3600 {
		t.Errorf("of an hour %v s are left", got)
	}
	m.Expires(nil)
	if got := left(); !math.IsInf(got, 1) {
		t.Errorf("without a certificate again %v is left, want +Inf", got)
	}
}

// Scrapers get the format that they accept.
func TestFormats(t *testing.T) {
	const (
		openMetrics = "application/openmetrics-text; version=1.0.0"
		protobuf    = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
	)
	m := busy(t)
	for accept, want := range map[string]string{
		"":                      "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
		"text/plain":            "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
		openMetrics:             openMetrics + "; charset=utf-8; escaping=underscores",
		protobuf + "; q=1, */*": protobuf + "; escaping=underscores",
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, r)
		if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || got != want {
			t.Errorf("Accept %q: %d %q, want 200 %q", accept, w.Code, got, want)
		}
		if !strings.Contains(w.Body.String(), "kubeproxy_sync_proxy_rules_duration_seconds") {
			t.Errorf("Accept %q: the duration of writes is not in it", accept)
		}
	}
}

// /metrics/slis counts health checks; DELETE removes the counts.
func TestSLIs(t *testing.T) {
	m := newMetrics()
	ask := func(method string) string {
		w := httptest.NewRecorder()
		m.SLIs().ServeHTTP(w, httptest.NewRequest(method, "/metrics/slis", nil))
		var samples []string
		for line := range strings.Lines(w.Body.String()) {
			if !strings.HasPrefix(line, "#") {
				samples = append(samples, strings.TrimSpace(line))
			}
		}
		return strings.Join(samples, "\n")
	}
	m.Checked()
	m.Checked()
	compare(t, ask(http.MethodGet), `
kubernetes_healthcheck{name="ping",type="healthz"} 1
kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 2
process_start_time_seconds 1.767323045e+09`)
	compare(t, ask(http.MethodDelete), "metrics reset")
	compare(t, ask(http.MethodGet), "process_start_time_seconds 1.767323045e+09")
}

// A contest has one series, whose label names the program, if it is known.
func TestContestsNameTheProgram(t *testing.T) {
	began := time.Unix(1, 0)
	for want, readings := range map[string]Readings{
		`sluice_rules_contested{program="none"} 0`:    {},
		`sluice_rules_contested{program="nft"} 1`:     {Contest: proxy.Contest{Since: began, By: "nft (thread 812)"}},
		`sluice_rules_contested{program="unknown"} 1`: {Contest: proxy.Contest{Since: began}},
	} {
		m := New(Options{Mode: "best"})
		m.Read(func() Readings { return readings })
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		body := w.Body.String()
		if !strings.Contains(body, "\n"+want+"\n") || strings.Count(body, "\nsluice_rules_contested{") != 1 {
			t.Errorf("not among metrics: %s", want)
		}
	}
}
