package iptables

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
)

// Writes and failures of iptables-restore are counted with the metrics of kube-proxy.
func TestRestoresAreCounted(t *testing.T) {
	wrote, metrics := countWrites(route.Families())
	r := metricstest.Registry(metrics...)
	const want = `kubeproxy_sync_proxy_rules_iptables_last gauge
	Rules that the last write sent to the kernel.
	{ip_family="IPv4", table="filter"}
	{ip_family="IPv4", table="nat"}
	{ip_family="IPv6", table="filter"}
	{ip_family="IPv6", table="nat"}
kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total counter
	Calls of iptables-restore that failed, and would have written changes only.
	{ip_family="IPv4"}
	{ip_family="IPv6"}
kubeproxy_sync_proxy_rules_iptables_restore_failures_total counter
	Calls of iptables-restore that failed.
	{ip_family="IPv4"}
	{ip_family="IPv6"}
kubeproxy_sync_proxy_rules_iptables_total gauge
	Rules of Sluice in a table.
	{ip_family="IPv4", table="filter"}
	{ip_family="IPv4", table="nat"}
	{ip_family="IPv6", table="filter"}
	{ip_family="IPv6", table="nat"}
`
	if got := metricstest.Shape(metricstest.Gather(t, r)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	failed := errors.New("no lock")
	for _, w := range []Write{
		{Family: route.IPv4, Full: true, Rules: [3]int{filter: 9, nat: 120}, Written: [3]int{filter: 9, nat: 120}},
		{Family: route.IPv6, Full: true, Rules: [3]int{nat: 7}, Written: [3]int{nat: 7}},
		{Family: route.IPv4, Rules: [3]int{filter: 9, nat: 121}, Written: [3]int{nat: 4}},
		{Family: route.IPv6, Full: true, Rules: [3]int{nat: 99}, Err: failed},
		{Family: route.IPv4, Rules: [3]int{nat: 99}, Err: failed},
		{Family: route.IPv4, Rules: [3]int{nat: 99}, Err: failed},
	} {
		wrote(w)
	}
	const counted = `last{ip_family="IPv4", table="nat"} 4
last{ip_family="IPv6", table="nat"} 7
partial_restore_failures_total{ip_family="IPv4"} 2
restore_failures_total{ip_family="IPv4"} 2
restore_failures_total{ip_family="IPv6"} 1
total{ip_family="IPv4", table="filter"} 9
total{ip_family="IPv4", table="nat"} 121
total{ip_family="IPv6", table="nat"} 7`
	if got := metricstest.Values(t, r, "kubeproxy_sync_proxy_rules_iptables_"); got != counted {
		t.Errorf("got\n%s\nwant\n%s", got, counted)
	}
	const lint = `kubeproxy_sync_proxy_rules_iptables_total non-counter metrics should not have "_total" suffix`
	if got := metricstest.Lint(t, promhttp.HandlerFor(r, promhttp.HandlerOpts{})); got != lint {
		t.Errorf("promtool reports\n%s\nwant\n%s", got, lint)
	}
}

// Without nfacct nothing fails, and the log has the reason at -v=2.
func TestNoAccountingWithoutNfacct(t *testing.T) {
	var log bytes.Buffer
	s := plane.Setup{NetNS: 1 << 20, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: verbose}))}
	if objects := accounting(t.Context(), s, nil); objects != nil {
		t.Error("got accounting objects in a namespace that does not exist")
	}
	if !strings.Contains(log.String(), `msg="Packets are not counted by rules" why="list accounting objects: `) {
		t.Errorf("the log is %q", log.String())
	}
}
