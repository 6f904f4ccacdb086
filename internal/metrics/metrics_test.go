package metrics

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/reload"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
)

var update = flag.Bool("update", false, "write testdata anew")

// start is when the processes of these tests start.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newMetrics() *Metrics {
	return New(Options{
		Mode: "best", Configured: "better", PartialSyncs: true, Reason: "configured", Version: "v1.2.3", Started: start,
		Families: route.Families(),
		Gates:    map[string]bool{"AllowServiceExternalIPs": true, "KubeProxyIPVS": false},
	})
}

// wired returns Metrics with Readings.
func wired() *Metrics {
	m := newMetrics()
	m.Read(func() Readings {
		return Readings{
			Totals:    cluster.Totals{Services: 7, Slices: 11},
			Sizes:     sizes.Sizes{Services: 4, Backends: 9},
			Connected: true,

			Takeover: takeover.State{
				KubeProxy: &takeover.KubeProxy{},
				Leftovers: map[takeover.Mechanism]int{takeover.IPVS: 3},
				Removed:   map[takeover.Mechanism]int{takeover.IPVS: 12},
			},
			Direct: &plane.Direct{Ports: 5, Checksum: "00000010", Peers: []plane.Peer{
				{Node: "b", Family: "IPv4"}, {Node: "c", Family: "IPv4"}, {Node: "c", Family: "IPv6", Why: "there is no route"},
			}},
			HealthPortFailures: 2,
			HostSettingsFailed: 1,
			Contest:            proxy.Contest{Since: time.Unix(1, 0), By: "nft (thread 812)"},
		}
	})
	return m
}

// values are the samples that are not 0, of histograms their count and sum.
func values(t *testing.T, m *Metrics, prefix string) string {
	t.Helper()
	return metricstest.Values(t, m.registry, prefix)
}

func shape(t *testing.T, m *Metrics) string {
	t.Helper()
	return metricstest.Shape(metricstest.Gather(t, m.registry))
}

func compare(t *testing.T, got, want string) {
	t.Helper()
	if d := diff.Diff(strings.Split(strings.TrimSpace(want), "\n"), strings.Split(strings.TrimSpace(got), "\n")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, got, string(want))
}

// busy has counted everything once, so that every series exists.
func busy(t *testing.T) *Metrics {
	t.Helper()
	m := wired()
	for name, collector := range m.families {
		if !strings.HasPrefix(name, "rest_client_") {
			continue
		}
		desc := make(chan *prometheus.Desc, 1)
		collector.Describe(desc)
		_, variable, _ := strings.Cut((<-desc).String(), "variableLabels: {")
		names := strings.FieldsFunc(variable, func(r rune) bool { return r == ',' || r == '}' })
		for i := range names {
			names[i] = "a " + names[i]
		}
		switch collector.(type) {
		case *prometheus.CounterVec:
			m.Count(name, names...)
		case *prometheus.HistogramVec:
			m.Observe(name, 1, names...)
		default:
			m.Set(name, 1, names...)
		}
	}
	return m
}

// Every family has the expected type, labels, series and buckets.
func TestExposition(t *testing.T) {
	names := strings.NewReplacer(runtime.Version(), "GO", runtime.GOOS+"/"+runtime.GOARCH, "PLATFORM")
	golden(t, "testdata/exposition.txt", names.Replace(shape(t, busy(t))))
}

