package nftables

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
)

// A failed write is counted for each family, with the metric of kube-proxy.
func TestFailuresAreCounted(t *testing.T) {
	metrics, writeFailed := failures(route.Families())
	r := metricstest.Registry(metrics...)
	const want = `kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total counter
	Always 0: each write also deletes stale objects.
	{ip_family="IPv4"}
	{ip_family="IPv6"}
kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter
	Writes that failed. One write is for both families.
	{ip_family="IPv4"}
	{ip_family="IPv6"}
`
	if got := metricstest.Shape(metricstest.Gather(t, r)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	writeFailed()
	const counted = `kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 1
kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 1`
	if got := metricstest.Values(t, r, ""); got != counted {
		t.Errorf("got\n%s\nwant\n%s", got, counted)
	}
}
