package metrics

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
)

// promtool reports nothing except names of kube-proxy.
func TestPromtoolChecksMetrics(t *testing.T) {
	const want = `kubeproxy_sync_proxy_rules_no_local_endpoints_total non-counter metrics should not have "_total" suffix`
	if got := metricstest.Lint(t, busy(t).Handler()); got != want {
		t.Errorf("promtool check metrics:\n%s\nwant:\n%s", got, want)
	}
}