// Families of some data planes exist only with these planes, and count as families.
func TestMetricsOfThePlane(t *testing.T) {
	own := prometheus.NewCounter(prometheus.CounterOpts{Name: "own_total", Help: "Own."})
	names := func(o Options) string {
		var out []string
		for _, f := range metricstest.Gather(t, New(o).registry) {
			for _, of := range []string{
				"own_total", "kubeproxy_sync_full_", "kubeproxy_sync_partial_", "registered_metrics_total",
			} {
				if strings.HasPrefix(f.GetName(), of) {
					out = append(out, fmt.Sprintf("%s %v", f.GetName(), f.GetMetric()[0].GetCounter().GetValue()))
				}
			}
		}
		return strings.Join(out, "\n")
	}
	families := []route.Family{route.IPv4}
	few := names(Options{Families: families})
	many := names(Options{Families: families, PartialSyncs: true, Plane: []prometheus.Collector{own}})
	var without, with int
	if _, err := fmt.Sscanf(few, "registered_metrics_total %d", &without); err != nil || strings.Contains(few, "\n") {
		t.Errorf("a plane without metrics of its own has:\n%s", few)
	}
	const want = "kubeproxy_sync_full_proxy_rules_duration_seconds 0\n" +
		"kubeproxy_sync_partial_proxy_rules_duration_seconds 0\n" +
		"own_total 0\nregistered_metrics_total "
	rest, ok := strings.CutPrefix(many, want)
	if _, err := fmt.Sscan(rest, &with); !ok || err != nil || with != without+3 {
		t.Errorf("there is\n%s\nwant\n%s%d", many, want, without+3)
	}
	m := New(Options{Families: families, Started: start})
	m.Synced(proxy.Sync{Cause: proxy.Start, Began: start, Apply: time.Second})
	compare(t, values(t, m, "kubeproxy_sync_"), `
proxy_rules_duration_seconds{ip_family="IPv4"} 1 times, 1 in all
proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1767323045
proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1767323046`)
}

// Before Read there is no series with a 0 that means "unknown".
func TestNoReadings(t *testing.T) {
	m := newMetrics()
	shown := shape(t, m)
	for _, name := range []string{
		"sluice_source_connected", "sluice_takeover_leftovers", "_changes_total",
		"sluice_config_reloads_total", "sluice_config_warnings",
	} {
		if strings.Contains(shown, name) {
			t.Errorf("%s is shown without Readings", name)
		}
	}
}

func TestReadings(t *testing.T) {
	m := wired()
	compare(t, values(t, m, "kubeproxy_sync_"), `
proxy_rules_endpoint_changes_total{} 11
proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1767323045
proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"} 1767323045
proxy_rules_service_changes_total{} 7`)
	compare(t, values(t, m, "sluice_"), `
build_info{goversion="`+runtime.Version()+`", version="v1.2.3"} 1
config_last_reload_timestamp_seconds{} 1767323045
direct_checksum{} 16
direct_nodes{ip_family="IPv4", reached="true"} 2
direct_nodes{ip_family="IPv6", reached="false"} 1
direct_ports{} 5
endpoints{} 9
health_port_failures{} 2
host_settings_failed{} 1
kube_proxy_running{} 1
mode_info{configured="better", mode="best", reason="configured"} 1
rules_contested{program="nft"} 1
services{} 4
source_connected{} 1
takeover_leftovers{mechanism="ipvs"} 3
takeover_removed_total{mechanism="ipvs"} 12`)
}

// Pending changes are counted while they wait; the time of the last one stays.
func TestBacklog(t *testing.T) {
	m := newMetrics()
	waiting := cluster.Window{Since: start.Add(time.Second), Last: start.Add(2 * time.Second), Services: 3, Slices: 4}
	m.Read(func() Readings { return Readings{Backlog: waiting} })
	compare(t, values(t, m, "kubeproxy_sync_proxy_rules_"), `
endpoint_changes_pending{} 4
last_queued_timestamp_seconds{ip_family="IPv4"} 1767323047
last_queued_timestamp_seconds{ip_family="IPv6"} 1767323047
service_changes_pending{} 3`)

	m.Synced(proxy.Sync{Began: start.Add(3 * time.Second), In: waiting})
	waiting = cluster.Window{}
	got := values(t, m, "kubeproxy_sync_proxy_rules_last_")
	compare(t, got, `
queued_timestamp_seconds{ip_family="IPv4"} 1767323047
queued_timestamp_seconds{ip_family="IPv6"} 1767323047
timestamp_seconds{ip_family="IPv4"} 1767323048
timestamp_seconds{ip_family="IPv6"} 1767323048`)
}

