package metrics

import (
	"fmt"
	"net/http"
	"runtime"
)

// The version of kube-proxy whose behaviour this is. Alerts on components whose
// version differs from the cluster's read it.
const (
	kubernetesMajor = "1"
	kubernetesMinor = "37"
)

func (m *Metrics) constants(registered int) {
	o := m.opt
	m.gauge("sluice_build_info", o.Version, runtime.Version()).Set(1)
	m.gauge("sluice_mode_info", o.Mode, o.Reason).Set(1)
	version := fmt.Sprintf("v%s.%s.0+sluice-%s", kubernetesMajor, kubernetesMinor, o.Version)
	m.gauge("kubernetes_build_info", kubernetesMajor, kubernetesMinor, version, "", "", "",
		runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH).Set(1)
	for name, enabled := range o.Gates {
		m.gauge("kubernetes_feature_enabled", name, "").Set(truth(enabled))
	}
	m.counter("registered_metrics_total", "ALPHA", "").Add(float64(registered))
	m.gauge("sluice_config_last_reload_timestamp_seconds").Set(seconds(o.Started))
	m.gauge("process_start_time_seconds").Set(seconds(o.Started))
}

// Checked counts a health check, which always passes. kube-proxy has one, "ping" of "healthz", on the metrics port.
func (m *Metrics) Checked() {
	m.gauge("kubernetes_healthcheck", "ping", "healthz").Set(1)
	m.counter("kubernetes_healthchecks_total", "ping", "healthz", "success").Inc()
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
