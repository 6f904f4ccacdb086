package kube

import (
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	hooks "k8s.io/client-go/tools/metrics"

	"github.com/sluice-proxy/sluice/internal/metrics"
)

// measured is set in the process that TestClientsAreMeasured starts, as registrations with client-go cannot be undone.
const measured = "SLUICE_TEST_MEASURED"

// Everything that client-go reports is in the metrics that dashboards use.
func TestClientsAreMeasured(t *testing.T) {
	if os.Getenv(measured) == "" {
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClientsAreMeasured$")
		again.Env = append(os.Environ(), measured+"=1")
		if out, err := again.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	m := metrics.New(metrics.Options{Mode: "nftables", Started: time.Now()})
	MeasureClients(m)

	// A real client reports its requests.
	api := newAPIServer(t)
	api.set(servicesPath, service("web", "10.96.0.1"))
	if _, err := api.client().services("").List(t.Context(), metav1.ListOptions{},
		func(object) error { return nil }); err != nil {
		t.Fatal(err)
	}
	// The rest stands for reports of plugins, rotations and so on.
	hooks.ClientCertExpiry.Set(new(time.Now().Add(time.Hour)))
	hooks.ClientCertRotationAge.Observe(time.Hour)
	hooks.RateLimiterLatency.Observe(t.Context(), "GET", url.URL{Host: "a:1"}, time.Second)
	hooks.RequestRetry.IncrementRetry(t.Context(), "429", "GET", "a:1")
	hooks.ExecPluginCalls.Increment(1, "plugin_execution_error")
	hooks.TransportCacheEntries.Observe(3)
	hooks.TransportCreateCalls.Increment("hit")
	hooks.TransportCAReloads.Increment("success", "ca_rotation")
	hooks.TransportCertRotationGCCalls.Increment()
	hooks.TransportCacheGCCalls.Increment("deleted")

	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	host := strings.TrimPrefix(api.http.URL, "http://")
	for _, want := range []string{
		`rest_client_requests_total{code="200",host="` + host + `",method="GET"} 1`,
		`rest_client_request_duration_seconds_count{host="` + host + `",verb="GET"} 1`,
		`rest_client_request_size_bytes_count{host="` + host + `",verb="GET"} 1`,
		`rest_client_response_size_bytes_count{host="` + host + `",verb="GET"} 1`,
		`rest_client_exec_plugin_ttl_seconds 35`,
		`rest_client_exec_plugin_certificate_rotation_age_sum 3600`,
		`rest_client_rate_limiter_duration_seconds_sum{host="a:1",verb="GET"} 1`,
		`rest_client_request_retries_total{code="429",host="a:1",verb="GET"} 1`,
		`rest_client_exec_plugin_call_total{call_status="plugin_execution_error",code="1"} 1`,
		`rest_client_transport_cache_entries 3`,
		`rest_client_transport_create_calls_total{result="hit"} 1`,
		`rest_client_transport_ca_reload_total{reason="ca_rotation",result="success"} 1`,
		`rest_client_transport_cert_rotation_gc_calls_total 1`,
		`rest_client_transport_cache_gc_calls_total{result="deleted"} 1`,
	} {
		if !strings.Contains(w.Body.String(), "\n"+want) {
			t.Errorf("no sample %s", want)
		}
	}
}
