package netfilter

import (
	"errors"
	"testing"
	"time"

	kernel "github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
)

func TestStaleFlowsAreCounted(t *testing.T) {
	scanned, metrics := countScans(route.Families())
	r := metricstest.Registry(metrics...)
	const want = `kubeproxy_conntrack_reconciler_deleted_entries_total counter
	Stale conntrack entries that were deleted.
	{ip_family="IPv4"}
	{ip_family="IPv6"}
kubeproxy_conntrack_reconciler_sync_duration_seconds histogram
	Duration of one scan for stale conntrack entries.
	{ip_family="IPv4"}
	{ip_family="IPv6"}
	up to 0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384
`
	if got := metricstest.Shape(metricstest.Gather(t, r)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	scanned(250*time.Millisecond, map[route.Family]int{route.IPv6: 3})
	const counted = `kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv6"} 3
kubeproxy_conntrack_reconciler_sync_duration_seconds{ip_family="IPv4"} 1 times, 0.25 in all
kubeproxy_conntrack_reconciler_sync_duration_seconds{ip_family="IPv6"} 1 times, 0.25 in all`
	if got := metricstest.Values(t, r, ""); got != counted {
		t.Errorf("got\n%s\nwant\n%s", got, counted)
	}
}

func TestConntrackLoad(t *testing.T) {
	now, err := kernel.Load{Entries: 60, Limit: 100, InsertFailed: 3, EarlyDropped: 4}, error(nil)
	r := metricstest.Registry(load{func() (kernel.Load, error) { return now, err }})
	const want = `sluice_conntrack_early_dropped_total{} 4
sluice_conntrack_entries{} 60
sluice_conntrack_entries_limit{} 100
sluice_conntrack_insert_failed_total{} 3`
	if got := metricstest.Values(t, r, ""); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	err = errors.New("no permission")
	if got := metricstest.Values(t, r, ""); got != "" {
		t.Errorf("statistics that cannot be read: got\n%s\nwant none", got)
	}
}
