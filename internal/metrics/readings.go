package metrics

import (
	"cmp"
	"math"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/metrics/vec"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/reload"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/traffic"
)

// Readings are the values that each scrape reads.
type Readings struct {
	Totals    cluster.Totals
	Backlog   cluster.Window
	Sizes     sizes.Sizes
	Connected bool

	Reloads            reload.Count // of configuration files
	ConfigWarnings     int          // about the configuration in force
	Takeover           takeover.State
	HealthPortFailures int
	HostSettingsFailed int
	Ejections          uint64 // since the start
	Ejected            int    // now
	Direct             *plane.Direct

	DrainWaits int // that run now

	Contest proxy.Contest // another program keeps changing the rules
	Traffic Traffic
}

// Read sets the function that returns the Readings. It must be safe for concurrent use
// and return soon. Until it is set, their series do not exist.
func (m *Metrics) Read(from func() Readings) { m.read.Store(&from) }

// readings is the prometheus.Collector of all families that each scrape reads.
type readings struct {
	m        *Metrics
	families map[string]reading
}

type reading struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func (r *readings) add(d vec.Desc, kind string) {
	f := reading{prometheus.NewDesc(d.Name, d.Help, d.Labels, nil), prometheus.GaugeValue}
	if kind == "counter" {
		f.kind = prometheus.CounterValue
	}
	r.families[d.Name] = f
}

func (r *readings) Describe(out chan<- *prometheus.Desc) {
	for _, f := range r.families {
		out <- f.desc
	}
}

func (r *readings) Collect(out chan<- prometheus.Metric) {
	put := func(name string, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(r.families[name].desc, r.families[name].kind, value, labels...)
	}
	var now Readings
	read := r.m.read.Load()
	if read != nil {
		now = (*read)()
		r.m.collect(now, put)
	}
	queued := time.Unix(0, r.m.queued.Load())
	if !now.Backlog.Empty() {
		queued = now.Backlog.Last
	}
	for _, f := range r.m.opt.Families {
		put("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", seconds(queued), f.String())
	}
	left := math.Inf(1)
	if at := r.m.expiry.Load(); at != nil {
		left = time.Until(*at).Seconds()
	}
	put("rest_client_exec_plugin_ttl_seconds", left)
}

// collect calls put for each value of the Readings, except the metrics that do not need them.
func (m *Metrics) collect(r Readings, put func(name string, value float64, labels ...string)) {
	put("kubeproxy_sync_proxy_rules_endpoint_changes_total", float64(r.Totals.Slices))
	put("kubeproxy_sync_proxy_rules_service_changes_total", float64(r.Totals.Services))
	put("kubeproxy_sync_proxy_rules_endpoint_changes_pending", float64(r.Backlog.Slices))
	put("kubeproxy_sync_proxy_rules_service_changes_pending", float64(r.Backlog.Services))
	for _, f := range m.opt.Families {
		put("kubeproxy_sync_proxy_rules_no_local_endpoints_total",
			float64(r.Sizes.NoLocal(sizes.Internal, f)), "internal", f.String())
		put("kubeproxy_sync_proxy_rules_no_local_endpoints_total",
			float64(r.Sizes.NoLocal(sizes.External, f)), "external", f.String())
	}
	put("sluice_services", float64(r.Sizes.Services))
	put("sluice_endpoints", float64(r.Sizes.Backends))
	put("sluice_ejections_total", float64(r.Ejections))
	put("sluice_ejected_endpoints", float64(r.Ejected))
	put("sluice_hash_tables", float64(r.Sizes.Hashed))
	put("sluice_hash_tables_checksum", float64(r.Sizes.Tables))
	m.collectDirect(cmp.Or(r.Direct, &plane.Direct{}), put)
	put("sluice_source_connected", truth(r.Connected))
	put("sluice_config_reloads_total", float64(r.Reloads.Accepted), "ok")
	put("sluice_config_reloads_total", float64(r.Reloads.Refused), "refused")
	put("sluice_config_warnings", float64(r.ConfigWarnings))
	put("sluice_kube_proxy_running", truth(r.Takeover.KubeProxy != nil))
	for _, mechanism := range takeover.Mechanisms() {
		put("sluice_takeover_leftovers", float64(r.Takeover.Leftovers[mechanism]), string(mechanism))
		put("sluice_takeover_removed_total", float64(r.Takeover.Removed[mechanism]), string(mechanism))
	}
	put("sluice_health_port_failures", float64(r.HealthPortFailures))
	put("sluice_host_settings_failed", float64(r.HostSettingsFailed))
	put("sluice_drain_waits", float64(r.DrainWaits))
	program := "none"
	if r.Contest.Active() {
		program = cmp.Or(r.Contest.Program(), "unknown")
	}
	put("sluice_rules_contested", truth(r.Contest.Active()), program)
	r.Traffic.collect(put)
}

