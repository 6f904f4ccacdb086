package metrics

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
)

// Kubernetes is the version of kube-proxy whose behaviour this is. Alerts on components whose version differs from the
// cluster's read it.
const (
	Kubernetes = major + "." + minor

	major, minor = "1", "37"
)

// KubernetesVersion returns the version with that of Sluice as build metadata, which has no second + (semver.org, 10).
func KubernetesVersion(sluice string) string {
	return "v" + Kubernetes + ".0+sluice-" + strings.ReplaceAll(sluice, "+", ".")
}

func (m *Metrics) constants(registered int) {
	o := m.opt
	m.Set("sluice_build_info", 1, o.Version, runtime.Version())
	m.Set("sluice_mode_info", 1, o.Mode, o.Configured, o.Reason)
	m.Set("kubernetes_build_info", 1, major, minor, KubernetesVersion(o.Version), "", "", "",
		runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH)
	for name, enabled := range o.Gates {
		m.Set("kubernetes_feature_enabled", truth(enabled), name, "")
	}
	m.counter("registered_metrics_total", "ALPHA", "").Add(float64(registered))
	m.Set("sluice_config_last_reload_timestamp_seconds", seconds(o.Started))
	m.Set("process_start_time_seconds", seconds(o.Started))
}

// Checked counts a health check, which always passes. kube-proxy has one, "ping" of "healthz", on the metrics port.
func (m *Metrics) Checked() {
	m.Set("kubernetes_healthcheck", 1, "ping", "healthz")
	m.Count("kubernetes_healthchecks_total", "ping", "healthz", "success")
}

// SLIs serves /metrics/slis. DELETE removes the outcomes of all checks.
func (m *Metrics) SLIs() http.Handler {
	show := serve(m.slis)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete {
			show.ServeHTTP(w, r)
			return
		}
		for _, name := range []string{"kubernetes_healthcheck", "kubernetes_healthchecks_total"} {
			m.families[name].(interface{ Reset() }).Reset()
		}
		fmt.Fprintln(w, "metrics reset")
	})
}
