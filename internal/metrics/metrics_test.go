package metrics

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/follow/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

var update = flag.Bool("update", false, "write testdata anew")

// start is when the processes of these tests start.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newMetrics(mode string) *Metrics {
	return New(Options{
		Mode: mode, Reason: "configured", Version: "v1.2.3", Started: start,
		Families: []route.Family{route.IPv4, route.IPv6},
		Gates:    []Gate{{"AllowServiceExternalIPs", "", true}, {"KubeProxyIPVS", "DEPRECATED", false}},
	})
}

// wired is a node where everything can be read.
func wired(mode string) *Metrics {
	m := newMetrics(mode)
	m.Read(Readings{
		Totals:    func() cluster.Totals { return cluster.Totals{Services: 7, Slices: 11} },
		Backlog:   func() cluster.Window { return cluster.Window{} },
		Sizes:     func() sizes.Sizes { return sizes.Sizes{Services: 4, Backends: 9} },
		Connected: func() bool { return true },

		FlowsEnded:         func() uint64 { return 5 },
		Reloads:            func() (accepted, refused int) { return 0, 0 },
		KubeProxyRunning:   func() bool { return true },
		Leftovers:          func() map[takeover.Mechanism]int { return map[takeover.Mechanism]int{takeover.IPVS: 3} },
		Removed:            func() map[takeover.Mechanism]int { return map[takeover.Mechanism]int{takeover.IPVS: 12} },
		HealthPortFailures: func() int { return 2 },
		HostSettingsFailed: func() int { return 1 },
		Contest:            func() (string, bool) { return "nft", true },
		InvalidDropped:     func() (uint64, bool) { return 8, true },
		LoopbackNodePorts:  func() (uint64, bool) { return 6, true },
	})
	return m
}

// ours reports whether a family is not one of the runtime's.
func ours(name string) bool {
	return !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_")
}

func gather(t *testing.T, from prometheus.Gatherer) []*dto.MetricFamily {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return !ours(f.GetName()) })
}

// shape is everything of the families but their values.
func shape(families []*dto.MetricFamily) string {
	var out strings.Builder
	for _, f := range families {
		fmt.Fprintf(&out, "%s %s\n\t%s\n", f.GetName(), strings.ToLower(f.GetType().String()), f.GetHelp())
		var buckets []string
		for _, s := range f.GetMetric() {
			fmt.Fprintf(&out, "\t%s\n", labels(s))
			buckets = nil
			for _, b := range s.GetHistogram().GetBucket() {
				buckets = append(buckets, strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64))
			}
		}
		if buckets != nil {
			fmt.Fprintf(&out, "\tup to %s\n", strings.Join(buckets, " "))
		}
	}
	return out.String()
}

func labels(s *dto.Metric) string {
	var pairs []string
	for _, l := range s.GetLabel() {
		pairs = append(pairs, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	return "{" + strings.Join(pairs, ", ") + "}"
}

// values are the samples that are not 0, of histograms their count and sum.
func values(t *testing.T, m *Metrics, prefix string) string {
	t.Helper()
	var out []string
	for _, f := range gather(t, m.registry) {
		rest, wanted := strings.CutPrefix(f.GetName(), prefix)
		for _, s := range f.GetMetric() {
			v := cmp.Or(s.GetCounter().GetValue(), s.GetGauge().GetValue())
			text := strconv.FormatFloat(v, 'f', -1, 64)
			if h := s.GetHistogram(); h != nil {
				v = float64(h.GetSampleCount())
				text = fmt.Sprintf("%d times, %.4g in all", h.GetSampleCount(), h.GetSampleSum())
			}
			if wanted && v != 0 {
				out = append(out, rest+labels(s)+" "+text)
			}
		}
	}
	return strings.Join(out, "\n")
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

// busy has told everything once, so that every series is there.
func busy(t *testing.T, mode string) *Metrics {
	t.Helper()
	m := wired(mode)
	c := m.Client()
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
		c.Count(name, names...)
		c.Observe(name, 1, names...)
		c.Set(name, 1)
	}
	return m
}

// Every family, its type, labels, the series there are and the buckets.
func TestExposition(t *testing.T) {
	for mode, file := range map[string]string{modeNFTables: "exposition.txt", modeIPTables: "exposition-iptables.txt"} {
		got := shape(gather(t, busy(t, mode).registry))
		got = strings.NewReplacer(runtime.Version(), "GO", runtime.GOOS+"/"+runtime.GOARCH, "PLATFORM").Replace(got)
		golden(t, "testdata/"+file, got)
	}
}

// What there is in one mode and not in another: dashboards of one mode show
// nothing of another.
func TestFamiliesOfOtherModesAreNotShown(t *testing.T) {
	names := func(mode string) []string {
		var out []string
		for _, f := range gather(t, wired(mode).registry) {
			out = append(out, f.GetName())
		}
		return out
	}
	all := append(names(modeNFTables), names(modeIPTables)...)
	slices.Sort(all)
	all = slices.Compact(all)
	for mode, missing := range map[string][]string{
		"nftables": {
			"kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
			"kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
			"kubeproxy_sync_proxy_rules_iptables_last",
			"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
			"kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
			"kubeproxy_sync_proxy_rules_iptables_total",
		},
		"iptables": {
			"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
		},
		"ipvs": {
			"kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
			"kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
			"kubeproxy_sync_full_proxy_rules_duration_seconds",
			"kubeproxy_sync_partial_proxy_rules_duration_seconds",
			"kubeproxy_sync_proxy_rules_iptables_last",
			"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
			"kubeproxy_sync_proxy_rules_iptables_total",
			"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
		},
		"userspace": {
			"kubeproxy_conntrack_reconciler_deleted_entries_total",
			"kubeproxy_conntrack_reconciler_sync_duration_seconds",
			"kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
			"kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
			"kubeproxy_sync_full_proxy_rules_duration_seconds",
			"kubeproxy_sync_partial_proxy_rules_duration_seconds",
			"kubeproxy_sync_proxy_rules_iptables_last",
			"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
			"kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
			"kubeproxy_sync_proxy_rules_iptables_total",
			"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
			"sluice_conntrack_entries_removed_total",
		},
	} {
		shown := names(mode)
		got := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return slices.Contains(shown, n) })
		if d := diff.Diff(missing, got); d != "" {
			t.Errorf("missing in mode %s (-want +got):\n%s", mode, d)
		}
	}
}