// collectDirect calls put for what concerns packets that are passed on to other nodes.
func (m *Metrics) collectDirect(d *plane.Direct, put func(name string, value float64, labels ...string)) {
	sum, _ := strconv.ParseUint(d.Checksum, 16, 32) // 0 without ports
	put("sluice_direct_ports", float64(d.Ports))
	put("sluice_direct_checksum", float64(sum))
	for _, f := range m.opt.Families {
		count := map[bool]int{}
		for _, p := range d.Peers {
			if p.Family == f.String() {
				count[p.Why == ""]++
			}
		}
		for _, reached := range []bool{true, false} {
			put("sluice_direct_nodes", float64(count[reached]), f.String(), strconv.FormatBool(reached))
		}
	}
}

func truth(is bool) float64 { return map[bool]float64{true: 1}[is] }

// seconds returns a time in seconds since 1970.
func seconds(at time.Time) float64 { return float64(at.UnixMicro()) / 1e6 }

// Traffic is what Services do.
type Traffic struct {
	Counted []traffic.Series // the busiest ports, and the others last
	Listing *traffic.Listing // of conntrack; nil: not known
}

// otherServices is the label of all Service ports without series of their own.
const otherServices = "other"

// countersOf returns the families of the counters of Services.
func countersOf() map[plane.Signal]string {
	return map[plane.Signal]string{
		plane.Connections: "sluice_service_connections_total",
		plane.Unanswered:  "sluice_service_unanswered_total",
		plane.Refusals:    "sluice_service_refused_total",
		plane.Failures:    "sluice_service_failures_total",
		plane.Received:    "sluice_service_received_bytes_total",
		plane.Sent:        "sluice_service_sent_bytes_total",
	}
}

// collect calls put for each value.
func (t Traffic) collect(put func(name string, value float64, labels ...string)) {
	families := countersOf()
	var named uint64 // live connections of ports with series
	for _, s := range t.Counted {
		labels := labelsOf(s)
		for signal, family := range families {
			if n, known := s.Counters[signal]; known {
				put(family, float64(n), labels...)
			}
		}
		if t.Listing != nil && s.Port != (route.PortID{}) {
			live := t.Listing.Ports[s.Port].Live
			named += live
			put("sluice_service_live_connections", float64(live), labels...)
		}
	}
	if t.Listing == nil {
		return
	}
	var all uint64
	var clients uint64
	for _, port := range t.Listing.Ports {
		all += port.Live
	}
	put("sluice_service_live_connections", float64(all-named), labelsOf(traffic.Series{})...)
	if len(t.Listing.Clients) > 0 {
		clients = t.Listing.Clients[0].Entries
	}
	_, services := t.Listing.Heaviest()
	put("sluice_conntrack_client_share", t.Listing.Share(clients))
	put("sluice_conntrack_service_share", t.Listing.Share(services))
}

// labelsOf returns namespace, service, port and protocol.
func labelsOf(s traffic.Series) []string {
	id := s.Port
	if id == (route.PortID{}) {
		return []string{"", otherServices, "", ""}
	}
	port := id.Name
	if port == "" && s.Number != 0 {
		port = strconv.Itoa(int(s.Number))
	}
	return []string{id.Service.Namespace, id.Service.Name, port, id.Protocol.String()}
}
