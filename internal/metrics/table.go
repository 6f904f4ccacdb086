package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/metrics/vec"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// table has every family of /metrics except those of the runtime and of the data
// plane.
func (m *Metrics) table() []family {
	return slices.Concat(
		m.proxyTable(), m.partialTable(), m.changeTable(), m.writeTable(), m.nodeTable(), m.clientTable(), m.kubernetesTable(),
	)
}

// programmingTimes are kube-proxy's, for which Kubernetes has an objective.
func programmingTimes() []float64 {
	return slices.Concat(
		[]float64{0.25, 0.5},
		prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7),
	)
}

// proxyTable has the families of every kube-proxy.
func (m *Metrics) proxyTable() []family {
	label, families := []string{vec.FamilyLabel}, vec.Each(vec.FamilyNames(m.opt.Families))
	code, codes := []string{"code"}, vec.Each([]string{"200", "503"})
	return []family{{
		name: "kubeproxy_sync_proxy_rules_duration_seconds", labels: label, series: families, buckets: vec.Durations(), into: &m.synced,
		help: "Time one write to the kernel takes, from taking the changes. One write is for both families.",
	}, {
		name: "kubeproxy_sync_proxy_rules_last_timestamp_seconds", labels: label, series: families, into: &m.last,
		help: "When a write last succeeded.",
	}, {
		name: "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", labels: label, into: reading{gauge, m.lastQueued},
		help: "When something to write last came in.",
	}, {
		name: "kubeproxy_network_programming_duration_seconds", labels: label, series: families, buckets: programmingTimes(), into: &m.programming,
		help: "Time from a change of endpoints, as the controller tells it, to the kernel having it. All are counted under the primary family.",
	}, {
		name: "kubeproxy_sync_proxy_rules_no_local_endpoints_total", labels: []string{"traffic_policy", "ip_family"}, into: reading{gauge, m.noLocal},
		help: "Service ports with the policy Local that have endpoints, but none here.",
	}, {
		name: "kubeproxy_proxy_healthz_total", labels: code, series: codes, into: &m.healthz,
		help: "Answers to /healthz.",
	}, {
		name: "kubeproxy_proxy_livez_total", labels: code, series: codes, into: &m.livez,
		help: "Answers to /livez.",
	}}
}

// partialTable has further families of kube-proxy in some modes.
func (m *Metrics) partialTable() []family {
	if !m.opt.PartialSyncs {
		return nil
	}
	label, families := []string{vec.FamilyLabel}, vec.Each(vec.FamilyNames(m.opt.Families))
	return []family{{
		name: "kubeproxy_sync_full_proxy_rules_duration_seconds", labels: label, series: families, buckets: vec.Durations(), into: &m.full,
		help: "Time of the writes that compare everything with the kernel.",
	}, {
		name: "kubeproxy_sync_partial_proxy_rules_duration_seconds", labels: label, series: families, buckets: vec.Durations(), into: &m.partial,
		help: "Time of the writes of changes alone.",
	}}
}

// changeTable has the families of incoming changes.
func (m *Metrics) changeTable() []family {
	return []family{{
		name: "kubeproxy_sync_proxy_rules_endpoint_changes_total", into: reading{counter, endpointChanges},
		help: "Changes of EndpointSlices that came in.",
	}, {
		name: "kubeproxy_sync_proxy_rules_endpoint_changes_pending", into: reading{gauge, endpointsPending},
		help: "Changes of EndpointSlices that are not in the kernel yet.",
	}, {
		name: "kubeproxy_sync_proxy_rules_service_changes_total", into: reading{counter, serviceChanges},
		help: "Changes of Services that came in.",
	}, {
		name: "kubeproxy_sync_proxy_rules_service_changes_pending", into: reading{gauge, servicesPending},
		help: "Changes of Services that are not in the kernel yet.",
	}}
}

// writeTable is what Sluice tells of its writes.
func (m *Metrics) writeTable() []family {
	cause := []string{"cause"}
	return []family{{
		name: "sluice_apply_steps", buckets: append([]float64{0}, prometheus.ExponentialBuckets(1, 4, 11)...), into: &m.steps,
		help: "Steps of one write, such as adding an entry.",
	}, {
		name: "sluice_event_to_kernel_duration_seconds", buckets: prometheus.ExponentialBuckets(0.0001, 2, 21), into: &m.latency,
		help: "Time from the first change of a write reaching this process to the kernel having it.",
	}, {
		name: "sluice_apply_failures_total", into: &m.failures,
		help: "Writes that failed.",
	}, {
		name: "sluice_comparisons_total", labels: cause, series: vec.Each(words(proxy.Causes())), into: &m.comparisons,
		help: "Writes that compared everything with the kernel, by why.",
	}, {
		name: "sluice_repairs_total", labels: cause, series: vec.Each(words(proxy.Mending())), into: &m.repairs,
		help: "Comparisons that found something wrong and mended it, by why they were made.",
	}, {
		name: "sluice_rules_contested", labels: []string{"program"}, into: reading{gauge, contested},
		help: "1 while another program keeps changing the rules, so that they are missing again and again; the label names it.",
	}, {
		name: "sluice_adopted_entries", into: &m.adopted,
		help: "Entries that the last comparison found in the kernel and left as they are.",
	}, {
		name: "sluice_services_refused", into: &m.refused,
		help: "Services that the kernel does not take, and that are tried again now and then, while all others are served.",
	}, {
		name: "sluice_services", into: reading{gauge, serviceCount},
		help: "Services that are programmed.",
	}, {
		name: "sluice_endpoints", into: reading{gauge, endpointCount},
		help: "Distinct backends of each Service that is programmed, summed up.",
	}, {
		name: "sluice_objects_rejected_total", labels: []string{"kind", "reason"}, series: vec.Each(rejectedKinds(), words(event.Classes())), into: &m.rejected,
		help: "Problems with objects; what each names was left out.",
	}}
}
