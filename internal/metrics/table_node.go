package metrics

import "github.com/sluice-proxy/sluice/internal/event"

// rejectedKinds are those of objects, and one for whatever else a problem names.
func rejectedKinds() []string { return append(event.Kinds(), kindOther) }

const kindOther = "other"

// nodeTable is what Sluice tells of itself and of its host.
func (m *Metrics) nodeTable() []family {
	mechanism := []string{"mechanism"}
	return []family{{
		name: "sluice_build_info", labels: []string{"version", "goversion"}, into: &m.build,
		help: "Always 1; the labels say what runs.",
	}, {
		name: "sluice_mode_info", labels: []string{"mode", "reason"}, into: &m.mode,
		help: "Always 1; the labels say which data plane was chosen, and why.",
	}, {
		name: "sluice_source_connected", into: reading{gauge, connected},
		help: "1 if the API server answers, or the files are followed.",
	}, {
		name: "sluice_config_reloads_total", labels: []string{"result"}, into: reading{counter, reloads},
		help: "Changed configuration files that took effect, or were refused, since the process started.",
	}, {
		name: "sluice_config_last_reload_timestamp_seconds", into: &m.reloaded,
		help: "When the configuration in force was read.",
	}, {
		name: "sluice_takeover_leftovers", labels: mechanism, into: reading{gauge, leftovers},
		help: "Rules of another service proxy that are still there.",
	}, {
		name: "sluice_takeover_removed_total", labels: mechanism, into: reading{counter, takenOver},
		help: "Rules of another service proxy that were removed.",
	}, {
		name: "sluice_kube_proxy_running", into: reading{gauge, kubeProxyRunning},
		help: "1 if a kube-proxy runs on this host, which writes rules of its own.",
	}, {
		name: "sluice_health_port_failures", into: reading{gauge, healthPortFailures},
		help: "Health check ports of Services that could not be opened.",
	}, {
		name: "sluice_host_settings_failed", into: reading{gauge, hostSettingsFailed},
		help: "Settings of the host that could not be made.",
	}}
}