// A change, a failure, and the comparison that repairs it.
func TestSyncs(t *testing.T) {
	m := newMetrics()
	at := start.Add(time.Minute)
	m.Synced(proxy.Sync{Cause: proxy.Start, Steps: 90, Adopted: 10, Began: at, Compile: time.Second, Apply: time.Second})
	m.Synced(proxy.Sync{
		Steps: 3, Began: at, Compile: time.Millisecond, Apply: 3 * time.Millisecond,
		In: cluster.Window{
			Since: at.Add(-6 * time.Millisecond), Last: at, Slices: 1,
			Triggers: []cluster.Trigger{
				{At: at.Add(-996 * time.Millisecond)},
				{At: at.Add(-time.Second), IPv6: true},
				{At: start},
				{At: start.Add(-time.Hour)},
			},
		},
	})
	m.Synced(proxy.Sync{Began: at, Apply: time.Second, Err: errors.New("no memory")})
	m.Synced(proxy.Sync{Cause: proxy.Failure, Began: at, Steps: 2, Adopted: 98, Apply: time.Second})
	m.Synced(proxy.Sync{Cause: proxy.Period, Began: at, Adopted: 100, Apply: time.Second})
	m.Synced(proxy.Sync{Cause: proxy.ForeignEdit, Began: at, Adopted: 100, Apply: time.Second})

	compare(t, values(t, m, "kubeproxy_"), `
network_programming_duration_seconds{ip_family="IPv4"} 1 times, 1 in all
network_programming_duration_seconds{ip_family="IPv6"} 1 times, 1.004 in all
sync_full_proxy_rules_duration_seconds{ip_family="IPv4"} 4 times, 5 in all
sync_full_proxy_rules_duration_seconds{ip_family="IPv6"} 4 times, 5 in all
sync_partial_proxy_rules_duration_seconds{ip_family="IPv4"} 2 times, 1.004 in all
sync_partial_proxy_rules_duration_seconds{ip_family="IPv6"} 2 times, 1.004 in all
sync_proxy_rules_duration_seconds{ip_family="IPv4"} 6 times, 6.004 in all
sync_proxy_rules_duration_seconds{ip_family="IPv6"} 6 times, 6.004 in all
sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1767323105
sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"} 1767323105
sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1767323106
sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 1767323106`)
	compare(t, values(t, m, "sluice_"), `
adopted_entries{} 100
apply_failures_total{} 1
apply_steps{} 5 times, 95 in all
build_info{goversion="`+runtime.Version()+`", version="v1.2.3"} 1
comparisons_total{cause="failure"} 1
comparisons_total{cause="foreign-edit"} 1
comparisons_total{cause="period"} 1
comparisons_total{cause="start"} 1
config_last_reload_timestamp_seconds{} 1767323045
event_to_kernel_duration_seconds{} 1 times, 0.01 in all
mode_info{configured="better", mode="best", reason="configured"} 1
repairs_total{cause="failure"} 1`)
}

func TestOtherCounts(t *testing.T) {
	m := newMetrics()
	m.Answered("healthz", http.StatusOK)
	m.Answered("healthz", http.StatusServiceUnavailable)
	m.Answered("livez", http.StatusOK)
	m.Answered("livez", http.StatusOK)
	compare(t, values(t, m, "kubeproxy_proxy_"), `
healthz_total{code="200"} 1
healthz_total{code="503"} 1
livez_total{code="200"} 2`)

	m.Read(func() Readings { return Readings{Reloads: reload.Count{Accepted: 2, Refused: 1}} })
	m.Rejected([]route.Problem{
		{Object: "Service default/web", Field: "spec.externalIPs[0]", Reason: "not an IP address"},
		{Object: "Service default/web", Reason: "left out, as it belongs to Service default/db"},
		{Object: "EndpointSlice default/web-x", Field: "addressType", Reason: "unknown"},
		{Object: "/etc/sluice/a.yaml", Reason: "permission denied"},
	})
	compare(t, values(t, m, "sluice_config")+"\n"+values(t, m, "sluice_objects_")+"\n"+values(t, m, "sluice_takeover_"), `
_last_reload_timestamp_seconds{} 1767323045
_reloads_total{result="ok"} 2
_reloads_total{result="refused"} 1
rejected_total{kind="EndpointSlice", reason="other"} 1
rejected_total{kind="Service", reason="address"} 1
rejected_total{kind="Service", reason="conflict"} 1
rejected_total{kind="other", reason="other"} 1`)
}