// Nothing is read before somebody said where: no 0 that means "unknown".
func TestWhatCannotBeReadHasNoSeries(t *testing.T) {
	m := newMetrics(modeNFTables)
	shown := shape(gather(t, m.registry))
	for _, name := range []string{"sluice_source_connected", "sluice_takeover_leftovers", "_changes_total", "sluice_config_reloads_total"} {
		if strings.Contains(shown, name) {
			t.Errorf("%s is shown though nobody can tell", name)
		}
	}
}

func TestReadings(t *testing.T) {
	m := wired(modeNFTables)
	compare(t, values(t, m, "kubeproxy_sync_"), `
proxy_rules_endpoint_changes_total{} 11
proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1767323045
proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"} 1767323045
proxy_rules_service_changes_total{} 7`)
	compare(t, values(t, m, "sluice_"), `
build_info{goversion="`+runtime.Version()+`", version="v1.2.3"} 1
config_last_reload_timestamp_seconds{} 1767323045
conntrack_entries_removed_total{} 5
endpoints{} 9
health_port_failures{} 2
host_settings_failed{} 1
kube_proxy_running{} 1
mode_info{mode="nftables", reason="configured"} 1
rules_contested{program="nft"} 1
services{} 4
source_connected{} 1
takeover_leftovers{mechanism="ipvs"} 3
takeover_removed_total{mechanism="ipvs"} 12`)
}

// What waits is told while it waits, and when it came is remembered after.
func TestBacklog(t *testing.T) {
	m := newMetrics(modeNFTables)
	waiting := cluster.Window{Since: start.Add(time.Second), Last: start.Add(2 * time.Second), Services: 3, Slices: 4}
	m.Read(Readings{Backlog: func() cluster.Window { return waiting }})
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
	m := newMetrics(modeNFTables)
	at := start.Add(time.Minute)
	m.Synced(proxy.Sync{Cause: proxy.Start, Steps: 90, Adopted: 10, Began: at, Compile: time.Second, Apply: time.Second})
	m.Synced(proxy.Sync{
		Steps: 3, Began: at, Compile: time.Millisecond, Apply: 3 * time.Millisecond,
		In: cluster.Window{
			Since: at.Add(-6 * time.Millisecond), Last: at, Slices: 1,
			Triggers: []cluster.Trigger{{At: at.Add(-996 * time.Millisecond)}, {At: at.Add(-time.Second), IPv6: true}, {At: start}, {At: start.Add(-time.Hour)}},
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
sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 1767323106
sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 1
sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 1`)
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
mode_info{mode="nftables", reason="configured"} 1
repairs_total{cause="failure"} 1`)
}

func TestOtherCounts(t *testing.T) {
	m := newMetrics(modeNFTables)
	m.Healthz(http.StatusOK)
	m.Healthz(http.StatusServiceUnavailable)
	m.Livez(http.StatusOK)
	m.Livez(http.StatusOK)
	m.Looked(250*time.Millisecond, map[route.Family]int{route.IPv6: 3})
	compare(t, values(t, m, "kubeproxy_proxy_")+"\n"+values(t, m, "kubeproxy_conntrack_"), `
healthz_total{code="200"} 1
healthz_total{code="503"} 1
livez_total{code="200"} 2
reconciler_deleted_entries_total{ip_family="IPv6"} 3
reconciler_sync_duration_seconds{ip_family="IPv4"} 1 times, 0.25 in all
reconciler_sync_duration_seconds{ip_family="IPv6"} 1 times, 0.25 in all`)

	m.Read(Readings{Reloads: func() (accepted, refused int) { return 2, 1 }})
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
