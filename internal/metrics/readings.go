package metrics

import (
	"cmp"
	_ "embed"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/event"
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

//go:embed metrics.txt
var metricsText string

// The sections of metrics.txt that are not on /metrics of every data plane.
const (
	partialSection = "[partial syncs]"
	sliSection     = "[slis]"
)

// register makes the families of metrics.txt and returns how many are on /metrics.
func (m *Metrics) register() int {
	n, section := 0, ""
	read := readings{m, map[string]reading{}}
	for line := range strings.Lines(metricsText) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
			continue
		case line[0] == '[':
			section = line
			continue
		case section == partialSection && !m.opt.PartialSyncs:
			continue
		}
		in := m.registry
		if section == sliSection {
			in = m.slis
		} else {
			n++
		}
		d, kind := m.parse(line)
		desc := prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
		switch kind {
		case "read counter":
			read.families[d.Name] = reading{desc, prometheus.CounterValue}
			continue
		case "read gauge":
			read.families[d.Name] = reading{desc, prometheus.GaugeValue}
			continue
		case "counter":
			m.families[d.Name] = d.Counter()
		case "gauge":
			m.families[d.Name] = d.Gauge()
		default:
			m.families[d.Name] = d.Histogram()
		}
		in.MustRegister(m.families[d.Name])
	}
	m.registry.MustRegister(&read)
	return n
}

// parse returns the family in a row of metrics.txt, and its type.
func (m *Metrics) parse(row string) (d vec.Desc, kind string) {
	columns := strings.Split(row, " | ")
	for i, c := range columns {
		columns[i] = strings.TrimSpace(c)
		if columns[i] == "-" {
			columns[i] = ""
		}
	}
	d = vec.Desc{Name: columns[0], Help: columns[4], Buckets: bucketsOf()[columns[3]], Series: seriesOf()[columns[0]]}
	if columns[2] != "" {
		d.Labels = strings.Split(columns[2], ",")
	}
	if columns[2] == vec.FamilyLabel {
		d = d.ByFamily(m.opt.Families)
	}
	return d, columns[1]
}

// seriesOf returns the label values of the series that exist from the start, at 0, by family.
func seriesOf() map[string][][]string {
	codes := vec.Each([]string{"200", "503"})
	return map[string][][]string{
		"kubeproxy_proxy_healthz_total": codes,
		"kubeproxy_proxy_livez_total":   codes,
		"sluice_comparisons_total":      vec.Each(words(proxy.Causes())),
		"sluice_repairs_total":          vec.Each(words(proxy.RepairCauses())),
		"sluice_objects_rejected_total": vec.Each(append(event.Kinds(), kindOther), words(event.Classes())),
	}
}

// kindOther is the kind of everything with problems that is not an object.
const kindOther = "other"

func words[T ~string](of []T) []string {
	var out []string
	for _, v := range of {
		out = append(out, string(v))
	}
	return out
}

func bucketsOf() map[string][]float64 {
	const minute, hour, day = 60, 3600, 86400
	return map[string][]float64{
		"durations": vec.Durations(),
		// kube-proxy's, for which Kubernetes has an objective
		"programming": slices.Concat(
			[]float64{0.25, 0.5},
			prometheus.LinearBuckets(1, 1, 59),
			prometheus.LinearBuckets(60, 5, 12),
			prometheus.LinearBuckets(120, 30, 7),
		),
		"steps": append([]float64{0}, prometheus.ExponentialBuckets(1, 4, 11)...),
		// Close to each other where most changes are, at 0.1 to 2 ms.
		"latency": slices.Concat(
			[]float64{0.0001, 0.00015, 0.0002, 0.00025, 0.0003, 0.0004, 0.0005, 0.0007, 0.001, 0.0015, 0.002},
			prometheus.ExponentialBuckets(0.004, 2, 15),
		),
		"waits": {0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60},
		"bytes": {64, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20},
		"ages": {
			10 * minute, 30 * minute, hour, 4 * hour, day, 7 * day,
			30 * day, 90 * day, 180 * day, 360 * day, 1440 * day,
		},
	}
}
