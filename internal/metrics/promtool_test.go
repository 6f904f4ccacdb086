package metrics

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/metrics/metricstest"
)

// Prometheus' own tool finds nothing wrong except the names that are kube-proxy's.
func TestPromtoolChecksMetrics(t *testing.T) {
	const want = `kubeproxy_sync_proxy_rules_no_local_endpoints_total non-counter metrics should not have "_total" suffix`
	if got := metricstest.Lint(t, busy(t).Handler()); got != want {
		t.Errorf("promtool check metrics:\n%s\nwant:\n%s", got, want)
	}
}
